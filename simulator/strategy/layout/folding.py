"""Folding of workers on networks where pairs of nodes differ.

On a tree with fewer links at the top, for example, workers differ only in which of their stages are in different pods. If an
engine lets messages share links, workers are equivalent if their messages use equivalent links, see `common.equivalence`: one
worker then stands for all of its class, and one link for all of its class. For engines in which nothing is shared, it suffices
that their messages take equal times; folded workers then use the links of the first of them alone.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.common.equivalence import UsedLinks, hashes, labels
from scaleproof.simulator.common.equivalence import classes as equivalence_classes
from scaleproof.simulator.parallelism.mesh import DeviceMesh, RankClass
from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.simulator.program import Kind, Path, Program, Resources, ResourceTable
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.layout.resource_map import LinkClasses, ResourceMap


def folded(classes: list[RankClass], plan: Plan, job: Job) -> list[RankClass]:
    """Classes of one worker each, folded where all messages between their stages take equal times if nothing is shared."""
    return _folded(tuple(classes), plan.grid_on(job.cluster), _pairs(plan), job.cluster)


def folded_with_links(classes: list[RankClass], plan: Plan, job: Job, unshared: Program) -> tuple[list[RankClass], LinkClasses]:
    """Classes of one worker each, folded where their messages use equivalent links, and the classes of links.

    unshared: the plan's program for engines in which nothing is shared, which has the same collectives. No link has a class if
    nothing can be folded.
    """
    cluster, network = job.cluster, job.cluster.network
    has_cores = cluster.node.cores is not None or cluster.shared_cores is not None
    if has_cores or network is None or job.unevenness.tenants:
        return classes, {}
    users = _Users(unshared)
    table = ResourceTable()
    resource_map = ResourceMap(cluster, table)
    mesh, pairs = plan.grid_on(cluster), _pairs(plan)
    paths = [_paths(worker.rank, mesh, pairs, resource_map) for worker in classes]
    users.add_workers(paths, table.built()[0])
    of_worker, of_link = users.classes(len(classes))
    links: dict[int, list[str]] = {}
    for name, number in zip(users.links, of_link, strict=True):
        links.setdefault(number, []).append(name)
    return _merged(classes, of_worker), {name: (names[0], len(names)) for names in links.values() for name in names}


class _LinkUse(NamedTuple):
    """A use of a link by a collective or a worker. message: number of the worker's message."""

    user: int
    link: int
    message: int
    per_unit: float


class _Users:
    """Collectives and workers, and the links that they use. links: number of each link by its name."""

    def __init__(self, program: Program) -> None:
        self.links: dict[str, int] = {}
        self._kinds: list[tuple[float, float, bool]] = []
        self._uses: list[_LinkUse] = []
        routes = np.unique(program.route[program.kind == Kind.COLLECTIVE])
        index, resource, per_unit = program.routes.used(routes)
        for user, number, amount in zip(index.tolist(), resource.tolist(), per_unit.tolist(), strict=True):
            self._uses.append(_LinkUse(user, self._link(program.resources, number), 0, amount))
        # what may not be equivalent: collectives are different, workers may differ in the times of their messages alone
        self._users: list[int] = list(range(len(routes)))

    def _link(self, resources: Resources, number: int) -> int:
        name = resources.names[number]
        if name not in self.links:
            self.links[name] = len(self.links)
            is_own = name.endswith((" out", " in", " both"))
            self._kinds.append((float(resources.capacity[number]), float(resources.incast[number]), is_own))
        return self.links[name]

    def add_workers(self, paths: Sequence[Sequence[Path]], resources: Resources) -> None:
        """Adds workers by the paths of their messages. resources: of the paths."""
        numbers: dict[Hashable, int] = {}
        for worker_paths in paths:
            for message, path in enumerate(worker_paths):
                for use in path.uses:
                    link = self._link(resources, use.resource)
                    self._uses.append(_LinkUse(len(self._users), link, message, use.per_unit))
            times = tuple((path.latency_s, path.max_Bps, path.weight) for path in worker_paths)
            self._users.append(numbers.setdefault(times, -1 - len(numbers)))

    def classes(self, workers: int) -> tuple[list[int], list[int]]:
        """The class of each of the last `workers` users, and of each link."""
        columns = np.array(self._uses, dtype=np.float64).reshape(-1, len(_LinkUse._fields)).T
        user, link, message = columns[:3].astype(np.int64)
        uses = UsedLinks(user, link, labels(columns[3], message))
        kinds = hashes(*np.array(self._kinds, dtype=np.float64).reshape(-1, 3).T)
        of_user, of_link = equivalence_classes(uses, hashes(np.array(self._users)), kinds)
        return of_user[len(of_user) - workers :].tolist(), of_link.tolist()


def _pairs(plan: Plan) -> tuple[tuple[int, int], ...]:
    """Pipeline ranks that exchange messages: those with consecutive stages of the model, and the first and the last."""
    rank_of = {stage: rank for rank, stages in enumerate(plan.stage_of) for stage in stages}
    one_way = {(rank_of[stage], rank_of[stage + 1]) for stage in range(len(rank_of) - 1)} | {(0, plan.stages - 1)}
    return tuple(sorted(pair for a, b in one_way for pair in ((a, b), (b, a)) if a != b))


@functools.lru_cache(maxsize=64)
def _folded(
    classes: tuple[RankClass, ...], mesh: DeviceMesh, pairs: tuple[tuple[int, int], ...], cluster: Cluster
) -> list[RankClass]:
    table = ResourceTable()
    resource_map = ResourceMap(cluster, table)
    paths = [_paths(worker.rank, mesh, pairs, resource_map) for worker in classes]
    return _merged(classes, [tuple(_key(path, table.capacities) for path in worker_paths) for worker_paths in paths])


def _merged(classes: Sequence[RankClass], keys: Sequence[Hashable]) -> list[RankClass]:
    """A class for all workers with the same key. classes: of one worker each."""
    workers: dict[Hashable, list[RankClass]] = {}
    for worker, key in zip(classes, keys, strict=True):
        workers.setdefault(key, []).append(worker)
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
