"""Data parallelism by all-reduces: replicas sum each bucket of gradients as soon as a backward pass has completed it.

The sum overlaps with the rest of the backward pass (Horovod, arXiv 1802.05799; DistributedDataParallel, arXiv 2006.15704), or
follows it. Library and links decide how it moves: by a ring, a tree, or switches.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from scaleproof.simulator.common.communication import Dimension
from scaleproof.simulator.strategy.data_parallel import zero
from scaleproof.simulator.strategy.data_parallel.buckets import SyncUnit
from scaleproof.simulator.strategy.data_parallel.replica_collectives import Issued, ReplicaCollective, ReplicaGroups
from scaleproof.simulator.strategy.pipeline.rank_schedule import SLOTS
from scaleproof.simulator.strategy.pipeline.schedules import Pass
from scaleproof.simulator.strategy.pipeline.tasks import CompileContext


def sums(context: CompileContext, groups: ReplicaGroups, rank: int) -> Iterator[Issued]:
    """The sums of the gradients of a pipeline rank, each after the pass that completes its gradients."""
    schedule, waits = context.schedule, context.job.waits_for_scatters
    last = int(np.flatnonzero(schedule.rank == rank)[-1])
    for task, units in completed(context, rank):
        slot = int(schedule.slot[task]) + SLOTS // 2
        # the pass returns with its gradients scattered
        before, holds = (task + 1 if task < last else -1, task) if waits else (-1, -1)
        for unit in units:
            for group, tensors in _gradients(context, unit):
                for collective in summed(context, groups.size(rank, group), group, tensors):
                    yield Issued(collective, unit.layers, slot, task, before, holds)


def completed(context: CompileContext, rank: int) -> Iterator[tuple[int, Sequence[SyncUnit]]]:
    """Tasks that complete gradients, and the units that they complete: one each where the task passes one unit and sums
    overlap with passes, else all of the stage."""
    plan, job, schedule = context.plan, context.job, context.schedule
    overlaps = (plan.overlap and not job.sums_whole) or job.zero >= 2
    for stage in plan.stage_of[rank]:
        units = context.units[stage]
        makes_gradients = np.isin(schedule.kind, (Pass.BACKWARD, Pass.WEIGHT))
        tasks = np.flatnonzero((schedule.rank == rank) & (schedule.stage == stage) & makes_gradients)
        if not job.scatters:
            # the last microbatch completes them
            tasks = tasks[-len(units) if overlaps and schedule.cut[tasks[-1]] else -1 :]
        for task in tasks.tolist():
            is_piece = overlaps and schedule.cut[task]
            yield task, [context.unit_of[int(schedule.begin[task])]] if is_piece else units[::-1]


def _gradients(context: CompileContext, unit: SyncUnit) -> Iterator[tuple[str, Sequence[int]]]:
    """Elements of the tensors whose gradients are summed together, with the name of the group that sums them: those of each
    bucket, and those of experts."""
    for begin, end in itertools.pairwise(unit.bounds):
        tensors = context.rank_layers.gradients.tensors[begin:end]
        if sum(tensors):
            yield "replicas", tensors
    _, experts = context.rank_layers.trained(unit.layers)
    if experts:
        yield "experts", (experts,)


def summed(context: CompileContext, ranks: int, group: str, tensors: Sequence[int]) -> Iterator[ReplicaCollective]:
    """Collectives that sum the gradients of a group of `ranks` ranks with the same parameters."""
    plan, size = context.plan, context.job.reduced_bytes
    if context.job.zero:
        yield from zero.summed(context, ranks, group, float(sum(tensors) * size))
    elif plan.compression is None:
        yield ReplicaCollective("all_reduce", group, float(sum(tensors) * size), Dimension.DATA)
    else:
        for one in plan.compression.wire(tensors, size):
            yield ReplicaCollective(one.op, group, one.collective_bytes(ranks), Dimension.DATA)
