"""Expected: how long ranks are busy with a step's passes: in closed form where that is near, else followed pass by pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.estimate.bounds import least_s
from simulator.estimate.codes import Numbers
from simulator.estimate.pipelines import CLOSED, Stages, gathering, per_round, unlike_s, windows
from simulator.estimate.recurrence import MOST_FOLLOWED, Collectives, Passing, Played, follows_few
from simulator.strategy.schedule import ScheduleName

Times = NDArray[np.float64]

# Closed forms are near where what they expect is little more than what passes take at least, where ranks with several stages
# lose little by waiting for one another in each, and where what is gathered prolongs passes by little.
_WIDE: Final = 1.02
_UNLIKE: Final = 0.02
_GATHERED: Final = 1.08
# Forward passes of all ranks up to which others are followed one by one: in that order of what makes a closed form unsure.
_FEW_PASSES: Final = 200
_MANY_PASSES: Final = 1000
_SOME_PASSES: Final = 400
# The same of schedules that have no closed form: beyond that what they take at least stands for it.
_MOST_PASSES: Final = 4000


class Given(NamedTuple):
    """What ranks gather and sum layer by layer, and what their passes take at least, shape (ranks, configurations)."""

    collectives: Collectives
    least_s: Times


class Expected:
    """Of configurations whose ranks pass the same stages in the same order. stage_of: each rank's, shape (ranks, chunks).
    given: where they gather layers before each pass over them.

    played: what is expected. least_s: from each rank's first pass to the end of its last at least, with nothing to wait for but
    passes and messages, shape (ranks, configurations). followed: which were followed pass by pass.
    """

    def __init__(self, schedule: ScheduleName, stage_of: Numbers, stages: Stages, given: Given | None = None) -> None:
        self._schedule, self._stages, self._given = schedule, stages, given
        self._stage_of, self._chunks = stage_of, stage_of.shape[1]
        self._is_closed = stages.ranks == 1 or schedule in CLOSED
        if self._is_closed:
            window_s, self.least_s = windows(schedule, stages if given is None else gathering(stages, given.collectives))
        else:
            window_s, self.least_s = self._longest_s()
        # what is told pass by pass is written into it
        self.played = Played(window_s.copy(), np.zeros_like(window_s), _left_s(stage_of, stages))
        self.followed = self._is_unsure() if stages.ranks > 1 else np.zeros(len(stages.microbatches), dtype=np.bool_)
        if self.followed.any():
            self._follow(np.flatnonzero(self.followed))

    def _longest_s(self) -> tuple[Times, Times]:
        """Where there is no closed form: all ranks are as long as the slowest is at least, passes as long as collectives."""
        stages, given = self._stages, self._given
        if given is not None:
            forward_s = np.maximum(stages.forward_s, given.collectives.gathers_s)
            backward_s = np.maximum(stages.backward_s, given.collectives.again_s + given.collectives.sums_s)
            stages = replace(stages, forward_s=forward_s, backward_s=backward_s)
        found_s = least_s(self._schedule, self._stage_of, stages)
        return np.broadcast_to(found_s.max(axis=0), found_s.shape), found_s

    def _is_unsure(self) -> NDArray[np.bool_]:
        """Which closed forms may be far off, and have few enough passes to be followed."""
        stages = self._stages
        longest_s = self.played.window_s.max(axis=0)
        passes = stages.ranks * self._chunks * np.minimum(stages.microbatches, MOST_FOLLOWED * stages.ranks)
        if not self._is_closed:
            few: NDArray[np.bool_] = passes <= _MOST_PASSES
            return few
        if self._given is not None:
            sure_s = np.maximum(self._given.least_s, self._given.collectives.lane_s(self._stage_of) * stages.microbatches)
            unsure = (passes <= _SOME_PASSES) & (longest_s > _GATHERED * sure_s.max(axis=0))
        elif self._chunks > 1:
            wide = longest_s > _WIDE * self.least_s.max(axis=0)
            unsure = (passes <= _FEW_PASSES) & (wide | (stages.microbatches < 2 * stages.ranks))
        else:
            return np.zeros(len(passes), dtype=np.bool_)
        if self._chunks > 1:
            unsure |= (passes <= _MANY_PASSES) & (unlike_s(stages).max(axis=0) > _UNLIKE * longest_s)
        result: NDArray[np.bool_] = unsure
        return result

    def _follow(self, at: Numbers) -> None:
        """Puts what is found pass by pass in place of closed forms."""
        given = self._given.collectives.take(at) if self._given is not None else None
        some = self._stages.take(at)
        found = passing_of(self._schedule, self._chunks, some, given).play(some.microbatches)
        for whole, part in zip(self.played, found, strict=True):
            whole[:, at] = part
        if not self._is_closed and given is None:
            # where all passes were followed, each path to the end of the first rank's begins with its first
            sure = at[~follows_few(self._schedule, some.ranks, some.microbatches)]
            self.least_s[0, sure] = self.played.window_s[0, sure]


def passing_of(
    schedule: ScheduleName, chunks: int, stages: Stages, given: Collectives | None = None, sums_s: Times | None = None
) -> Passing:
    """Passes to follow, with what ranks gather and sum, or sum beside passes alone."""
    work_s = [stages.forward_s, stages.backward_s]
    if isinstance(stages.weights_s, np.ndarray):
        work_s += [stages.inputs_s, stages.weights_s]
    return Passing(schedule, stages.ranks, chunks, stages.overlap_sends, np.array(work_s), stages.sends_s, given, sums_s)


def _left_s(stage_of: Numbers, stages: Stages) -> Times:
    """From the last gradients of each stage to the end of its rank's last pass: the last gradients of chunks are followed by
    passes over those before."""
    backward_s = stages.backward_s[stage_of] * per_round(stages)
    result: Times = np.zeros_like(stages.forward_s)
    result[stage_of] = np.cumsum(backward_s, axis=1) - backward_s
    return result
