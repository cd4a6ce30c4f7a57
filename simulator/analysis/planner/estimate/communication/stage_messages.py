"""Messages between pipeline stages, as in programs of such plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.communication.placement import RankPlacement
from scaleproof.simulator.analysis.planner.estimate.communication.transfer_times import TransferTimes
from scaleproof.simulator.analysis.planner.estimate.factorize import Numbers
from scaleproof.simulator.cluster import Cluster

Times = NDArray[np.float64]


class _MessageRoute(NamedTuple):
    """From one rank's (node, device) to another's. senders: number of messages that take such routes concurrently."""

    source: tuple[int, int]
    target: tuple[int, int]
    senders: int


class StageMessages:
    """Requests messages of all sizes on all routes. `request` returns routes; `numbers` are those of the requests.

    place: for each placement, a number that is equal for those whose pipeline ranks are placed in the same way.
    """

    def __init__(
        self, transfers: TransferTimes, cluster: Cluster, sizes_bytes: Sequence[float], positions: Sequence[RankPlacement]
    ) -> None:
        self._transfers, self._sizes_bytes = transfers, sizes_bytes
        self._is_uniform, self._devices = cluster.is_uniform, cluster.node.devices
        known: dict[tuple[int, int], int] = {}
        strides = ((grid.stride("stages"), senders) for grid, senders in positions)
        # if the stride is a node or more, every stage is on another node
        keys = ((min(stride, self._devices) if self._is_uniform else stride, senders) for stride, senders in strides)
        self.place = np.array([known.setdefault(key, len(known)) for key in keys], dtype=np.int64)
        self._places = list(known)
        self._routes: dict[object, int] = {}
        self._known: dict[object, Numbers] = {}
        self._requested: list[list[int]] = []

    def request(self, place: int, rank_of: Numbers) -> Numbers:
        """The number of the route after each stage but the last, arbitrary where the next stage is on the same rank. rank_of:
        the pipeline rank of each stage."""
        key = place, rank_of.tobytes()
        if key not in self._known:
            self._known[key] = self._routes_after(*self._places[place], rank_of)
        return self._known[key]

    def _routes_after(self, stride: int, senders: int, rank_of: Numbers) -> Numbers:
        ranks = rank_of * stride
        nodes = ranks // self._devices
        # in a uniform cluster all that matters is whether a message leaves its node
        uniform = np.add(nodes[:-1] == nodes[1:], ranks[:-1] == ranks[1:], dtype=np.int64)
        route_keys = uniform if self._is_uniform else ranks[:-1] * (ranks.max() + 1) + ranks[1:]
        crossing = np.flatnonzero(ranks[:-1] != ranks[1:])
        keys, positions = route_keys[crossing].tolist(), [*zip(nodes.tolist(), (ranks % self._devices).tolist(), strict=True)]
        # a stage before each distinct route
        stage_before = dict(zip(keys, crossing.tolist(), strict=True))
        routes = {
            key: self._route(_MessageRoute(positions[stage], positions[stage + 1], senders))
            for key, stage in stage_before.items()
        }
        result = np.zeros(len(route_keys), dtype=np.int64)
        result[crossing] = [routes[key] for key in keys]
        return result

    def _route(self, route: _MessageRoute) -> int:
        inside = route.source[0] == route.target[0]
        key = (inside, route.source == route.target, route.senders) if self._is_uniform else route
        if key not in self._routes:
            self._routes[key] = len(self._requested)
            paths = (
                (size_bytes, self._transfers.fabric.concurrent_messages(*route[:2], size_bytes, route.senders))
                for size_bytes in self._sizes_bytes
            )
            self._requested.append([self._transfers.message(route, size_bytes, path) for size_bytes, path in paths])
        return self._routes[key]

    def numbers(self) -> Numbers:
        """Numbers of the requested transfers, shape (routes, sizes)."""
        return np.array(self._requested, dtype=np.int64).reshape(len(self._requested), len(self._sizes_bytes))
