"""Flight: microbatches of which a pipeline rank holds something at a time, from the order of its schedule."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.strategy.pipeline.schedule import Pass, PassTimes, ScheduleName, order

EQUAL: Final = PassTimes()
# Schedules whose backward passes make gradients of weights as well, of which the others make some apart.
WHOLE: Final[frozenset[ScheduleName]] = frozenset({"gpipe", "1f1b", "interleaved_1f1b", "looped_bfs"})
Counts = NDArray[np.int64]
# By kind of pass, the last where there is none: what it adds to the microbatches whose activations are held, and to those of
# which what the gradients of weights need is left.
_HELD: Final = np.array([1, -1, -1, 0, 0])
_LEFT: Final = np.array([0, 0, 1, -1, 0])


class Flights(NamedTuple):
    """Microbatches of which ranks hold something, as counts in the last axis, which has 2 · chunks: those whose activations in
    each chunk are held, then those of which what weights' gradients need is left.

    first: beside the one whose first backward pass over a chunk begins, shape (ranks, chunks, …). later: the same at those
    after it, shape (ranks, chunks, moments, …). between: at all ends of passes, shape (ranks, moments, …). most: activations in
    each chunk, by rank and chunk. done: which chunks have had a backward pass before the first one over a chunk, likewise.
    """

    first: Counts
    later: Counts
    between: Counts
    most: list[list[int]]
    done: list[list[list[bool]]]


class InFlightCounts(NamedTuple):
    """What ranks hold as they go from pass to pass: counts as in `Flights`, shape (ranks, passes, 2 · chunks). back: the chunk
    that is passed back, and −1 at all else, shape (ranks, passes)."""

    before: Counts
    after: Counts
    back: Counts


def turns(kind: Counts, chunk: Counts, chunks: int) -> InFlightCounts:
    """Of ranks by kinds and chunks of their passes, shape (ranks, passes)."""
    is_in = chunk[:, :, None] == np.arange(chunks)
    changes = np.concatenate([kinds[kind][:, :, None] * is_in for kinds in (_HELD, _LEFT)], axis=2)
    after = np.cumsum(changes, axis=1)
    back = np.where((kind == Pass.BACKWARD) | (kind == Pass.INPUT), chunk, -1)
    return InFlightCounts(after - changes, after, back)


@lru_cache(maxsize=64)
def flights(schedule: ScheduleName, ranks: int, microbatches: int, chunks: int = 1, times: PassTimes = EQUAL) -> Flights:
    """Of all ranks, by the schedule's order, in which they are for such times of passes."""
    passes = order(schedule, ranks, microbatches, chunks, times)
    before, after, back = turns(passes.kind, passes.chunk, chunks)
    firsts = np.stack([np.argmax(back == chunk, axis=1) for chunk in range(chunks)], axis=1)
    itself = np.eye(chunks, 2 * chunks, dtype=np.int64)
    later = [
        _largest(before[rank, back[rank] == chunk][1:] - itself[chunk], 2 * chunks)
        for rank in range(ranks) for chunk in range(chunks)
    ]  # fmt: skip
    return Flights(
        before[np.arange(ranks)[:, None], firsts] - itself,
        _stacked(later).reshape(ranks, chunks, -1, 2 * chunks),
        _stacked([_largest(after[rank], 2 * chunks) for rank in range(ranks)]),
        after[:, :, :chunks].max(axis=1).tolist(),
        (firsts[:, None, :] < firsts[:, :, None]).tolist(),
    )


def _largest(counts: Counts, columns: int) -> Counts:
    """All that are different; where they differ in one column alone, the largest; none held, where there are none."""
    if len(counts) == 0:
        return np.zeros((1, columns), dtype=np.int64)
    differing = np.flatnonzero(np.ptp(counts, axis=0))
    if len(differing) > 1:
        return np.unique(counts, axis=0)
    return counts[[np.argmax(counts[:, differing].sum(axis=1))]]


def _stacked(counts: Sequence[Counts]) -> Counts:
    """With as many rows each: those that are short have their first again."""
    most = max(map(len, counts))
    return np.stack([np.concatenate([one, np.repeat(one[:1], most - len(one), axis=0)]) for one in counts])
