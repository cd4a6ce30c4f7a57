"""Classes of equivalent workers of a plan."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from scaleproof.simulator.parallelism.mesh import DeviceMesh, RankClass, place
from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.simulator.strategy.job import Job


def worker_classes(plan: Plan, job: Job) -> list[RankClass]:
    """Classes of equivalent workers of a plan; `node` and `each` refer to the first stage of the first worker."""
    cluster, mesh = job.cluster, plan.grid_on(job.cluster)
    distinguishable_ranks = set(job.distinguishable_ranks(plan.ranks))
    scattered = mesh.stride("workers") % plan.model_parallel_size or mesh.stride("stages") % plan.model_parallel_size
    if not cluster.is_uniform or scattered or ((plan.shares or cluster.kinds) and plan.ranks > plan.workers):
        return separate_classes(plan, mesh)
    per_node, rest = divmod(mesh.devices, plan.model_parallel_size)
    aligned = (rest == 0 and plan.order.index("workers") < plan.order.index("stages")) or plan.stages == 1
    if aligned and per_node and (plan.stages == 1 or plan.workers % per_node == 0):
        distinguishable = {rank // mesh.stride("workers") % plan.workers for rank in distinguishable_ranks}
        if cluster.node.cards_used > 1:
            # messages of some of a node's ranks are not spread evenly over its network cards
            nodes = {mesh.place(worker, 0)[0] for worker in distinguishable}
            distinguishable = set(mesh.workers_on(sorted(nodes), 0))
        labels: Sequence[Hashable] = plan.shares or ()
        if cluster.kinds:
            kinds = mesh.kinds_on(cluster)[:, 0].tolist()
            labels = list(zip(plan.shares or kinds, kinds, strict=True))
            devices = [cluster.devices_of(node) for node in range(cluster.nodes)]
            return place(plan.workers, [own // plan.model_parallel_size for own in devices], distinguishable, labels)
        return place(plan.workers, per_node, distinguishable, labels)
    period = math.lcm(mesh.stride("workers"), mesh.devices) // mesh.stride("workers")
    if distinguishable_ranks or plan.ranks <= mesh.devices or plan.workers % period:
        return separate_classes(plan, mesh)
    if plan.order.index("workers") < plan.order.index("stages") and plan.workers * plan.model_parallel_size % mesh.devices:
        return separate_classes(plan, mesh)
    return [RankClass(mesh.place(w, 0)[0], plan.workers // period, 1, w) for w in range(period)]


def separate_classes(plan: Plan, mesh: DeviceMesh) -> list[RankClass]:
    """A class for each worker of a plan."""
    return [RankClass(mesh.place(worker, 0)[0], 1, 1, worker) for worker in range(plan.workers)]


def can_fold(classes: Sequence[RankClass], plan: Plan, job: Job) -> bool:
    """Whether workers differ in nothing but the routes of their messages.

    Not where they differ in their speed, in the batches that they load, in the groups with which they synchronise gradients, or
    in the time that hosts need for a message, which depends on its size; and not with parameter servers, or where workers share
    the memory of their hosts.
    """
    links = [link for link in (job.cluster.node.link, job.cluster.network) if link is not None]
    sharded = plan.sharing < plan.workers if job.zero else False
    return not (
        any(worker.ranks > 1 for worker in classes)
        or job.distinguishable_ranks(plan.ranks)
        or job.input is not None
        or sharded
        or plan.expert > 1
        or plan.shares is not None
        or job.cluster.kinds
        or plan.servers
        or job.offload
        or any(link.overhead_s for link in links)
    )
