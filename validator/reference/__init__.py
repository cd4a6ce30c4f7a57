"""What one process comes to that follows the same rule as the ranks did: by it a measured run shows that it trained rightly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from simulator.scenario import Scenario
from validator.reference import plain

# Of a scenario and what each rank told of its training beside that (`Trainer.notes`, in rank order): the parameters that ranks
# should have come to, as 'layer number.name'.
Train = Callable[[Scenario, Sequence[Mapping[str, Any]]], Mapping[str, Tensor]]


class Rule(NamedTuple):
    """What the ranks' training should equal, in words and computed."""

    words: str
    train: Train


def rule_of(scenario: Scenario) -> Rule:
    """The rule that a scenario's ranks follow."""
    return Rule("one process on the whole batch", plain.train)
