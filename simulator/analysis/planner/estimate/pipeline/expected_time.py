"""Expected time that ranks are busy with a step's passes: a closed form where that is accurate, else a simulation of each
pass."""

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
    accumulate,
    imbalance_s,
    per_round,
    received,
    windows,
    with_gathers,
)
from scaleproof.simulator.analysis.planner.estimate.pipeline.lower_bounds import least_s
from scaleproof.simulator.analysis.planner.estimate.pipeline.recurrence import (
    MOST_FOLLOWED,
    PassSequence,
    PipelineTimes,
    follows_few,
    simulate_all,
)
from scaleproof.simulator.strategy.pipeline.schedule import ScheduleName

Times = NDArray[np.float64]

# Closed forms are accurate where ranks with several stages lose little by waiting for one another in each chunk; where, in
# pipelines full of microbatches, the expected time is little above the lower bound; and where gathers prolong passes by little,
# or take less than _LONG times as long as passes and overlap with many layers or few microbatches.
_IMBALANCED: Final = 0.005
_WIDE: Final = 1.05
_GATHERED: Final = 1.08
_LONG: Final = 2.0
_FEW_LAYERS: Final = 5
# Largest numbers of forward passes of all ranks that are simulated: where ranks wait for one another, and otherwise.
_MANY_PASSES: Final = 1000
_SOME_PASSES: Final = 400
# The same for schedules without a closed form, whose lower bound is the estimate above this number.
_MOST_PASSES: Final = 4000


class GatherInputs(NamedTuple):
    """Layer-by-layer gathers and sums of ranks, and the least seconds of the passes of reported ranks, shape (ranks,
    configurations)."""

    collectives: LayerGatherTimes
    least_s: Times


class _PassesToFollow(NamedTuple):
    """Passes to simulate for some configurations, by index. sure: configurations for which the simulated time of the first rank
    is also a lower bound."""

    at: Numbers
    passing: PassSequence
    microbatches: Numbers
    sure: Numbers


@dataclass(frozen=True)
class PassWindows:
    """Times of a step's passes on some ranks, for configurations with the same stages and order of passes.

    window_s: expected seconds from a rank's first pass to the end of its last, shape (ranks, configurations). collectives_s:
    from there to the end of its collectives. least_s: lower bound of the former, with nothing to wait for but passes and
    messages. left_s: from the last gradients of each of a rank's stages to the end of its last pass, shape (ranks, chunks,
    configurations), None with layer gathers. followed: which configurations are simulated pass by pass; to_follow: their
    passes, whose results `follow` writes into the arrays above.
    """

    ranks: Sequence[int]
    stage_of: Numbers
    window_s: Times
    collectives_s: Times
    least_s: Times
    left_s: Times | None
    followed: NDArray[np.bool_]
    to_follow: _PassesToFollow | None

    @classmethod
    def of(
        cls,
        schedule: ScheduleName,
        stage_of: Numbers,
        ranks: Sequence[int],
        stages: StageTimes,
        gathers: GatherInputs | None = None,
    ) -> PassWindows:
        """Times by closed form. stage_of: stages of each rank, shape (ranks, chunks). ranks: the ranks to report, the first
        among them. gathers: for ranks that gather layers before each pass over them."""
        form = _Form(schedule, stage_of, ranks, stages, gathers)
        followed = form.is_unsure() if stages.ranks > 1 else np.zeros(len(stages.microbatches), dtype=np.bool_)
        to_follow = form.to_follow(np.flatnonzero(followed)) if followed.any() else None
        # with layer gathers, sums are simulated together with the passes
        left_s = _left_s(schedule, stage_of[ranks], stages) if gathers is None else None
        # `write` changes it in place
        window_s = form.window_s.copy()
        return cls(ranks, stage_of, window_s, np.zeros_like(window_s), form.least_s, left_s, followed, to_follow)

    def write(self, to_follow: _PassesToFollow, found: PipelineTimes) -> None:
        """Replaces the times of some configurations by those simulated pass by pass."""
        self.window_s[:, to_follow.at], self.collectives_s[:, to_follow.at] = (
            found.window_s[self.ranks],
            found.collectives_s[self.ranks],
        )
        if self.left_s is not None:
            self.left_s[:, :, to_follow.at] = found.left_s[self.stage_of[self.ranks]]
        self.least_s[0, to_follow.sure] = self.window_s[0, to_follow.sure]


def follow(every: Iterable[PassWindows]) -> None:
    """Simulates all requested passes together and writes the results in place of those of closed forms."""
    several = [(one, one.to_follow) for one in every if one.to_follow is not None]
    for (one, to_follow), found in zip(several, simulate_all([to_follow[1:3] for _, to_follow in several]), strict=True):
        one.write(to_follow, found)


