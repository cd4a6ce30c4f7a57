"""What a plan makes of a job: its stages, the collectives within passes and their contention, and the times of passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.simulator.parallelism.replicas import ReplicaStrategy
from scaleproof.simulator.parallelism.stages import SEARCHED, WHOLE, cut_by_blocks
from scaleproof.simulator.parallelism.strategy import Strategy
from scaleproof.simulator.strategy.data_parallel.contention import Contention
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.model_parallel.layer_collectives import LayerCollectives
from scaleproof.simulator.strategy.pipeline.balance import cut_evenly, cut_in_order, layer_bytes, layer_seconds
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
    mesh = plan.grid_on(job.cluster)
    shares_layers = plan.model_parallel_size > 1 or plan.expert > 1 or plan.exchanges_rows
    shares_layers = shares_layers or any(one.axis == "features" for layer in job.layers[-1:] for one in layer.exchanges)
    return replace(
        job, exchange=LayerCollectives(plan, mesh) if shares_layers else None, contend=Contention.of_replicas(plan, mesh, job),
        averages=plan.averages and not plan.servers, ranks=plan.ranks, group=plan.waiting_within,
        pipelined_ranks=plan.pipelined_ranks(job.cluster),
        splits_backward=plan.schedule not in WHOLE,
    )  # fmt: skip


def stage_layers(strategy: Strategy, job: Job) -> Sequence[Sequence[int]]:
    """Indices of the layers of each stage of the model; contiguous ranges if a plan divides it. Raises FieldError."""
    if isinstance(strategy, ReplicaStrategy):
        return cut(job, strategy.plan)
    return strategy.stage_layers(job.layers)


def cut(job: Job, plan: Plan) -> list[range]:
    """Layers of each of the stages · chunks stages of the model.

    The plan's balance is the same number of blocks in each stage; or the minimum of the maximum time, or memory, of a stage,
    including embedding and loss at the ends; or equal shares of weights in products, as nanotron's build_model fills stages; or
    the numbers of blocks, first stage first. Raises FieldError.
    """
    layers, stages, balance = job.layers, plan.stages * plan.chunks, plan.balance
    by_blocks = cut_by_blocks(layers, stages, balance, plan.counted)
    if isinstance(balance, tuple) or balance == "layers" or stages == 1:
        return by_blocks
    if balance == "products":
        return cut_in_order(layers, stages)
    job = with_collectives(plan, job)
    return cut_evenly(layers, layer_seconds(job, plan) if balance == "time" else layer_bytes(job, plan, pass_times(plan, job)))
