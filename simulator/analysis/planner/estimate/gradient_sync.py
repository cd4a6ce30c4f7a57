"""Seconds of sums of gradients, and of gathers of sharded states and parameters, for stages of a model on groups of ranks.

What a stage sums depends on how its layers are sharded and where buckets close: its pattern. How long that takes depends on the
group of ranks. Patterns and groups are handled once each, and a matrix product combines them.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.configurations import Configurations
from scaleproof.simulator.analysis.planner.estimate.factorize import Numbers, distinct
from scaleproof.simulator.analysis.planner.estimate.layer_times import LayerPassTimes, StageCut, plans_of
from scaleproof.simulator.analysis.planner.estimate.transfer_times import RankPlacement, TransferTimes
from scaleproof.simulator.cluster.collectives.groups import Group, LinkLevel, Op
from scaleproof.simulator.parallelism.mesh import ORDER, DeviceMesh
from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.simulator.parallelism.stages import V_SHAPED
from scaleproof.simulator.strategy.data_parallel.buckets import RankLayers, SyncUnit
from scaleproof.simulator.strategy.data_parallel.replica_collectives import REPLICA_GROUPS
from scaleproof.simulator.strategy.job import Job

Times = NDArray[np.float64]

# Fields of a pattern: all sums of a step's last pass, those of the unit whose gradients are complete last, gathers before a
# forward and before a backward pass, the first of a forward pass, gathers after the step.
SUMS, LAST, GATHERS, AGAIN, OPENING, AFTER = range(6)

# Of collectives larger than the first of these powers of two, only powers and the largest are timed: in between, time is nearly
# linear in size.
_POWERS: Final = 27, 30
_LARGE_BYTES: Final = 2.0 ** _POWERS[0]

# Operations in place of these where ranks own whole tensors.
_OF_WHOLE_TENSORS: Final[dict[Op, Op]] = {"reduce_scatter": "all_reduce", "all_gather": "broadcast"}

# Fields of patterns by operation.
_FIELDS: Final[dict[Op, tuple[int, ...]]] = {
    "all_reduce": (SUMS, LAST), "reduce_scatter": (SUMS, LAST), "all_gather": (GATHERS, AGAIN, OPENING, AFTER),
}  # fmt: skip

_Sizes = dict[tuple[str, float], int]


class Pattern(NamedTuple):
    """Collectives of the ranks that have a stage: for each field, counts by keepers and bytes. first: layers of the unit whose
    gradients are complete first. parameters: trained ones, by keepers."""

    sums: _Sizes
    last: _Sizes
    gathers: _Sizes
    again: _Sizes
    opening: _Sizes
    after: _Sizes
    first: range
    parameters: tuple[int, int]

    def sizes(self, field: int) -> _Sizes:
        """One of the first six fields, by index."""
        found: _Sizes = self[field]  # type: ignore[assignment]
        return found


def _pattern(rank_layers: RankLayers, plan: Plan, job: Job, stage: range) -> Pattern:
    """The pattern of a stage. job: with the ZeRO stage. `after` is used with ZeRO's stages 1 and 2 only."""
    found, size = rank_layers.units(stage, plan, job)[::-1], job.reduced_bytes
    units = found if job.zero == 3 else []
    gathered = [rank_layers.parameters(unit.layers) for unit in units]
    regathered = [rank_layers.parameters(unit.layers) for unit in units if rank_layers.has_backward(unit.layers)]
    trained = rank_layers.trained(stage)
    sums = _summed(rank_layers, found, size)
    last = sums if len(found) == 1 else _summed(rank_layers, found[-1:], size)
    gathers, again, opening, after = (
        _sizes_of(each, job.gathered_bytes) for each in (gathered, regathered, gathered[-1:], [trained])
    )
    if job.owns_tensors:
        count = job.broadcasts([rank_layers.layers[i] for i in stage], plan.sharing)
        after = {(keepers, size_bytes / count): count for keepers, size_bytes in after}
    return Pattern(sums, last, gathers, again, opening, after, found[0].layers, trained)


def _summed(rank_layers: RankLayers, found: Sequence[SyncUnit], size: int) -> _Sizes:
    """Buckets of units, and gradients of their experts."""
    filled = rank_layers.gradients.filled
    buckets = Counter([filled[end] - filled[begin] for unit in found for begin, end in itertools.pairwise(unit.bounds)])
    sizes = {("replicas", float(elements * size)): count for elements, count in buckets.items() if elements}
    kept = (rank_layers.trained(unit.layers) for unit in found)
    return sizes | _sizes_of([(0, experts) for _, experts in kept if experts], size)


