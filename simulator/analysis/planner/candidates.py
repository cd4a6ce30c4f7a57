"""All configurations that a plan chooses from, with one row number each: hybrid ones of each framework, those with parameter
servers, and refined ones."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.arrangements import node_words
from scaleproof.simulator.analysis.planner.estimate import (
    Configurations,
    MixedConfigurations,
    StepTimes,
    memory_bytes,
    step_times,
)
from scaleproof.simulator.analysis.planner.estimate.configurations import COLUMNS
from scaleproof.simulator.analysis.planner.estimate.parameter_servers import ServerConfigurations
from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.quantities import slowed, uncertain
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.uncertainty.error_model import case_of_scenario
from scaleproof.simulator.uncertainty.linear_response import LinearResponse, linear_response

Numbers = NDArray[np.int64]
Amounts = NDArray[np.float64]
Part = Configurations | ServerConfigurations | MixedConfigurations

# Names of the degrees of model parallelism.
MODEL_PARALLEL: Final = ("tensor", "context", "expert", "stages")
# More than any degree of parallelism.
_MOST_DEGREES: Final = 2**15
# Names of choices by which configurations differ little.
_MINOR: Final = ("bucket_bytes", "order", "shares", "blocks", "dispatcher", "overlap_shared_experts")


@dataclass(frozen=True)
class Candidates:
    """Configurations of several parts, whose rows are numbered one part after another. cluster: that all use, if its nodes
    differ, so that parts are on some of them."""

    parts: tuple[Part, ...]
    cluster: Cluster | None = None

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
        nodes = {} if self.cluster is None else {"nodes": node_words(_used(part))}
        return part.row(number) | nodes

    def kind(self, row: int) -> Hashable:
        """A key that configurations share if they differ in bucket size, rank order, what sends tokens to experts, or how
        unequal devices share samples or blocks alone."""
        values = self.row(row)
        minor = (*_MINOR, "samples") if "shares" in values else _MINOR
        return tuple((name, values[name]) for name in values if name not in minor)

    @cached_property
    def degrees(self) -> Numbers:
        """A number for each combination of degrees of model parallelism, by row; zero with parameter servers."""

        def of(part: Part) -> Numbers:
            if isinstance(part, ServerConfigurations):
                return np.zeros(len(part), dtype=np.int64)
            table = part.table if isinstance(part, MixedConfigurations) else part
            columns = tuple(getattr(table, name) for name in MODEL_PARALLEL)
            degrees: Numbers = np.ravel_multi_index(columns, (_MOST_DEGREES,) * len(MODEL_PARALLEL))
            return degrees

        return np.concatenate([of(part) for part in self.parts])

    def first_of_degrees(self, rows: Numbers) -> list[int]:
        """The first of the rows of each combination of degrees of model parallelism, in the order of the rows."""
        return _first_of(self.degrees, rows)

    def first_of_nodes(self, rows: Numbers) -> list[int]:
        """The first of the rows of each selection of nodes, in the order of the rows; none where all nodes are equal."""
        return [] if self.cluster is None else _first_of(self.nodes_used, rows)

    def scenario(self, row: int) -> Scenario:
        """The scenario of a row. Raises FieldError where it is not valid."""
        part, number = self._locate(row)
        return part.scenario(number)

    @property
    def base(self) -> Scenario:
        """The scenario that the configurations vary."""
        scenario = self.parts[0].space.scenario
        return scenario if self.cluster is None else scenario.model_copy(update={"cluster": self.cluster})

    def response(self, rows: Numbers) -> LinearResponse:
        """The response of the estimated step times of some rows to uncertain quantities, from estimates on slower clusters."""
        cluster = self.base.cluster

        def slower_s(slowdowns: dict[str, float]) -> Amounts:
            return self.times(rows, slowdowns).expected_s

        case = case_of_scenario(self.base)
        return linear_response(self.times(rows).expected_s, slower_s, uncertain(cluster), cluster, case)

    def times(self, rows: Numbers, slowdowns: Mapping[str, float] | None = None) -> StepTimes:
        """Estimated seconds of a step, and its lower bound, of some rows. slowdowns: of quantities of their clusters."""
        expected_s, least_s = np.empty((2, len(rows)))
        for at, part, numbers in self._by_part(rows):
            some = part.take(numbers)
            some = some if slowdowns is None else _on(some, slowed(some.space.scenario.cluster, slowdowns))
            expected_s[at], least_s[at] = step_times(some) if isinstance(some, Configurations) else some.step_times()
        return StepTimes(expected_s, least_s)

    def memory_bytes(self) -> Amounts:
        """Bytes of the training rank with the most memory, by row; where nodes differ, of that which needs the largest share of
        its device, if all devices had the capacity of the cluster's first kind."""
        parts, known = [np.empty(0)], list[tuple[Configurations, Amounts]]()
        for part in self.parts:
            if isinstance(part, Configurations):
                own_bytes = next((found for other, found in known if _have_equal_memory(part, other)), None)
                own_bytes = memory_bytes(part) if own_bytes is None else own_bytes
                known += [(part, own_bytes)] if part.space.tried else []
            else:
                own_bytes = part.memory_bytes()
            if self.cluster is not None:
                own_bytes = own_bytes * self.cluster.device.capacity_bytes / _used(part).device.capacity_bytes
            parts.append(own_bytes)
        return np.concatenate(parts)

    @cached_property
    def nodes_used(self) -> Numbers:
        """A number for each selection of nodes, by row; zero where all nodes are equal."""
        known: dict[str, int] = {}
        words = ("" if self.cluster is None else node_words(_used(part)) for part in self.parts)
        return np.repeat([known.setdefault(one, len(known)) for one in words], [len(part) for part in self.parts])

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


def _first_of(codes: Numbers, rows: Numbers) -> list[int]:
    """The first of the rows with each code, in the order of the rows."""
    _, first = np.unique(codes[rows], return_index=True)
    result: list[int] = rows[np.sort(first)].tolist()
    return result


def _have_equal_memory(one: Configurations, other: Configurations) -> bool:
    """Whether configurations differ in how tokens are sent to experts alone, and receive as many copies of them."""
    if len(one) != len(other) or one.space.scenario is not other.space.scenario:
        return False
    received = [space.tried["dispatcher"] == "alltoall" for space in (one.space, other.space)]
    columns = (np.array_equal(getattr(one, name), getattr(other, name)) for name in COLUMNS)
    return received[0] == received[1] and all(columns)


def _used(part: Part) -> Cluster:
    """The nodes that a part's configurations are on."""
    return part.space.scenario.cluster


def _on(part: Part, cluster: Cluster) -> Part:
    """The same configurations on another cluster."""
    if isinstance(part, MixedConfigurations):
        return part.on(cluster)
    scenario = part.space.scenario.model_copy(update={"cluster": cluster})
    return replace(part, space=replace(part.space, scenario=scenario))  # type: ignore[arg-type]
