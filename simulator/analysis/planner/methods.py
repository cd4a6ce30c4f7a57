"""Methods of fine-tuning that a plan compares: all parameters, or adapters next to frozen ones of full or fewer bits."""

from __future__ import annotations

from typing import Final

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.model.adapters import Adapters
from scaleproof.simulator.scenario.aliases import ADAPTER_RANK, ADAPTERS
from scaleproof.simulator.scenario.schema import Scenario

ALL_PARAMETERS: Final = "none"
METHODS: Final = (ALL_PARAMETERS, *ADAPTERS)


def own_method(scenario: Scenario) -> str:
    """The method of a scenario."""
    training = scenario.training
    if training.adapters is None:
        return ALL_PARAMETERS
    names = (name for name, own in ADAPTERS.items() if own == (training.adapters.kind, training.base_precision))
    return next(names, training.adapters.kind)


def trained_by(scenario: Scenario, method: str) -> Scenario:
    """The scenario with another method; its own adapters are kept where they are of that kind. Raises InputError."""
    if method not in METHODS:
        raise InputError(f"--adapters {method}: give some of {','.join(METHODS)}")
    if method == own_method(scenario):
        return scenario
    own, (kind, base) = scenario.training.adapters, ADAPTERS.get(method, (None, None))
    given = own if kind is None or (own is not None and own.kind == kind) else Adapters(kind=kind, rank=ADAPTER_RANK)
    changed = {"adapters": None if kind is None else given, "base_precision": base, "freeze": ()}
    return scenario.rebuilt(training=scenario.training.model_copy(update=changed))
