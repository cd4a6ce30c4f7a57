"""Microbatches in flight on pipeline ranks, from the order of the schedule."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.parallelism.stages import ScheduleName
from scaleproof.simulator.strategy.pipeline.schedules import Pass, PassTimes, order

EQUAL: Final = PassTimes()
Counts = NDArray[np.int64]
# By kind of pass, the last for none: change of the number of microbatches whose activations are live, and of those of which
# only the inputs of weights' gradients are live.
_ACTIVATIONS: Final = np.array([1, -1, -1, 0, 0])
_LEFT: Final = np.array([0, 0, 1, -1, 0])


class MicrobatchesInFlight(NamedTuple):
    """Counts of microbatches in flight. The last axis of arrays has 2 · chunks entries: for each chunk the microbatches with
    live activations, then those of which only the inputs of weights' gradients are live.

    first: at the first backward pass over each chunk, without its microbatch, shape (ranks, chunks, …). later: at later
    backward passes, shape (ranks, chunks, candidates, …). between: at the ends of passes, shape (ranks, candidates, …). most:
    maximum of live activations, by rank and chunk. done: chunks with a backward pass before the first one over a chunk, by rank
    and chunk.
    """

    first: Counts
    later: Counts
    between: Counts
    most: list[list[int]]
    done: list[list[list[bool]]]


class InFlightCounts(NamedTuple):
    """Counts of microbatches in flight before and after each pass, shape (ranks, passes, 2 · chunks); see
    `MicrobatchesInFlight`.

    back: chunk of a backward pass, −1 for other passes, shape (ranks, passes).
    """

    before: Counts
    after: Counts
    back: Counts


def turns(kind: Counts, chunk: Counts, chunks: int) -> InFlightCounts:
    """Counts of microbatches in flight, pass by pass. kind, chunk: of the passes of each rank, shape (ranks, passes)."""
    is_in = chunk[:, :, None] == np.arange(chunks)
    changes = np.concatenate([kinds[kind][:, :, None] * is_in for kinds in (_ACTIVATIONS, _LEFT)], axis=2)
    after = np.cumsum(changes, axis=1)
    back = np.where((kind == Pass.BACKWARD) | (kind == Pass.INPUT), chunk, -1)
    return InFlightCounts(after - changes, after, back)


@lru_cache(maxsize=64)
def flights(
    schedule: ScheduleName, ranks: int, microbatches: int, chunks: int = 1, times: PassTimes = EQUAL
) -> MicrobatchesInFlight:
    """Counts of microbatches in flight on all ranks. times: of the passes, which the order of some schedules depends on."""
    passes = order(schedule, ranks, microbatches, chunks, times)
    before, after, back = turns(passes.kind, passes.chunk, chunks)
    firsts = np.stack([np.argmax(back == chunk, axis=1) for chunk in range(chunks)], axis=1)
    itself = np.eye(chunks, 2 * chunks, dtype=np.int64)
    later = [
        _largest(before[rank, back[rank] == chunk][1:] - itself[chunk], 2 * chunks)
        for rank in range(ranks) for chunk in range(chunks)
    ]  # fmt: skip
    return MicrobatchesInFlight(
        before[np.arange(ranks)[:, None], firsts] - itself,
        _stacked(later).reshape(ranks, chunks, -1, 2 * chunks),
        _stacked([_largest(after[rank], 2 * chunks) for rank in range(ranks)]),
        after[:, :, :chunks].max(axis=1).tolist(),
        (firsts[:, None, :] < firsts[:, :, None]).tolist(),
    )


def _largest(counts: Counts, columns: int) -> Counts:
    """The distinct rows of counts, only the largest if they differ in a single column; one row of zeros without any."""
    if len(counts) == 0:
        return np.zeros((1, columns), dtype=np.int64)
    differing = np.flatnonzero(np.ptp(counts, axis=0))
    if len(differing) > 1:
        return np.unique(counts, axis=0)
    return counts[[np.argmax(counts[:, differing].sum(axis=1))]]


def _stacked(counts: Sequence[Counts]) -> Counts:
    """A stack of arrays, in which shorter ones are padded with their first row."""
    most = max(map(len, counts))
    return np.stack([np.concatenate([rows, np.repeat(rows[:1], most - len(rows), axis=0)]) for rows in counts])
