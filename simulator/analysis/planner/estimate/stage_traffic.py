"""Traffic of messages between pipeline stages on the links between nodes, which all ranks share."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.configurations import Numbers
from scaleproof.simulator.analysis.planner.estimate.transfer_times import TransferTimes
from scaleproof.simulator.parallelism.mesh import DeviceMesh

Times = NDArray[np.float64]


class Loads(NamedTuple):
    """Seconds for which messages of one byte use the most used link between nodes: those of one stage to the next, of all
    stages to the next or to the one before, and of a microbatch on its way through all stages and back."""

    one_stage_s: float = 0.0
    all_stages_s: float = 0.0
    both_ways_s: float = 0.0


class StageTraffic:
    """Loads of the links between the nodes of a cluster; where all nodes are equivalent, as many for each of them."""

    def __init__(self, transfers: TransferTimes) -> None:
        self._transfers, cluster = transfers, transfers.fabric.cluster
        self._nodes, self._is_uniform = cluster.nodes, cluster.is_uniform
        self._is_shared = cluster.network is not None and cluster.nodes > 1
        self._loads: dict[tuple[object, ...], Loads] = {}
        self._paths: dict[tuple[int, int], list[tuple[int, float]]] = {}

    def loads(self, mesh: DeviceMesh, stage_of: Numbers) -> Loads:
        """Loads of the messages of all workers, and of all members of their stages. stage_of: stages of each pipeline rank."""
        if not self._is_shared or mesh.stages == 1:
            return Loads()
        key = mesh, stage_of.tobytes(), stage_of.shape
        if key not in self._loads:
            self._loads[key] = self._most_used(mesh, np.argsort(stage_of, axis=None) // stage_of.shape[1])
        return self._loads[key]

    def _most_used(self, mesh: DeviceMesh, rank_of: Numbers) -> Loads:
        """Loads of messages between consecutive stages, whose pipeline ranks are given."""
        # pairs of pipeline ranks, and how often they occur on a microbatch's way through all stages
        pairs, passes = np.unique(rank_of[:-1] * mesh.stages + rank_of[1:], return_counts=True)
        own = (mesh.stride("workers") * np.arange(mesh.workers)[:, None] + mesh.members(0, 0)).ravel()
        ends = np.array(np.divmod(pairs, mesh.stages))[:, :, None] * mesh.stride("stages")
        sources, targets = (own + ends) // mesh.devices
        # pairs of nodes by pair of ranks, and the number of messages that are sent between them at the same time
        nodes = mesh.nodes
        places, messages = np.unique((np.arange(len(pairs))[:, None] * nodes + sources) * nodes + targets, return_counts=True)
        pair, place = np.divmod(places, nodes * nodes)
        source, target = np.divmod(place, nodes)
        leaves = source != target
        pair, source, target, messages = (column[leaves] for column in (pair, source, target, messages))
        forward, backward = self._uses(source, target), self._uses(target, source)
        capacity_Bps = np.repeat(self._transfers.resources.capacity, self._nodes if self._is_uniform else 1)
        links = len(capacity_Bps)
        sent = [(each * messages[number] / capacity_Bps[link]) for number, link, each in (forward, backward)]
        by_pair = np.bincount(pair[forward[0]] * links + forward[1], sent[0])
        one_way = [np.bincount(link, seconds, links) for (_, link, _), seconds in zip((forward, backward), sent, strict=True)]
        passed = [seconds * passes[pair[number]] for (number, _, _), seconds in zip((forward, backward), sent, strict=True)]
        both = np.bincount(np.concatenate([forward[1], backward[1]]), np.concatenate(passed), links)
        return Loads(*(float(np.max(one, initial=0.0)) for one in (by_pair, one_way, both)))

    def _uses(self, sources: Numbers, targets: Numbers) -> tuple[Numbers, Numbers, Times]:
        """Uses of links by messages of one byte between pairs of nodes: numbers of pairs, numbers of links, bytes."""
        count = len(sources)
        if self._is_uniform:
            ends = [(nodes, self._path(*pair)) for nodes, pair in ((sources, (0, 1)), (targets, (1, 0)))]
            uses = [
                (np.arange(count), at + self._nodes * link, np.full(count, each)) for at, path in ends for link, each in path
            ]
            return tuple(map(np.concatenate, zip(*uses, strict=True)))  # type: ignore[return-value]
        paths = [self._path(*pair) for pair in zip(sources.tolist(), targets.tolist(), strict=True)]
        numbers = np.repeat(np.arange(count), [len(path) for path in paths])
        links = np.array([link for path in paths for link, _ in path], dtype=np.int64)
        return numbers, links, np.array([each for path in paths for _, each in path], dtype=np.float64)

    def _path(self, source: int, target: int) -> list[tuple[int, float]]:
        """Links on the way from one node to another, and their use by a message of one byte."""
        key = source, target
        if key not in self._paths:
            # of no size, as the overhead of a message on its host does not depend on its size
            uses = self._transfers.fabric.between(source, target, 0.0).uses
            self._paths[key] = [(use.resource, use.per_unit) for use in uses]
        return self._paths[key]
