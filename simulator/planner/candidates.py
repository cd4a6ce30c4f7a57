"""Candidates: all that a plan chooses from, hybrid configurations and those with servers, under one row number each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.engine import replay, simulate_steady
from simulator.estimate import Configurations, StepTimes, memory_bytes, step_times
from simulator.estimate.servers import ServerConfigurations, served_memory_bytes
from simulator.estimate.servers_times import served_step_times
from simulator.horizon import Simulate
from simulator.scenario import Scenario

Numbers = NDArray[np.int64]
Amounts = NDArray[np.float64]


@dataclass(frozen=True)
class Candidates:
    """of: by row, its number among the hybrid ones, behind which those with servers are numbered."""

    hybrid: Configurations
    served: ServerConfigurations
    of: Numbers

    @classmethod
    def all_of(cls, hybrid: Configurations, served: ServerConfigurations) -> Candidates:
        return cls(hybrid, served, np.arange(len(hybrid) + len(served)))

    def __len__(self) -> int:
        return len(self.of)

    def take(self, rows: Any) -> Candidates:
        """Some of them, in this order."""
        numbers, found = np.unique(self.of[rows], return_inverse=True)
        is_served = numbers >= len(self.hybrid)
        served = self.served.take(numbers[is_served] - len(self.hybrid))
        return Candidates(self.hybrid.take(numbers[~is_served]), served, found)

    def has_servers(self) -> NDArray[np.bool_]:
        """Which of them have servers."""
        return self.of >= len(self.hybrid)

    def is_served(self, row: int) -> bool:
        """Whether it has servers."""
        return bool(self.of[row] >= len(self.hybrid))

    def row(self, row: int) -> dict[str, Any]:
        """One of them, in the words that scenarios have."""
        part, number = self._part(row)
        return part.row(number)

    def scenario(self, row: int) -> Scenario:
        """The scenario of one. Raises FieldError where it is not valid after all."""
        part, number = self._part(row)
        return part.scenario(number)

    def _part(self, row: int) -> tuple[Configurations | ServerConfigurations, int]:
        number = int(self.of[row])
        return (self.served, number - len(self.hybrid)) if self.is_served(row) else (self.hybrid, number)

    @property
    def base(self) -> Scenario:
        """What all of them train."""
        return self.hybrid.space.scenario

    def on(self, scenario: Scenario) -> Candidates:
        """The same for another scenario."""
        hybrid = replace(self.hybrid, space=replace(self.hybrid.space, scenario=scenario))
        return replace(self, hybrid=hybrid, served=replace(self.served, space=replace(self.served.space, scenario=scenario)))

    def times(self) -> StepTimes:
        """What a step of each takes, and at least."""
        both = zip(step_times(self.hybrid), served_step_times(self.served), strict=True)
        return StepTimes(*(np.concatenate(one)[self.of] for one in both))

    def memory_bytes(self) -> Amounts:
        """What the fullest rank that trains holds in each."""
        held: Amounts = np.concatenate([memory_bytes(self.hybrid), served_memory_bytes(self.served)])[self.of]
        return held

    def nodes(self) -> Numbers:
        """Machines that each takes."""
        hybrid = self.hybrid
        ranks = hybrid.tensor * hybrid.context * hybrid.stages * hybrid.workers
        nodes: Numbers = np.concatenate([-(-ranks // self.base.cluster.node.devices), self.served.nodes()])[self.of]
        return nodes

    def simulate(self, row: int) -> Simulate:
        """What times one: replay; where there are servers, whose messages share links by their nature, as predictions do."""
        return simulate_steady if self.is_served(row) else replay.simulate
