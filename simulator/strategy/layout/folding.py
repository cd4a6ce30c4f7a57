"""Folding of workers whose messages take equal times, on networks where pairs of nodes differ.

On a tree with fewer links at the top, for example, workers differ only in which of their stages are in different pods. Folded
workers use the links of the first of them alone, so that their program is for engines in which nothing is shared.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Final

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.program import Path, ProgramBuilder
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.layout.mesh import DeviceMesh, Placed
from scaleproof.simulator.strategy.layout.resource_map import ResourceMap
from scaleproof.simulator.strategy.plan import Plan

_MOST_CACHED: Final = 64
# Cache: folded classes, and the cluster that the key identifies, which is referenced so that no other gets the same id.
_FOLDED: Final[OrderedDict[Hashable, tuple[Cluster, list[Placed]]]] = OrderedDict()


def folded(classes: list[Placed], plan: Plan, job: Job) -> list[Placed]:
    """Classes of one worker each, folded where all messages between their stages take equal times.

    The same classes where workers differ in other ways: in their speed, in the batches that they load, in the groups with which
    they synchronise gradients, or in the time that hosts need for a message, which depends on its size; and with parameter
    servers.
    """
    cluster = job.cluster
    links = [link for link in (cluster.node.link, cluster.network) if link is not None]
    sharded = plan.sharing < plan.workers if job.zero else False
    if (
        any(placed.ranks > 1 for placed in classes)
        or job.distinguishable_ranks(plan.ranks)
        or job.input is not None
        or sharded
        or plan.expert > 1
        or plan.shares is not None
        or plan.servers
        or any(link.overhead_s for link in links)
    ):
        return classes
    mesh = plan.grid(cluster.node.devices)
    pairs = _pairs(plan)
    key = id(cluster), mesh, pairs
    if key not in _FOLDED:
        _FOLDED[key] = cluster, _folded(classes, mesh, pairs, cluster)
        if len(_FOLDED) > _MOST_CACHED:
            _FOLDED.popitem(last=False)
    return _FOLDED[key][1]


def _pairs(plan: Plan) -> tuple[tuple[int, int], ...]:
    """Pipeline ranks that exchange messages: those with consecutive stages of the model, and the first and the last."""
    rank_of = {stage: rank for rank, stages in enumerate(plan.stage_of) for stage in stages}
    one_way = {(rank_of[stage], rank_of[stage + 1]) for stage in range(len(rank_of) - 1)} | {(0, plan.stages - 1)}
    return tuple(sorted(pair for a, b in one_way for pair in ((a, b), (b, a)) if a != b))


def _folded(classes: Sequence[Placed], mesh: DeviceMesh, pairs: Sequence[tuple[int, int]], cluster: Cluster) -> list[Placed]:
    builder = ProgramBuilder()
    resource_map = ResourceMap(cluster, builder)
    paths = [_paths(placed.rank, mesh, pairs, resource_map) for placed in classes]
    capacity_Bps = builder.build().resources.capacity.tolist()
    workers: dict[Hashable, list[Placed]] = {}
    for placed, own in zip(classes, paths, strict=True):
        workers.setdefault(tuple(_key(path, capacity_Bps) for path in own), []).append(placed)
    return [first._replace(nodes=1 + len(others)) for first, *others in workers.values()]


def _paths(worker: int, mesh: DeviceMesh, pairs: Sequence[tuple[int, int]], resource_map: ResourceMap) -> list[Path]:
    """Paths of a worker's messages between pipeline ranks."""
    concurrent = mesh.on_first_node(mesh.members(worker, 0))
    places = [mesh.place(worker, stage) for stage in range(mesh.stages)]
    return [resource_map.concurrent_messages(places[a], places[b], 1.0, concurrent) for a, b in pairs]


def _key(path: Path, capacity_Bps: Sequence[float]) -> Hashable:
    """A key of paths on which messages take equal times as long as no others share their links."""
    uses = sorted((capacity_Bps[use.resource], use.per_unit) for use in path.uses)
    return path.latency_s, path.max_Bps, path.weight, tuple(uses)
