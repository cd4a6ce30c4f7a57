"""Messages: what stages send one another, as programs of such plans have it."""

from __future__ import annotations

from collections.abc import Sequence
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
    """Asks for messages of all sizes on all ways; `ask` says which ways, `seconds` how long a message of each size takes."""

    def __init__(self, wires: Wires, job: Job, sizes_bytes: Sequence[float]) -> None:
        self._wires, self._job, self._sizes_bytes = wires, job, sizes_bytes
        self._is_uniform = job.cluster.is_uniform
        self._ways: dict[object, int] = {}
        self._asked: list[list[int]] = []
        self._alike: dict[object, int] = {}

    def ask(self, plan: Plan, stage_of: Sequence[Sequence[int]]) -> list[int]:
        """The way behind each stage of the model but the last, by number."""
        grid = plan.grid(self._job.cluster.node.devices)
        places = [grid.place(0, rank) for rank in range(plan.stages)]
        rank_of = {stage: rank for rank, held in enumerate(stage_of) for stage in held}
        alike = self._alike_of(plan, grid)
        ends = [(places[rank_of[stage]], places[rank_of[stage + 1]]) for stage in range(len(rank_of) - 1)]
        return [self._way(_Way(*end, alike)) for end in ends]

    def _alike_of(self, plan: Plan, grid: Grid) -> int:
        key = plan.tensor, plan.context, plan.workers, plan.stages, plan.order
        if key not in self._alike:
            self._alike[key] = plan.classes(self._job)[0].each * grid.beside(grid.members(0, 0))
        return self._alike[key]

    def _way(self, way: _Way) -> int:
        inside = way.source[0] == way.target[0]
        # where any two places are joined like any other two, all that counts is whether a message leaves its node
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
