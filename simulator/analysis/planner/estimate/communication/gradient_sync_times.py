"""Times of gradient synchronisation of all configurations. Each pattern of layers and each group of ranks is handled once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.communication.gradient_sync import (
    AFTER,
    GATHERS,
    LAST,
    OPENING,
    SUMS,
    ShardSync,
)
from scaleproof.simulator.analysis.planner.estimate.communication.placement import Placement
from scaleproof.simulator.analysis.planner.estimate.communication.transfer_times import TransferTimes
from scaleproof.simulator.analysis.planner.estimate.configurations import Configurations
from scaleproof.simulator.analysis.planner.estimate.factorize import Numbers, distinct
from scaleproof.simulator.analysis.planner.estimate.layer_times import LayerPassTimes, plans_of
from scaleproof.simulator.analysis.planner.estimate.shapes import StageCut
from scaleproof.simulator.cluster.collectives.algorithms import Group, Op
from scaleproof.simulator.strategy.pipeline.schedules.passes import V_SHAPED

Times = NDArray[np.float64]

# Fields of patterns by operation.
_FIELDS: Final[dict[Op, tuple[int, ...]]] = {
    "all_reduce": (SUMS, LAST), "reduce_scatter": (SUMS, LAST), "all_gather": (GATHERS, OPENING, AFTER),
}  # fmt: skip


class SyncTimes(NamedTuple):
    """Seconds of gradient synchronisation.

    by_field: a row for each field of `_FIELDS`, a column for each combination of a pattern and a group. place: of each
    configuration, the column of its first kind of stage, which those of its other kinds follow. layers: first and last layer of
    the unit whose gradients are complete first, and parameters, both by pattern; own: of each configuration, the pattern of its
    first kind of stage. copied_s: sum of the gradients of weights that the first and the last stage share.
    """

    by_field: Times
    place: Numbers
    layers: Numbers
    parameters: Times
    own: Numbers
    copied_s: Times

    def take(self, rows: Numbers) -> SyncTimes:
        """Times of some configurations."""
        return self._replace(place=self.place[rows], own=self.own[rows], copied_s=self.copied_s[rows])


class SyncRequests:
    """Requests of all collectives of gradient synchronisation, which `results` turns into times once the transfers are
    timed."""

    def __init__(
        self,
        c: Configurations,
        passes: LayerPassTimes,
        codes: Numbers,
        placements: Sequence[Placement],
        transfers: TransferTimes,
        cuts: Mapping[int, StageCut],
    ) -> None:
        """codes: of each configuration, its layer times and its placement."""
        self.c, (pass_code, placement_code) = c, codes
        counts = c.stages * c.chunks
        # with ZeRO's stage 1 gradients are divided into buckets as without ZeRO, unless parameters are gathered during the next
        # step
        cut_by = np.where((c.zero == 1) & (not c.space.kept.get("overlap_gather", False)), 0, c.zero)
        self.shard = distinct(c.tensor, c.expert, c.expert_tensor)
        # where the first and the last stage are on different ranks, both have a copy of the weights they share
        shaped = np.array([schedule in V_SHAPED for schedule in c.space.schedules], dtype=np.bool_)[c.schedule]
        ends_split = ((c.stages > 1) & ~shaped).astype(np.int64)
        self.pattern = distinct(self.shard.code, counts, ends_split, c.bucket, cut_by)
        self.shards = [ShardSync(transfers, c.space.kept.get("algorithm")) for _ in range(len(self.shard))]
        self.begins: list[int] = []
        for row, plan in zip(self.pattern.first.tolist(), plans_of(c, self.pattern.first), strict=True):
            averaged = plan if plan.averages else replace(plan, workers=2 * plan.expert)
            job = replace(passes.jobs[pass_code[row]], zero=int(c.zero[row]))
            cut = cuts[plan.stages * plan.chunks]
            stages = [cut.ranges[kind] for kind in cut.kinds]
            self.begins.append(self._shard_of(row).add(bool(ends_split[row]), averaged, job, stages))
        self.group = distinct(self.shard.code, c.context, c.workers, c.order, np.where(c.order > 0, c.stages, 0))
        self.ops: list[Op] = list(_FIELDS) if c.zero.any() else ["all_reduce"]
        self.groups: list[int] = []
        for row in self.group.first.tolist():
            shards, grid = self._shard_of(row), placements[placement_code[row]].grid
            self.groups.append(shards.group(grid, int(c.expert[row]), int(c.expert_tensor[row]) or None))
            for op in self.ops:
                shards.request(self.groups[-1], op)
        self.copying = distinct(self.shard.code, placement_code, ends_split, (c.zero >= 2).astype(np.int64))
        sized = passes.jobs[0].reduced_bytes
        self.copies = [
            self._request_copies(row, bool(ends_split[row]), placements[placement_code[row]], sized, transfers)
            for row in self.copying.first.tolist()
        ]

    def _shard_of(self, row: int) -> ShardSync:
        return self.shards[int(self.shard.code[row])]

    def _request_copies(
        self, row: int, ends_split: bool, place: Placement, element_bytes: int, transfers: TransferTimes
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
        shard, tables, offsets = self.shard.code, [], [0]
        of_shard = shard[self.group.first]
        local = np.zeros(len(self.group), dtype=np.int64)
        for number, shards in enumerate(self.shards):
            mine = np.flatnonzero(of_shard == number)
            local[mine] = np.arange(len(mine))
            groups = [self.groups[one] for one in mine]
            found = [shards.seconds(groups, op, _FIELDS[op], transfers_s) for op in self.ops]
            some_s = np.concatenate(found).reshape(sum(map(len, found)), -1)
            tables.append(np.pad(some_s, [(0, sum(map(len, _FIELDS.values())) - len(some_s)), (0, 0)]))
            offsets.append(offsets[-1] + some_s.shape[1])
        every = [one for shards in self.shards for one in shards.patterns]
        patterns = np.array([len(shards.patterns) for shards in self.shards])
        begins = np.array(self.begins)[self.pattern.code]
        return SyncTimes(
            np.concatenate(tables, axis=1),
            np.array(offsets)[shard] + local[self.group.code] * patterns[shard] + begins,
            np.array([(one.first.start, one.first.stop) for one in every]).T,
            np.array([one.parameters for one in every], dtype=np.float64).T,
            (np.cumsum(patterns) - patterns)[shard] + begins,
            np.append(transfers_s, 0.0)[self.copies][self.copying.code],
        )
