"""Agreements: how long gradients are summed, states and parameters shared out and gathered.

What a stage of the model sums depends on how its layers are divided and where buckets close: its pattern. How long that takes
depends on the group of ranks that sum. Each is worked out once, and a product of both gives all combinations.
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

# What a pattern tells: all sums of a step's last pass, those of the unit whose gradients come last, gathers before a pass, the
# first of these, gathers after the step.
SUMS, LAST, GATHERS, OPENING, AFTER = range(5)

# Of larger collectives powers of two are asked for, and the largest: between them time is near to a line.
_POWERS: Final = 27, 30
_LARGE_BYTES: Final = 2.0 ** _POWERS[0]

_Sizes = dict[tuple[str, float], int]


class Pattern(NamedTuple):
    """What ranks with a stage of the model sum and gather: bytes by keepers, and how often. first: layers of the unit whose
    gradients come first. parameters: by keepers."""

    sums: _Sizes
    last: _Sizes
    gathers: _Sizes
    opening: _Sizes
    after: _Sizes
    first: range
    parameters: tuple[int, int]

    def sizes(self, field: int) -> _Sizes:
        """One of the first five."""
        found: _Sizes = self[field]  # type: ignore[assignment]
        return found


def _pattern(held: RankLayers, plan: Plan, job: Job, stage: range) -> Pattern:
    """Of a stage of the model. job: with the ZeRO stage; of 1 and 2 `after` is told, which others leave out."""
    found, size = held.units(stage, plan, job)[::-1], job.reduced_bytes
    kept = [held.parameters(unit.layers) for unit in found]
    gathered, parameters = kept if job.zero == 3 else [], held.parameters(stage)
    sums = _summed(held, found, kept, size)
    last = sums if len(found) == 1 else _summed(held, found[-1:], kept[-1:], size)
    gathers, opening, after = (_given(each, job.gathered_bytes) for each in (gathered, gathered[-1:], [parameters]))
    return Pattern(sums, last, gathers, opening, after, found[0].layers, parameters)


def _summed(held: RankLayers, found: Sequence[SyncUnit], kept: Sequence[tuple[int, int]], size: int) -> _Sizes:
    """Buckets of units, and gradients of their experts."""
    filled = held.gradients.filled
    buckets = Counter([filled[end] - filled[begin] for unit in found for begin, end in itertools.pairwise(unit.bounds)])
    sizes = {("replicas", float(elements * size)): often for elements, often in buckets.items()}
    return sizes | _given([(0, experts) for _, experts in kept if experts], size)


def _given(parameters: Iterable[tuple[int, int]], size: int) -> _Sizes:
    sizes: _Sizes = {}
    for each in parameters:
        for name, count in zip(KEEPERS, each, strict=True):
            if count:
                sizes[name, float(count * size)] = sizes.get((name, float(count * size)), 0) + 1
    return sizes


class Agreeing:
    """What all patterns of layers that are divided alike take on all groups of ranks that share them.

    patterns: in the order in which `add` gave their numbers. held: the layers, by whether first and last are apart.
    """

    def __init__(self, wires: TransferTimes, algorithm: str | None) -> None:
        self._wires, self._algorithm = wires, algorithm
        self.patterns: list[Pattern] = []
        self.held: dict[bool, RankLayers] = {}
        self._groups: list[dict[str, tuple[Group, int]]] = []
        self._group_of: dict[object, int] = {}
        self._asked: dict[tuple[int, Op, str], list[int]] = {}
        self._known: dict[tuple[tuple[int, ...], str], list[float]] = {}
        self._all: dict[tuple[str, int], Times] = {}
        self._often: dict[tuple[str, int], Times] = {}

    def add(self, is_apart: bool, plan: Plan, job: Job, stages: Sequence[range]) -> int:
        """The number of the first of the patterns of stages, which follow one another. is_apart: whether the first and the last
        of the model are on different ranks."""
        first = len(self.patterns)
        if is_apart not in self.held:
            self.held[is_apart] = RankLayers(job.layers, plan)
        self.patterns.extend(_pattern(self.held[is_apart], plan, job, stage) for stage in stages)
        return first

    def group(self, grid: DeviceMesh, expert: int, expert_tensor: int | None) -> int:
        """The number of the groups that ranks are in. expert, expert_tensor: as in `Plan`."""
        strides = grid.stride("tensor"), grid.stride("context"), grid.stride("workers")
        key = grid.tensor, grid.context, grid.workers, expert, expert_tensor, strides
        if key not in self._group_of:
            self._group_of[key] = len(self._groups)
            beside = grid.beside([grid.rank(0, 0) + i * grid.stride("tensor") for i in range(grid.tensor)])
            groups = {"replicas": (grid.replicas_of(0), beside)}
            if expert > 1 or (expert_tensor or grid.tensor) < grid.tensor:
                groups["experts"] = _expert_replicas(grid, expert, expert_tensor)
            self._groups.append(groups)
        return self._group_of[key]

    def ask(self, group: int, op: Op) -> None:
        """Asks for all patterns' sums or gathers on a group. All patterns have been added."""
        for keepers, (ranks, beside) in self._groups[group].items():
            algorithm = self._algorithm if op == "all_reduce" else None
            told_bytes = self._told(op, keepers)
            self._asked[group, op, keepers] = self._wires.collectives(op, ranks, told_bytes, beside, algorithm)

    def _told(self, op: Op, keepers: str) -> list[float]:
        """Sizes that are asked for, from which those of all patterns follow."""
        key = _fields(op), keepers
        if key not in self._known:
            sizes_bytes = np.concatenate([self._had(keepers, field)[1] for field in _fields(op)])
            self._known[key] = _told(np.unique(sizes_bytes).tolist())
        return self._known[key]

    def _had(self, keepers: str, field: int) -> Times:
        """Collectives that patterns have in a field: the pattern, bytes, how often; shape (3, collectives)."""
        if (keepers, field) not in self._all:
            found = [
                (row, size, count)
                for row, each in enumerate(self.patterns)
                for (name, size), count in each.sizes(field).items()
                if name == keepers
            ]
            self._all[keepers, field] = np.array(found).reshape(len(found), 3).T
        return self._all[keepers, field]

    def seconds(self, groups: Sequence[int], op: Op, fields: Sequence[int], answers: Times) -> Times:
        """What each pattern's fields take on each group, shape (fields, groups, patterns)."""
        total: Times = np.zeros((len(fields), len(groups), len(self.patterns)))
        for keepers in KEEPERS:
            if self._told(op, keepers):
                told_s = answers[[self._asked[group, op, keepers] for group in groups]]
                for one, field in zip(total, fields, strict=True):
                    one += told_s @ self._counts(op, keepers, field)
        return total

    def _counts(self, op: Op, keepers: str, field: int) -> Times:
        """How many collectives of the sizes that are asked for those of each pattern's field come to, shape (sizes, patterns):
        one of a size between two of these is a part of either."""
        if (keepers, field) not in self._often:
            told_bytes = self._told(op, keepers)
            rows, sizes_bytes, counts = self._had(keepers, field)
            place = np.interp(sizes_bytes, told_bytes, np.arange(len(told_bytes)))
            below, row = place.astype(np.int64), rows.astype(np.int64)
            often = np.zeros((len(told_bytes) + 1, len(self.patterns)))
            np.add.at(often, (below, row), counts * (below + 1 - place))
            np.add.at(often, (below + 1, row), counts * (place - below))
            self._often[keepers, field] = often[:-1]
        return self._often[keepers, field]


def _expert_replicas(grid: DeviceMesh, expert: int, expert_tensor: int | None) -> tuple[Group, int]:
    """The ranks with the first part of the experts, and how many groups like theirs there are on the same nodes."""
    ranks, *_ = grid.expert_replicas(0, expert, expert_tensor)
    stage = grid.experts(expert, expert_tensor)[0]
    on_node = stage // grid.devices == ranks[0] // grid.devices
    return Group.of(ranks, grid.devices), int(on_node.sum()) // grid.beside(ranks)


def _fields(op: Op) -> tuple[int, ...]:
    """In which all sizes are of which it is asked."""
    return (GATHERS, AFTER) if op == "all_gather" else (SUMS,)


def _told(sizes: Sequence[float]) -> list[float]:
    """Sizes from which those of some, in ascending order, follow."""
    few = [size for size in sizes if size < _LARGE_BYTES]
    if len(few) == len(sizes):
        return few
    powers = (2.0**power for power in range(_POWERS[0], _POWERS[1] + 1))
    return [*few, *(size for size in powers if size < sizes[-1]), sizes[-1]]
