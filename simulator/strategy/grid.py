"""Grid: the ranks of replicas by their place on the axes of parallelism, and which of them form groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final, Literal

import numpy as np

from simulator.cluster.algorithms import Group

Axis = Literal["tensor", "context", "workers", "stages"]
# Innermost first: neighbouring ranks exchange the most (Megatron-LM's order, arXiv 2104.04473, section 3).
ORDER: Final[tuple[Axis, ...]] = ("tensor", "context", "workers", "stages")


@dataclass(frozen=True)
class Grid:
    """Ranks are numbered along the axes of `order`, the innermost first; `devices` of them fill a node."""

    workers: int
    stages: int
    tensor: int
    context: int
    devices: int
    order: tuple[Axis, ...] = ORDER

    @property
    def lockstep(self) -> int:
        """Ranks that share every layer of a stage, and so go from pass to pass together."""
        return self.tensor * self.context

    def stride(self, axis: Axis) -> int:
        """From a rank to the next along an axis."""
        return self._strides[axis]

    @cached_property
    def _strides(self) -> dict[Axis, int]:
        sizes: dict[Axis, int] = {
            "tensor": self.tensor, "context": self.context, "workers": self.workers, "stages": self.stages,
        }  # fmt: skip
        return {axis: math.prod(sizes[one] for one in self.order[:number]) for number, axis in enumerate(self.order)}

    def rank(self, worker: int, stage: int) -> int:
        """The first of the ranks that have a stage of a worker."""
        return worker * self.stride("workers") + stage * self.stride("stages")

    def members(self, worker: int, stage: int) -> list[int]:
        """All ranks that have a stage of a worker."""
        first = self.rank(worker, stage)
        across, along = self.stride("context"), self.stride("tensor")
        return [first + c * across + t * along for c in range(self.context) for t in range(self.tensor)]

    def place(self, worker: int, stage: int) -> tuple[int, int]:
        """Node and device of that first rank."""
        return divmod(self.rank(worker, stage), self.devices)

    def replicas_of(self, stage: int, first: int = 0, count: int | None = None, step: int = 1) -> Group:
        """The ranks with the same parameters as rank (0, stage) has: of workers first, first + step, … and all context ranks.

        count: how many workers; as many as there are from the first on, if None.
        """
        last = self.workers if count is None else first + count * step
        across = self.stride("context")
        starts = range(self.rank(first, stage), self.rank(last, stage), step * self.stride("workers"))
        ranks = starts if self.context == 1 else [start + c * across for start in starts for c in range(self.context)]
        return Group.of(ranks, self.devices)

    @lru_cache(maxsize=64)  # noqa: B019 (grids are small and few)
    def along(self, axis: Axis, size: int) -> Group:
        """`size` ranks that follow one another along an axis: of all such groups one that lies across the most nodes."""
        number = np.arange(self.workers * self.stages * self.lockstep) // self.stride(axis)
        ranks = np.flatnonzero(number % size == 0)[:, None] + self.stride(axis) * np.arange(size)
        crossings = np.count_nonzero(np.diff(ranks // self.devices, axis=1), axis=1)
        return Group.of(ranks[crossings.argmax()].tolist(), self.devices)

    def beside(self, ranks: Sequence[int]) -> int:
        """How many of some ranks are on the first one's node."""
        return sum(rank // self.devices == ranks[0] // self.devices for rank in ranks)

    def workers_on(self, nodes: Sequence[int], stage: int) -> list[int]:
        """The workers of which some rank that has a stage is on one of these nodes."""
        ranks = self.stride("workers") * np.arange(self.workers)[:, None] + self.members(0, stage)
        return np.flatnonzero(np.isin(ranks // self.devices, nodes).any(axis=1)).tolist()
