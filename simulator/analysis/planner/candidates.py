"""Candidates: all that a plan chooses from, hybrid configurations of each framework, those with servers and those that are
refined, under one row number each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate import Configurations, StepTimes, memory_bytes, step_times
from scaleproof.simulator.analysis.planner.estimate.parameter_server.configurations import (
    ServerConfigurations,
    served_memory_bytes,
)
from scaleproof.simulator.analysis.planner.estimate.parameter_server.step_times import served_step_times
from scaleproof.simulator.cluster.quantities import slowed
from scaleproof.simulator.engine import replay, simulate_steady
from scaleproof.simulator.run.steps import Simulate
from scaleproof.simulator.scenario.schema import Scenario

Numbers = NDArray[np.int64]
Amounts = NDArray[np.float64]


Part = Configurations | ServerConfigurations


@dataclass(frozen=True)
class Candidates:
    """parts: hybrid configurations of each framework, those with servers, and refined ones. of: by row, its number among
    all of them."""

    parts: tuple[Part, ...]
    of: Numbers

    @classmethod
    def all_of(cls, *parts: Part) -> Candidates:
        """All configurations of some parts."""
        return cls(parts, np.arange(sum(map(len, parts))))

    def __len__(self) -> int:
        return len(self.of)

    @cached_property
    def _begins(self) -> Numbers:
        """The number of the first configuration of each part."""
        counts = np.array([len(part) for part in self.parts])
        begins: Numbers = np.cumsum(counts) - counts
        return begins

    def _part_of(self, numbers: Any) -> Numbers:
        """The part of each number; of parts that are empty none."""
        found: Numbers = np.searchsorted(np.cumsum([len(part) for part in self.parts]), numbers, side="right")
        return found

    def take(self, rows: Any) -> Candidates:
        """Some of them, in this order."""
        numbers, found = np.unique(self.of[rows], return_inverse=True)
        which = self._part_of(numbers)
        some = [part.take(numbers[which == i] - self._begins[i]) for i, part in enumerate(self.parts)]
        return Candidates(tuple(some), found)

    def has_servers(self) -> NDArray[np.bool_]:
        """Which of them have servers."""
        is_served = np.array([isinstance(part, ServerConfigurations) for part in self.parts])
        result: NDArray[np.bool_] = is_served[self._part_of(self.of)]
        return result

    def is_served(self, row: int) -> bool:
        """Whether it has servers."""
        return isinstance(self._part(row)[0], ServerConfigurations)

    def row(self, row: int) -> dict[str, Any]:
        """One of them, in the words that scenarios have."""
        part, number = self._part(row)
        return part.row(number)

    def scenario(self, row: int) -> Scenario:
        """The scenario of one. Raises FieldError where it is not valid after all."""
        part, number = self._part(row)
        return part.scenario(number)

    def _part(self, row: int) -> tuple[Part, int]:
        number = int(self.of[row])
        which = int(self._part_of(number))
        return self.parts[which], number - int(self._begins[which])

    @property
    def base(self) -> Scenario:
        """What all of them train."""
        return self.parts[0].space.scenario

    def slowed(self, slownesses: Mapping[str, float]) -> Candidates:
        """The same on a cluster that is slower in some quantities."""

        def slower(part: Part) -> Part:
            scenario = part.space.scenario
            changed = scenario.model_copy(update={"cluster": slowed(scenario.cluster, slownesses)})
            return replace(part, space=replace(part.space, scenario=changed))  # type: ignore[arg-type]

        return replace(self, parts=tuple(map(slower, self.parts)))

    def times(self) -> StepTimes:
        """What a step of each takes, and at least."""
        both = zip(*(_times(part) for part in self.parts), strict=True)
        return StepTimes(*(np.concatenate(one)[self.of] for one in both))

    def memory_bytes(self) -> Amounts:
        """What the fullest rank that trains holds in each."""
        held: Amounts = np.concatenate([_memory_bytes(part) for part in self.parts])[self.of]
        return held

    def nodes(self) -> Numbers:
        """Machines that each takes."""
        nodes: Numbers = np.concatenate([self._nodes(part) for part in self.parts])[self.of]
        return nodes

    def _nodes(self, part: Part) -> Numbers:
        if isinstance(part, ServerConfigurations):
            return part.nodes()
        ranks = part.tensor * part.context * part.stages * part.workers
        nodes: Numbers = -(-ranks // self.base.cluster.node.devices)
        return nodes

    def simulate(self, row: int) -> Simulate:
        """What times one: replay; where there are servers, whose messages share links by their nature, as predictions do."""
        return simulate_steady if self.is_served(row) else replay.simulate


def _times(part: Part) -> StepTimes:
    return served_step_times(part) if isinstance(part, ServerConfigurations) else step_times(part)


def _memory_bytes(part: Part) -> Amounts:
    return served_memory_bytes(part) if isinstance(part, ServerConfigurations) else memory_bytes(part)
