"""Seconds of messages between pipeline stages, and of collectives, without contention from others, and the traffic of messages
on the links between nodes, which all ranks share."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.configurations import Numbers
from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.groups import Group, Op
from scaleproof.simulator.cluster.collectives.settings import CollectiveSettings
from scaleproof.simulator.parallelism.mesh import DeviceMesh
from scaleproof.simulator.program import Path, ResourceTable, Use
from scaleproof.simulator.strategy.layout.resource_map import ResourceMap

Times = NDArray[np.float64]
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
        # with the uses, so that their identities stay theirs
        self._limits_Bps: dict[int, tuple[Sequence[Use], float]] = {}

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
        return path.latency_s + amount_bytes / min(path.max_Bps, self._limit_Bps(path.uses))

    def _limit_Bps(self, uses: Sequence[Use]) -> float:
        """Rate at which the resource that limits a transfer is fully used."""
        if id(uses) not in self._limits_Bps:
            capacity, incast = self.resources.capacities, self.resources.incasts
            rates_Bps = (
                capacity[link] / (1 + incast[link] * max(0.0, use - 1)) / use for link, use in _by_resource(uses).items()
            )
            self._limits_Bps[id(uses)] = uses, min(rates_Bps, default=math.inf)
        return self._limits_Bps[id(uses)][1]

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
        starts = grid.device_of(starts)
        endpoints = starts * cluster.node.cards_used // grid.devices if has_rails else starts // grid.devices
        stages = int((endpoints == endpoints[0, 0]).any(axis=1).sum())
        if cluster.is_uniform and stages == 1:
            return 1.0
        path = self._large_sum(first, concurrent)
        own_uses = _by_resource(path.uses)
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
                uses = _by_resource(self._large_sum(grid.replicas_of(stage), concurrent).uses)
                for link in own_uses:
                    all_uses[link] += scale * stages * uses.get(link, 0.0)
        # stages end their passes one after another, so that about half of the others sum at the same time
        alone_Bps, shared_Bps = (
            min([path.max_Bps, *(self.resources.capacities[link] / use for link, use in uses.items())])
            for uses in (own_uses, all_uses)
        )
        return 1 + (alone_Bps / shared_Bps - 1) / 2


def _by_resource(uses: Sequence[Use]) -> dict[int, float]:
    """Uses of each resource per byte."""
    total: dict[int, float] = {}
    for use in uses:
        total[use.resource] = total.get(use.resource, 0.0) + use.per_unit
    return total


class Loads(NamedTuple):
    """Seconds for which messages of one byte use the most used link between nodes: those of one stage to the next, of all
    stages to the next or to the one before, and of a microbatch on its way through all stages and back."""

    one_stage_s: float = 0.0
    all_stages_s: float = 0.0
    both_ways_s: float = 0.0


def traffic_of(cluster: Cluster) -> StageTraffic:
    """The traffic of stages on a cluster, the same for clusters that differ in other things than its bandwidth."""
    update: dict[str, Any] = {"collectives": CollectiveSettings(), "node": cluster.node.model_copy(update={"link": None})}
    if cluster.network is not None:
        update["network"] = cluster.network.without_latency
    return _traffic_of(cluster.model_copy(update=update))


@functools.lru_cache(maxsize=8)
def _traffic_of(cluster: Cluster) -> StageTraffic:
    return StageTraffic(TransferTimes(cluster))


class StageTraffic:
    """Loads of the links between the nodes of a cluster; where all nodes are equivalent, as many for each of them."""

    def __init__(self, transfers: TransferTimes) -> None:
        self._transfers, cluster = transfers, transfers.fabric.cluster
        self._nodes, self._is_uniform = cluster.nodes, cluster.is_uniform
        self._is_shared = cluster.network is not None and cluster.nodes > 1
        self._used: dict[tuple[object, ...], tuple[float, float, Times]] = {}
        self._paths: dict[tuple[int, int], list[tuple[int, float]]] = {}

    def loads(self, mesh: DeviceMesh, stage_of: Numbers) -> Loads:
        """Loads of the messages of all workers, and of all members of their stages. stage_of: stages of each pipeline rank."""
        if not self._is_shared or mesh.stages == 1:
            return Loads()
        rank_of = np.argsort(stage_of, axis=None) // stage_of.shape[1]
        # pairs of pipeline ranks, and how often they occur on a microbatch's way through all stages
        pairs, passes = np.unique(rank_of[:-1] * mesh.stages + rank_of[1:], return_counts=True)
        counts, kind = np.unique(passes, return_inverse=True)
        key = mesh, pairs.tobytes(), kind.tobytes()
        if key not in self._used:
            self._used[key] = self._most_used(mesh, pairs, kind)
        one_stage_s, all_stages_s, used_s = self._used[key]
        return Loads(one_stage_s, all_stages_s, float(np.max(counts @ used_s, initial=0.0)))

    def _most_used(self, mesh: DeviceMesh, pairs: Numbers, kind: Numbers) -> tuple[float, float, Times]:
        """Loads of messages of one stage and of all stages, and seconds for which messages of one byte between each kind of
        pairs, in both directions, use each link, shape (kinds, links). pairs: of pipeline ranks with consecutive stages."""
        own = (mesh.stride("workers") * np.arange(mesh.workers)[:, None] + mesh.members(0, 0)).ravel()
        ends = np.array(np.divmod(pairs, mesh.stages))[:, :, None] * mesh.stride("stages")
        sources, targets = mesh.device_of(own + ends) // mesh.devices
        # pairs of nodes by pair of ranks, and the number of messages that are sent between them at the same time
        nodes = mesh.nodes
        places, messages = np.unique((np.arange(len(pairs))[:, None] * nodes + sources) * nodes + targets, return_counts=True)
        pair, place = np.divmod(places, nodes * nodes)
        source, target = np.divmod(place, nodes)
        leaves = source != target
        pair, source, target, messages = (column[leaves] for column in (pair, source, target, messages))
        ways = [self._uses(source, target), self._uses(target, source)]
        capacity_Bps = np.repeat(self._transfers.resources.capacity, self._nodes if self._is_uniform else 1)
        links, kinds, one_way_s = len(capacity_Bps), int(kind.max()) + 1, []
        used_s = np.zeros((kinds, links))
        for number, link, each in ways:
            seconds, of_pair = each * messages[number] / capacity_Bps[link], pair[number]
            one_way_s.append(np.bincount(link, seconds, links))
            used_s += np.bincount(kind[of_pair] * links + link, seconds, kinds * links).reshape(kinds, links)
        (number, link, each), *_ = ways
        by_pair_s = np.bincount(pair[number] * links + link, each * messages[number] / capacity_Bps[link])
        one_stage_s, all_stages_s = (float(np.max(one, initial=0.0)) for one in (by_pair_s, one_way_s))
        return one_stage_s, all_stages_s, used_s[:, used_s.any(axis=0)]

    def _uses(self, sources: Numbers, targets: Numbers) -> tuple[Numbers, Numbers, Times]:
        """Uses of links by messages of one byte between pairs of nodes: numbers of pairs, numbers of links, bytes."""
        count = len(sources)
        if self._is_uniform:
            ends = [(nodes, self._path(*pair)) for nodes, pair in ((sources, (0, 1)), (targets, (1, 0)))]
            uses = [
                (np.arange(count), at + self._nodes * link, np.full(count, each)) for at, path in ends for link, each in path
            ]
            return tuple(map(np.concatenate, zip(*uses, strict=True)))  # type: ignore[return-value]
        pairs, pair = np.unique(sources * self._nodes + targets, return_inverse=True)
        paths = [self._path(*divmod(number, self._nodes)) for number in pairs.tolist()]
        lengths = np.array([len(path) for path in paths], dtype=np.int64)
        links = np.array([link for path in paths for link, _ in path], dtype=np.int64)
        used = np.array([each for path in paths for _, each in path], dtype=np.float64)
        # the links of a pair are consecutive
        numbers = np.repeat(np.arange(count), lengths[pair])
        begins = (np.cumsum(lengths) - lengths)[pair]
        at = np.repeat(begins - (np.cumsum(lengths[pair]) - lengths[pair]), lengths[pair]) + np.arange(len(numbers))
        return numbers, links[at], used[at]

    def _path(self, source: int, target: int) -> list[tuple[int, float]]:
        """Links on the way from one node to another, and their use by a message of one byte."""
        key = source, target
        if key not in self._paths:
            # of no size, as the overhead of a message on its host does not depend on its size
            uses = self._transfers.fabric.between(source, target, 0.0).uses
            self._paths[key] = [(use.resource, use.per_unit) for use in uses]
        return self._paths[key]
