"""Times: what a step of each of many configurations takes, in closed form, and what it takes at least.

What a configuration's parts take follows from few of its columns: passes from how layers and samples are divided, sums from
who shares what. Each part is worked out once for all configurations that have it in common, by the same code that compiles
their programs, and put together in arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.cluster.algorithms import Group, Op
from simulator.estimate.agreements import AFTER, GATHERS, LAST, OPENING, SUMS, Agreeing
from simulator.estimate.codes import Numbers, distinct
from simulator.estimate.configurations import Configurations
from simulator.estimate.messages import Messages
from simulator.estimate.passes import Passes, plan_of
from simulator.estimate.pipelines import Stages, windows
from simulator.estimate.wires import Wires
from simulator.model.layers import cut_into_stages
from simulator.strategy.costs import Job
from simulator.strategy.schedule import ScheduleName, stage_of

Times = NDArray[np.float64]


class StepTimes(NamedTuple):
    """Seconds of a step, by configuration: expected, and at least. No replay of a static program beats the latter."""

    expected_s: Times
    least_s: Times


def step_times(configurations: Configurations) -> StepTimes:
    """Of all configurations. Raises FieldError where one is not valid after all."""
    c = configurations
    expected_s, least_s = np.empty((2, len(c)))
    if not len(c):
        return StepTimes(expected_s, least_s)
    passes, wires = Passes.of(c), Wires(c.space.scenario.cluster)
    shapes = c.distinct("stages", "chunks", "schedule")
    # numpy sorts short integers much faster
    rows = np.split(np.argsort(shapes.code.astype(np.int16), kind="stable"), np.cumsum(np.bincount(shapes.code))[:-1])
    cuts = [_Cut.of(c, int(each[0]), passes) for each in rows]
    sizes_bytes, size_of = np.unique(passes.sent_bytes, return_inverse=True)
    messages = Messages(wires, passes.jobs[0], sizes_bytes.tolist())
    shapes_of = [_Shape(c.take(each), passes.key.code[each], cut, messages) for each, cut in zip(rows, cuts, strict=True)]
    sums = _Sums(c, passes, wires, {one.count: one for one in cuts})
    answers = wires.seconds()
    seconds = answers[messages.numbers()] if len(messages.numbers()) else np.zeros((0, len(sizes_bytes)))
    agreed = sums.answered(answers)
    for each, shape in zip(rows, shapes_of, strict=True):
        size_of_layer = size_of.reshape(passes.sent_bytes.shape)
        expected_s[each], least_s[each] = shape.times(passes, seconds, size_of_layer, agreed.take(each))
    return StepTimes(expected_s, least_s)


@dataclass(frozen=True)
class _Cut:
    """A model cut into `count` stages: where each begins and ends, of which kind it is, the first stage of each kind."""

    count: int
    ranges: list[range]
    begins: Numbers
    stops: Numbers
    kind_of: Numbers
    kinds: list[int]

    @classmethod
    def of(cls, c: Configurations, row: int, passes: Passes) -> _Cut:
        layers = passes.jobs[0].layers
        count = int(c.stages[row] * c.chunks[row])
        ranges = cut_into_stages(layers, count)
        known: dict[tuple[str, ...], int] = {}
        kind_of = [known.setdefault(tuple(layers[i].signature for i in stage), len(known)) for stage in ranges]
        begins, stops = (np.array([getattr(stage, end) for stage in ranges]) for end in ("start", "stop"))
        return cls(count, ranges, begins, stops, np.array(kind_of), [kind_of.index(kind) for kind in range(len(known))])


class _Agreed(NamedTuple):
    """What replicas take to agree: `by_field` has a row for each of `_FIELDS`, and columns for combinations of a pattern and a
    group; `place` is the column of a configuration's first kind of stage, of which the others follow. layers: first and last of
    the unit whose gradients come first, and parameters: by pattern; `own` is that of the first kind of stage. copied_s: of
    summing the gradients of weights that the first and the last stage have."""

    by_field: Times
    place: Numbers
    layers: Numbers
    parameters: Times
    own: Numbers
    copied_s: Times

    def take(self, rows: Numbers) -> _Agreed:
        return self._replace(place=self.place[rows], own=self.own[rows], copied_s=self.copied_s[rows])


# Groups may be a little nearer to one another than the one that is asked for, and times of collectives a little off their line:
# what is least is told so much lower.
_SURE: Final = 0.999
# What is asked of each pattern, where states are shared out and where not.
_FIELDS: Final[tuple[tuple[Op, int], ...]] = (
    ("all_reduce", SUMS), ("all_reduce", LAST), ("reduce_scatter", SUMS), ("reduce_scatter", LAST), ("all_gather", GATHERS),
    ("all_gather", OPENING), ("all_gather", AFTER),
)  # fmt: skip


class _Sums:
    """Asks what all configurations' replicas take to agree, and tells it once that is answered."""

    def __init__(self, c: Configurations, passes: Passes, wires: Wires, cuts: Mapping[int, _Cut]) -> None:
        told = c.distinct("tensor", "context", "expert", "stages", "workers", "chunks", "schedule", "zero", "bucket", "order")
        self.told, self.c = told.code, c.take(told.first)
        c, pass_code = self.c, passes.key.code[told.first]
        counts = c.stages * c.chunks
        # with ZeRO's first stage gradients are cut as without, unless parameters are gathered beside the next step
        cut_by = np.where((c.zero == 1) & (not c.space.kept.get("overlap_gather", False)), 0, c.zero)
        self.shard = distinct(c.tensor, c.expert)
        self.pattern = distinct(self.shard.code, counts, (c.stages > 1).astype(np.int64), c.bucket, cut_by)
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
        self.fields = _FIELDS if c.zero.any() else _FIELDS[:2]
        for row, group in zip(self.group.first.tolist(), self.groups, strict=True):
            for op in {op for op, _ in self.fields}:
                self.agreeing[self.shard.code[row]].ask(group, op)
        self.copying = distinct(self.group.code, c.stages, (c.zero >= 2).astype(np.int64))
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

    def answered(self, answers: Times) -> _Agreed:
        """A table of all combinations: shard by shard, and group by group, of patterns."""
        shard, tables, offsets = self.shard.code, [], [0]
        of_shard = shard[self.group.first]
        local = np.zeros(len(self.group), dtype=np.int64)
        for number, agreeing in enumerate(self.agreeing):
            mine = np.flatnonzero(of_shard == number)
            local[mine] = np.arange(len(mine))
            groups = [self.groups[one] for one in mine]
            found = [agreeing.seconds(groups, op, field, answers).ravel() for op, field in self.fields]
            tables.append(np.array([*found, *[np.zeros_like(found[0])] * (len(_FIELDS) - len(found))]))
            offsets.append(offsets[-1] + len(found[0]))
        every = [one for agreeing in self.agreeing for one in agreeing.patterns]
        patterns = np.array([len(agreeing.patterns) for agreeing in self.agreeing])
        begins = np.array(self.begins)[self.pattern.code]
        return _Agreed(
            np.concatenate(tables, axis=1),
            np.array(offsets)[shard] + local[self.group.code] * patterns[shard] + begins,
            np.array([(one.first.start, one.first.stop) for one in every]).T,
            np.array([one.parameters for one in every], dtype=np.float64).T,
            (np.cumsum(patterns) - patterns)[shard] + begins,
            np.append(answers, 0.0)[self.copies][self.copying.code],
        ).take(self.told)


