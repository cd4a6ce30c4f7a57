"""Sums: what all configurations' replicas take to agree: asked of each pattern of layers and each group of ranks once."""

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
    Agreeing,
)
from scaleproof.simulator.analysis.planner.estimate.communication.placement import Place
from scaleproof.simulator.analysis.planner.estimate.communication.transfer_times import TransferTimes
from scaleproof.simulator.analysis.planner.estimate.configurations import Configurations
from scaleproof.simulator.analysis.planner.estimate.factorize import Numbers, distinct
from scaleproof.simulator.analysis.planner.estimate.layer_times import LayerPassTimes, plans_of
from scaleproof.simulator.analysis.planner.estimate.shapes import Cut
from scaleproof.simulator.cluster.collectives.algorithms import Group, Op
from scaleproof.simulator.strategy.pipeline.schedules.passes import V_SHAPED

Times = NDArray[np.float64]

# What is asked of each pattern, where states are shared out and where not.
_FIELDS: Final[dict[Op, tuple[int, ...]]] = {
    "all_reduce": (SUMS, LAST), "reduce_scatter": (SUMS, LAST), "all_gather": (GATHERS, OPENING, AFTER),
}  # fmt: skip


class Agreed(NamedTuple):
    """What replicas take to agree: `by_field` has a row for each field of `_FIELDS`, and columns for combinations of a pattern
    and a group; `place` is the column of a configuration's first kind of stage, of which the others follow. layers: first and
    last of the unit whose gradients come first, and parameters: by pattern; `own` is that of the first kind of stage. copied_s:
    of summing the gradients of weights that the first and the last stage have."""

    by_field: Times
    place: Numbers
    layers: Numbers
    parameters: Times
    own: Numbers
    copied_s: Times

    def take(self, rows: Numbers) -> Agreed:
        return self._replace(place=self.place[rows], own=self.own[rows], copied_s=self.copied_s[rows])


class Sums:
    """Asks what all configurations' replicas take to agree, and tells it once that is answered."""

    def __init__(
        self,
        c: Configurations,
        passes: LayerPassTimes,
        codes: Numbers,
        places: Sequence[Place],
        wires: TransferTimes,
        cuts: Mapping[int, Cut],
    ) -> None:
        """codes: of each its passes and its place."""
        self.c, (pass_code, place_code) = c, codes
        counts = c.stages * c.chunks
        # with ZeRO's first stage gradients are cut as without, unless parameters are gathered beside the next step
        cut_by = np.where((c.zero == 1) & (not c.space.kept.get("overlap_gather", False)), 0, c.zero)
        self.shard = distinct(c.tensor, c.expert, c.expert_tensor)
        # where the first and the last stage are on ranks apart, both have the weights that they share
        shaped = np.array([schedule in V_SHAPED for schedule in c.space.schedules], dtype=np.bool_)[c.schedule]
        apart = ((c.stages > 1) & ~shaped).astype(np.int64)
        self.pattern = distinct(self.shard.code, counts, apart, c.bucket, cut_by)
        self.agreeing = [Agreeing(wires, c.space.kept.get("algorithm")) for _ in range(len(self.shard))]
        self.begins: list[int] = []
        for row, plan in zip(self.pattern.first.tolist(), plans_of(c, self.pattern.first), strict=True):
            several = plan if plan.averages else replace(plan, workers=2 * plan.expert)
            job = replace(passes.jobs[pass_code[row]], zero=int(c.zero[row]))
            cut = cuts[plan.stages * plan.chunks]
            stages = [cut.ranges[kind] for kind in cut.kinds]
            self.begins.append(self._agreeing(row).add(bool(apart[row]), several, job, stages))
        self.group = distinct(self.shard.code, c.context, c.workers, c.order, np.where(c.order > 0, c.stages, 0))
        self.ops: list[Op] = list(_FIELDS) if c.zero.any() else ["all_reduce"]
        self.groups: list[int] = []
        for row in self.group.first.tolist():
            agreeing, grid = self._agreeing(row), places[place_code[row]].grid
            self.groups.append(agreeing.group(grid, int(c.expert[row]), int(c.expert_tensor[row]) or None))
            for op in self.ops:
                agreeing.ask(self.groups[-1], op)
        self.copying = distinct(self.shard.code, place_code, apart, (c.zero >= 2).astype(np.int64))
        sized = passes.jobs[0].reduced_bytes
        self.copies = [
            self._ask_for_copies(row, bool(apart[row]), places[place_code[row]], sized, wires)
            for row in self.copying.first.tolist()
        ]

    def _agreeing(self, row: int) -> Agreeing:
        return self.agreeing[int(self.shard.code[row])]

    def _ask_for_copies(self, row: int, is_apart: bool, place: Place, element_bytes: int, wires: TransferTimes) -> int:
        """The number of the sum over the first and the last stage; −1 where they have no weights in common."""
        (grid, alike), copied = place, self._agreeing(row).held[is_apart].copied
        if not copied:
            return -1
        share = grid.workers * grid.context if self.c.zero[row] >= 2 else 1
        group = Group.of([grid.rank(0, rank) for rank in (0, grid.stages - 1)], grid.devices)
        return wires.collectives("all_reduce", group, [copied * element_bytes / share], min(alike, grid.devices))[0]

    def answered(self, answers: Times) -> Agreed:
        """A table of all combinations: shard by shard, and group by group, of patterns."""
        shard, tables, offsets = self.shard.code, [], [0]
        of_shard = shard[self.group.first]
        local = np.zeros(len(self.group), dtype=np.int64)
        for number, agreeing in enumerate(self.agreeing):
            mine = np.flatnonzero(of_shard == number)
            local[mine] = np.arange(len(mine))
            groups = [self.groups[one] for one in mine]
            found = [agreeing.seconds(groups, op, _FIELDS[op], answers) for op in self.ops]
            some_s = np.concatenate(found).reshape(sum(map(len, found)), -1)
            tables.append(np.pad(some_s, [(0, sum(map(len, _FIELDS.values())) - len(some_s)), (0, 0)]))
            offsets.append(offsets[-1] + some_s.shape[1])
        every = [one for agreeing in self.agreeing for one in agreeing.patterns]
        patterns = np.array([len(agreeing.patterns) for agreeing in self.agreeing])
        begins = np.array(self.begins)[self.pattern.code]
        return Agreed(
            np.concatenate(tables, axis=1),
            np.array(offsets)[shard] + local[self.group.code] * patterns[shard] + begins,
            np.array([(one.first.start, one.first.stop) for one in every]).T,
            np.array([one.parameters for one in every], dtype=np.float64).T,
            (np.cumsum(patterns) - patterns)[shard] + begins,
            np.append(answers, 0.0)[self.copies][self.copying.code],
        )
