"""Seconds of messages between pipeline stages, and of collectives, without contention from others."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final

import numpy as np

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.groups import Group, Op
from scaleproof.simulator.parallelism.mesh import DeviceMesh
from scaleproof.simulator.program import Path, ResourceTable
from scaleproof.simulator.strategy.layout.resource_map import ResourceMap

# Size of a sum whose time is mostly bandwidth.
_LARGE_BYTES: Final = 2.0**28
# Maximum number of other stages whose sums on a network of different links are examined; they represent all others.
_MOST_SHARING: Final = 4
# Node and device.
Place = tuple[int, int]
# Seconds by size in bytes.
SecondsOf = Callable[[float], float]


class TransferTimes:
    """Times transfers on a cluster, equal ones once, by the paths that programs have."""

    def __init__(self, cluster: Cluster) -> None:
        self.resources = ResourceTable()
        self.fabric = ResourceMap(cluster, self.resources)
        self._is_uniform = cluster.is_uniform
        self._messages_s: dict[tuple[object, ...], float] = {}
        self._collectives: dict[tuple[object, ...], SecondsOf] = {}

    def message_s(self, size_bytes: float, source: Place, target: Place, senders: int, stall_s: float) -> float:
        """Seconds of one of `senders` concurrent messages. stall_s: additional latency between nodes."""
        # in a uniform cluster all that matters is whether a message leaves its node
        key = size_bytes, *((source[0] == target[0],) if self._is_uniform else (source, target)), senders, stall_s
        if key not in self._messages_s:
            path = self.fabric.concurrent_messages(source, target, size_bytes, senders, stall_s)
            self._messages_s[key] = self._alone_s(size_bytes, path)
        return self._messages_s[key]

    def collective(self, op: Op, group: Group, concurrent: int, algorithm: str | None = None) -> SecondsOf:
        """Seconds of a collective as a function of its size in bytes. concurrent: equivalent groups on the same nodes."""
        key = op, self.fabric.equivalent(group), concurrent, algorithm
        if key not in self._collectives:
            moving = self.fabric.moving(op, group, group.node_numbers.tolist()[:1], concurrent, algorithm)
            self._collectives[key] = functools.cache(lambda size_bytes: self._alone_s(*moving(size_bytes)))
        return self._collectives[key]

    def _alone_s(self, amount_bytes: float, path: Path) -> float:
        """Seconds of a transfer that shares its path with none."""
        capacity, incast, rate_Bps = self.resources.capacities, self.resources.incasts, path.max_Bps
        for link, use in _by_resource(path).items():
            rate_Bps = min(rate_Bps, capacity[link] / (1 + incast[link] * max(0.0, use - 1)) / use)
        return path.latency_s + amount_bytes / rate_Bps

    def _large_sum(self, group: Group, concurrent: int) -> Path:
        return self.fabric.collective("all_reduce", group, _LARGE_BYTES, group.node_numbers.tolist()[:1], concurrent)[1]

    def sharing(self, grid: DeviceMesh, concurrent: int) -> float:
        """Factor on the time of a large sum over the replicas of a stage if those of all stages sum at the same time.

        concurrent: equivalent groups of a stage on the same nodes.
        """
        first, cluster = grid.replicas_of(0), self.fabric.cluster
        if grid.stages == 1 or first.nodes == 1:
            return 1.0
        starts = grid.stride("workers") * np.arange(grid.workers) + grid.stride("stages") * np.arange(grid.stages)[:, None]
        has_rails = cluster.network is not None and cluster.network.topology.endpoints_are_cards
        endpoints = starts * cluster.node.cards_used // grid.devices if has_rails else starts // grid.devices
        stages = int((endpoints == endpoints[0, 0]).any(axis=1).sum())
        if cluster.is_uniform and stages == 1:
            return 1.0
        path = self._large_sum(first, concurrent)
        own_uses = _by_resource(path)
        if cluster.is_uniform:
            all_uses = {link: stages * use for link, use in own_uses.items()}
        else:
            own = (endpoints == endpoints[0]).all(axis=1)
            others, all_uses = np.flatnonzero(~own), {link: int(own.sum()) * use for link, use in own_uses.items()}
            _, at, count = np.unique(endpoints[others], axis=0, return_index=True, return_counts=True)
            # some represent all
            some = np.unique(np.linspace(0, len(at) - 1, min(len(at), _MOST_SHARING)).astype(np.int64))
            scale = count.sum() / count[some].sum() if len(some) else 0.0
            for stage, stages in zip(others[at[some]].tolist(), count[some].tolist(), strict=True):
                uses = _by_resource(self._large_sum(grid.replicas_of(stage), concurrent))
                for link in own_uses:
                    all_uses[link] += scale * stages * uses.get(link, 0.0)
        # stages end their passes one after another, so that about half of the others sum at the same time
        alone_Bps, shared_Bps = (
            min([path.max_Bps, *(self.resources.capacities[link] / use for link, use in uses.items())])
            for uses in (own_uses, all_uses)
        )
        return 1 + (alone_Bps / shared_Bps - 1) / 2


def _by_resource(path: Path) -> dict[int, float]:
    """Uses of each resource per byte."""
    uses: dict[int, float] = {}
    for use in path.uses:
        uses[use.resource] = uses.get(use.resource, 0.0) + use.per_unit
    return uses
