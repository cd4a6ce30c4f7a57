"""What a plan adds to the costs of a job: collectives within passes and their contention, and times of passes."""

from __future__ import annotations

from dataclasses import replace

from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.simulator.parallelism.stages import SEARCHED, WHOLE
from scaleproof.simulator.strategy.data_parallel.contention import Contention
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.model_parallel.layer_collectives import LayerCollectives
from scaleproof.simulator.strategy.pipeline.schedules import PassTimes


def pass_times(plan: Plan, job: Job) -> PassTimes:
    """Pass times for schedules that search for an order: means over all stages. Equal times for other schedules."""
    if plan.schedule not in SEARCHED:
        return PassTimes()
    costs, stages = job.costs(plan.microbatches), plan.stages * plan.chunks
    weights_s = float(job.weights_s(plan.microbatches).sum()) / stages
    forward_s = float((costs.forward_s + costs.forward_exchange_s).sum()) / stages
    backward_s = float((costs.backward_s + costs.backward_exchange_s).sum()) / stages
    return PassTimes(forward_s, backward_s - weights_s, weights_s, kept=job.weights_share())


def with_collectives(plan: Plan, job: Job) -> Job:
    """The job with the collectives of a plan's ranks within their passes, and the contention of collectives next to passes."""
    mesh = plan.grid(job.cluster.node.devices)
    return replace(
        job, exchange=LayerCollectives(plan, mesh), contend=Contention.of_replicas(plan, mesh, job),
        ranks=plan.ranks, group=plan.model_parallel_size, pipelined_ranks=plan.pipelined_ranks(mesh.devices),
        splits_backward=plan.schedule not in WHOLE,
    )  # fmt: skip
