"""Shapes: what a step takes of configurations that have as many stages and chunks, passed in the same order.

What their passes take, and what their replicas take to agree, follows from few things each: two tables, of either of which a
configuration is a row. Arrays have rows, or configurations, last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.communication.layer_gathers import (
    LayerGatherTimes,
    first_wait_s,
    one_rank_s,
)
from scaleproof.simulator.analysis.planner.estimate.factorize import Numbers, taken
from scaleproof.simulator.analysis.planner.estimate.pipeline.closed_forms import CLOSED
from scaleproof.simulator.analysis.planner.estimate.pipeline.expected_time import Expected, Given, passing_of
from scaleproof.simulator.analysis.planner.estimate.shapes import ConfigurationShape
from scaleproof.simulator.analysis.planner.estimate.tables import AgreeingTable, PassingTable
from scaleproof.simulator.strategy.data_parallel.contention import per_second, slowed_by

Times = NDArray[np.float64]

# Groups may be a little nearer to one another than the one that is asked for, and times of collectives a little off their line:
# what is least is told so much lower.
_SURE: Final = 0.999
_NOTHING: Final = np.zeros(1)
# Share of the estimated contention that a step surely has: collectives are told by bucket here, by layer in programs.
_SURELY_CONTENDED: Final = 0.8
_SURELY_WAITING: Final = 0.5

class Gathering(NamedTuple):
    """What is expected of passes that wait for what is gathered before them, where that prolongs them: of some configurations,
    by place."""

    at: Numbers
    expected: Expected | None


class _Gathered(NamedTuple):
    """From the first pass of each rank that is told to the end of its last, and from there to the end of its collectives."""

    window_s: Times
    lane_s: Times


def _weighted(counts: Numbers, values: Sequence[Times]) -> Times:
    """Sum of values, as many times each as `counts` says."""
    result: Times = sum((count * value for count, value in zip(counts.tolist(), values, strict=True)), np.zeros(1))
    return result


class Answered:
    """A shape whose tables are filled."""

    def __init__(self, shape: ConfigurationShape, passing: PassingTable, agreeing: AgreeingTable) -> None:
        self.shape, self.passing, self.agreeing = shape, passing, agreeing
        every = bool(passing.expected.followed.any())
        self._sums = [list(shape.sums(rank, every)) for rank in range(len(shape.ranks))]

    def times(self, p: Numbers, a: Numbers, zero: int, gathering: Gathering) -> tuple[Times, Times]:
        """What is expected of configurations, and at least, once all passes are followed. p, a: their rows of the tables; zero:
        the stage that all have; gathering: of them."""
        slowed = self._slowed(p, a, zero) if self.agreeing.resources else None
        gathered = self._gathered(p, a, gathering, slowed) if zero == 3 and not self.shape.keeps else None
        summed_s = self._summed_s(p, a) if zero >= 2 and gathered is None and self.shape.schedule not in CLOSED else None
        # what layers gather is followed with their sums
        beside_s = self._beside_s(p, a, zero, slowed) if gathered is None else []
        expected_s, least_s = np.zeros((2, len(p)))
        agreeing = self.agreeing
        for rank in range(len(self.shape.ranks)):
            if gathered is not None:
                window_s, exposed_s, sure_s, lane_s = self._of_gathering(rank, p, a, gathered)
            else:
                window_s = taken(self.passing.window_s[rank], p)
                if zero == 3:
                    window_s += self._first_wait_s(p, a)
                exposed_s, sure_s, lane_s = self._exposed(rank, p, a, zero, beside_s, summed_s)
            if rank > 0 and not self.shape.is_uniform:
                # its group may be nearer to one another than rank 0's, of which all sums are told
                sure_s, lane_s = _NOTHING, _NOTHING
            optimizer_s = taken(agreeing.optimizer_s[rank], a)
            surely_s = taken(self.passing.least_s[rank], p)
            surely_s += sure_s
            optimizer_s += window_s
            optimizer_s += exposed_s
            if slowed is not None and (gathered is None or self.shape.stages > 1):
                contended_s, surely_contended_s = self._contended_s(rank, p, zero, slowed, window_s)
                # those that were followed waiting were followed slowed down
                contended_s[gathering.at] = 0.0
                optimizer_s += contended_s
                surely_s += _SURELY_CONTENDED * surely_contended_s
            np.maximum(surely_s, lane_s, out=surely_s)
            surely_s += taken(agreeing.optimizer_s[rank], a)
            if rank == 0:
                optimizer_s += taken(agreeing.copied_s, a)
            np.maximum(expected_s, optimizer_s, out=expected_s)
            np.maximum(least_s, surely_s, out=least_s)
        return np.maximum(expected_s, least_s), _SURE * least_s

    def _slowed(self, p: Numbers, a: Numbers, zero: int) -> list[Times]:
        """Of each kind of stage, seconds by which its passes take longer next to what replicas exchange meanwhile: of each
        microbatch from ZeRO's stage 2 on and with several chunks, else of a step."""
        passing, agreeing, found = self.passing, self.agreeing, []
        assert agreeing.resources is not None
        bound = taken(passing.bound, p)
        for kind in range(len(self.shape.cut.kinds)):
            moved_s = agreeing.moved_s[kind]
            memory_Bps, moved_W = per_second(agreeing.moved_bytes[kind], agreeing.moved_J[kind], moved_s)
            share = agreeing.resources.taken(taken(memory_Bps, a), taken(moved_W, a), bound)
            computing_s = passing.kinds_s[:, kind].sum(axis=0) if zero == 3 else passing.kinds_s[1, kind]
            moved_s = taken(moved_s, a)
            if zero < 2 and self.shape.chunks > 1:
                moved_s /= taken(passing.microbatches, p)
            found.append(slowed_by(share, moved_s, taken(computing_s, p)))
        return found

    def _contended_s(
        self, rank: int, p: Numbers, zero: int, slowed: Sequence[Times], window_s: Times
    ) -> tuple[Times, Times | float]:
        """Seconds by which a rank ends its passes later because they are slowed down, expected and at least. window_s: what
        passes are expected to take, with what they wait for."""
        passing, shape = self.passing, self.shape
        has = shape.has[rank]
        own_s = _weighted(has, slowed)
        if zero < 2 and shape.chunks == 1:
            # the last microbatch comes back through all stages, one after the other
            return _weighted(np.bincount(shape.cut.kind_of, minlength=len(slowed)), slowed), own_s
        own_s /= taken(has @ passing.kinds_s.sum(axis=0), p)
        # gathers keep compute waiting in part, which hides what they take from it
        waiting = _SURELY_WAITING if zero >= 2 else 1.0
        return window_s * own_s, waiting * taken(passing.microbatches * (has @ passing.kinds_s.sum(axis=0)), p) * own_s

    def _beside_s(self, p: Numbers, a: Numbers, zero: int, slowed: Sequence[Times] | None) -> list[Times]:
        """What is left of a pass over a stage of each kind once the gradients of its first unit are complete: sums go on beside
        it, unless they wait for the whole pass, as they do where gradients of weights are made apart. slowed: by how much the
        pass takes longer for that."""
        passing, agreeing, kinds = self.passing, self.agreeing, range(len(self.shape.cut.kinds))
        if self.shape.splits or (zero < 2 and not self.shape.kept.get("overlap", False)):
            return [_NOTHING for _ in kinds]
        begins, result = taken(passing.begins, p), []
        for kind in kinds:
            left_s = taken(passing.kinds_s[1, kind], p)
            passed_s = taken(passing.backward_s, begins + taken(agreeing.stop[kind], a))
            passed_s -= taken(passing.backward_s, begins + taken(agreeing.begin[kind], a))
            left_s -= passed_s
            if slowed is not None:
                left_s += slowed[kind]
            result.append(left_s)
        return result

    def _exposed(
        self, rank: int, p: Numbers, a: Numbers, zero: int, beside_s: Sequence[Times], summed_s: Times | None
    ) -> tuple[Times, Times, Times]:
        """What replicas take to agree after a rank's passes, at least, and how long the step takes at least for its sums.
        summed_s: the first of all ranks where that was followed, else 0."""
        shape, passing, agreeing = self.shape, self.passing, self.agreeing
        final = int(shape.cut.kind_of[shape.held[rank, 0]])
        sure_s = np.maximum(taken(agreeing.last_s[final], a), taken(agreeing.sums_s[final], a) - beside_s[final])
        exposed_s = sure_s
        for one in self._sums[rank]:
            # sums of a rank follow one another: with ZeRO's second stage, those of each microbatch of a round
            before_s, own_s = one.before @ agreeing.sums_s, agreeing.sums_s[one.kind]
            ended_s: Times = taken(before_s if zero >= 2 else before_s + own_s, a)
            if zero >= 2:
                ended_s *= taken(passing.per_round, p)
                ended_s += taken(own_s, a)
            ended_s -= beside_s[one.kind]
            ended_s -= taken(passing.left_s[rank, one.chunk], p)
            exposed_s = np.maximum(exposed_s, ended_s)
        if summed_s is not None:
            own_s = summed_s[shape.alike[rank]].max(axis=0)
            exposed_s = np.where(own_s > 0, np.maximum(sure_s, own_s), exposed_s)
        if zero == 0:
            return exposed_s, sure_s, _NOTHING
        after_s = taken(shape.has[rank] @ agreeing.after_s, a) if zero < 3 else _NOTHING
        lane_s = _NOTHING
        if zero >= 2:
            # sums begin once a microbatch has come back to the rank
            lane_s = taken(passing.microbatches, p) * taken(shape.has[rank] @ agreeing.sums_s, a)
            lane_s += taken(passing.until_back_s[rank], p) + after_s
        if shape.kept.get("overlap_gather", False):
            return exposed_s + np.maximum(0.0, after_s - taken(shape.has[rank] @ passing.kinds_s[0], p)), sure_s, lane_s
        return exposed_s + after_s, sure_s + after_s, lane_s

    def _summed_s(self, p: Numbers, a: Numbers) -> Times:
        """How long ranks sum after their passes what they sum beside each, followed where sums may take longer than what is
        between them, shape (ranks, configurations)."""
        shape, stages, expected = self.shape, self.passing.stages, self.passing.expected
        sums_s = self.agreeing.sums_s[shape.cut.kind_of[stages.alike.first]][:, a]
        between_s = np.broadcast_to(stages.weights_s if shape.splits else stages.backward_s, stages.backward_s.shape)
        at = np.flatnonzero((sums_s > taken(between_s, p, axis=1)).any(axis=0) & taken(expected.followed, p))
        result: Times = np.zeros((shape.stages, len(p)))
        if len(at):
            some = stages.take(p[at])
            found = passing_of(shape.schedule, some, sums_s=sums_s[:, at]).play(some.microbatches)
            result[:, at] = found.lane_s
        return result

    def _of_gathering(self, rank: int, p: Numbers, a: Numbers, gathered: _Gathered) -> tuple[Times, Times, Times, Times]:
        """The same of ranks that gather layers before each pass over them, and what is expected of its passes."""
        shape, agreeing = self.shape, self.agreeing
        final = int(shape.cut.kind_of[shape.held[rank, 0]])
        last_s = taken(agreeing.last_s[final], a)
        moved_s = agreeing.sums_s + (1 + self._again) * agreeing.gathers_s
        least_s = taken(self.passing.microbatches, p) * taken(shape.has[rank] @ moved_s, a)
        window_s, lane_s = (one[shape.alike[rank]].max(axis=0) for one in gathered)
        # a rank that is alone in its pipeline was followed until its last sum
        exposed_s = np.maximum(last_s, lane_s) if shape.stages > 1 else np.zeros_like(last_s)
        return window_s, exposed_s, last_s, least_s

    @property
    def _again(self) -> bool:
        """Whether what is gathered for the forward pass is dropped after it, and gathered again."""
        return bool(self.shape.kept.get("reshard", True))

    def gathering(self, p: Numbers, a: Numbers, zero: int) -> Gathering:
        """Of configurations whose ranks gather layers before each pass over them, which follows the sums of the one before; of
        none where they do not, or are alone in their pipelines."""
        shape, passing, agreeing = self.shape, self.passing, self.agreeing
        first = passing.stages.alike.first
        kind_of, layers = shape.cut.kind_of[first], (shape.cut.stops - shape.cut.begins)[first, None]
        if zero < 3 or shape.stages == 1 or shape.keeps:
            return Gathering(p[:0], None)
        again_s = self._again * agreeing.gathers_s
        if shape.splits or (layers != layers[0]).any():
            longer = np.arange(len(p))
        else:
            waits_s = taken(np.array([agreeing.gathers_s, agreeing.sums_s + again_s]), a, axis=2)
            longer = np.flatnonzero((waits_s > taken(passing.kinds_s, p, axis=2)).any(axis=(0, 1)))
        if not len(longer):
            return Gathering(longer, None)
        at, to = p[longer], a[longer]
        each_s = agreeing.gathers_s, again_s, agreeing.opening_s, agreeing.sums_s, agreeing.last_s
        collectives = LayerGatherTimes.of((taken(one[kind_of], to, axis=1) for one in each_s), layers)
        given = Given(collectives, taken(passing.expected.least_s, at, axis=1))
        stages = passing.stages.take(at)
        if agreeing.resources:
            ratios = np.array(self._slowed(at, to, zero)) / taken(passing.kinds_s.sum(axis=0), at, axis=1)
            stages = stages.slower(1 + ratios[kind_of])
        return Gathering(longer, Expected.of(shape.schedule, shape.stage_of, shape.told, stages, given))

    def _gathered(self, p: Numbers, a: Numbers, gathering: Gathering, slowed: Sequence[Times] | None) -> _Gathered:
        if self.shape.stages == 1:
            alone_s = self._alone_s(p, a, slowed)[None]
            return _Gathered(alone_s, np.zeros_like(alone_s))
        window_s = taken(self.passing.expected.window_s, p, axis=1)
        result = _Gathered(window_s, np.zeros_like(window_s))
        if gathering.expected is not None:
            found = gathering.expected
            result.window_s[:, gathering.at], result.lane_s[:, gathering.at] = found.window_s, found.lane_s
        return result

    def _first_wait_s(self, p: Numbers, a: Numbers) -> Times:
        """Seconds by which the first pass of a step is longer for what is gathered before it and kept."""
        kind, agreeing = int(self.shape.cut.kind_of[0]), self.agreeing
        opening_s, gathers_s = taken(agreeing.opening_s[kind], a), taken(agreeing.gathers_s[kind], a)
        return first_wait_s(opening_s, gathers_s, taken(self.passing.kinds_s[0, kind], p), len(self.shape.cut.ranges[0]))

    def _alone_s(self, p: Numbers, a: Numbers, slowed: Sequence[Times] | None) -> Times:
        """Seconds of a step before its update of ranks that have all layers. Layers are taken to have parts of what is moved as
        of parameters."""
        passing, agreeing = self.passing, self.agreeing
        layers_s = taken(passing.layers_s, p, axis=2)
        if slowed is not None:
            layers_s *= 1 + slowed[0] / taken(passing.kinds_s[:, 0].sum(axis=0), p)
        gathers_s, sums_s = taken(agreeing.gathers_s[0], a), taken(agreeing.sums_s[0], a)
        moved_s = (passing.parts[:, None] * each for each in (gathers_s, self._again * gathers_s, sums_s))
        return one_rank_s(layers_s, tuple(moved_s), taken(passing.microbatches, p))
