"""Grid: the ranks of replicas by their place on the axes of parallelism, and which of them form groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster.collectives.algorithms import Group

Axis = Literal["tensor", "context", "workers", "stages"]
# Innermost first: neighbouring ranks exchange the most (Megatron-LM's order, arXiv 2104.04473, section 3).
ORDER: Final[tuple[Axis, ...]] = ("tensor", "context", "workers", "stages")


@dataclass(frozen=True)
class DeviceMesh:
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

    def replicas_of(self, stage: int, first: int = 0, count: int | None = None) -> Group:
        """The ranks with the same parameters as rank (0, stage) has: of workers first, first + 1, … and all context ranks.

        count: how many workers; as many as there are from the first on, if None.
        """
        last = self.workers if count is None else first + count
        across = self.stride("context")
        starts = range(self.rank(first, stage), self.rank(last, stage), self.stride("workers"))
        ranks = starts if self.context == 1 else [start + c * across for start in starts for c in range(self.context)]
        return Group.of(ranks, self.devices)

    @lru_cache(maxsize=64)  # noqa: B019 (grids are small and few)
    def along(self, axis: Axis, size: int) -> Group:
        """`size` ranks that follow one another along an axis: of all such groups one that lies across the most nodes."""
        number = np.arange(self.workers * self.stages * self.lockstep) // self.stride(axis)
        ranks = np.flatnonzero(number % size == 0)[:, None] + self.stride(axis) * np.arange(size)
        crossings = np.count_nonzero(np.diff(ranks // self.devices, axis=1), axis=1)
        return Group.of(ranks[crossings.argmax()].tolist(), self.devices)

    @lru_cache(maxsize=64)  # noqa: B019 (grids are small and few)
    def experts(self, expert: int, expert_tensor: int | None) -> NDArray[np.int64]:
        """Ranks by their part in a mixture, shape (stages, expert_tensor, replicas, expert): those along the last axis have
        different experts and send each other tokens, those along the one before have the same, those along the second share
        each expert's matrices.

        expert: ranks that have different experts. expert_tensor: of the tensor-parallel ranks those that share matrices; the
        others, context ranks and workers then all have different experts, the innermost in the grid's order first (parallel
        folding, arXiv 2504.14960). If None, all tensor-parallel ranks do, and workers alone have different experts.
        """
        shared = expert_tensor or self.tensor
        sizes = self.stages, shared, self.context, self.workers, self.tensor // shared
        strides = [self.stride(axis) for axis in ("stages", "tensor", "context", "workers")]
        axes = np.indices(sizes).reshape(len(sizes), -1)
        ranks = (np.array([*strides, shared * self.stride("tensor")]) @ axes).reshape(self.stages, shared, -1)
        if expert_tensor is not None:
            ranks = np.sort(ranks, axis=-1)
        return ranks.reshape(self.stages, shared, -1, expert)

    @lru_cache(maxsize=64)  # noqa: B019 (grids are small and few)
    def expert_group(self, expert: int, expert_tensor: int | None) -> Group:
        """Ranks that send each other tokens: of all such groups one that lies across the most nodes."""
        groups = self.experts(expert, expert_tensor).reshape(-1, expert)
        groups = groups[np.argsort(groups[:, 0])]
        crossings = np.count_nonzero(np.diff(groups // self.devices, axis=1), axis=1)
        return Group.of(groups[crossings.argmax()].tolist(), self.devices)

    def expert_replicas(self, stage: int, expert: int, expert_tensor: int | None) -> list[list[int]]:
        """The ranks with each of the parts of a stage's experts, of those with the first part of each matrix."""
        ranks: list[list[int]] = self.experts(expert, expert_tensor)[stage, 0].T.tolist()
        return ranks

    def beside(self, ranks: Sequence[int]) -> int:
        """How many of some ranks are on the first one's node."""
        return sum(rank // self.devices == ranks[0] // self.devices for rank in ranks)

    def workers_on(self, nodes: Sequence[int], stage: int) -> list[int]:
        """The workers of which some rank that has a stage is on one of these nodes."""
        ranks = self.stride("workers") * np.arange(self.workers)[:, None] + self.members(0, stage)
        return np.flatnonzero(np.isin(ranks // self.devices, nodes).any(axis=1)).tolist()
