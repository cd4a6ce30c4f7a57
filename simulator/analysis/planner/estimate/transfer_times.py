"""Seconds of messages between pipeline stages, and of collectives, without contention from others."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.configurations import Configurations
from scaleproof.simulator.analysis.planner.estimate.factorize import Numbers
from scaleproof.simulator.analysis.planner.estimate.layer_times import plans_of
from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.groups import Group, Op
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.engine.durations import durations_s
from scaleproof.simulator.parallelism.mesh import DeviceMesh
from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.simulator.program import Path, ProgramBuilder
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.layout.folding import worker_classes
from scaleproof.simulator.strategy.layout.resource_map import CollectivePaths, ResourceMap

Times = NDArray[np.float64]

# Size of a sum whose time is mostly bandwidth.
_LARGE_BYTES: Final = 2.0**28


class TransferTimes:
    """Collects requests, each of which gets a number; `seconds` times all of them together."""

    def __init__(self, cluster: Cluster) -> None:
        self._builder = ProgramBuilder()
        self.fabric = ResourceMap(cluster, self._builder.resources)
        self._moved: list[tuple[float, Path]] = []
        self._collectives: dict[Hashable, tuple[CollectivePaths, dict[float, int]]] = {}

    def message(self, size_bytes: float, path: Path) -> int:
        """Requests a message and returns its number."""
        self._moved.append((size_bytes, path))
        return len(self._moved) - 1

    def collectives(
        self, op: Op, group: Group, sizes_bytes: Sequence[float], concurrent: int, algorithm: str | None = None
    ) -> list[int]:
        """Requests collectives of several sizes and returns their numbers. concurrent: equivalent groups on the same nodes."""
        key = op, self.fabric.group_key(group), concurrent, algorithm
        if key not in self._collectives:
            self._collectives[key] = self.fabric.moving(op, group, group.node_numbers.tolist()[:1], concurrent, algorithm), {}
        moving, known = self._collectives[key]
        for size_bytes in sizes_bytes:
            if size_bytes not in known:
                known[size_bytes] = self.message(*moving(size_bytes))
        return [known[size_bytes] for size_bytes in sizes_bytes]

    def sharing(self, grid: DeviceMesh, concurrent: int) -> float:
        """Factor on the time of a large sum over the replicas of a stage if those of all stages sum at the same time.

        concurrent: equivalent groups of a stage on the same nodes.
        """
        first = grid.replicas_of(0)
        if grid.stages == 1 or first.nodes == 1:
            return 1.0
        starts = grid.stride("workers") * np.arange(grid.workers) + grid.stride("stages") * np.arange(grid.stages)[:, None]
        cluster, nodes = self.fabric.cluster, starts // grid.devices
        has_rails = cluster.network is not None and cluster.network.topology.endpoints_are_cards
        endpoints = starts * cluster.node.cards_used // grid.devices if has_rails else nodes
        own_uses, max_Bps = self._uses(first, concurrent)
        if cluster.is_uniform:
            stages = int((endpoints == endpoints[0, 0]).any(axis=1).sum())
            if stages == 1:
                return 1.0
            all_uses = {link: stages * use for link, use in own_uses.items()}
        else:
            all_uses = dict[int, float]()
            _, representatives, counts = np.unique(endpoints, axis=0, return_index=True, return_counts=True)
            for stage, count in zip(representatives.tolist(), counts.tolist(), strict=True):
                for link, use in self._uses(grid.replicas_of(stage), concurrent)[0].items():
                    all_uses[link] = all_uses.get(link, 0.0) + count * use
        capacity = self._builder.resources.capacity
        alone_Bps, shared_Bps = (
            min([max_Bps, *(capacity[link] / uses[link] for link in own_uses)]) for uses in (own_uses, all_uses)
        )
        # stages end their passes one after another, so that about half of the others sum at the same time
        return float(1 + (alone_Bps / shared_Bps - 1) / 2)

    def _uses(self, group: Group, concurrent: int) -> tuple[dict[int, float], float]:
        """Uses of links by a large sum over a group, and its highest rate."""
        _, path = self.fabric.collective("all_reduce", group, _LARGE_BYTES, group.node_numbers.tolist()[:1], concurrent)
        uses: dict[int, float] = {}
        for use in path.uses:
            uses[use.resource] = uses.get(use.resource, 0.0) + use.per_unit
        return uses, path.max_Bps

    def seconds(self) -> Times:
        """Seconds of each request, by number."""
        if not self._moved:
            return np.zeros(0)
        rank, which = self._builder.rank("anyone"), np.arange(len(self._moved))
        sizes_bytes, paths = zip(*self._moved, strict=True)
        rows = self._builder.transfers(rank, rank, sizes_bytes, paths, which, Phase.SEND, ())
        return durations_s(self._builder.build())[rows]


class RankPlacement(NamedTuple):
    """A mesh of devices. senders: number of ranks on a node that have the same stage, and send at the same time."""

    grid: DeviceMesh
    senders: int

    @classmethod
    def of(cls, plan: Plan, job: Job) -> RankPlacement:
        """The placement of a plan's ranks."""
        grid = plan.grid(job.cluster.node.devices)
        return cls(grid, worker_classes(plan, job)[0].each * grid.on_first_node(grid.members(0, 0)))


