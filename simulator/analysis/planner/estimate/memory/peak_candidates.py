"""Peak candidates: times at which a pipeline rank's memory may be largest, as counts of its activations in addition to those of
the microbatch in its backward pass."""

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
# Schedules in which a rank has at least as many forward passes ahead as later ranks: of equivalent ranks the first is the
# fullest.
FIRST_IS_FULLEST: Final[frozenset[ScheduleName]] = frozenset({"gpipe", "1f1b", "interleaved_1f1b", "looped_bfs"})
# Rounds of microbatches after which interleaved 1F1B is periodic.
_ROUNDS: Final = 3


class PeakCandidates:
    """Peak candidates of one rank, whose equal chunks form groups.

    Counts have a column for each group: microbatches whose activations are allocated, then, where gradients of weights are
    computed separately, microbatches for which their inputs are. A candidate is left out if another is at least as large in all
    columns.

    most: largest numbers of allocated activations of each chunk, summed by group.
    """

    def __init__(self, in_flight: InFlightCounts, groups: tuple[int, ...], splits: bool) -> None:
        self._groups, self._back, self._splits, chunks = groups, in_flight.back[0], splits, len(groups)
        self._is_in = (np.array(groups)[:, None] == np.arange(max(groups) + 1)).astype(np.int64)
        columns = np.kron(np.eye(2, dtype=np.int64), self._is_in) if splits else self._is_in
        self._itself = [columns[groups.index(group)] for group in range(max(groups) + 1)]
        self._before, self._after = (one[0, :, : len(columns)] @ columns for one in in_flight[:2])
        self._group = np.append(groups, -1)[self._back]
        self.most: Counts = in_flight.after[0, :, :chunks].max(axis=0) @ self._is_in

    @cached_property
    def others(self) -> list[Counts]:
        """Counts in addition to the microbatch in its backward pass over a chunk, by the chunk's group."""
        return [_maximal(self._before[self._group == i] - itself) for i, itself in enumerate(self._itself)]

    @cached_property
    def adding(self) -> Weights:
        """All of `others`, and, where gradients of weights are computed separately, the ends of passes. The counts follow
        one-hot columns of the group in its backward pass."""
        return _with_columns([*self.others, self.between] if self._splits else self.others, len(self._itself))

    @cached_property
    def making(self) -> Weights:
        """The same where backward passes make gradients: one-hot columns of the group in its first backward pass, and in a
        later one, then counts."""
        return _with_columns([*self.first, *self.later], 2 * len(self._itself))

    @property
    def first(self) -> list[Counts]:
        """Counts at the first backward pass over each chunk, then the numbers of chunks of each group with an earlier backward
        pass, by group."""
        firsts = self._firsts
        done = (firsts < firsts[:, None]) @ self._is_in
        counts = np.concatenate([self._before[firsts] - self._is_in, done], axis=1)
        return [_maximal(counts[self._is_in[:, i] == 1]) for i in range(len(self._itself))]

    @property
    def later(self) -> list[Counts]:
        """The same at later backward passes, when all chunks have had one."""
        group = self._group.copy()
        group[self._firsts] = -1
        in_flight = [_maximal(self._before[group == i] - itself) for i, itself in enumerate(self._itself)]
        every = self._is_in.sum(axis=0)
        return [np.concatenate([one, np.broadcast_to(every, (len(one), len(every)))], axis=1) for one in in_flight]

    @property
    def between(self) -> Counts:
        """Counts at the ends of passes."""
        return _maximal(self._after)

    @cached_property
    def _firsts(self) -> Counts:
        """Index of the first backward pass over each chunk."""
        firsts: Counts = np.argmax(self._back == np.arange(len(self._groups))[:, None], axis=1)
        return firsts


def peak_candidates(
    schedule: ScheduleName, ranks: int, rank: int, microbatches: int, groups: tuple[int, ...], times: PassTimes = EQUAL
) -> PeakCandidates:
    """Peak candidates of a rank. groups: the group of each chunk. Cases with the same result share the smallest one, with few
    microbatches on the first rank."""
    if schedule == "gpipe":
        ranks, rank = 1, 0
    elif schedule == "1f1b":
        ranks, rank = ranks - rank, 0
        microbatches = min(microbatches, ranks + 2)
    elif schedule == "interleaved_1f1b" and microbatches % ranks == 0:
        microbatches = min(microbatches, _ROUNDS * ranks)
    return _candidates(schedule, ranks, rank, microbatches, groups, times)


@lru_cache(maxsize=10_000)
def _candidates(
    schedule: ScheduleName, ranks: int, rank: int, microbatches: int, groups: tuple[int, ...], times: PassTimes
) -> PeakCandidates:
    if schedule == "interleaved_1f1b":
        # without the times at which passes begin
        own_passes = itertools.chain.from_iterable(interleaved_1f1b(ranks, rank, microbatches, len(groups)))
        kind, chunk = np.fromiter(own_passes, dtype=np.int64).reshape(-1, 2).T
    else:
        passes = order(schedule, ranks, microbatches, len(groups), times)
        kind, chunk = passes.kind[rank], passes.chunk[rank]
    return PeakCandidates(turns(kind[None], chunk[None], len(groups)), groups, schedule not in WHOLE)


def _with_columns(counts: Sequence[Counts], passes: int) -> Weights:
    """Concatenated counts, preceded by `passes` columns that are one-hot in the index of the counts' item."""
    each = zip(np.eye(len(counts), passes), counts, strict=True)
    return np.concatenate([np.concatenate([np.tile(own, (len(one), 1)), one], axis=1) for own, one in each])


def _maximal(counts: Counts) -> Counts:
    """Rows that no other row exceeds in all columns."""
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
