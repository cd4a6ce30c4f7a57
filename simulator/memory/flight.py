"""Flight: microbatches of which a pipeline rank holds something at a time, from the order of its schedule."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.strategy.schedule import Pass, PassTimes, ScheduleName, order

EQUAL: Final = PassTimes()
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
    splits: bool


@lru_cache(maxsize=64)
def flights(schedule: ScheduleName, ranks: int, microbatches: int, chunks: int = 1, times: PassTimes = EQUAL) -> Flights:
    """Of all ranks, by the schedule's order, in which they are for such times of passes."""
    passes = order(schedule, ranks, microbatches, chunks, times)
    is_in = passes.chunk[:, :, None] == np.arange(chunks)
    changes = np.concatenate([kinds[passes.kind][:, :, None] * is_in for kinds in (_HELD, _LEFT)], axis=2)
    after = np.cumsum(changes, axis=1)
    before = after - changes
    back = np.where(np.isin(passes.kind, (Pass.BACKWARD, Pass.INPUT)), passes.chunk, -1)
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
        bool((passes.kind == Pass.WEIGHT).any()),
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
