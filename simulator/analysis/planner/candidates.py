"""All configurations that a plan chooses from, with one row number each: hybrid ones of each framework, those with parameter
servers, and refined ones."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate import Configurations, StepTimes, memory_bytes, step_times
from scaleproof.simulator.analysis.planner.estimate.parameter_servers import ServerConfigurations
from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.quantities import slowed, uncertain
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.uncertainty.error_model import case_of_scenario
from scaleproof.simulator.uncertainty.prediction_interval import LinearResponse, linear_response

Numbers = NDArray[np.int64]
Amounts = NDArray[np.float64]
Part = Configurations | ServerConfigurations

# Names of the degrees of model parallelism.
MODEL_PARALLEL: Final = ("tensor", "context", "expert", "stages")
# More than any degree of parallelism.
_MOST_DEGREES: Final = 2**15
# Names of choices by which configurations differ little.
_MINOR: Final = ("bucket_bytes", "order")


@dataclass(frozen=True)
class Candidates:
    """Rows of configurations from several parts.

    parts: hybrid configurations of each framework, those with servers, and refined ones. numbers: by row, the number of its
    configuration in the concatenated parts.
    """

    parts: tuple[Part, ...]
    numbers: Numbers

    @classmethod
    def all_of(cls, *parts: Part) -> Candidates:
        """One row for each configuration of some parts."""
        return cls(parts, np.arange(sum(map(len, parts))))

    def __len__(self) -> int:
        return len(self.numbers)

    @cached_property
    def _begins(self) -> Numbers:
        """The number of the first configuration of each part."""
        counts = np.array([len(part) for part in self.parts])
        begins: Numbers = np.cumsum(counts) - counts
        return begins

    def _part_of(self, numbers: Any) -> Numbers:
        """The index of the part of each number."""
        parts: Numbers = np.searchsorted(np.cumsum([len(part) for part in self.parts]), numbers, side="right")
        return parts

    def take(self, rows: Any) -> Candidates:
        """Some of the rows, in this order."""
        numbers, new_numbers = np.unique(self.numbers[rows], return_inverse=True)
        part_of = self._part_of(numbers)
        parts = [part.take(numbers[part_of == i] - self._begins[i]) for i, part in enumerate(self.parts)]
        return Candidates(tuple(parts), new_numbers)

    def has_servers(self) -> NDArray[np.bool_]:
        """Whether each row has parameter servers, shape (rows,)."""
        is_served = np.array([isinstance(part, ServerConfigurations) for part in self.parts])
        result: NDArray[np.bool_] = is_served[self._part_of(self.numbers)]
        return result

    def is_served(self, row: int) -> bool:
        """Whether a row has parameter servers."""
        return isinstance(self._part(row)[0], ServerConfigurations)

    def row(self, row: int) -> dict[str, Any]:
        """The configuration of a row, by the names of scenario fields."""
        part, number = self._part(row)
        return part.row(number)

    def kind(self, row: int) -> Hashable:
        """A key that configurations share if they differ in bucket size or rank order alone."""
        values = self.row(row)
        return tuple((name, values[name]) for name in values if name not in _MINOR)

    @cached_property
    def degrees(self) -> Numbers:
        """A number for each combination of degrees of model parallelism, by row; zero with parameter servers."""

        def of(part: Part) -> Numbers:
            if isinstance(part, ServerConfigurations):
                return np.zeros(len(part), dtype=np.int64)
            result: Numbers = np.ravel_multi_index(
                tuple(getattr(part, name) for name in MODEL_PARALLEL), (_MOST_DEGREES,) * len(MODEL_PARALLEL)
            )
            return result

        degrees: Numbers = np.concatenate([of(part) for part in self.parts])[self.numbers]
        return degrees

    def first_of_degrees(self, rows: Numbers) -> list[int]:
        """The first of the rows of each combination of degrees of model parallelism, in the order of the rows."""
        _, first = np.unique(self.degrees[rows], return_index=True)
        result: list[int] = rows[np.sort(first)].tolist()
        return result

    def scenario(self, row: int) -> Scenario:
        """The scenario of a row. Raises FieldError where it is not valid."""
        part, number = self._part(row)
        return part.scenario(number)

    def _part(self, row: int) -> tuple[Part, int]:
        number = int(self.numbers[row])
        index = int(self._part_of(number))
        return self.parts[index], number - int(self._begins[index])

    @property
    def base(self) -> Scenario:
        """The scenario that the configurations vary."""
        return self.parts[0].space.scenario

    def response(self) -> LinearResponse:
        """The response of the estimated step times to uncertain quantities, from estimates on slower clusters."""
        cluster = self.base.cluster

        def slower_s(slowdowns: dict[str, float]) -> Amounts:
            return self._on(slowed(cluster, slowdowns)).times().expected_s

        case = case_of_scenario(self.base)
        return linear_response(self.times().expected_s, slower_s, uncertain(cluster), cluster, case)

    def _on(self, cluster: Cluster) -> Candidates:
        """The same configurations on another cluster."""

        def on(part: Part) -> Part:
            scenario = part.space.scenario.model_copy(update={"cluster": cluster})
            return replace(part, space=replace(part.space, scenario=scenario))  # type: ignore[arg-type]

        return replace(self, parts=tuple(map(on, self.parts)))

    def times(self) -> StepTimes:
        """Estimated seconds of a step, and its lower bound, by row."""
        found = (part.step_times() if isinstance(part, ServerConfigurations) else step_times(part) for part in self.parts)
        return StepTimes(*(np.concatenate(column)[self.numbers] for column in zip(*found, strict=True)))

    def memory_bytes(self) -> Amounts:
        """Estimated bytes of the training rank with the most memory, by row."""
        found = [part.memory_bytes() if isinstance(part, ServerConfigurations) else memory_bytes(part) for part in self.parts]
        memory: Amounts = np.concatenate(found)[self.numbers]
        return memory

    def nodes(self) -> Numbers:
        """Number of nodes that each row needs."""
        nodes: Numbers = np.concatenate([part.nodes() for part in self.parts])[self.numbers]
        return nodes
