"""Moments: at which a pipeline rank may hold the most, as counts of what it holds then beside a microbatch that goes back."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.memory.in_flight import EQUAL, WHOLE, InFlightCounts, turns
from scaleproof.simulator.strategy.pipeline.schedule import PassTimes, ScheduleName, order
from scaleproof.simulator.strategy.pipeline.schedules.written import interleaved_1f1b

Counts = NDArray[np.int64]
Weights = NDArray[np.float64]
# Schedules in which a rank has no fewer forward passes ahead than those behind it: of alike ranks the first holds the most.
FIRST_HOLDS_MOST: Final[frozenset[ScheduleName]] = frozenset({"gpipe", "1f1b", "interleaved_1f1b", "looped_bfs"})
# Rounds of microbatches after which 1F1B over several chunks does the same in turn.
_ROUNDS: Final = 3


class Moments:
    """Of one rank, whose chunks are in groups of alike ones. Counts have a column for each group: of activations that are held,
    and where gradients of weights come later, then of what they need. Those at least as large in all columns stand for others.

    most: activations that each chunk holds at most, in sums by group.
    """

    def __init__(self, found: InFlightCounts, groups: tuple[int, ...], splits: bool) -> None:
        self._groups, self._back, self._splits, chunks = groups, found.back[0], splits, len(groups)
        self._is_in = (np.array(groups)[:, None] == np.arange(max(groups) + 1)).astype(np.int64)
        columns = np.kron(np.eye(2, dtype=np.int64), self._is_in) if splits else self._is_in
        self._itself = [columns[groups.index(group)] for group in range(max(groups) + 1)]
        self._before, self._after = (one[0, :, : len(columns)] @ columns for one in found[:2])
        self._group = np.append(groups, -1)[self._back]
        self.most: Counts = found.after[0, :, :chunks].max(axis=0) @ self._is_in

    @cached_property
    def beside(self) -> list[Counts]:
        """Beside a microbatch that goes back through a chunk, by the chunk's group."""
        return [_most(self._before[self._group == i] - itself) for i, itself in enumerate(self._itself)]

    @cached_property
    def adding(self) -> Weights:
        """All of that, and where gradients of weights come later ends of passes; before the counts 1 in the column of the group
        that is passed back."""
        return _together([*self.beside, self.between] if self._splits else self.beside, len(self._itself))

    @cached_property
    def making(self) -> Weights:
        """The same where passes make gradients: columns of groups passed back at first, and after it, then counts."""
        return _together([*self.first, *self.later], 2 * len(self._itself))

    @property
    def first(self) -> list[Counts]:
        """The same at the first that goes back, and then how many chunks of each group one has gone back through before."""
        firsts = self._firsts
        done = (firsts < firsts[:, None]) @ self._is_in
        counts = np.concatenate([self._before[firsts] - self._is_in, done], axis=1)
        return [_most(counts[self._is_in[:, i] == 1]) for i in range(len(self._itself))]

    @property
    def later(self) -> list[Counts]:
        """The same at those after it, when one has gone back through all chunks."""
        group = self._group.copy()
        group[self._firsts] = -1
        found = [_most(self._before[group == i] - itself) for i, itself in enumerate(self._itself)]
        every = self._is_in.sum(axis=0)
        return [np.concatenate([one, np.broadcast_to(every, (len(one), len(every)))], axis=1) for one in found]

    @property
    def between(self) -> Counts:
        """At ends of passes."""
        return _most(self._after)

    @cached_property
    def _firsts(self) -> Counts:
        """When a microbatch first goes back through each chunk."""
        firsts: Counts = np.argmax(self._back == np.arange(len(self._groups))[:, None], axis=1)
        return firsts


def moments(
    schedule: ScheduleName, ranks: int, rank: int, microbatches: int, groups: tuple[int, ...], times: PassTimes = EQUAL
) -> Moments:
    """groups: of each chunk. Few microbatches and the first ranks stand for all that change nothing."""
    if schedule == "gpipe":
        ranks, rank = 1, 0
    elif schedule == "1f1b":
        ranks, rank = ranks - rank, 0
        microbatches = min(microbatches, ranks + 2)
    elif schedule == "interleaved_1f1b" and microbatches % ranks == 0:
        microbatches = min(microbatches, _ROUNDS * ranks)
    return _moments(schedule, ranks, rank, microbatches, groups, times)


@lru_cache(maxsize=10_000)
def _moments(
    schedule: ScheduleName, ranks: int, rank: int, microbatches: int, groups: tuple[int, ...], times: PassTimes
) -> Moments:
    if schedule == "interleaved_1f1b":
        # without what its order says of the time when passes begin
        lane = itertools.chain.from_iterable(interleaved_1f1b(ranks, rank, microbatches, len(groups)))
        kind, chunk = np.fromiter(lane, dtype=np.int64).reshape(-1, 2).T
    else:
        passes = order(schedule, ranks, microbatches, len(groups), times)
        kind, chunk = passes.kind[rank], passes.chunk[rank]
    return Moments(turns(kind[None], chunk[None], len(groups)), groups, schedule not in WHOLE)


def _together(counts: Sequence[Counts], passes: int) -> Weights:
    """One after the other, with a column before for each of so many passes, which they are beside in turn."""
    each = zip(np.eye(len(counts), passes), counts, strict=True)
    return np.concatenate([np.concatenate([np.tile(own, (len(one), 1)), one], axis=1) for own, one in each])


def _most(counts: Counts) -> Counts:
    """Those that are not smaller in all columns than others."""
    if len(counts) < 2:
        return counts
    high = counts.max(axis=0)
    fullest = int(counts.sum(axis=1).argmax())
    if counts[fullest].tolist() == high.tolist():
        return counts[fullest : fullest + 1]
    sizes = high + 1
    _, at = np.unique(counts @ (np.cumprod(sizes) // sizes), return_index=True)
    counts = counts[at]
    no_smaller = (counts[None] >= counts[:, None]).all(axis=2)
    most: Counts = counts[no_smaller.sum(axis=1) == 1]
    return most
