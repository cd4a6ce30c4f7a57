"""ZeRO and FSDP: replicas shard optimizer states (stage 1), gradients (2) and parameters (3) (arXiv 1910.02054, 2304.11277).

Gradients are scattered where replicas without shards would sum them. Each rank updates its shard; parameters are gathered
afterwards, during the next forward pass, or, in stage 3, before each pass over a layer.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from scaleproof.simulator.common.communication import Dimension
from scaleproof.simulator.program import Rows
from scaleproof.simulator.strategy.data_parallel.buckets import Issued, ReplicaCollective
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.pipeline.replica import SLOTS, CompileContext
from scaleproof.simulator.strategy.pipeline.schedules import Pass


def summed(context: CompileContext, ranks: int, group: str, size_bytes: float) -> Iterator[ReplicaCollective]:
    """Collectives that sum gradients of `size_bytes` over a group of `ranks` ranks that shard states."""
    plan, job, dimension = context.plan, context.job, dimension_of(context.job)
    if job.sums_whole or job.owns_tensors:
        yield ReplicaCollective("all_reduce", "all replicas" if job.owns_tensors else group, size_bytes, dimension)
        return
    yield ReplicaCollective("reduce_scatter", group, size_bytes, dimension)
    if group == "replicas" and plan.sharing < plan.workers:
        yield ReplicaCollective("all_reduce", "shards", size_bytes / ranks, Dimension.DATA)


def gathers(context: CompileContext, rank: int) -> Iterator[Issued]:
    """Gathers of a pipeline rank's parameters before passes that need them: none if they are gathered after the update."""
    gathering = context.plan.gathering(context.job.zero)
    if gathering == "next forward pass":
        yield from _gathers_of_step(context, rank)
    elif gathering not in (None, "after update"):
        for task, after in layer_needs(context, rank):
            yield from _gathered(context, task, after)


def layer_needs(context: CompileContext, rank: int) -> Iterator[tuple[int, int]]:
    """Tasks before which ZeRO's stage 3 brings the parameters of a layer to the device, and the task after which it begins to:
    forward passes, and backward passes if the parameters were freed; only the step's first pass if they are kept for the whole
    step, as pipelines keep all that forward passes do not free. `prefetch` layers are brought ahead."""
    plan, schedule, gathering = context.plan, context.schedule, context.plan.gathering(3)
    rank_tasks = np.flatnonzero(schedule.rank == rank)
    kinds = (Pass.FORWARD, Pass.BACKWARD, Pass.INPUT) if gathering == "every pass" else (Pass.FORWARD,)
    tasks = rank_tasks[np.isin(schedule.kind[rank_tasks], kinds)]
    job, layers = context.job, context.rank_layers.layers
    again, kept = (np.array(list(map(of, layers))) for of in (job.is_gathered_again, job.is_kept_between_passes))
    tasks = tasks[(schedule.kind[tasks] == Pass.FORWARD) | again[schedule.begin[tasks]]]
    once = (gathering == "once a step") | (kept[schedule.begin[tasks]] & (plan.stages > 1))
    tasks = tasks[~once | (schedule.microbatch[tasks] == _first_microbatch(context, tasks))]
    for number, task in enumerate(tasks.tolist()):
        ahead = number - 1 - plan.prefetch
        yield task, int(tasks[ahead]) if ahead >= 0 else int(rank_tasks[0])


def _first_microbatch(context: CompileContext, tasks: Rows) -> Rows:
    """For each task, the microbatch that passes the task's stage first."""
    stage, microbatch = context.schedule.stage[tasks], context.schedule.microbatch[tasks]
    stages, first = np.unique(stage, return_index=True)
    result: Rows = microbatch[first][np.searchsorted(stages, stage)]
    return result


def _gathers_of_step(context: CompileContext, rank: int) -> Iterator[Issued]:
    """Gathers of the parameters of each unit before the step's first pass over it, one after another."""
    rank_tasks = np.flatnonzero(context.schedule.rank == rank)
    for stage in context.plan.stage_of[rank]:
        tasks = rank_tasks[context.schedule.stage[rank_tasks] == stage][: len(context.units[stage])]
        for task in tasks.tolist():
            yield from _gathered(context, task, int(rank_tasks[0]))


def _gathered(context: CompileContext, task: int, after: int) -> Iterator[Issued]:
    """Gathers of the parameters that a task needs, which begin after the task `after`."""
    slot = int(context.schedule.slot[task]) - SLOTS + 1
    layers = context.unit_of[int(context.schedule.begin[task])].layers
    for collective in gathers_of(context, layers):
        yield Issued(collective, layers, slot, after, before=task)


def gathers_of(context: CompileContext, layers: range) -> Iterator[ReplicaCollective]:
    """Collectives that gather the shards of some layers' parameters, or broadcast them from the ranks that own them: of all
    parameters where these are sharded, else of those that the optimizer has changed."""
    job, dimension = context.job, dimension_of(context.job)
    for group, parameters in context.rank_layers.by_group(layers, trained=job.zero < 3).items():
        size_bytes = float(parameters * job.gathered_bytes)
        if job.owns_tensors:
            count = job.broadcasts([context.rank_layers.layers[i] for i in layers], context.plan.sharing)
            yield from [ReplicaCollective("broadcast", group, size_bytes / count, dimension)] * count
        else:
            yield ReplicaCollective("all_gather", group, size_bytes, dimension)


def dimension_of(job: Job) -> Dimension:
    """The dimension of collectives over replicas that shard states or parameters."""
    return Dimension.FSDP if job.zero == 3 else Dimension.ZERO
