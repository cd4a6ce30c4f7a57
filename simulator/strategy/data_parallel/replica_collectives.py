"""Collectives of replicas: what they move, over which groups of ranks, when they run, and their paths."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from scaleproof.simulator.cluster.collectives.cost import copying_s
from scaleproof.simulator.cluster.collectives.groups import Group, Op, passed_bytes
from scaleproof.simulator.common.communication import Collective, Dimension, number_of
from scaleproof.simulator.program import Path, PathOf, Use
from scaleproof.simulator.strategy.layout.resource_map import ResourceMap
from scaleproof.simulator.strategy.pipeline.tasks import CompileContext, Replica

# Names of groups of ranks with the same parameters: all replicas, or ranks with the same experts of a mixture.
REPLICA_GROUPS: Final = ("replicas", "experts")


class ReplicaCollective(NamedTuple):
    """A collective over a group of replicas, by its name in `ReplicaGroups`. dimension: that it is reported with."""

    op: Op
    group: str
    size_bytes: float
    dimension: Dimension

    @property
    def number(self) -> int:
        """The number of the dimension and the collective."""
        return number_of(self.dimension, Collective.of(self.op))


class Issued(NamedTuple):
    """A collective in the step of a pipeline rank.

    layers: whose gradients or parameters it moves. slot: scheduling slot. after: task of the rank's schedule that it follows.
    before: task that waits for it; holds: task whose messages wait for it; −1 for none.
    """

    collective: ReplicaCollective
    layers: range
    slot: int
    after: int
    before: int = -1
    holds: int = -1


class ReplicaGroups:
    """Groups of ranks that synchronise, among those with members on nodes that are modelled."""

    def __init__(self, context: CompileContext, replicas: Sequence[Replica]) -> None:
        self._context = context
        self._nodes = [sorted({replica.places[rank][0] for replica in replicas}) for rank in range(context.plan.stages)]
        self._known: dict[tuple[int, str], list[Group]] = {}

    def size(self, rank: int, name: str) -> int:
        """Number of ranks in each group of a pipeline rank."""
        return self.of(rank, name)[0].size

    def of(self, rank: int, name: str) -> list[Group]:
        """The groups of a pipeline rank with a name, which communicate concurrently."""
        if (rank, name) not in self._known:
            nodes = self._nodes[rank]
            groups = self._with(self._context.mesh.workers_on(nodes, rank), rank, name)
            self._known[rank, name] = [group for group in groups if np.isin(group.node_numbers, nodes).any()]
        return self._known[rank, name]

    def _with(self, workers: Iterable[int], rank: int, name: str) -> Iterator[Group]:
        """Groups that contain some workers: "replicas" have the same parameters, and shard states with ZeRO; "all replicas"
        have the same parameters; "shards" have the same shard of these; "experts" have the same experts."""
        plan, mesh = self._context.plan, self._context.mesh
        sharing = plan.sharing if self._context.job.zero and name != "all replicas" else plan.workers
        if name == "experts":
            for ranks in mesh.expert_replicas(rank):
                yield Group.of(ranks, mesh.devices)
            return
        for first in sorted({worker % sharing if name == "shards" else worker - worker % sharing for worker in workers}):
            if name in ("replicas", "all replicas"):
                yield mesh.replicas_of(rank, first, sharing)
            else:
                columns = (mesh.members(worker, rank)[:: mesh.tensor] for worker in range(first, plan.workers, sharing))
                yield from (Group.of(members, mesh.devices) for members in zip(*columns, strict=True))

    def moved(self, rank: int, collective: ReplicaCollective) -> tuple[float, PathOf]:
        """Bytes through each member of a collective of a pipeline rank, and its path."""
        plan, mesh, groups = self._context.plan, self._context.mesh, self.of(rank, collective.group)
        op, size_bytes = collective.op, collective.size_bytes
        algorithm = plan.algorithm if op == "all_reduce" else None
        tensor_ranks = plan.expert_shards if collective.group == "experts" else mesh.tensor
        concurrent = mesh.on_first_node([mesh.rank(0, rank) + i * mesh.stride("tensor") for i in range(tensor_ranks)])
        calls = [
            (op, group, size_bytes, [node for node in self._nodes[rank] if node in group.node_numbers], concurrent, algorithm)
            for group in groups
        ]
        copied_bytes = self._context.job.shard_copies.of(op) * size_bytes
        return passed_bytes(op, groups[0], size_bytes), partial(concurrent_path, calls, copied_bytes)


def concurrent_path(calls: Sequence[tuple[Any, ...]], copied_bytes: float, links: ResourceMap) -> Path:
    """Path of concurrent collectives of several groups, each given by arguments of `ResourceMap.collective`: the longest of
    them, with the resources of all. copied_bytes: of each rank, before or after they move."""
    results = list(itertools.starmap(links.collective, calls))
    _, longest = max(results, key=lambda result: result[1].latency_s + result[0] / result[1].max_Bps)
    if copied_bytes:
        longest = replace(longest, latency_s=longest.latency_s + copying_s(copied_bytes, links.cluster))
    if len(results) == 1:
        return longest
    uses: dict[int, float] = {}
    for _, path in results:
        for use in path.uses:
            uses[use.resource] = uses.get(use.resource, 0.0) + use.per_unit
    return replace(longest, uses=tuple(Use(*use) for use in uses.items()))
