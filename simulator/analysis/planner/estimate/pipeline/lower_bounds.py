"""Lower bounds of the time that a rank is busy with its passes, for any order of a schedule, from a few paths through it.

A rank runs its passes one after another. Its first backward pass waits for a microbatch's way to the last stage and back, and
its last forward pass is followed by such a way too. Where few microbatches represent many, each of those left out adds the
rank's own work on it. Arrays have configurations last.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.pipeline.closed_forms import StageTimes, received, suffix_sum
from scaleproof.simulator.analysis.planner.estimate.pipeline.recurrence import MOST_FOLLOWED, follows_few
from scaleproof.simulator.strategy.pipeline.schedule import Pass, ScheduleName, order

Times = NDArray[np.float64]
Numbers = NDArray[np.int64]


class _PassCounts(NamedTuple):
    """Number of a rank's passes by kind and chunk, shape (kinds, chunks).

    whole: all passes. until_forward: up to the last forward pass. from_back: from the first backward pass on. from_last: from
    the last backward pass over the first chunk on. between: from the first backward to the last forward pass. forward, back,
    last: chunks of these three passes.
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
def _pass_counts(schedule: ScheduleName, ranks: int, microbatches: int, chunks: int) -> tuple[_PassCounts, ...]:
    """Pass counts of each rank."""
    passes = order(schedule, ranks, microbatches, chunks)
    result = []
    for kind, chunk, _, slot in zip(*passes, strict=True):
        kind, chunk = kind[slot >= 0], chunk[slot >= 0]
        is_back = np.isin(kind, (Pass.BACKWARD, Pass.INPUT))
        first, forward = int(np.argmax(is_back)), int(np.flatnonzero(kind == Pass.FORWARD)[-1])
        # looped BFS runs backward passes in reverse order, so the first is over the chunk that was last forward
        last = first if schedule == "looped_bfs" else int(np.flatnonzero(is_back & (chunk == 0))[-1])
        of_pass = np.eye(len(Pass) * chunks, dtype=np.int64)[kind * chunks + chunk]
        sections = slice(None), slice(forward + 1), slice(first, None), slice(last, None), slice(first, forward + 1)
        counts = [of_pass[section].sum(axis=0).reshape(len(Pass), chunks) for section in sections]
        whole, until_forward, from_back, from_last, between = counts
        at = (int(chunk[one]) for one in (forward, first, last))
        result.append(_PassCounts(whole, until_forward, from_back, from_last, between, *at))
    return tuple(result)


def least_s(schedule: ScheduleName, stage_of: Numbers, stages: StageTimes) -> Times:
    """Least seconds from each rank's first pass to the end of its last, shape (ranks, configurations). stage_of: stages of each
    rank, shape (ranks, chunks)."""
    stages = stages.expanded
    result = np.empty((stages.ranks, len(stages.microbatches)))
    few = follows_few(schedule, stages.ranks, stages.microbatches)
    followed = np.where(few, MOST_FOLLOWED * stages.ranks, stages.microbatches)
    for number in np.unique(followed).tolist():
        at = np.flatnonzero(followed == number)
        counts = _pass_counts(schedule, stages.ranks, number, stage_of.shape[1])
        paths = _Paths(stages.take(at))
        more = stages.microbatches[at] - number
        for rank, (passes, own_stages) in enumerate(zip(counts, stage_of, strict=True)):
            result[rank, at] = paths.longest_s(passes, own_stages) + more * paths.own_s(own_stages)
    return result


class _Paths:
    """Paths through a step, for configurations with the same number of simulated microbatches."""

    def __init__(self, stages: StageTimes) -> None:
        forward_s, backward_s, _ = received(stages)
        weights_s = stages.weights_s + np.zeros_like(backward_s)
        self._work_s = np.array([forward_s, backward_s, backward_s - weights_s, weights_s])
        # the message before a rank's first pass belongs to the way there
        self._first_s = np.zeros_like(forward_s) if stages.overlap_sends else stages.receive_s
        sends_s = stages.send_s
        forth_s, back_s = (suffix_sum(one + sends_s) for one in (stages.forward_s, stages.inputs_s))
        # from the begin or the end of a forward pass to the last stage, and from there to the begin of a backward pass
        self._from_begin_s, self._from_end_s = forth_s, forth_s - stages.forward_s
        self._to_s = back_s - stages.inputs_s - (0.0 if stages.overlap_sends else sends_s)

    def own_s(self, own_stages: Numbers) -> Times:
        """Seconds of a rank's own passes over one microbatch."""
        result: Times = (self._work_s[Pass.FORWARD] + self._work_s[Pass.BACKWARD])[own_stages].sum(axis=0)
        return result

    def longest_s(self, passes: _PassCounts, own_stages: Numbers) -> Times:
        """Seconds of the longest path through a rank with these stages."""
        whole_s, until_s, from_s, last_s, between_s = (
            np.einsum("kc,kcn->n", one, self._work_s[:, own_stages]) for one in passes[:5]
        )
        first_s = self._first_s[own_stages[0]]
        forth_s = self._from_begin_s[own_stages[0]] + self._to_s[own_stages[passes.back]]
        rest_s = self._from_end_s[own_stages[passes.forward]] + self._to_s[own_stages[passes.last]] + last_s
        paths = [whole_s - first_s, forth_s + from_s, until_s - first_s + rest_s]
        if passes.between.any():
            paths.append(forth_s + between_s + rest_s)
        result: Times = np.max(paths, axis=0)
        return result