class _Shape:
    """Configurations of one shape: with as many stages and chunks, in the same order. Arrays have them last."""

    def __init__(self, c: Configurations, pass_code: Numbers, cut: _Cut, messages: Messages) -> None:
        self.c, self.cut, self.pass_code = c, cut, pass_code
        self.stages, chunks = int(c.stages[0]), int(c.chunks[0])
        self.schedule: ScheduleName = c.space.schedules[c.schedule[0]] if self.stages > 1 else "1f1b"
        self.stage_of = np.array(
            [[stage_of(self.schedule, self.stages, rank, chunk) for chunk in range(chunks)] for rank in range(self.stages)]
        )
        kinds = [tuple(row) for row in cut.kind_of[self.stage_of].tolist()]
        # of ranks that have alike stages the first has the longest way to the last and back
        self.ranks = sorted({*(kinds.index(kind) for kind in set(kinds)), self.stages - 1})
        self.held = self.stage_of[self.ranks]
        # how many stages of each kind a rank has, and how many beside the one that it is through with last
        self.has = np.array([np.bincount(cut.kind_of[held], minlength=len(cut.kinds)) for held in self.held])
        self.others = np.array([np.bincount(cut.kind_of[held[1:]], minlength=len(cut.kinds)) for held in self.held])
        self.final = cut.kind_of[self.held[:, 0]]
        self.placed = distinct(c.tensor, c.context, c.workers, c.order)
        rank_of = np.argsort(self.stage_of, axis=None) // chunks
        asked = [messages.ask(plan_of(c, row), rank_of) for row in self.placed.first.tolist()]
        self.ways = np.array(asked, dtype=np.int64).reshape(len(self.placed), cut.count - 1)

    def times(self, passes: Passes, seconds: Times, size_of: Numbers, agreed: _Agreed) -> tuple[Times, Times]:
        """What is expected, and at least. seconds: of messages by way and size; size_of: each layer's output, by pass."""
        c = self.c
        own, mine = agreed, self._kinds_s(passes, self.pass_code)
        found = own.by_field[:, own.place + np.arange(len(self.cut.kinds))[:, None]]
        zero = c.zero
        sums_s, last_s = np.where(zero > 0, found[2:4], found[:2])
        gathers_s, opening_s, after_s = (found[field] * np.isin(zero, where) for field, where in ((4, 3), (5, 3), (6, (1, 2))))
        # what is gathered for the forward pass is dropped after it, and gathered again
        again_s = gathers_s * self.c.space.kept.get("reshard", True)
        # a pass waits for what is gathered before it, which follows the sums of the one before
        moved_s = (zero == 3) * sums_s + again_s
        longer = (gathers_s > mine[0]).any(axis=0) | (moved_s > mine[1]).any(axis=0)
        key = distinct(self.pass_code, self.placed.code, np.where(longer, 1 + np.arange(len(c)), 0))
        stages = self._stages(mine, key.first, passes, seconds, size_of)
        window_s, least_s = windows(self.schedule, stages)
        if longer.any():
            kind_of = self.cut.kind_of[:, None]
            beside = replace(
                stages,
                forward_s=np.maximum(stages.forward_s, gathers_s[kind_of, key.first]),
                backward_s=np.maximum(stages.backward_s, moved_s[kind_of, key.first]),
            )
            window_s, _ = windows(self.schedule, beside)
        exposed_s, sure_s = self._exposed(own, mine, passes, (sums_s, last_s, after_s))
        optimizer_s = self._optimizer(own, passes)
        expected_s = window_s[self.ranks][:, key.code] + exposed_s + opening_s[self.final] + optimizer_s
        expected_s[0] += own.copied_s
        # collectives of a rank follow one another; sums begin once a microbatch has come back to it
        lane_s = c.microbatches * (self.has @ ((zero >= 2) * sums_s + again_s + gathers_s))
        lane_s += (zero == 2) * (self._until_back_s(stages)[:, key.code] + self.has @ after_s)
        sure_s = np.maximum(least_s[self.ranks][:, key.code] + sure_s, lane_s) + optimizer_s
        expected_s = np.maximum(expected_s, sure_s)
        return expected_s.max(axis=0), _SURE * sure_s.max(axis=0)

    def _until_back_s(self, stages: Stages) -> Times:
        """Until the first backward pass of each rank begins: a microbatch's way to the last stage and back."""
        forward_s, backward_s = (np.cumsum(one[::-1], axis=0)[::-1] for one in (stages.forward_s, stages.backward_s))
        last = self.held[:, -1]
        back: Times = forward_s[self.held[:, 0]] + backward_s[last] - stages.backward_s[last]
        return back

    def _kinds_s(self, passes: Passes, code: Numbers) -> Times:
        """Seconds of both passes over a stage of each kind, shape (2, kinds, configurations)."""
        cut = self.cut
        begins, stops = cut.begins[cut.kinds][:, None], cut.stops[cut.kinds][:, None]
        used, inverse = np.unique(code, return_inverse=True)
        both = [running[used, stops] - running[used, begins] for running in (passes.forward_s, passes.backward_s)]
        return np.array(both)[:, :, inverse]

    def _stages(self, mine: Times, rows: Numbers, passes: Passes, seconds: Times, size_of: Numbers) -> Stages:
        forward_s, backward_s = mine[:, self.cut.kind_of[:, None], rows]
        lasts = self.cut.stops[:-1, None] - 1
        sends_s = np.zeros((0, len(rows)))
        if self.stages > 1:
            code = self.pass_code[rows]
            sends_s = seconds[self.ways[self.placed.code[rows]].T, size_of[code, lasts]] + passes.joining_s[code, lasts]
        overlap = bool(self.c.space.kept.get("overlap_sends", False))
        return Stages(forward_s, backward_s, sends_s, self.c.microbatches[rows], self.stages, overlap)

    def _exposed(self, own: _Agreed, mine: Times, passes: Passes, agreed_s: tuple[Times, Times, Times]) -> tuple[Times, Times]:
        """What replicas take to agree after a rank's passes, and at least; shape (ranks, configurations)."""
        c, kept, final = self.c, self.c.space.kept, self.final
        sums_s, last_s, after_s = agreed_s
        begin, stop = own.layers[:, own.own + final[:, None]]
        code = self.pass_code
        # gradients of the first unit are complete once it is passed, and sums go on beside what is left of the pass
        behind_s = mine[1][final] - (passes.backward_s[code, stop] - passes.backward_s[code, begin])
        all_s = self.has @ sums_s
        # where the sums of a stage wait for its whole pass, they still go on beside the passes over other stages of the rank
        beside_s = behind_s * ((c.zero >= 2) | bool(kept.get("overlap", False)))
        sure_s = np.where(c.zero == 3, last_s[final], np.maximum(last_s[final], sums_s[final] - beside_s))
        per_round = c.microbatches // np.maximum(1, c.microbatches // self.stages)
        others_s = all_s - beside_s - per_round * (self.others @ mine[1])
        exposed_s = np.where(c.zero >= 2, sure_s, np.maximum(sure_s, others_s))
        gathered_s = self.has @ after_s
        if kept.get("overlap_gather", False):
            return exposed_s + np.maximum(0.0, gathered_s - self.has @ mine[0]), sure_s
        return exposed_s + gathered_s, sure_s + gathered_s

    def _optimizer(self, own: _Agreed, passes: Passes) -> Times:
        """Seconds over all parameters that a rank updates, shape (ranks, configurations)."""
        c = self.c
        parameters = own.parameters[:, own.own + np.arange(len(self.cut.kinds))[:, None]]
        replicas, experts = self.has @ parameters[0], self.has @ parameters[1]
        shared = c.zero > 0
        updated = replicas / np.where(shared, c.workers * c.context, 1)
        updated += experts / np.where(shared, np.maximum(1, c.workers // c.expert) * c.context, 1)
        values, inverse = np.unique(updated, return_inverse=True)
        job = passes.jobs[0]
        return np.array([job.optimizer_s(value) for value in values.tolist()])[inverse].reshape(updated.shape)
