"""Sums: what all configurations' replicas take to agree: asked of each pattern of layers and each group of ranks once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.cluster.algorithms import Group, Op
from simulator.estimate.agreements import AFTER, GATHERS, LAST, OPENING, SUMS, Agreeing
from simulator.estimate.codes import Numbers, distinct
from simulator.estimate.configurations import Configurations
from simulator.estimate.cuts import Cut
from simulator.estimate.passes import Passes, plan_of
from simulator.estimate.wires import Wires
from simulator.strategy.costs import Job
from simulator.strategy.schedules.passes import V_SHAPED

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

    def __init__(self, c: Configurations, passes: Passes, pass_code: Numbers, wires: Wires, cuts: Mapping[int, Cut]) -> None:
        """pass_code: the passes of each."""
        self.c = c
        counts = c.stages * c.chunks
        # with ZeRO's first stage gradients are cut as without, unless parameters are gathered beside the next step
        cut_by = np.where((c.zero == 1) & (not c.space.kept.get("overlap_gather", False)), 0, c.zero)
        self.shard = distinct(c.tensor, c.expert)
        # where the first and the last stage are on ranks apart, both have the weights that they share
        shaped = np.array([schedule in V_SHAPED for schedule in c.space.schedules], dtype=np.bool_)[c.schedule]
        apart = ((c.stages > 1) & ~shaped).astype(np.int64)
        self.pattern = distinct(self.shard.code, counts, apart, c.bucket, cut_by)
        self.group = distinct(self.shard.code, c.context, c.workers, c.order, np.where(c.order > 0, c.stages, 0))
        self.agreeing = [Agreeing(wires, c.space.kept.get("algorithm")) for _ in range(len(self.shard))]
        self.begins: list[int] = []
        for row in self.pattern.first.tolist():
            plan = plan_of(c, row)
            plan = plan if plan.workers * plan.context > 1 else replace(plan, workers=2 * plan.expert)
            job = replace(passes.jobs[pass_code[row]], zero=int(c.zero[row]))
            own, cut = self.agreeing[self.shard.code[row]], cuts[int(counts[row])]
            self.begins.append(own.add(plan, job, [cut.ranges[kind] for kind in cut.kinds]))
        devices = c.space.scenario.cluster.node.devices
        self.groups = [self.agreeing[self.shard.code[row]].group(plan_of(c, row), devices) for row in self.group.first.tolist()]
        self.ops: list[Op] = list(_FIELDS) if c.zero.any() else ["all_reduce"]
        for row, group in zip(self.group.first.tolist(), self.groups, strict=True):
            for op in self.ops:
                self.agreeing[self.shard.code[row]].ask(group, op)
        self.copying = distinct(self.group.code, c.stages, apart, (c.zero >= 2).astype(np.int64))
        self.copies = [self._ask_for_copies(row, passes.jobs[pass_code[row]], wires) for row in self.copying.first.tolist()]

    def _ask_for_copies(self, row: int, job: Job, wires: Wires) -> int:
        """The number of the sum over the first and the last stage; −1 where they have no weights in common."""
        plan = plan_of(self.c, row)
        held = self.agreeing[self.shard.code[row]].held(plan, job)
        if held.pair[0] == held.pair[1] or held.copied == 0:
            return -1
        share = plan.sharing * plan.context if self.c.zero[row] >= 2 else 1
        grid = plan.grid(job.cluster.node.devices)
        group = Group.of([grid.rank(0, rank) for rank in held.pair], grid.devices)
        copied_bytes = held.copied * (plan.gradient_bytes or job.element_bytes)
        return wires.collective("all_reduce", group, copied_bytes / share, min(wires.alike(plan, job), grid.devices))

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
