"""A measured run to which constants are fitted: its scenario and its step time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario

_TENSOR: Final = "strategy.tensor"
_SEQUENCE: Final = "strategy.sequence_parallel"


@dataclass(frozen=True)
class ObservedRun:
    """A measured run. place: "FILE:LINE", the folder or the log that it comes from. memory_bytes: of the fullest rank."""

    place: str
    scenario: Scenario
    step_time_s: float
    memory_bytes: float | None = None

    @property
    def gpus(self) -> int:
        """Number of training ranks."""
        return self.scenario.strategy.training_ranks


def run_scenario(reference: str, overrides: Sequence[str], given: Mapping[str, object]) -> Scenario:
    """The scenario of a run. given: fields that the run states; without tensor parallelism there is no sequence parallelism.

    Raises ScenarioError or InputError.
    """
    texts = [f"{field}={value}" for field, value in given.items()]
    if str(given.get(_TENSOR)) == "1" and _SEQUENCE not in given:
        texts.append(f"{_SEQUENCE}=false")
    return load(reference, [*overrides, *texts])


def checked_step_s(step_time_s: float, place: str) -> float:
    """The step time in seconds. Raises InputError, which names its place, unless it is above zero."""
    if not 0 < step_time_s < math.inf:
        raise InputError(f"{place}: a step time of {step_time_s:g} s; give a time above zero, or remove the run")
    return step_time_s
