"""Alike: stages that take as long as others in all of some configurations, of which one is told for all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.factorize import Numbers

Times = NDArray[np.float64]
_T = TypeVar("_T", bound=np.generic)
# How many of each of the stages that are told.
Counts = NDArray[np.float64]


class Chunks(NamedTuple):
    """Chunks, one on each rank, of which the same stages are told: how many of each, shape (kinds, told); how often each kind
    comes up among all, all but the last, and all but the first, shape (kinds,). kind: of each chunk."""

    counts: Counts
    every: Counts
    before: Counts
    behind: Counts
    kind: Numbers

    def slowest(self, seconds: Times) -> Times:
        """Of each kind, shape (kinds, configurations)."""
        return _slowest(seconds, [np.flatnonzero(row) for row in self.counts])


class Ranks(NamedTuple):
    """Ranks of which the same stages are told: how many of each, shape (kinds, told); what is told of their first chunk, and
    the last of these ranks."""

    counts: Counts
    first: Numbers
    last: Numbers

    def slowest(self, seconds: Times, ranks: Iterable[int]) -> Times:
        """Of each of some ranks and all behind it. seconds: by kind, of the last of them."""
        return _slowest(seconds, [np.flatnonzero(self.last >= rank) for rank in ranks])


class EquivalentStages:
    """of: which is told for each stage. ranks: that have the stages in turn."""

    def __init__(self, of: Sequence[int], ranks: int) -> None:
        self.of, self.ranks = np.array(of), ranks
        self._running = np.pad(np.cumsum(np.eye(self.of.max() + 1)[self.of], axis=0), [(1, 0), (0, 0)])

    def __len__(self) -> int:
        """Of all stages."""
        return len(self.of)

    @cached_property
    def first(self) -> Numbers:
        """The first stage of which each is told."""
        return np.unique(self.of, return_index=True)[1]

    def between(self, begins: Numbers | Sequence[int] | int, ends: Numbers | Sequence[int] | int) -> Counts:
        """What is told of stages from some on up to others, which come no earlier, shape (…, told)."""
        counts: Counts = self._running[ends] - self._running[begins]
        return counts

    @cached_property
    def by_chunk(self) -> Chunks:
        begins = np.arange(0, len(self), self.ranks)
        counts, kind = _kinds(self.between(begins, begins + self.ranks))
        every, before, behind = (
            np.bincount(some, minlength=len(counts)).astype(np.float64) for some in (kind, kind[:-1], kind[1:])
        )
        return Chunks(counts, every, before, behind, kind)

    @cached_property
    def by_rank(self) -> Ranks:
        """Where ranks have the stages in turn."""
        kinds, kind = _kinds(self.of.reshape(-1, self.ranks).T)
        last = np.zeros(len(kinds), dtype=np.int64)
        # the last of those that are written stays
        last[kind] = np.arange(self.ranks)
        return Ranks(np.eye(self.of.max() + 1)[kinds].sum(axis=1), kinds[:, 0], last)


def _kinds(rows: NDArray[_T]) -> tuple[NDArray[_T], Numbers]:
    """Those that are not equal, and which of them each is."""
    known: dict[bytes, int] = {}
    kind = np.array([known.setdefault(row.tobytes(), len(known)) for row in rows])
    return rows[np.unique(kind, return_index=True)[1]], kind


def _slowest(seconds: Times, several: Sequence[Numbers]) -> Times:
    """The largest of some rows, of several such."""
    result: Times = np.empty((len(several), *seconds.shape[1:]))
    for slowest_s, rows in zip(result, several, strict=True):
        # a row at a time, as what is larger takes no copies of all
        slowest_s[:] = seconds[rows[0]]
        for row in rows[1:]:
            np.maximum(slowest_s, seconds[row], out=slowest_s)
    return result
