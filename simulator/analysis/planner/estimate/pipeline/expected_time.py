"""Expected: how long ranks are busy with a step's passes: in closed form where that is near, else followed pass by pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.communication.layer_gathers import LayerGatherTimes
from scaleproof.simulator.analysis.planner.estimate.factorize import Numbers
from scaleproof.simulator.analysis.planner.estimate.pipeline.closed_forms import (
    CLOSED,
    StageTimes,
    accumulated,
    gathering,
    per_round,
    received,
    unlike_s,
    windows,
)
from scaleproof.simulator.analysis.planner.estimate.pipeline.lower_bounds import least_s
from scaleproof.simulator.analysis.planner.estimate.pipeline.recurrence import MOST_FOLLOWED, Passing, Played, follows_few, play
from scaleproof.simulator.strategy.pipeline.schedule import ScheduleName

Times = NDArray[np.float64]

# Closed forms are near where ranks with several stages lose little by waiting for one another in each; where microbatches fill
# a pipeline, if they expect little more than what passes take at least; and where what is gathered prolongs passes by little,
# or takes less than so many times as long as they do and goes on beside many layers or few microbatches.
_UNLIKE: Final = 0.005
_WIDE: Final = 1.05
_GATHERED: Final = 1.08
_LONG: Final = 2.0
_FEW_LAYERS: Final = 5
# Forward passes of all ranks up to which others are followed one by one: where ranks wait for one another, and otherwise.
_MANY_PASSES: Final = 1000
_SOME_PASSES: Final = 400
# The same of schedules that have no closed form: beyond that what they take at least stands for it.
_MOST_PASSES: Final = 4000


class Given(NamedTuple):
    """What ranks gather and sum layer by layer, and what passes take at least of those that are told, shape (ranks,
    configurations)."""

    collectives: LayerGatherTimes
    least_s: Times


class _PassesToFollow(NamedTuple):
    """Passes to follow of some configurations, by place. sure: those whose first rank takes at least as long as is found."""

    at: Numbers
    passing: Passing
    microbatches: Numbers
    sure: Numbers


@dataclass(frozen=True)
class Expected:
    """Of configurations whose ranks pass the same stages in the same order, of some of these ranks.

    window_s: from a rank's first pass to the end of its last as it is expected, lane_s: from there to the end of its
    collectives; least_s: the first at least, with nothing to wait for but passes and messages; shape (ranks, configurations).
    left_s: from the last gradients of each of a rank's stages to the end of its last pass, shape (ranks, chunks,
    configurations), where nothing is gathered. followed: which are followed pass by pass, what is asked for; `follow` writes
    what it finds into all of these.
    """

    ranks: Sequence[int]
    stage_of: Numbers
    window_s: Times
    lane_s: Times
    least_s: Times
    left_s: Times | None
    followed: NDArray[np.bool_]
    asked: _PassesToFollow | None

    @classmethod
    def of(
        cls, schedule: ScheduleName, stage_of: Numbers, ranks: Sequence[int], stages: StageTimes, given: Given | None = None
    ) -> Expected:
        """stage_of: each rank's, shape (ranks, chunks). ranks: those that are told, the first among them. given: where they
        gather layers before each pass over them."""
        form = _Form(schedule, stage_of, ranks, stages, given)
        followed = form.is_unsure() if stages.ranks > 1 else np.zeros(len(stages.microbatches), dtype=np.bool_)
        asked = form.asked(np.flatnonzero(followed)) if followed.any() else None
        # sums of what is gathered are followed with the passes
        left_s = _left_s(schedule, stage_of[ranks], stages) if given is None else None
        # what is told pass by pass is written into it
        window_s = form.window_s.copy()
        return cls(ranks, stage_of, window_s, np.zeros_like(window_s), form.least_s, left_s, followed, asked)

    def take_over(self, asked: _PassesToFollow, found: Played) -> None:
        """What was found pass by pass of some configurations."""
        self.window_s[:, asked.at], self.lane_s[:, asked.at] = found.window_s[self.ranks], found.lane_s[self.ranks]
        if self.left_s is not None:
            self.left_s[:, :, asked.at] = found.left_s[self.stage_of[self.ranks]]
        self.least_s[0, asked.sure] = self.window_s[0, asked.sure]


def follow(every: Iterable[Expected]) -> None:
    """Puts what is found pass by pass in place of what closed forms expect, of all at once."""
    several = [(one, one.asked) for one in every if one.asked is not None]
    for (one, asked), found in zip(several, play([asked[1:3] for _, asked in several]), strict=True):
        one.take_over(asked, found)


class _Form:
    """What closed forms tell, and where they may be far off. window_s, least_s: as in `Expected`."""

    def __init__(
        self, schedule: ScheduleName, stage_of: Numbers, ranks: Sequence[int], stages: StageTimes, given: Given | None
    ) -> None:
        self._schedule, self._stages, self._given, self._ranks = schedule, stages, given, ranks
        self._stage_of, self._chunks = stage_of, stage_of.shape[1]
        self._is_closed = stages.ranks == 1 or schedule in CLOSED
        if self._is_closed:
            found = windows(schedule, stages if given is None else gathering(stages, given.collectives), ranks)
        else:
            found = self._longest_s()
        self.window_s, self.least_s = found

    def _longest_s(self) -> tuple[Times, Times]:
        """Where there is no closed form: all ranks are as long as the slowest is at least, passes as long as collectives."""
        stages, given = self._stages, self._given
        if given is not None:
            forward_s = np.maximum(stages.forward_s, given.collectives.gathers_s)
            backward_s = np.maximum(stages.backward_s, given.collectives.again_s + given.collectives.sums_s)
            stages = replace(stages, forward_s=forward_s, backward_s=backward_s)
        found_s = least_s(self._schedule, self._stage_of, stages)
        return np.broadcast_to(found_s.max(axis=0), (len(self._ranks), found_s.shape[1])), found_s[self._ranks]

    def is_unsure(self) -> NDArray[np.bool_]:
        """Which closed forms may be far off, and have few enough passes to be followed."""
        stages = self._stages
        longest_s = self.window_s.max(axis=0)
        passes = stages.ranks * self._chunks * np.minimum(stages.microbatches, MOST_FOLLOWED * stages.ranks)
        if not self._is_closed:
            few: NDArray[np.bool_] = passes <= _MOST_PASSES
            return few
        unsure = np.zeros(len(passes), dtype=np.bool_)
        if self._given is not None:
            unsure = (passes <= _SOME_PASSES) & self._is_prolonged(self._given, longest_s)
        elif self._chunks > 1:
            is_wide = longest_s > _WIDE * self.least_s.max(axis=0)
            unsure = (passes <= _SOME_PASSES) & (stages.microbatches >= stages.ranks) & is_wide
        if self._chunks > 1:
            unsure |= (passes <= _MANY_PASSES) & (unlike_s(stages) > _UNLIKE * longest_s)
        return unsure

    def _is_prolonged(self, given: Given, longest_s: Times) -> NDArray[np.bool_]:
        """Where what is gathered prolongs passes in a way that closed forms do not tell."""
        stages, collectives = self._stages, given.collectives
        # of one rank all collectives follow one another
        each_s = collectives.gathers_s + collectives.again_s + collectives.sums_s
        lane_s = (stages.alike.by_rank.counts @ each_s).max(axis=0)
        sure_s = np.maximum(given.least_s.max(axis=0), lane_s * stages.microbatches)
        is_long = collectives.gathers_s > _LONG * stages.forward_s
        is_long |= collectives.again_s + collectives.sums_s > _LONG * stages.backward_s
        unsure = is_long.any(axis=0)
        if collectives.layers.min() <= _FEW_LAYERS:
            unsure |= stages.microbatches >= stages.ranks
        result: NDArray[np.bool_] = unsure & (longest_s > _GATHERED * sure_s)
        return result

    def asked(self, at: Numbers) -> _PassesToFollow:
        given, some = self._given.collectives.take(at) if self._given is not None else None, self._stages.take(at)
        # where all passes are followed, each path to the end of the first rank's begins with its first
        is_few = follows_few(self._schedule, some.ranks, some.microbatches)
        sure = at[:0] if self._is_closed or given is not None else at[~is_few]
        return _PassesToFollow(at, passing_of(self._schedule, some, given), some.microbatches, sure)


def passing_of(
    schedule: ScheduleName, stages: StageTimes, given: LayerGatherTimes | None = None, sums_s: Times | None = None
) -> Passing:
    """Passes to follow, with what ranks gather and sum, or sum beside passes alone. sums_s: by stage that is told."""
    work_s = [stages.forward_s, stages.backward_s]
    if isinstance(stages.weights_s, np.ndarray):
        work_s += [stages.inputs_s, stages.weights_s]
    return Passing(schedule, stages.alike, stages.overlap_sends, np.array(work_s), stages.behind_s, given, sums_s)


def _left_s(schedule: ScheduleName, held: Numbers, stages: StageTimes) -> Times:
    """From the last gradients of each stage to the end of its rank's last pass: the last gradients of chunks are followed by
    passes over those before. Where rounds of microbatches go from chunk to chunk, ranks do so together, at the pace of the
    slowest or once the last microbatch has come round. held: stages of ranks, shape (ranks, chunks)."""
    alike, of_round = stages.alike, per_round(stages)
    result: Times = np.zeros((*held.shape, len(of_round)))
    if held.shape[1] == 1:
        return result
    _, backward_s, beside_s = received(stages)
    chunks = held.T
    next_s = (backward_s * of_round)[alike.of[chunks[:-1]]]
    if schedule == "interleaved_1f1b":
        slowest_s = alike.by_chunk.slowest(backward_s * of_round)[alike.by_chunk.kind[:-1]]
        way_s = alike.between(chunks[:-1], chunks[1:]) @ (backward_s + beside_s)
        next_s = np.maximum(slowest_s[:, None], way_s)
    result[:, 1:] = accumulated(np.add, next_s).swapaxes(0, 1)
    return result
