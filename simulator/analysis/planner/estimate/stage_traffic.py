"""Traffic of messages between pipeline stages on the links between nodes, which all ranks share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.configurations import Configurations
from scaleproof.simulator.analysis.planner.estimate.factorize import Numbers, distinct
from scaleproof.simulator.analysis.planner.estimate.layer_times import LayerPassTimes, StageCut
from scaleproof.simulator.analysis.planner.estimate.transfer_times import RankPlacements
from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.program import ProgramBuilder
from scaleproof.simulator.strategy.layout.mesh import DeviceMesh
from scaleproof.simulator.strategy.layout.resource_map import ResourceMap
from scaleproof.simulator.strategy.pipeline.schedule import ScheduleName, stage_of

Times = NDArray[np.float64]
# Uses of resources, by number: bytes for each byte of a message.
_Loads = dict[int, float]


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
        if cluster.network is None or not (c.stages > 1).any():
            return cls(*np.zeros((2, len(c))))
        key = distinct(c.stages, c.chunks, c.schedule, placements.code)
        links = _Links(cluster)
        loads = [
            links.loads(placements.all[placement].grid, chunks, c.space.schedules[schedule])
            for chunks, schedule, placement in np.array([c.chunks, c.schedule, placements.code])[:, key.first].T.tolist()
        ]
        one_s, all_s, both_s = links.busiest_s(loads)[:, key.code]
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


class _Links:
    """The links between the nodes of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._builder = ProgramBuilder()
        self._fabric = ResourceMap(cluster, self._builder)

    def loads(self, mesh: DeviceMesh, chunks: int, schedule: ScheduleName) -> list[list[_Loads]]:
        """Loads of links by messages of one byte, of which the largest counts: of one stage to the next, of all stages to the
        next or to the one before, and of a microbatch on its way through all stages and back."""
        ranks = range(mesh.stages)
        stages = np.array([[stage_of(schedule, mesh.stages, rank, chunk) for chunk in range(chunks)] for rank in ranks])
        rank_of = np.argsort(stages, axis=None) // chunks
        pairs, counts = np.unique(np.array([rank_of[:-1], rank_of[1:]]), axis=1, return_counts=True)
        once, back = np.ones_like(counts), pairs[::-1]
        return [
            [self._load(mesh, pairs[:, [number]], once[:1]) for number in range(len(counts))],
            [self._load(mesh, one_way, once) for one_way in (pairs, back)],
            [self._load(mesh, np.hstack([pairs, back]), np.tile(counts, 2))],
        ]

    def _load(self, mesh: DeviceMesh, pairs: Numbers, counts: Numbers) -> _Loads:
        """Loads of links by `counts` messages of one byte between pairs of pipeline ranks, of each worker and member of a
        stage."""
        loads: _Loads = {}
        for source, target, count in _between_nodes(mesh, pairs, counts):
            # of no size, as the overhead of a message on its host does not depend on its size
            for use in self._fabric.between(source, target, 0.0, count, count).uses:
                loads[use.resource] = loads.get(use.resource, 0.0) + use.per_unit
        return loads

    def busiest_s(self, loads: list[list[list[_Loads]]]) -> Times:
        """Seconds of the most used link of the loads of several configurations, shape (loads, configurations)."""
        capacity_Bps = self._builder.build().resources.capacity.tolist()

        def of(some: list[_Loads]) -> float:
            return max((use / capacity_Bps[link] for one in some for link, use in one.items()), default=0.0)

        return np.array([[of(some) for some in one] for one in loads]).T


def _between_nodes(mesh: DeviceMesh, pairs: Numbers, counts: Numbers) -> Iterator[tuple[int, int, int]]:
    """Yields pairs of different nodes, with the number of messages from the first to the second."""
    own = (mesh.stride("workers") * np.arange(mesh.workers)[:, None] + mesh.members(0, 0)).ravel()
    sources, targets = (own + mesh.stride("stages") * pairs[:, :, None]) // mesh.devices
    both, place = np.unique((sources * mesh.nodes + targets).ravel(), return_inverse=True)
    totals = np.bincount(place, np.repeat(counts, len(own))).astype(np.int64)
    for pair, total in zip(both.tolist(), totals.tolist(), strict=True):
        source, target = divmod(pair, mesh.nodes)
        if source != target:
            yield source, target, total