def _sizes_of(parameters: Iterable[tuple[int, int]], size: int) -> _Sizes:
    sizes: _Sizes = {}
    for each in parameters:
        for name, count in zip(REPLICA_GROUPS, each, strict=True):
            if count:
                sizes[name, float(count * size)] = sizes.get((name, float(count * size)), 0) + 1
    return sizes


class ShardSync:
    """Collectives of all patterns of layers that are sharded in one way, on all groups of ranks that share gradients.

    patterns: in the order of the numbers that `add` returns. rank_layers: the layers, by whether the first and the last
    stage are on different ranks. owns_tensors: as in `Job`, with ZeRO's stage 1.
    """

    def __init__(self, transfers: TransferTimes, algorithm: str | None, owns_tensors: bool = False) -> None:
        self._transfers, self._algorithm = transfers, algorithm
        self._instead = _OF_WHOLE_TENSORS if owns_tensors else {}
        self.patterns: list[Pattern] = []
        self.rank_layers: dict[bool, RankLayers] = {}
        self._groups: list[dict[str, tuple[Group, int]]] = []
        self._sharing: list[float] = []
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
        strides = tuple(grid.stride(axis) for axis in ORDER)
        key = grid.tensor, grid.context, grid.workers, grid.stages, expert, expert_tensor, strides
        if key not in self._group_of:
            self._group_of[key] = len(self._groups)
            concurrent = grid.on_first_node([grid.rank(0, 0) + i * grid.stride("tensor") for i in range(grid.tensor)])
            groups = {"replicas": (grid.replicas_of(0), concurrent)}
            if expert > 1 or (expert_tensor or grid.tensor) < grid.tensor:
                groups["experts"] = _expert_replicas(grid, expert, expert_tensor)
            self._groups.append(groups)
            self._sharing.append(self._transfers.sharing(grid, concurrent))
        return self._group_of[key]

    def sharing(self, groups: Sequence[int]) -> list[float]:
        """Factors on the times of groups if those of all stages communicate at the same time."""
        return [self._sharing[group] for group in groups]

    def level(self, group: int) -> LinkLevel:
        """The links that limit sums over the replicas of a set of groups."""
        return LinkLevel.of(self._groups[group]["replicas"][0])

    def request(self, group: int, op: Op) -> None:
        """Requests times of an operation on a group, for the sizes of all patterns. All patterns must have been added."""
        for keepers, (ranks, concurrent) in self._groups[group].items():
            algorithm = self._algorithm if op == "all_reduce" else None
            timed_bytes = self._timed_sizes(op, keepers)
            timed_op = self._instead.get(op, op)
            self._requested[group, op, keepers] = self._transfers.collectives(
                timed_op, ranks, timed_bytes, concurrent, algorithm
            )

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
        for keepers in REPLICA_GROUPS:
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
    return Group.of(ranks, grid.devices), int(on_node.sum()) // grid.on_first_node(ranks)


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


class SyncTimes(NamedTuple):
    """Seconds of gradient synchronisation.

    by_field: a row for each field of `_FIELDS`, a column for each combination of a pattern and a group. place: of each
    configuration, the column of its first kind of stage, which those of its other kinds follow. layers: first and last layer of
    the unit whose gradients are complete first, and parameters, both by pattern; own: of each configuration, the pattern of its
    first kind of stage. copied_s: sum of the gradients of weights that the first and the last stage share. sharing: of each
    configuration, the factor on all times if the groups of all stages share links at the same time. level: of each
    configuration, the links that limit sums over replicas.
    """

    by_field: Times
    place: Numbers
    layers: Numbers
    parameters: Times
    own: Numbers
    copied_s: Times
    sharing: Times
    level: Numbers

    def take(self, rows: Numbers) -> SyncTimes:
        """Times of some configurations."""
        each = {name: getattr(self, name)[rows] for name in ("place", "own", "copied_s", "sharing", "level")}
        return self._replace(**each)


