"""Messages: what stages send one another, as programs of such plans have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.communication.placement import Place
from scaleproof.simulator.analysis.planner.estimate.communication.transfer_times import TransferTimes
from scaleproof.simulator.analysis.planner.estimate.factorize import Numbers
from scaleproof.simulator.cluster import Cluster

Times = NDArray[np.float64]


class _MessageRoute(NamedTuple):
    """From one rank's place to another's, and how many alike messages go there together."""

    source: tuple[int, int]
    target: tuple[int, int]
    alike: int


class StageMessages:
    """Asks for messages of all sizes on all ways; `ask` says which ways, `numbers` what to ask the wires' answers for.

    place: of each of the places, a number that is equal for those whose pipeline ranks are placed alike.
    """

    def __init__(self, wires: TransferTimes, cluster: Cluster, sizes_bytes: Sequence[float], places: Sequence[Place]) -> None:
        self._wires, self._sizes_bytes = wires, sizes_bytes
        self._is_uniform, self._devices = cluster.is_uniform, cluster.node.devices
        known: dict[tuple[int, int], int] = {}
        strides = ((grid.stride("stages"), alike) for grid, alike in places)
        # ranks that are so far from one another that each is on its own node are as far as any
        keys = ((min(stride, self._devices) if self._is_uniform else stride, alike) for stride, alike in strides)
        self.place = np.array([known.setdefault(key, len(known)) for key in keys], dtype=np.int64)
        self._places = list(known)
        self._ways: dict[object, int] = {}
        self._known: dict[object, Numbers] = {}
        self._asked: list[list[int]] = []

    def ask(self, place: int, rank_of: Numbers) -> Numbers:
        """The way behind each stage of the model but the last, by number, any where the next is on the same rank. rank_of: the
        pipeline rank that has each stage."""
        key = place, rank_of.tobytes()
        if key not in self._known:
            self._known[key] = self._behind(*self._places[place], rank_of)
        return self._known[key]

    def _behind(self, stride: int, alike: int, rank_of: Numbers) -> Numbers:
        ranks = rank_of * stride
        nodes = ranks // self._devices
        # where any two places are joined like any other two, all that counts is whether a message leaves its node
        uniform = np.add(nodes[:-1] == nodes[1:], ranks[:-1] == ranks[1:], dtype=np.int64)
        told = uniform if self._is_uniform else ranks[:-1] * (ranks.max() + 1) + ranks[1:]
        crossing = np.flatnonzero(ranks[:-1] != ranks[1:])
        keys, places = told[crossing].tolist(), [*zip(nodes.tolist(), (ranks % self._devices).tolist(), strict=True)]
        # a stage behind which each of them is
        behind = dict(zip(keys, crossing.tolist(), strict=True))
        ways = {key: self._way(_MessageRoute(places[stage], places[stage + 1], alike)) for key, stage in behind.items()}
        result = np.zeros(len(told), dtype=np.int64)
        result[crossing] = [ways[key] for key in keys]
        return result

    def _way(self, way: _MessageRoute) -> int:
        inside = way.source[0] == way.target[0]
        key = (inside, way.source == way.target, way.alike) if self._is_uniform else way
        if key not in self._ways:
            self._ways[key] = len(self._asked)
            paths = (
                (size_bytes, self._wires.fabric.alike_messages(*way[:2], size_bytes, way.alike))
                for size_bytes in self._sizes_bytes
            )
            self._asked.append([self._wires.message(way, size_bytes, path) for size_bytes, path in paths])
        return self._ways[key]

    def numbers(self) -> Numbers:
        """What to ask the wires' answers for, shape (ways, sizes)."""
        return np.array(self._asked, dtype=np.int64).reshape(len(self._asked), len(self._sizes_bytes))
