"""Memory of the fullest rank of each of many configurations.

It depends on few columns that many configurations have in common; each combination of them is evaluated once, with the
functions of `simulator.memory`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.chunk_memory import (
    ChunkContents,
    MicrobatchBytes,
    MicrobatchColumns,
    RankKind,
    RecomputedLayers,
    ShardedLayers,
)
from scaleproof.simulator.analysis.planner.estimate.configurations import Configurations
from scaleproof.simulator.analysis.planner.estimate.factorize import combined, distinct, taken
from scaleproof.simulator.memory.cuda_libraries import libraries_bytes, nccl_bytes
from scaleproof.simulator.memory.inputs import MemoryInputs
from scaleproof.simulator.memory.peak import EQUAL, FullestPasses, RunningSum, columns, fullest_passes
from scaleproof.simulator.memory.static import StaticMemory, pipeline_bytes
from scaleproof.simulator.memory.step import update
from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.simulator.parallelism.stages import WHOLE, ScheduleName
from scaleproof.simulator.strategy.pipeline.passes import PassTimes
from scaleproof.simulator.strategy.plan_costs import pass_times
from scaleproof.simulator.strategy.scenario_job import job_of

Bytes = NDArray[np.float64]
Numbers = NDArray[np.int64]
# Schedules in which a rank has at least as many forward passes before each of its backward passes as later ranks, and all ranks
# have these in the same order: of equivalent ranks the first is the fullest.
FIRST_IS_FULLEST: Final[frozenset[ScheduleName]] = frozenset({"gpipe", "1f1b", "interleaved_1f1b", "looped_bfs"})
# Schedules whose order depends on the times of passes.
_SEARCHED: Final[frozenset[ScheduleName]] = frozenset({"zb_1p", "zb_2p"})


def memory_bytes(configurations: Configurations) -> Bytes:
    """Bytes of the fullest rank in each configuration, as `scaleproof.simulator.memory` computes them for one."""
    total_bytes = np.empty(len(configurations))
    for rows, placed in configurations.by_used_devices():
        total_bytes[rows] = _memory_bytes(placed)
    return total_bytes


def _memory_bytes(c: Configurations) -> Bytes:
    """Bytes of the fullest rank in some configurations, whose ranks use the same number of devices of each node."""
    rests = c.rests
    grouped = c.distinct_by_codes(
        np.arange(len(c.shapes["tensor"])), distinct(rests["recompute"], _sharded(c, rests["zero"])).code
    )
    shared = distinct(rests["zero"], np.where(rests["zero"] == 2, rests["bucket"], 0))
    fullest = _FullestRank(
        c.take(grouped.first), [_Shared(int(rests["zero"][i]), c.space.buckets_bytes[rests["bucket"][i]]) for i in shared.first]
    )
    total_bytes = fullest.bytes()[:, None] + fullest.libraries_bytes()
    at = taken((shared.code * len(c.space.orders) + rests["order"]) * len(grouped), c.rest)
    at += grouped.code
    return c.space.scenario.framework.memory.scale * taken(total_bytes.ravel(), at)


def _sharded(configurations: Configurations, zero: Numbers | int) -> Numbers:
    """What ZeRO's stages shard of a backward pass: 0 for nothing, 1 for the gradients that it makes, 2 for parameters as
    well."""
    makes = configurations.space.scenario.framework.memory.gradients == "made"
    sharded: Numbers = 2 * np.equal(zero, 3).astype(np.int64) + (makes & np.equal(zero, 2))
    return sharded


class _Shared(NamedTuple):
    """How states are sharded: ZeRO's stage, and size of buckets."""

    zero: int
    bucket_bytes: float