class _Form:
    """Times by closed forms, and where these may be inaccurate. window_s, least_s: as in `PassWindows`."""

    def __init__(
        self, schedule: ScheduleName, stage_of: Numbers, ranks: Sequence[int], stages: StageTimes, gathers: GatherInputs | None
    ) -> None:
        self._schedule, self._stages, self._given, self._ranks = schedule, stages, gathers, ranks
        self._stage_of, self._chunks = stage_of, stage_of.shape[1]
        self._is_closed = stages.ranks == 1 or schedule in CLOSED
        if self._is_closed:
            found = windows(schedule, stages if gathers is None else with_gathers(stages, gathers.collectives), ranks)
        else:
            found = self._longest_s()
        self.window_s, self.least_s = found

    def _longest_s(self) -> tuple[Times, Times]:
        """Times for schedules without a closed form: all ranks take as long as the slowest takes at least, and passes as long
        as their collectives if these are longer."""
        stages, gathers = self._stages, self._given
        if gathers is not None:
            forward_s = np.maximum(stages.forward_s, gathers.collectives.gathers_s)
            backward_s = np.maximum(stages.backward_s, gathers.collectives.again_s + gathers.collectives.sums_s)
            stages = replace(stages, forward_s=forward_s, backward_s=backward_s)
        found_s = least_s(self._schedule, self._stage_of, stages)
        return np.broadcast_to(found_s.max(axis=0), (len(self._ranks), found_s.shape[1])), found_s[self._ranks]

    def is_unsure(self) -> NDArray[np.bool_]:
        """Which configurations have an inaccurate closed form, and few enough passes to simulate."""
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
            unsure |= (passes <= _MANY_PASSES) & (imbalance_s(stages) > _IMBALANCED * longest_s)
        return unsure

    def _is_prolonged(self, gathers: GatherInputs, longest_s: Times) -> NDArray[np.bool_]:
        """Where gathers prolong passes in a way that closed forms do not describe."""
        stages, collectives = self._stages, gathers.collectives
        # a rank's collectives run one after another
        per_rank_s = collectives.gathers_s + collectives.again_s + collectives.sums_s
        collectives_s = (stages.equivalence.by_rank.counts @ per_rank_s).max(axis=0)
        sure_s = np.maximum(gathers.least_s.max(axis=0), collectives_s * stages.microbatches)
        is_long = collectives.gathers_s > _LONG * stages.forward_s
        is_long |= collectives.again_s + collectives.sums_s > _LONG * stages.backward_s
        unsure = is_long.any(axis=0)
        if collectives.layers.min() <= _FEW_LAYERS:
            unsure |= stages.microbatches >= stages.ranks
        result: NDArray[np.bool_] = unsure & (longest_s > _GATHERED * sure_s)
        return result

    def to_follow(self, at: Numbers) -> _PassesToFollow:
        """Passes to simulate for the configurations at some indices."""
        gathers, some = self._given.collectives.take(at) if self._given is not None else None, self._stages.take(at)
        # where all passes are simulated, each path to the end of the first rank's passes begins with its first pass
        is_few = follows_few(self._schedule, some.ranks, some.microbatches)
        sure = at[:0] if self._is_closed or gathers is not None else at[~is_few]
        return _PassesToFollow(at, pass_sequence(self._schedule, some, gathers), some.microbatches, sure)


def pass_sequence(
    schedule: ScheduleName, stages: StageTimes, gathers: LayerGatherTimes | None = None, sums_s: Times | None = None
) -> PassSequence:
    """Passes to simulate, with layer-by-layer gathers and sums, or with sums overlapped with passes alone. sums_s: by distinct
    stage."""
    work_s = [stages.forward_s, stages.backward_s]
    if isinstance(stages.weights_s, np.ndarray):
        work_s += [stages.inputs_s, stages.weights_s]
    return PassSequence(schedule, stages.equivalence, stages.overlap_sends, np.array(work_s), stages.send_s, gathers, sums_s)


def _left_s(schedule: ScheduleName, own_stages: Numbers, stages: StageTimes) -> Times:
    """Seconds from the last gradients of each stage to the end of its rank's last pass, shape (ranks, chunks, configurations).

    The last gradients of a chunk are followed by passes over the chunks before it. In an interleaved schedule ranks proceed
    from chunk to chunk together, at the speed of the slowest or once the last microbatch has come back. own_stages: stages of
    ranks, shape (ranks, chunks).
    """
    equivalence, of_round = stages.equivalence, per_round(stages)
    result: Times = np.zeros((*own_stages.shape, len(of_round)))
    if own_stages.shape[1] == 1:
        return result
    _, backward_s, overlapped_s = received(stages)
    chunks = own_stages.T
    next_s = (backward_s * of_round)[equivalence.representative[chunks[:-1]]]
    if schedule == "interleaved_1f1b":
        slowest_s = equivalence.by_chunk.slowest(backward_s * of_round)[equivalence.by_chunk.kind[:-1]]
        way_s = equivalence.between(chunks[:-1], chunks[1:]) @ (backward_s + overlapped_s)
        next_s = np.maximum(slowest_s[:, None], way_s)
    result[:, 1:] = accumulate(np.add, next_s).swapaxes(0, 1)
    return result
