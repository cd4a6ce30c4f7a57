"""Global state that is left after training, as ranks report it. Imported by the ranks, so not in a test module."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

from torch import nn

from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.measure import train_here
from scaleproof.validator.strategy import train
from scaleproof.validator.strategy.base import Context, Trainer


def left_by_training(scenario: Scenario) -> dict[str, int]:
    """Of a rank that has trained and is there for other scenarios: whether the trainer is still there, how many of its
    parameters, and how many more threads than there were."""
    create, made = train.create, []

    def watched(context: Context, strategy: Any) -> Trainer:
        trainer = create(context, strategy)
        module = getattr(trainer, "module", nn.Module())
        made.extend([weakref.ref(trainer), *(weakref.ref(parameter) for parameter in module.parameters())])
        return trainer

    train.create = watched
    # torch has threads of its own, which it starts the first time
    train_here(scenario, None)
    made.clear()
    threads = threading.active_count()
    train_here(scenario, None)
    train.create = create
    # what one collection frees of torch's own objects may be the only references to others
    gc.collect()
    left = [reference() is not None for reference in made]
    return {"trainer": left[0], "parameters": sum(left[1:]), "threads": threading.active_count() - threads}
