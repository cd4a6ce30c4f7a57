"""What collectives cost a layer's passes beside what strategies count: processors that they take, gathers that are repeated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from simulator.cluster.algorithms import Op
from simulator.cluster.cost import processors_taken
from simulator.model import Layer
from simulator.strategy.costs import Job
from simulator.strategy.exchange import Exchanges, crowded_s
from simulator.strategy.plan import Plan


class Beside(NamedTuple):
    """Seconds for a microbatch. forward, backward: by which collectives beside a layer's passes make these longer, computing as
    these do on the processors that are left. again: of gathers that selective recomputation repeats, operator by operator."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    again_s: float = 0.0


def beside(plan: Plan, job: Job) -> Mapping[str, Beside]:
    """By the signatures of a job's layers."""
    return {signature: _beside(layer, plan, job) for signature, layer in {one.signature: one for one in job.layers}.items()}


def _beside(layer: Layer, plan: Plan, job: Job) -> Beside:
    grid, taken = plan.grid(job.cluster.node.devices), processors_taken(job.cluster)
    forward_s, backward_s = _summed_s(layer, plan, job)
    exchanges, samples = Exchanges(grid), job.samples_per_worker / plan.microbatches
    again_s = sum(
        exchanges.seconds(one, layer, samples, job)
        for one in layer.exchanges
        if (one.op, one.axis, one.backward, one.hidden) == ("all_gather", "tensor", False, False)
    )
    return Beside(taken * forward_s, taken * backward_s, again_s)


def _summed_s(layer: Layer, plan: Plan, job: Job) -> tuple[float, float]:
    """Seconds of collectives over replicas beside each pass: of every microbatch where ZeRO's stage 3 gathers and scatters,
    else of one alone, of which all have a part here."""
    if plan.workers * plan.context == 1:
        return 0.0, 0.0
    group = plan.grid(job.cluster.node.devices).replicas_of(0)

    def seconds(op: Op, element_bytes: int) -> float:
        return crowded_s(op, layer.parameters * element_bytes, group, job.cluster)

    gradient_bytes = plan.gradient_bytes or job.element_bytes
    if job.zero == 3:
        gathered_s = seconds("all_gather", job.element_bytes)
        return gathered_s, gathered_s + seconds("reduce_scatter", gradient_bytes)
    gathered_s = seconds("all_gather", job.element_bytes) if job.zero and plan.overlap_gather else 0.0
    summed_s = seconds("reduce_scatter" if job.zero else "all_reduce", gradient_bytes) if plan.overlap else 0.0
    every = 1 if job.zero == 2 else plan.microbatches
    return gathered_s / plan.microbatches, summed_s / every
