"""Seconds of messages and collectives without contention from others, as in programs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.algorithms import Group, Op
from scaleproof.simulator.engine.durations import durations_s
from scaleproof.simulator.program import Path, ProgramBuilder
from scaleproof.simulator.run.run import Phase
from scaleproof.simulator.strategy.layout.resource_map import CollectivePaths, ResourceMap


class TransferTimes:
    """Collects requests, each of which gets a number; `seconds` times all of them together."""

    def __init__(self, cluster: Cluster) -> None:
        self._builder = ProgramBuilder()
        self.fabric = ResourceMap(cluster, self._builder)
        self._moved: list[tuple[float, Path]] = []
        self._known: dict[Hashable, int] = {}
        self._collectives: dict[Hashable, tuple[CollectivePaths, dict[float, int]]] = {}

    def message(self, key: Hashable, size_bytes: float, path: Path) -> int:
        """Requests a message and returns its number. key: equal for routes with equal times."""
        if (key, size_bytes) not in self._known:
            self._known[key, size_bytes] = self._request(size_bytes, path)
        return self._known[key, size_bytes]

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
                known[size_bytes] = self._request(*moving(size_bytes))
        return [known[size_bytes] for size_bytes in sizes_bytes]

    def _request(self, size_bytes: float, path: Path) -> int:
        self._moved.append((size_bytes, path))
        return len(self._moved) - 1

    def seconds(self) -> NDArray[np.float64]:
        """Seconds of each request, by number."""
        if not self._moved:
            return np.zeros(0)
        rank, which = self._builder.rank("anyone"), np.arange(len(self._moved))
        sizes_bytes, paths = zip(*self._moved, strict=True)
        rows = self._builder.transfers(rank, rank, sizes_bytes, paths, which, Phase.SEND, ())
        return durations_s(self._builder.build())[rows]
