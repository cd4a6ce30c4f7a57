"""What a plan adds to the costs of a job: collectives within passes and their contention, compression, and times of passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scaleproof.simulator.cluster.collectives.groups import Group, Op
from scaleproof.simulator.parallelism.mesh import DeviceMesh
from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.simulator.parallelism.stages import WHOLE
from scaleproof.simulator.strategy.data_parallel.contention import Contention, ReplicaCollectives
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.model_parallel.expert import Dispatch
from scaleproof.simulator.strategy.model_parallel.layer_collectives import LayerCollectives
from scaleproof.simulator.strategy.pipeline.schedules import PassTimes


def pass_times(plan: Plan, job: Job) -> PassTimes:
    """Pass times for schedules that search for an order: means over all stages. Equal times for other schedules."""
    if plan.schedule not in ("zb_1p", "zb_2p"):
        return PassTimes()
    costs, stages = job.costs(plan.microbatches), plan.stages * plan.chunks
    weights_s = float(job.weights_s(plan.microbatches).sum()) / stages
    forward_s = float((costs.forward_s + costs.forward_exchange_s).sum()) / stages
    backward_s = float((costs.backward_s + costs.backward_exchange_s).sum()) / stages
    return PassTimes(forward_s, backward_s - weights_s, weights_s, kept=job.weights_share())


def with_collectives(plan: Plan, job: Job) -> Job:
    """The job with the collectives of a plan's ranks within their passes, and the contention of collectives next to passes."""
    mesh = plan.grid(job.cluster.node.devices)
    names = ("node_limit", "deduplicated", "dispatch_precision", "combine_precision")
    dispatch = Dispatch(**{name: getattr(plan, name) for name in names}, overlap=plan.overlap_experts)
    collectives = LayerCollectives(mesh, plan.expert, plan.overlap_tensor, plan.expert_tensor, dispatch)
    return replace(
        job, exchange=collectives, contend=_contention(plan, mesh, job),
        ranks=plan.ranks, group=plan.model_parallel_size, pipelined_ranks=plan.pipelined_ranks(mesh.devices),
        splits_backward=plan.schedule not in WHOLE,
    )  # fmt: skip


def _contention(plan: Plan, mesh: DeviceMesh, job: Job) -> Contention | None:
    """Contention with collectives of replicas; None without such collectives."""
    if not plan.averages or plan.servers:
        return None
    zero, sums_whole = 0 if job.owns_tensors else job.zero, job.sums_whole
    gathering = plan.gathering(zero)
    experts = mesh.expert_replicas(0, plan.expert, plan.expert_tensor)[0] if plan.divides_experts else None
    overlaps = (plan.overlap and not sums_whole) or zero >= 2
    sum_op: Op | None = ("reduce_scatter" if zero else "all_reduce") if overlaps else None
    return Contention(
        ReplicaCollectives(
            mesh.replicas_of(0, 0, plan.sharing if zero else None),
            None if experts is None else Group.of(experts, mesh.devices),
            (gathering in ("every pass", "every forward pass"), gathering == "every pass"),
            gathering in ("next forward pass", "once a step"),
            sum_op,
            1 if zero >= 2 and plan.scatter == "microbatch" else plan.microbatches if plan.chunks > 1 else 0,
            plan.stages if plan.chunks == 1 else 1,
        )
    )


def compression_s(plan: Plan, job: Job, tensors: Sequence[int], ranks: int) -> float:
    """Seconds for which each of `ranks` replicas compresses the gradients of tensors of these sizes and restores their sum;
    zero without compression."""
    if plan.compression is None or ranks == 1 or job.zero:
        return 0.0
    return plan.compression.work_s(tensors, ranks, job.cluster.device, job.precision)
