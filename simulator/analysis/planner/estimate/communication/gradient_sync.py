"""Seconds of sums of gradients, and of gathers of sharded states and parameters, for stages of a model on groups of ranks.

What a stage sums depends on how its layers are sharded and where buckets close: its pattern. How long that takes depends on the
group of ranks. Patterns and groups are handled once each, and a matrix product combines them.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.communication.transfer_times import TransferTimes
from scaleproof.simulator.cluster.collectives.algorithms import Group, Op
from scaleproof.simulator.strategy.data_parallel.gradient_sync import KEEPERS, RankLayers, SyncUnit
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.layout.mesh import DeviceMesh
from scaleproof.simulator.strategy.plan import Plan

Times = NDArray[np.float64]

# Fields of a pattern: all sums of a step's last pass, those of the unit whose gradients are complete last, gathers before a
# pass, the first of these, gathers after the step.
SUMS, LAST, GATHERS, OPENING, AFTER = range(5)

# Of collectives larger than the first of these powers of two, only powers and the largest are timed: in between, time is nearly
# linear in size.
_POWERS: Final = 27, 30
_LARGE_BYTES: Final = 2.0 ** _POWERS[0]

_Sizes = dict[tuple[str, float], int]


class Pattern(NamedTuple):
    """Collectives of the ranks that have a stage: for each field, counts by keepers and bytes. first: layers of the unit whose
    gradients are complete first. parameters: by keepers."""

    sums: _Sizes
    last: _Sizes
    gathers: _Sizes
    opening: _Sizes
    after: _Sizes
    first: range
    parameters: tuple[int, int]

    def sizes(self, field: int) -> _Sizes:
        """One of the first five fields, by index."""
        found: _Sizes = self[field]  # type: ignore[assignment]
        return found


def _pattern(rank_layers: RankLayers, plan: Plan, job: Job, stage: range) -> Pattern:
    """The pattern of a stage. job: with the ZeRO stage. `after` is filled in for all stages, but only 1 and 2 use it."""
    found, size = rank_layers.units(stage, plan, job)[::-1], job.reduced_bytes
    kept = [rank_layers.parameters(unit.layers) for unit in found]
    gathered, parameters = kept if job.zero == 3 else [], rank_layers.parameters(stage)
    sums = _summed(rank_layers, found, kept, size)
    last = sums if len(found) == 1 else _summed(rank_layers, found[-1:], kept[-1:], size)
    gathers, opening, after = (_sizes_of(each, job.gathered_bytes) for each in (gathered, gathered[-1:], [parameters]))
    return Pattern(sums, last, gathers, opening, after, found[0].layers, parameters)


def _summed(rank_layers: RankLayers, found: Sequence[SyncUnit], kept: Sequence[tuple[int, int]], size: int) -> _Sizes:
    """Buckets of units, and gradients of their experts."""
    filled = rank_layers.gradients.filled
    buckets = Counter([filled[end] - filled[begin] for unit in found for begin, end in itertools.pairwise(unit.bounds)])
    sizes = {("replicas", float(elements * size)): count for elements, count in buckets.items()}
    return sizes | _sizes_of([(0, experts) for _, experts in kept if experts], size)


def _sizes_of(parameters: Iterable[tuple[int, int]], size: int) -> _Sizes:
    sizes: _Sizes = {}
    for each in parameters:
        for name, count in zip(KEEPERS, each, strict=True):
            if count:
                sizes[name, float(count * size)] = sizes.get((name, float(count * size)), 0) + 1
    return sizes


class ShardSync:
    """Collectives of all patterns of layers that are sharded in one way, on all groups of ranks that share gradients.

    patterns: in the order of the numbers that `add` returns. rank_layers: the layers, by whether the first and the last
    stage are on different ranks.
    """

    def __init__(self, transfers: TransferTimes, algorithm: str | None) -> None:
        self._transfers, self._algorithm = transfers, algorithm
        self.patterns: list[Pattern] = []
        self.rank_layers: dict[bool, RankLayers] = {}
        self._groups: list[dict[str, tuple[Group, int]]] = []
        self._group_of: dict[object, int] = {}
        self._requested: dict[tuple[int, Op, str], list[int]] = {}
        self._known: dict[tuple[tuple[int, ...], str], list[float]] = {}
        self._all: dict[tuple[str, int], Times] = {}
        self._weights: dict[tuple[str, int], Times] = {}

    def add(self, ends_split: bool, plan: Plan, job: Job, stages: Sequence[range]) -> int:
        """Adds the patterns of consecutive stages, and returns the number of the first. ends_split: whether the first and the
        last stage of the model are on different ranks."""
        first = len(self.patterns)
        if ends_split not in self.rank_layers:
            self.rank_layers[ends_split] = RankLayers(job.layers, plan)
        self.patterns.extend(_pattern(self.rank_layers[ends_split], plan, job, stage) for stage in stages)
        return first

    def group(self, grid: DeviceMesh, expert: int, expert_tensor: int | None) -> int:
        """Returns the number of a set of groups of ranks. expert, expert_tensor: as in `Plan`."""
        strides = grid.stride("tensor"), grid.stride("context"), grid.stride("workers")
        key = grid.tensor, grid.context, grid.workers, expert, expert_tensor, strides
        if key not in self._group_of:
            self._group_of[key] = len(self._groups)
            concurrent = grid.beside([grid.rank(0, 0) + i * grid.stride("tensor") for i in range(grid.tensor)])
            groups = {"replicas": (grid.replicas_of(0), concurrent)}
            if expert > 1 or (expert_tensor or grid.tensor) < grid.tensor:
                groups["experts"] = _expert_replicas(grid, expert, expert_tensor)
            self._groups.append(groups)
        return self._group_of[key]

    def request(self, group: int, op: Op) -> None:
        """Requests times of an operation on a group, for the sizes of all patterns. All patterns must have been added."""
        for keepers, (ranks, concurrent) in self._groups[group].items():
            algorithm = self._algorithm if op == "all_reduce" else None
            timed_bytes = self._timed_sizes(op, keepers)
            self._requested[group, op, keepers] = self._transfers.collectives(op, ranks, timed_bytes, concurrent, algorithm)

    def _timed_sizes(self, op: Op, keepers: str) -> list[float]:
        """Sizes in bytes to time, from which the times of all patterns are interpolated."""
        key = _fields(op), keepers
        if key not in self._known:
            sizes_bytes = np.concatenate([self._collectives_of(keepers, field)[1] for field in _fields(op)])
            self._known[key] = _timed_sizes(np.unique(sizes_bytes).tolist())
        return self._known[key]

    def _collectives_of(self, keepers: str, field: int) -> Times:
        """Collectives of all patterns in a field: pattern, bytes, count; shape (3, collectives)."""
        if (keepers, field) not in self._all:
            found = [
                (row, size, count)
                for row, each in enumerate(self.patterns)
                for (name, size), count in each.sizes(field).items()
                if name == keepers
            ]
            self._all[keepers, field] = np.array(found).reshape(len(found), 3).T
        return self._all[keepers, field]

    def seconds(self, groups: Sequence[int], op: Op, fields: Sequence[int], transfers_s: Times) -> Times:
        """Seconds of each pattern's fields on each group, shape (fields, groups, patterns)."""
        total: Times = np.zeros((len(fields), len(groups), len(self.patterns)))
        for keepers in KEEPERS:
            if self._timed_sizes(op, keepers):
                timed_s = transfers_s[[self._requested[group, op, keepers] for group in groups]]
                for one, field in zip(total, fields, strict=True):
                    one += timed_s @ self._counts(op, keepers, field)
        return total

    def _counts(self, op: Op, keepers: str, field: int) -> Times:
        """Weights of the timed sizes that add up to the collectives in each pattern's field, shape (sizes, patterns): a size
        between two timed ones is divided between these."""
        if (keepers, field) not in self._weights:
            timed_bytes = self._timed_sizes(op, keepers)
            rows, sizes_bytes, counts = self._collectives_of(keepers, field)
            place = np.interp(sizes_bytes, timed_bytes, np.arange(len(timed_bytes)))
            below, row = place.astype(np.int64), rows.astype(np.int64)
            count = np.zeros((len(timed_bytes) + 1, len(self.patterns)))
            np.add.at(count, (below, row), counts * (below + 1 - place))
            np.add.at(count, (below + 1, row), counts * (place - below))
            self._weights[keepers, field] = count[:-1]
        return self._weights[keepers, field]


def _expert_replicas(grid: DeviceMesh, expert: int, expert_tensor: int | None) -> tuple[Group, int]:
    """The ranks with the first part of the experts, and the number of such groups on the same nodes."""
    ranks, *_ = grid.expert_replicas(0, expert, expert_tensor)
    stage = grid.experts(expert, expert_tensor)[0]
    on_node = stage // grid.devices == ranks[0] // grid.devices
    return Group.of(ranks, grid.devices), int(on_node.sum()) // grid.beside(ranks)


def _fields(op: Op) -> tuple[int, ...]:
    """Fields with the collectives of an operation."""
    return (GATHERS, AFTER) if op == "all_gather" else (SUMS,)


def _timed_sizes(sizes: Sequence[float]) -> list[float]:
    """Sizes to time, from which the times of some sizes in ascending order are interpolated."""
    few = [size for size in sizes if size < _LARGE_BYTES]
    if len(few) == len(sizes):
        return few
    powers = (2.0**power for power in range(_POWERS[0], _POWERS[1] + 1))
    return [*few, *(size for size in powers if size < sizes[-1]), sizes[-1]]