class _EquivalentRows(NamedTuple):
    """Rows whose ranks have the same chunks and pass them in the same order, sorted by number of microbatches.

    begins: index at which each number of microbatches begins. ranks: those that may be the fullest.
    """

    rows: Numbers
    schedule: ScheduleName
    stages: int
    times: PassTimes
    microbatches: Numbers
    begins: Numbers
    ranks: Sequence[RankKind]

    def fullest_passes(self, kind: RankKind, groups: tuple[int, ...]) -> Iterator[tuple[slice, FullestPasses]]:
        """The passes in which a rank of a kind may be the fullest, with the rows that have them. groups: of equal chunks, by
        chunk."""
        found = [
            (begin, fullest_passes(self.schedule, self.stages, kind.first, number, groups, self.times))
            for begin, number in zip(self.begins.tolist(), self.microbatches[self.begins].tolist(), strict=True)
        ]
        # they are the same for large numbers of microbatches
        grouped = [next(same) for _, same in itertools.groupby(found, key=lambda one: id(one[1]))]
        ends = [*(begin for begin, _ in grouped[1:]), len(self.rows)]
        for (begin, own), end in zip(grouped, ends, strict=True):
            yield slice(begin, end), own


class _FullestRank:
    """Memory of configurations that differ in more than how states are sharded and in the order of their ranks."""

    def __init__(self, configurations: Configurations, shared: Sequence[_Shared]) -> None:
        self.c, self.shared = configurations, shared
        c, shapes, rests = configurations, configurations.shapes, configurations.rests
        sharded, none = _sharded(c, rests["zero"]), np.zeros_like(rests["zero"])
        splits = np.array([schedule not in WHOLE for schedule in c.space.schedules], dtype=np.int64)[shapes["schedule"]]
        division = ("tensor", "context", "expert", "expert_tensor", "sequence_parallel")
        # a framework may keep the parameters that ZeRO's stage 3 gathers in pipelines, or gathered inputs without
        keeps_gathered = c.space.scenario.framework.memory.keeps_gathered
        keeps = (shapes["stages"] > 1) & (c.space.kept["reshard"] is None or keeps_gathered)
        division_code = distinct(*(shapes[name] for name in division), keeps.astype(np.int64)).code
        inputs_code = distinct(division_code, splits).code
        self.sharded = taken(sharded, c.rest)
        self.division_of, self.inputs_of = c.distinct_by_codes(division_code, none), c.distinct_by_codes(inputs_code, sharded)
        self.variant_of = c.distinct_by_codes(inputs_code, distinct(sharded, rests["recompute"]).code)
        self.inputs = [_inputs(c, row) for row in self.inputs_of.first.tolist()]
        self.divisions = [ShardedLayers(self._inputs(row).job.layers) for row in self.division_of.first]
        self.microbatch_of = distinct(self.variant_of.code, c.samples, np.where(self.sharded, c.workers, 0))
        patterns: dict[Any, ChunkContents] = {}
        self.contents = [
            patterns.setdefault(division.pattern, ChunkContents(division, c.space.counted)) for division in self.divisions
        ]
        self.groups = list(self._groups())
        self.workers = distinct(c.workers)
        self.microbatch_bytes = self._microbatch_bytes([self._inputs(row) for row in self.variant_of.first])

    def _microbatch_bytes(self, inputs: Sequence[MemoryInputs]) -> MicrobatchBytes:
        c, at = self.c, self.division_of.code[self.variant_of.first]
        parts = [
            contents.parts(division, self.inputs[0]) for contents, division in zip(self.contents, self.divisions, strict=True)
        ]
        self.parts = [kinds for _, kinds in parts]
        most = max(len(contents.all) for contents in self.contents)
        ends = np.zeros((2, most, len(self.division_of)))
        for number, (contents, division) in enumerate(zip(self.contents, self.divisions, strict=True)):
            ends[:, : len(contents.all), number] = contents.ends(division)
        first = self.microbatch_of.first
        self.ends_bytes = ends[:, :, self.division_of.code[first]] * (c.samples[first] * self.inputs[0].job.stream_bytes)
        recomputes = (c.space.recompute[number] for number in c.recompute[self.variant_of.first])
        variants = [
            RecomputedLayers(one.trained(recompute=recompute), self.divisions[i], self.contents[i], parts[i][0])
            for one, recompute, i in zip(inputs, recomputes, at, strict=True)
        ]
        return MicrobatchBytes(variants, MicrobatchColumns(self.variant_of.code[first], c.samples[first], c.workers[first]))

    def _groups(self) -> Iterator[_EquivalentRows]:
        c, space = self.c, self.c.space
        numbers = {id(contents): number for number, contents in enumerate(self.contents)}
        pattern = np.array([numbers[id(contents)] for contents in self.contents])[self.division_of.code]
        searched = np.array([schedule in _SEARCHED for schedule in space.schedules])[c.schedule]
        order_key = distinct(*(c.shapes[name] for name in ("stages", "chunks", "schedule")))
        order_of = c.distinct_by_codes(order_key.code, _sharded(c, c.rests["zero"]))
        key = distinct(order_of.code, pattern, np.where(searched, 1 + self.microbatch_of.code, 0))
        # numpy sorts short integers faster
        in_order = np.lexsort([one.astype(np.min_scalar_type(one.max())) for one in (c.microbatches, key.code)])
        for rows in np.split(in_order, np.cumsum(np.bincount(key.code))[:-1]):
            row = rows[0]
            schedule, stages = space.schedules[c.schedule[row]], int(c.stages[row])
            kinds = self.contents[self.division_of.code[row]].ranks(schedule, stages, int(c.chunks[row]))
            fullest_by_kind = [self._fullest_of(schedule, ranks, row) for ranks in kinds]
            times = EQUAL
            if searched[row]:
                scenario = c.scenario(int(row))
                times = pass_times(scenario.strategy.plan, job_of(scenario))
            microbatches, fullest = c.microbatches[rows], [kind for some in fullest_by_kind for kind in some]
            begins = np.append(0, 1 + np.flatnonzero(np.diff(microbatches)))
            yield _EquivalentRows(rows, schedule, stages, times, microbatches, begins, fullest)

    def _fullest_of(self, schedule: ScheduleName, ranks: Sequence[RankKind], row: int) -> Sequence[RankKind]:
        """Of equivalent ranks, those that may be the fullest: the first, unless the software stores received and sent
        activations of different size."""
        software = self._inputs(row).software
        ends = [self.contents[self.division_of.code[row]].all[content].ends for content in ranks[0].contents]
        varies = (software.receives_all or software.keeps_outputs) and any(entry != output for entry, output in ends)
        return ranks[:1] if schedule in FIRST_IS_FULLEST and not varies else ranks

    def bytes(self) -> Bytes:
        """Bytes of the fullest rank without libraries, shape (ways to shard, configurations)."""
        result = np.zeros((len(self.shared), len(self.c)))
        of_stage = np.array([_sharded(self.c, shared.zero) for shared in self.shared])
        constants = np.stack([self._constants(shared) for shared in self.shared], axis=2)
        for group in self.groups:
            rows = group.rows
            inputs = self._inputs(rows[0])
            sharings = np.flatnonzero(of_stage == self.sharded[rows[0]])
            at = self.division_of.code[rows] * len(self.workers) + self.workers.code[rows]
            contents, found = list({content: None for kind in group.ranks for content in kind.contents}), []
            columns = self._columns(group, contents, inputs)
            for kind in group.ranks:
                own = list(dict.fromkeys(kind.contents))
                passes, pipeline = self._passes(group, kind, columns[:, [contents.index(content) for content in own]], inputs)
                always, gradients, optimizer = taken(constants[kind.number][:, sharings], at, axis=2)
                found.append(always + pipeline + np.maximum(passes if inputs.makes else passes + gradients, optimizer))
            for sharing, most in zip(sharings.tolist(), np.maximum.reduce(found), strict=True):
                result[sharing, rows] = most
        return result

    def _constants(self, shared: _Shared) -> Bytes:
        """Bytes that are allocated all the time, of gradients, and of the optimizer's step, shape (kinds of ranks, 3, ways to
        divide · numbers of workers)."""
        workers = self.c.workers[self.workers.first]
        kinds = max(len(contents.kinds) for contents in self.contents)
        result = np.zeros((kinds, 3, len(self.division_of), len(workers)))
        for row in self.inputs_of.first[self.sharded[self.inputs_of.first] == _sharded(self.c, shared.zero)]:
            division_code = self.division_of.code[row]
            inputs = self._inputs(row).trained(zero=shared.zero).over(workers, shared.bucket_bytes)
            always = StaticMemory(inputs, self.parts[division_code].each(lambda one: one[:, None]))
            gradients = inputs.weights["gradients"] * always.states.gradients * inputs.gradient_copies
            optimizer = RunningSum(inputs.weights)
            update(optimizer, always.update_bytes())
            own = result[: len(self.contents[division_code].kinds), :, division_code]
            own[:, 0] = always.reserved_bytes()
            own[:, 1] = gradients
            own[:, 2] = gradients + functools.reduce(np.maximum, optimizer.timeline)
        return result.reshape(kinds, 3, -1)

    def _columns(self, group: _EquivalentRows, contents: Sequence[int], inputs: MemoryInputs) -> Bytes:
        """Bytes in some chunks that the columns of `FullestPasses` multiply, then of activations received and sent, shape (…,
        contents, rows)."""
        at = self.microbatch_of.code[group.rows]
        parts = [self.microbatch_bytes.by_column[name] for name in columns(inputs.splits)]
        return np.array([taken(part[contents], at, axis=1) for part in (*parts, *self.ends_bytes)])

    def _passes(self, group: _EquivalentRows, kind: RankKind, columns: Bytes, inputs: MemoryInputs) -> tuple[Bytes, Bytes]:
        """Peak bytes of passes over microbatches on a rank of a kind, and of its send and receive buffers."""
        own = list(dict.fromkeys(kind.contents))
        groups = tuple(own.index(content) for content in kind.contents)
        *_, entries, outputs = columns
        parts, passes, most = columns[:-2].reshape(-1, len(group.rows)), np.empty(len(group.rows)), np.empty_like(entries)
        for some, one in group.fullest_passes(kind, groups):
            passes[some], most[:, some] = (one.candidates @ parts[:, some]).max(axis=0), one.most[:, None]
        chunks = np.array([[groups.count(number)] for number in range(len(own))])
        return passes, pipeline_bytes(inputs.software, group.microbatches, most, entries, outputs, chunks).sum(axis=0)

    def libraries_bytes(self) -> Bytes:
        """Bytes that libraries allocate, the same on all ranks, shape (orders, configurations)."""
        c, space = self.c, self.c.space
        copies = np.zeros(len(c), dtype=np.int64)
        for group in self.groups:
            contents = self.contents[self.division_of.code[group.rows[0]]].all
            copies[group.rows] = any(contents[one].copies for kind in group.ranks for one in kind.contents)
        cluster, fixed = space.scenario.cluster, libraries_bytes(self.inputs[0], False)
        fixed_bytes = fixed["workspace"] + fixed["context"]
        shapes = distinct(*(c.shapes[name] for name in ("tensor", "context", "expert", "workers", "stages")))
        key = combined([(shapes.code, c.shape), (np.arange(2), copies)])
        degrees = np.array([c.workers, c.stages, c.tensor, c.context, c.expert])[:, key.first].T.tolist()
        found = np.array(
            [
                [
                    nccl_bytes(
                        cluster,
                        Plan(workers=workers, stages=stages, tensor=tensor, context=context, expert=expert, order=order),
                        bool(copied),
                    )
                    for (workers, stages, tensor, context, expert), copied in zip(degrees, copies[key.first], strict=True)
                ]
                for order in space.orders
            ]
        )
        result: Bytes = fixed_bytes + found[:, key.code]
        return result

    def _inputs(self, row: int) -> MemoryInputs:
        return self.inputs[int(self.inputs_of.code[row])]


def _inputs(configurations: Configurations, row: int) -> MemoryInputs:
    scenario = configurations.scenario(row)
    return MemoryInputs(scenario)
