"""Pipelines: how long a rank is busy with a step's passes, from its first forward to its last backward pass, in closed form.

Of a step's dependencies each path takes no longer than the step: the longest of some paths is a bound that no replay beats, and
near to it where the paths are the right ones. Arrays have configurations last, which is the fast order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.strategy.schedule import ScheduleName

Times = NDArray[np.float64]


@dataclass(frozen=True)
class Stages:
    """Seconds of passes over each stage of the model, shape (stages, configurations); of the messages behind each but the last,
    shape (stages − 1, configurations). microbatches: shape (configurations,). ranks: that have the stages, in a ring."""

    forward_s: Times
    backward_s: Times
    sends_s: Times
    microbatches: NDArray[np.int64]
    ranks: int
    overlap_sends: bool


def windows(schedule: ScheduleName, stages: Stages) -> tuple[Times, Times]:
    """What is expected, and what it takes at least: seconds from each rank's first pass to the end of its last, shape
    (ranks, configurations)."""
    if stages.ranks == 1:
        total = stages.microbatches * (stages.forward_s + stages.backward_s).sum(axis=0, keepdims=True)
        return total, total
    if schedule == "gpipe":
        return _gpipe(stages)
    if schedule == "1f1b":
        return _1f1b(stages)
    return _interleaved(stages)


def _behind(values: Times) -> Times:
    """Sums of each and all behind it."""
    result: Times = np.cumsum(values[::-1], axis=0)[::-1]
    return result


def _slowest_behind(values: Times) -> Times:
    result: Times = np.maximum.accumulate(values[::-1], axis=0)[::-1]
    return result


def _through(stages: Stages) -> Times:
    """A microbatch's way from each stage to the last and back."""
    both = stages.forward_s + stages.backward_s
    both[:-1] += 2 * stages.sends_s
    return _behind(both)


def _received(stages: Stages) -> tuple[Times, Times, Times]:
    """Seconds of passes with the message that each begins with, and of messages beside them: all, where they move beside
    passes; otherwise a rank that is ready for a message only then gets it."""
    if stages.overlap_sends:
        return stages.forward_s, stages.backward_s, stages.sends_s
    forward_s, backward_s = stages.forward_s.copy(), stages.backward_s.copy()
    forward_s[1:] += stages.sends_s
    backward_s[:-1] += stages.sends_s
    return forward_s, backward_s, np.zeros_like(stages.sends_s)


def _gpipe(stages: Stages) -> tuple[Times, Times]:
    """The slowest stage sets the pace of all forward passes, and that of all backward passes."""
    forward_s, backward_s, _ = _received(stages)
    pace_s = _slowest_behind(forward_s) + _slowest_behind(backward_s)
    expected = _through(stages) + (stages.microbatches - 1) * pace_s
    return expected, expected


def _1f1b(stages: Stages) -> tuple[Times, Times]:
    """Once the pipeline is full, each rank has a forward and a backward pass in turn, and waits for what it sends in between;
    where it does not, the way to the next rank and back sets the pace if it takes longer."""
    both, more, sends_s = stages.forward_s + stages.backward_s, stages.microbatches - 1, stages.sends_s
    ahead = np.arange(stages.ranks)[::-1, None]
    steady = np.maximum(more - ahead, 0)
    through = _through(stages)
    own_s = more * stages.backward_s + steady * stages.forward_s
    if not stages.overlap_sends:
        own_s[:-1] += more * sends_s
        own_s[1:] += steady[1:] * sends_s
        least = through + _slowest_behind(own_s)
        return least, least
    pace_s = both.copy()
    pace_s[:-1] = np.maximum(both[:-1], (both[:-1] + both[1:]) / 2 + sends_s)
    pace_s[0] = np.maximum(pace_s[0], through[0] / stages.ranks)
    return through + _slowest_behind(own_s + steady * (pace_s - both)), through + _slowest_behind(own_s)


def _interleaved(stages: Stages) -> tuple[Times, Times]:
    """Rounds of microbatches go through one chunk after another. Where a round is through with a chunk on the first rank before
    its first microbatch has come round from the last, the first rank waits, as long as there are no backward passes to do
    meanwhile: before the first of them, and likewise after the last forward pass."""
    ranks, count, microbatches = stages.ranks, len(stages.forward_s), stages.microbatches
    forward_s, backward_s, beside_s = _received(stages)
    shape = count // ranks, ranks, -1
    forward, backward, sends = (values.reshape(shape) for values in (forward_s, backward_s, np.pad(beside_s, [(0, 1), (0, 0)])))
    work = microbatches * (forward.sum(axis=0) + backward.sum(axis=0))
    # ranks go from chunk to chunk together: the slowest has to be waited for in each, as far as nobody is ahead
    together = microbatches * (forward.max(axis=1).sum(axis=0) + backward.max(axis=1).sum(axis=0))
    pace = (together + _slowest_behind(work)) / 2
    bubble = np.zeros_like(work)
    bubble[:-1] = _behind(forward[-1, 1:] + backward[0, 1:] + sends[0, :-1] + sends[-1, :-1])
    of_round = microbatches // np.maximum(1, microbatches // ranks)
    waits = sum(
        np.maximum(0.0, passes.sum(axis=1) + beside.sum(axis=1) - of_round * passes.max(axis=1)).sum(axis=0)
        for passes, beside in ((forward[:-1], sends[:-1]), (backward[1:], sends[1:]))
    )
    if not stages.overlap_sends:
        # what a rank's first pass begins with is on the way there
        work[1:] -= stages.sends_s[: ranks - 1]
    # a way there through the first chunks, all that one rank does, and the way back
    there = np.zeros_like(work)
    first = stages.forward_s[: ranks - 1] + stages.backward_s[: ranks - 1] + 2 * stages.sends_s[: ranks - 1]
    there[1:] = np.cumsum(first, axis=0)
    least = np.maximum(_slowest_behind(there + work) - there, _through(stages)[:ranks])
    return bubble + waits + pace, least
