"""Bounds: how long a rank is busy with its passes at least, whatever the order of its schedule, by a few paths through them.

A rank goes through its passes one after another. The first that goes back waits for a microbatch's way to the last stage and
back; its last forward pass is followed by such a way too. Where few microbatches stand for many, each of those between takes
what the rank itself does to it. Arrays have configurations last.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.pipeline.closed_forms import StageTimes, behind, received
from scaleproof.simulator.analysis.planner.estimate.pipeline.recurrence import MOST_FOLLOWED, follows_few
from scaleproof.simulator.strategy.pipeline.schedule import Pass, ScheduleName, order

Times = NDArray[np.float64]
Numbers = NDArray[np.int64]


class _PassCounts(NamedTuple):
    """A rank's passes, counted by kind and chunk, shape (kinds, chunks). whole: all; until_forward: up to the last forward one;
    from_back: from the first that goes back; from_last: from the last that goes back through the first chunk; between: from the
    first that goes back up to the last forward one. forward, back, last: chunks of these three passes.
    """

    whole: Numbers
    until_forward: Numbers
    from_back: Numbers
    from_last: Numbers
    between: Numbers
    forward: int
    back: int
    last: int


@lru_cache(maxsize=1024)
def _lanes(schedule: ScheduleName, ranks: int, microbatches: int, chunks: int) -> tuple[_PassCounts, ...]:
    passes = order(schedule, ranks, microbatches, chunks)
    result = []
    for kind, chunk, _, slot in zip(*passes, strict=True):
        kind, chunk = kind[slot >= 0], chunk[slot >= 0]
        is_back = np.isin(kind, (Pass.BACKWARD, Pass.INPUT))
        first, forward = int(np.argmax(is_back)), int(np.flatnonzero(kind == Pass.FORWARD)[-1])
        # where all goes back in reverse, what goes back first is what went forward last
        last = first if schedule == "looped_bfs" else int(np.flatnonzero(is_back & (chunk == 0))[-1])
        of_pass = np.eye(len(Pass) * chunks, dtype=np.int64)[kind * chunks + chunk]
        sections = slice(None), slice(forward + 1), slice(first, None), slice(last, None), slice(first, forward + 1)
        counts = [of_pass[section].sum(axis=0).reshape(len(Pass), chunks) for section in sections]
        whole, until_forward, from_back, from_last, between = counts
        at = (int(chunk[one]) for one in (forward, first, last))
        result.append(_PassCounts(whole, until_forward, from_back, from_last, between, *at))
    return tuple(result)


def least_s(schedule: ScheduleName, stage_of: Numbers, stages: StageTimes) -> Times:
    """From each rank's first pass to the end of its last, shape (ranks, configurations). stage_of: each rank's stages, shape
    (ranks, chunks)."""
    stages = stages.apart
    result = np.empty((stages.ranks, len(stages.microbatches)))
    few = follows_few(schedule, stages.ranks, stages.microbatches)
    followed = np.where(few, MOST_FOLLOWED * stages.ranks, stages.microbatches)
    for number in np.unique(followed).tolist():
        at = np.flatnonzero(followed == number)
        lanes = _lanes(schedule, stages.ranks, number, stage_of.shape[1])
        paths = _Paths(stages.take(at))
        more = stages.microbatches[at] - number
        for rank, (lane, held) in enumerate(zip(lanes, stage_of, strict=True)):
            result[rank, at] = paths.longest_s(lane, held) + more * paths.own_s(held)
    return result


class _Paths:
    """Of configurations of which as many microbatches are looked at."""

    def __init__(self, stages: StageTimes) -> None:
        forward_s, backward_s, _ = received(stages)
        weights_s = stages.weights_s + np.zeros_like(backward_s)
        self._work_s = np.array([forward_s, backward_s, backward_s - weights_s, weights_s])
        # what a rank's first pass begins with is on the way there
        self._first_s = np.zeros_like(forward_s) if stages.overlap_sends else stages.before_s
        sends_s = stages.behind_s
        there_s, back_s = (behind(one + sends_s) for one in (stages.forward_s, stages.inputs_s))
        # from a forward pass's begin, or its end, to the last stage, and on from there to the begin of a pass that goes back
        self._from_begin_s, self._from_end_s = there_s, there_s - stages.forward_s
        self._to_s = back_s - stages.inputs_s - (0.0 if stages.overlap_sends else sends_s)

    def own_s(self, held: Numbers) -> Times:
        """All that a rank does to a microbatch."""
        result: Times = (self._work_s[Pass.FORWARD] + self._work_s[Pass.BACKWARD])[held].sum(axis=0)
        return result

    def longest_s(self, lane: _PassCounts, held: Numbers) -> Times:
        """Of a rank with these stages."""
        whole_s, until_s, from_s, last_s, between_s = (np.einsum("kc,kcn->n", one, self._work_s[:, held]) for one in lane[:5])
        first_s = self._first_s[held[0]]
        there_s = self._from_begin_s[held[0]] + self._to_s[held[lane.back]]
        rest_s = self._from_end_s[held[lane.forward]] + self._to_s[held[lane.last]] + last_s
        paths = [whole_s - first_s, there_s + from_s, until_s - first_s + rest_s]
        if lane.between.any():
            paths.append(there_s + between_s + rest_s)
        result: Times = np.max(paths, axis=0)
        return result
