"""All configurations that a plan chooses from, with one row number each: hybrid ones of each framework, those with parameter
servers, and refined ones."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
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
from scaleproof.simulator.uncertainty.linear_response import LinearResponse, linear_response

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
    """Configurations of several parts, whose rows are numbered one part after another."""

    parts: tuple[Part, ...]

    @cached_property
    def _begins(self) -> Numbers:
        """The first row of each part, and the number of all rows."""
        return np.cumsum([0, *map(len, self.parts)])

    def __len__(self) -> int:
        return int(self._begins[-1])

    def _by_part(self, rows: Numbers) -> Iterator[tuple[Numbers, Part, Numbers]]:
        """For each part that has some of the rows: their indices, the part, and their rows in it."""
        part_of = np.searchsorted(self._begins, rows, side="right") - 1
        for number in np.unique(part_of).tolist():
            at = np.flatnonzero(part_of == number)
            yield at, self.parts[number], rows[at] - self._begins[number]

    def _locate(self, row: int) -> tuple[Part, int]:
        """The part that has a row, and its row in it."""
        ((_, part, (number,)),) = self._by_part(np.array([row]))
        return part, int(number)

    def has_servers(self) -> NDArray[np.bool_]:
        """Whether each row has parameter servers, shape (rows,)."""
        is_served = [isinstance(part, ServerConfigurations) for part in self.parts]
        return np.repeat(is_served, [len(part) for part in self.parts])

    def row(self, row: int) -> dict[str, Any]:
        """The configuration of a row, by the names of scenario fields."""
        part, number = self._locate(row)
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
            columns = tuple(getattr(part, name) for name in MODEL_PARALLEL)
            degrees: Numbers = np.ravel_multi_index(columns, (_MOST_DEGREES,) * len(MODEL_PARALLEL))
            return degrees

        return np.concatenate([of(part) for part in self.parts])

    def first_of_degrees(self, rows: Numbers) -> list[int]:
        """The first of the rows of each combination of degrees of model parallelism, in the order of the rows."""
        _, first = np.unique(self.degrees[rows], return_index=True)
        result: list[int] = rows[np.sort(first)].tolist()
        return result

    def scenario(self, row: int) -> Scenario:
        """The scenario of a row. Raises FieldError where it is not valid."""
        part, number = self._locate(row)
        return part.scenario(number)

    @property
    def base(self) -> Scenario:
        """The scenario that the configurations vary."""
        return self.parts[0].space.scenario

    def response(self, rows: Numbers) -> LinearResponse:
        """The response of the estimated step times of some rows to uncertain quantities, from estimates on slower clusters."""
        cluster = self.base.cluster

        def slower_s(slowdowns: dict[str, float]) -> Amounts:
            return self.times(rows, slowed(cluster, slowdowns)).expected_s

        case = case_of_scenario(self.base)
        return linear_response(self.times(rows).expected_s, slower_s, uncertain(cluster), cluster, case)

    def times(self, rows: Numbers, cluster: Cluster | None = None) -> StepTimes:
        """Estimated seconds of a step, and its lower bound, of some rows. cluster: in place of their own."""
        expected_s, least_s = np.empty((2, len(rows)))
        for at, part, numbers in self._by_part(rows):
            some = part.take(numbers) if cluster is None else _on(part.take(numbers), cluster)
            expected_s[at], least_s[at] = some.step_times() if isinstance(some, ServerConfigurations) else step_times(some)
        return StepTimes(expected_s, least_s)

    def memory_bytes(self) -> Amounts:
        """Bytes of the training rank with the most memory, by row."""
        parts = (part.memory_bytes() if isinstance(part, ServerConfigurations) else memory_bytes(part) for part in self.parts)
        return np.concatenate([np.empty(0), *parts])

    def fully_recomputed(self) -> Numbers:
        """For each row, the one with full recomputation that is otherwise equal; the row itself without such a row."""
        rows = np.arange(len(self))
        for begin, part in zip(self._begins.tolist(), self.parts, strict=False):
            if isinstance(part, Configurations):
                own = rows[begin : begin + len(part)]
                own[:] = np.where(part.fully_recomputed >= 0, begin + part.fully_recomputed, own)
        return rows

    def nodes(self) -> Numbers:
        """Number of nodes that each row needs."""
        return np.concatenate([part.nodes() for part in self.parts])


def _on(part: Part, cluster: Cluster) -> Part:
    """The same configurations on another cluster."""
    scenario = part.space.scenario.model_copy(update={"cluster": cluster})
    return replace(part, space=replace(part.space, scenario=scenario))  # type: ignore[arg-type]
