"""Stages with equal times in all of some configurations, of which one represents the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.factorize import Numbers

Times = NDArray[np.float64]
_T = TypeVar("_T", bound=np.generic)
# Numbers of stages of each class.
Counts = NDArray[np.float64]


class ChunkClasses(NamedTuple):
    """Chunks of one stage on each rank, grouped into kinds that consist of the same distinct stages.

    counts: how many of each distinct stage a kind has, shape (kinds, distinct stages). total, without_last, without_first: how
    often each kind occurs among all chunks, all but the last, all but the first, shape (kinds,). kind: of each chunk.
    """

    counts: Counts
    total: Counts
    without_last: Counts
    without_first: Counts
    kind: Numbers

    def slowest(self, seconds: Times) -> Times:
        """Maximum over the stages of each kind, shape (kinds, configurations)."""
        return _slowest(seconds, [np.flatnonzero(row) for row in self.counts])


class RankClasses(NamedTuple):
    """Ranks, grouped into kinds that have the same distinct stages.

    counts: how many of each distinct stage a kind has, shape (kinds, distinct stages). first: the distinct stage of their first
    chunk. last: the last rank of each kind.
    """

    counts: Counts
    first: Numbers
    last: Numbers

    def slowest(self, seconds: Times, ranks: Iterable[int]) -> Times:
        """Maximum over each of some ranks and all ranks after it. seconds: by kind, for its last rank."""
        return _slowest(seconds, [np.flatnonzero(self.last >= rank) for rank in ranks])


class EquivalentStages:
    """Classes of stages with equal times. representative: the class of each stage, from 0 on. ranks: number of ranks."""

    def __init__(self, of: Sequence[int], ranks: int) -> None:
        self.representative, self.ranks = np.array(of), ranks
        self._running = np.pad(np.cumsum(np.eye(self.representative.max() + 1)[self.representative], axis=0), [(1, 0), (0, 0)])

    def __len__(self) -> int:
        """Number of all stages."""
        return len(self.representative)

    @cached_property
    def first(self) -> Numbers:
        """The first stage of each class."""
        return np.unique(self.representative, return_index=True)[1]

    def between(self, begins: Numbers | Sequence[int] | int, ends: Numbers | Sequence[int] | int) -> Counts:
        """Number of stages of each class from `begins` up to `ends`, shape (…, classes)."""
        counts: Counts = self._running[ends] - self._running[begins]
        return counts

    @cached_property
    def by_chunk(self) -> ChunkClasses:
        """Kinds of chunks."""
        begins = np.arange(0, len(self), self.ranks)
        counts, kind = _kinds(self.between(begins, begins + self.ranks))
        total, without_last, without_first = (
            np.bincount(some, minlength=len(counts)).astype(np.float64) for some in (kind, kind[:-1], kind[1:])
        )
        return ChunkClasses(counts, total, without_last, without_first, kind)

    @cached_property
    def by_rank(self) -> RankClasses:
        """Kinds of ranks, where stages are assigned to ranks in a ring."""
        kinds, kind = _kinds(self.representative.reshape(-1, self.ranks).T)
        last = np.zeros(len(kinds), dtype=np.int64)
        # numpy keeps the last value that is written
        last[kind] = np.arange(self.ranks)
        return RankClasses(np.eye(self.representative.max() + 1)[kinds].sum(axis=1), kinds[:, 0], last)


def _kinds(rows: NDArray[_T]) -> tuple[NDArray[_T], Numbers]:
    """Distinct rows, and the index of each row among them."""
    known: dict[bytes, int] = {}
    kind = np.array([known.setdefault(row.tobytes(), len(known)) for row in rows])
    return rows[np.unique(kind, return_index=True)[1]], kind


def _slowest(seconds: Times, several: Sequence[Numbers]) -> Times:
    """Maximum of each of several sets of rows."""
    result: Times = np.empty((len(several), *seconds.shape[1:]))
    for slowest_s, rows in zip(result, several, strict=True):
        # row by row, which needs no copies
        slowest_s[:] = seconds[rows[0]]
        for row in rows[1:]:
            np.maximum(slowest_s, seconds[row], out=slowest_s)
    return result
