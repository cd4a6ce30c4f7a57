"""Messages: what stages send one another, as programs of such plans have it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.estimate.codes import Numbers
from simulator.estimate.wires import Wires
from simulator.strategy.costs import Job
from simulator.strategy.grid import Grid
from simulator.strategy.plan import Plan

Times = NDArray[np.float64]


class _Way(NamedTuple):
    """From one rank's place to another's, and how many alike messages go there together."""

    source: tuple[int, int]
    target: tuple[int, int]
    alike: int


class Messages:
    """Asks for messages of all sizes on all ways; `ask` says which ways, `numbers` what to ask the wires' answers for."""

    def __init__(self, wires: Wires, job: Job, sizes_bytes: Sequence[float], plans: Iterable[Plan]) -> None:
        """plans: how ranks may be placed."""
        self._wires, self._sizes_bytes = wires, sizes_bytes
        self._is_uniform = job.cluster.is_uniform
        self._places = [(plan.grid(job.cluster.node.devices), wires.alike(plan, job)) for plan in plans]
        self._ways: dict[object, int] = {}
        self._known: dict[object, Numbers] = {}
        self._asked: list[list[int]] = []

    def ask(self, plan: int, rank_of: Numbers) -> Numbers:
        """The way behind each stage of the model but the last, by number, any where the next is on the same rank. plan: number
        of one. rank_of: the pipeline rank that has each stage."""
        grid, alike = self._places[plan]
        if not self._is_uniform:
            return self._behind(grid, alike, rank_of)
        # ranks that are so far from one another that each is on its own node are as far as any
        key = rank_of.tobytes(), min(grid.stride("stages"), grid.devices), alike
        if key not in self._known:
            self._known[key] = self._behind(grid, alike, rank_of)
        return self._known[key]

    def _behind(self, grid: Grid, alike: int, rank_of: Numbers) -> Numbers:
        ranks = rank_of * grid.stride("stages")
        nodes = ranks // grid.devices
        # where any two places are joined like any other two, all that counts is whether a message leaves its node
        uniform = np.add(nodes[:-1] == nodes[1:], ranks[:-1] == ranks[1:], dtype=np.int64)
        told = uniform if self._is_uniform else ranks[:-1] * (ranks.max() + 1) + ranks[1:]
        crossing = np.flatnonzero(ranks[:-1] != ranks[1:])
        _, first, code = np.unique(told[crossing], return_index=True, return_inverse=True)
        places, first = np.array([nodes, ranks % grid.devices]), crossing[first]
        ends = zip(places[:, first].T.tolist(), places[:, first + 1].T.tolist(), strict=True)
        ways = [self._way(_Way((a, b), (c, d), alike)) for (a, b), (c, d) in ends]
        result = np.zeros(len(told), dtype=np.int64)
        result[crossing] = np.array(ways, dtype=np.int64)[code]
        return result

    def _way(self, way: _Way) -> int:
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