class RankPlacements(NamedTuple):
    """code: the placement of each configuration, an index into `all`."""

    code: Numbers
    all: list[RankPlacement]

    @classmethod
    def of(cls, configurations: Configurations, job: Job) -> RankPlacements:
        """The placements of all configurations. job: the job of any of them."""
        placed = configurations.distinct("tensor", "context", "workers", "stages", "order")
        return cls(placed.code, [RankPlacement.of(plan, job) for plan in plans_of(configurations, placed.first)])


class StageMessages:
    """Messages of all sizes on the routes between pipeline stages. `request` returns numbers of routes.

    place: for each placement, a number that is equal for those whose pipeline ranks are placed in the same way.
    """

    def __init__(
        self, transfers: TransferTimes, job: Job, sizes_bytes: Sequence[float], placements: Sequence[RankPlacement]
    ) -> None:
        """job: of any configuration."""
        self._transfers, self._sizes_bytes, self._framework = transfers, sizes_bytes, job.framework
        self._is_uniform, self._devices = job.cluster.is_uniform, job.cluster.node.devices
        known: dict[tuple[int, int, int], int] = {}
        strides = ((grid.stride("stages"), senders, grid.nodes) for grid, senders in placements)
        # if the stride is a node or more, every stage is on another node; jobs that stall differ from those that do not
        keys = (
            (
                min(stride, self._devices) if self._is_uniform else stride,
                senders,
                nodes if self._framework.stall_s(nodes) else 0,
            )
            for stride, senders, nodes in strides
        )
        self.place = np.array([known.setdefault(key, len(known)) for key in keys], dtype=np.int64)
        self._places = list(known)
        self._routes: dict[Hashable, int] = {}
        self._requested: list[list[int]] = []
        self._leaves_node: list[bool] = []

    @property
    def leaves_node(self) -> NDArray[np.bool_]:
        """Whether each route is between nodes."""
        return np.array(self._leaves_node or [False])

    def request(self, place: int, rank_of: Numbers) -> Numbers:
        """The number of the route after each stage but the last, arbitrary where the next stage is on the same rank. rank_of:
        the pipeline rank of each stage."""
        stride, *senders_and_nodes = self._places[place]
        positions = [divmod(rank, self._devices) for rank in (rank_of * stride).tolist()]
        pairs = itertools.pairwise(positions)
        return np.array([self._route(*pair, *senders_and_nodes) if pair[0] != pair[1] else 0 for pair in pairs], dtype=np.int64)

    def _route(self, source: tuple[int, int], target: tuple[int, int], senders: int, nodes: int) -> int:
        """The number of the route between two positions (node, device), which several messages take concurrently. nodes: of the
        job, where its messages stall."""
        # in a uniform cluster all that matters is whether a message leaves its node
        places = (source[0] == target[0],) if self._is_uniform else (source, target)
        key = (*places, senders, nodes)
        if key not in self._routes:
            self._routes[key] = len(self._requested)
            self._leaves_node.append(source[0] != target[0])
            path, stall_s = self._transfers.fabric.concurrent_messages, self._framework.stall_s(nodes)
            requests = ((size_bytes, path(source, target, size_bytes, senders, stall_s)) for size_bytes in self._sizes_bytes)
            self._requested.append([self._transfers.message(*request) for request in requests])
        return self._routes[key]

    def seconds(self, transfers_s: Times) -> Times:
        """Seconds of messages from the seconds of all transfers, shape (routes, sizes)."""
        if not self._requested:
            return np.zeros((0, len(self._sizes_bytes)))
        result: Times = transfers_s[np.array(self._requested)]
        return result
