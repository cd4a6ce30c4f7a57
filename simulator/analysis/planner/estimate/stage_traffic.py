"""Traffic of messages between pipeline stages on the links between nodes, which all ranks share."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.configurations import Configurations
from scaleproof.simulator.analysis.planner.estimate.factorize import Numbers, distinct
from scaleproof.simulator.analysis.planner.estimate.layer_times import LayerPassTimes, StageCut
from scaleproof.simulator.analysis.planner.estimate.transfer_times import RankPlacements
from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.parallelism.mesh import DeviceMesh
from scaleproof.simulator.parallelism.stages import ScheduleName, stage_of
from scaleproof.simulator.program import ResourceTable
from scaleproof.simulator.strategy.layout.resource_map import ResourceMap

Times = NDArray[np.float64]


class StageTraffic(NamedTuple):
    """Time of the most used link between nodes, by configuration, shape (configurations,).

    message_s: expected seconds per byte of a message between stages. busy_s: seconds of a step.
    """

    message_s: Times
    busy_s: Times

    @classmethod
    def of(
        cls, c: Configurations, passes: LayerPassTimes, placements: RankPlacements, cuts: dict[int, StageCut], cluster: Cluster
    ) -> Self:
        """The traffic of configurations, whose messages have the sizes in `passes`."""
        if cluster.network is None or cluster.nodes == 1 or not (c.stages > 1).any():
            return cls(*np.zeros((2, len(c))))
        key = distinct(c.stages, c.chunks, c.schedule, placements.code)
        meshes = [
            _Messages.of(placements.all[placement].grid, chunks, c.space.schedules[schedule])
            for chunks, schedule, placement in np.array([c.chunks, c.schedule, placements.code])[:, key.first].T.tolist()
        ]
        links = _Links(cluster)
        uses = [links.uses(one) for one in meshes]
        capacity_Bps = links.capacity_Bps()
        loads = [_loads_s(*pair, capacity_Bps) for pair in zip(meshes, uses, strict=True)]
        one_s, all_s, both_s = np.array(loads).T[:, key.code]
        # in a full pipeline all ranks send at the same time, in an empty one a single stage
        full = (c.microbatches - 1) / (c.microbatches + c.stages - 1)
        return cls(one_s + full * (all_s - one_s), both_s * c.microbatches * _least_bytes(c, passes, cuts))


def _least_bytes(c: Configurations, passes: LayerPassTimes, cuts: dict[int, StageCut]) -> Times:
    """Bytes of the smallest message between two stages of each configuration."""
    counts = c.stages * c.chunks
    result = np.zeros(len(c))
    for count in np.unique(counts[counts > 1]).tolist():
        rows = np.flatnonzero(counts == count)
        lasts = cuts[count].stops[:-1] - 1
        result[rows] = passes.sent_bytes[:, lasts].min(axis=1)[passes.key.code[rows]]
    return result


class _Messages(NamedTuple):
    """Messages forward between different nodes, by pair of pipeline ranks and pair of nodes, shape (pairs,).

    pair: number of the pair of pipeline ranks; passes: how often it occurs on a microbatch's way through all stages. sources,
    targets: nodes; messages: number of messages that are sent at the same time.
    """

    pair: Numbers
    passes: Numbers
    sources: Numbers
    targets: Numbers
    messages: Numbers

    @classmethod
    def of(cls, mesh: DeviceMesh, chunks: int, schedule: ScheduleName) -> Self:
        """The messages of all workers, and of all members of their stages."""
        ranks = range(mesh.stages)
        stages = np.array([[stage_of(schedule, mesh.stages, rank, chunk) for chunk in range(chunks)] for rank in ranks])
        rank_of = np.argsort(stages, axis=None) // chunks
        codes, passes = np.unique(rank_of[:-1] * mesh.stages + rank_of[1:], return_counts=True)
        own = (mesh.stride("workers") * np.arange(mesh.workers)[:, None] + mesh.members(0, 0)).ravel()
        nodes = mesh.nodes
        ends = np.array(np.divmod(codes, mesh.stages))[:, :, None] * mesh.stride("stages")
        sources, targets = (own + ends) // mesh.devices
        places, messages = np.unique((np.arange(len(codes))[:, None] * nodes + sources) * nodes + targets, return_counts=True)
        pair, place = np.divmod(places, nodes * nodes)
        source, target = np.divmod(place, nodes)
        leaves = source != target
        columns = (column[leaves] for column in (pair, passes[pair], source, target, messages))
        return cls(*columns)

    def reversed(self) -> Self:
        """The messages backward."""
        return self._replace(sources=self.targets, targets=self.sources)


class _LinkUses(NamedTuple):
    """Uses of links by messages of one byte, shape (uses,): index of the messages, number of the link, bytes."""

    messages: Numbers
    link: Numbers
    each: Times


class _Links:
    """The links between the nodes of a cluster, by number; where all nodes are equivalent, as many for each of them."""

    def __init__(self, cluster: Cluster) -> None:
        self._nodes, self._is_uniform = cluster.nodes, cluster.is_uniform
        self._table = ResourceTable()
        self._fabric = ResourceMap(cluster, self._table)
        self._known: dict[tuple[int, int], tuple[list[int], list[float]]] = {}

    def uses(self, some: _Messages) -> tuple[_LinkUses, _LinkUses]:
        """Uses by messages forward and backward."""
        return self._uses(some), self._uses(some.reversed())

    def _uses(self, some: _Messages) -> _LinkUses:
        if self._is_uniform:
            ends = [(nodes, *self._path(*pair)) for nodes, pair in ((some.sources, (0, 1)), (some.targets, (1, 0)))]
            numbers, links, each = zip(
                *((np.arange(len(nodes)), nodes + self._nodes * link, np.full(len(nodes), use))
                  for nodes, own, uses in ends for link, use in zip(own, uses, strict=True)),
                strict=True,
            )  # fmt: skip
            return _LinkUses(*map(np.concatenate, (numbers, links, each)))
        paths = [self._path(*pair) for pair in zip(some.sources.tolist(), some.targets.tolist(), strict=True)]
        numbers = np.repeat(np.arange(len(paths)), [len(own) for own, _ in paths])
        links = np.array([link for own, _ in paths for link in own], dtype=np.int64)
        return _LinkUses(numbers, links, np.array([use for _, uses in paths for use in uses]))

    def _path(self, source: int, target: int) -> tuple[list[int], list[float]]:
        """Links on the way from one node to another, and their use by a message of one byte."""
        if (source, target) not in self._known:
            # of no size, as the overhead of a message on its host does not depend on its size
            uses = self._fabric.between(source, target, 0.0).uses
            self._known[source, target] = [use.resource for use in uses], [use.per_unit for use in uses]
        return self._known[source, target]

    def capacity_Bps(self) -> Times:
        """Capacity of all links that were used."""
        return np.repeat(self._table.capacity, self._nodes if self._is_uniform else 1)


def _loads_s(some: _Messages, uses: tuple[_LinkUses, _LinkUses], capacity_Bps: Times) -> tuple[float, float, float]:
    """Seconds for which messages of one byte use the most used link: those of one stage to the next, of all stages to the next
    or to the one before, and of a microbatch on its way through all stages and back."""
    forward, backward = uses
    links = len(capacity_Bps)
    sent = [one.each * some.messages[one.messages] / capacity_Bps[one.link] for one in uses]
    by_pair = np.bincount(some.pair[forward.messages] * links + forward.link, sent[0])
    one_way = [np.bincount(one.link, seconds, links) for one, seconds in zip(uses, sent, strict=True)]
    passed = [seconds * some.passes[one.messages] for one, seconds in zip(uses, sent, strict=True)]
    both = np.bincount(np.concatenate([forward.link, backward.link]), np.concatenate(passed), links)
    return tuple(float(np.max(one, initial=0.0)) for one in (by_pair, one_way, both))  # type: ignore[return-value]