class SyncRequests:
    """Requests of all collectives of gradient synchronisation, which `results` turns into times once the transfers are
    timed."""

    def __init__(
        self,
        c: Configurations,
        passes: LayerPassTimes,
        codes: Numbers,
        placements: Sequence[RankPlacement],
        transfers: TransferTimes,
        cuts: Mapping[int, StageCut],
    ) -> None:
        """codes: of each configuration, its layer times and its placement."""
        self.c, (pass_code, placement_code) = c, codes
        counts = c.stages * c.chunks
        # with ZeRO's stage 1 gradients are divided into buckets as without ZeRO, unless parameters are gathered during the next
        # step, or gradients are summed whole
        is_divided = not (c.space.kept.get("overlap_gather", False) or c.space.scenario.framework.zero_1.sums_whole)
        cut_by = np.where((c.zero == 1) & is_divided, 0, c.zero)
        self.shard = distinct(c.tensor, c.expert, c.expert_tensor)
        # where the first and the last stage are on different ranks, both have a copy of the weights they share
        shaped = np.array([schedule in V_SHAPED for schedule in c.space.schedules], dtype=np.bool_)[c.schedule]
        ends_split = ((c.stages > 1) & ~shaped).astype(np.int64)
        # how many ranks broadcast the tensors that they own is part of a pattern
        owns_tensors = c.space.scenario.framework.zero_1.owns_tensors
        owners = np.where(owns_tensors & (c.zero == 1), c.workers, 0)
        self.pattern = distinct(self.shard.code, counts, ends_split, c.bucket, cut_by, owners)
        algorithm = c.space.kept.get("algorithm")
        self.shards = [ShardSync(transfers, algorithm, owns_tensors) for _ in range(len(self.shard))]
        self.begins: list[int] = []
        for row, plan in zip(self.pattern.first.tolist(), plans_of(c, self.pattern.first), strict=True):
            averaged = plan if plan.averages else replace(plan, workers=2 * plan.expert)
            job = replace(passes.jobs[pass_code[row]], zero=int(c.zero[row]))
            cut = cuts[plan.stages * plan.chunks]
            stages = [cut.ranges[kind] for kind in cut.kinds]
            self.begins.append(self._shard_of(row).add(bool(ends_split[row]), averaged, job, stages))
        self.group = distinct(self.shard.code, c.context, c.workers, c.order, c.stages)
        self.ops: list[Op] = list(_FIELDS) if c.zero.any() else ["all_reduce"]
        self.groups: list[int] = []
        for row in self.group.first.tolist():
            shard_sync, grid = self._shard_of(row), placements[placement_code[row]].grid
            self.groups.append(shard_sync.group(grid, int(c.expert[row]), int(c.expert_tensor[row]) or None))
            for op in self.ops:
                shard_sync.request(self.groups[-1], op)
        self.copying = distinct(self.shard.code, placement_code, ends_split, (c.zero >= 2).astype(np.int64))
        sized = passes.jobs[0].reduced_bytes
        self.copies = [
            self._request_copies(row, bool(ends_split[row]), placements[placement_code[row]], sized, transfers)
            for row in self.copying.first.tolist()
        ]

    def _shard_of(self, row: int) -> ShardSync:
        return self.shards[int(self.shard.code[row])]

    def _request_copies(
        self, row: int, ends_split: bool, place: RankPlacement, element_bytes: int, transfers: TransferTimes
    ) -> int:
        """Requests the sum over the first and the last stage, and returns its number, −1 where they share no weights."""
        (grid, senders), copied = place, self._shard_of(row).rank_layers[ends_split].copied
        if not copied:
            return -1
        share = grid.workers * grid.context if self.c.zero[row] >= 2 else 1
        group = Group.of([grid.rank(0, rank) for rank in (0, grid.stages - 1)], grid.devices)
        return transfers.collectives("all_reduce", group, [copied * element_bytes / share], min(senders, grid.devices))[0]

    def results(self, transfers_s: Times) -> SyncTimes:
        """Times of all configurations, from the seconds of all transfers."""
        shard, tables, offsets, sharing = self.shard.code, [], [0], np.ones(len(self.group))
        of_shard = shard[self.group.first]
        local = np.zeros(len(self.group), dtype=np.int64)
        for number, shard_sync in enumerate(self.shards):
            mine = np.flatnonzero(of_shard == number)
            local[mine] = np.arange(len(mine))
            groups = [self.groups[one] for one in mine]
            sharing[mine] = shard_sync.sharing(groups)
            found = [shard_sync.seconds(groups, op, _FIELDS[op], transfers_s) for op in self.ops]
            some_s = np.concatenate(found).reshape(sum(map(len, found)), -1)
            tables.append(np.pad(some_s, [(0, sum(map(len, _FIELDS.values())) - len(some_s)), (0, 0)]))
            offsets.append(offsets[-1] + some_s.shape[1])
        levels = [self._shard_of(row).level(group) for row, group in zip(self.group.first.tolist(), self.groups, strict=True)]
        every = [one for shard_sync in self.shards for one in shard_sync.patterns]
        patterns = np.array([len(shard_sync.patterns) for shard_sync in self.shards])
        begins = np.array(self.begins)[self.pattern.code]
        return SyncTimes(
            np.concatenate(tables, axis=1),
            np.array(offsets)[shard] + local[self.group.code] * patterns[shard] + begins,
            np.array([(one.first.start, one.first.stop) for one in every]).T,
            np.array([one.parameters for one in every], dtype=np.float64).T,
            (np.cumsum(patterns) - patterns)[shard] + begins,
            np.append(transfers_s, 0.0)[self.copies][self.copying.code],
            sharing[self.group.code],
            np.array(levels, dtype=np.int64)[self.group.code],
        )
