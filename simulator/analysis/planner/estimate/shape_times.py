"""Step times of configurations of one shape.

Times of passes and of gradient synchronisation depend on few columns each: they are two tables, and a configuration is a row of
either. Arrays have rows, or configurations, last.
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
from scaleproof.simulator.analysis.planner.estimate.pipeline.expected_time import GatherInputs, PassWindows, pass_sequence
from scaleproof.simulator.analysis.planner.estimate.shapes import ConfigurationShape
from scaleproof.simulator.analysis.planner.estimate.tables import PassTable, SyncTable
from scaleproof.simulator.strategy.data_parallel.contention import per_second, slowed_by

Times = NDArray[np.float64]

# Lower bounds are multiplied by this: groups may be a little nearer to one another than the one that is timed, and times of
# collectives a little off their line.
_MARGIN: Final = 0.999
_NOTHING: Final = np.zeros(1)
# Share of the estimated contention in lower bounds: collectives are counted by bucket here, by layer in programs.
_LEAST_CONTENTION: Final = 0.8
_LEAST_UNHIDDEN: Final = 0.5


class GatherPasses(NamedTuple):
    """Expected times of passes that are prolonged by gathers. at: indices of the configurations, expected: their times, None
    for none."""

    at: Numbers
    expected: PassWindows | None


class _GatherTimes(NamedTuple):
    """Seconds from the first to the end of the last pass of each timed rank, and from there to the end of its collectives."""

    window_s: Times
    collectives_s: Times


def _weighted(counts: Numbers, values: Sequence[Times]) -> Times:
    """Sum of values, each multiplied by its count."""
    result: Times = sum((count * value for count, value in zip(counts.tolist(), values, strict=True)), np.zeros(1))
    return result


class ShapeTimes:
    """Step times of a shape, from its two tables."""

    def __init__(self, shape: ConfigurationShape, passes: PassTable, sync: SyncTable) -> None:
        self.shape, self.passes, self.sync = shape, passes, sync
        every = bool(passes.expected.followed.any())
        self._sums = [list(shape.sums(rank, every)) for rank in range(len(shape.ranks))]

    def times(self, p: Numbers, s: Numbers, zero: int, gather_passes: GatherPasses) -> tuple[Times, Times]:
        """Expected and least step times of configurations, once `follow` has run. p, s: their rows in the tables of passes and
        of gradient synchronisation; zero: the ZeRO stage of all of them; gather_passes: as returned by the method of that
        name."""
        slowed = self._slowed(p, s, zero) if self.sync.resources else None
        gathered = self._gathered(p, s, gather_passes, slowed) if zero == 3 and not self.shape.keeps else None
        summed_s = self._summed_s(p, s) if zero >= 2 and gathered is None and self.shape.schedule not in CLOSED else None
        # with layer gathers, the sums are part of the simulation
        after_first_s = self._after_first_s(p, s, zero, slowed) if gathered is None else []
        expected_s, least_s = np.zeros((2, len(p)))
        sync = self.sync
        for rank in range(len(self.shape.ranks)):
            if gathered is not None:
                window_s, exposed_s, least_exposed_s, collectives_s = self._of_gathering(rank, p, s, gathered)
            else:
                window_s = taken(self.passes.window_s[rank], p)
                if zero == 3:
                    window_s += self._first_wait_s(p, s)
                exposed_s, least_exposed_s, collectives_s = self._exposed(rank, p, s, zero, after_first_s, summed_s)
            if rank > 0 and not self.shape.is_uniform:
                # its group may be nearer to one another than rank 0's, whose sums are those in the table
                least_exposed_s, collectives_s = _NOTHING, _NOTHING
            rank_s = taken(sync.optimizer_s[rank], s)
            least_rank_s = taken(self.passes.least_s[rank], p)
            least_rank_s += least_exposed_s
            rank_s += window_s
            rank_s += exposed_s
            if slowed is not None and (gathered is None or self.shape.stages > 1):
                contended_s, least_contended_s = self._contended_s(rank, p, zero, slowed, window_s)
                # simulated passes that wait for gathers were slowed down already
                contended_s[gather_passes.at] = 0.0
                rank_s += contended_s
                least_rank_s += _LEAST_CONTENTION * least_contended_s
            np.maximum(least_rank_s, collectives_s, out=least_rank_s)
            least_rank_s += taken(sync.optimizer_s[rank], s)
            if rank == 0:
                rank_s += taken(sync.copied_s, s)
            np.maximum(expected_s, rank_s, out=expected_s)
            np.maximum(least_s, least_rank_s, out=least_s)
        return np.maximum(expected_s, least_s), _MARGIN * least_s

    def _slowed(self, p: Numbers, s: Numbers, zero: int) -> list[Times]:
        """Seconds by which passes over a stage of each kind take longer next to collectives: of each microbatch from ZeRO's
        stage 2 on and with several chunks, else of a step."""
        passes, sync, found = self.passes, self.sync, []
        assert sync.resources is not None
        bound = taken(passes.bound, p)
        for kind in range(len(self.shape.cut.kinds)):
            moved_s = sync.moved_s[kind]
            memory_Bps, moved_W = per_second(sync.moved_bytes[kind], sync.moved_J[kind], moved_s)
            share = sync.resources.taken(taken(memory_Bps, s), taken(moved_W, s), bound)
            computing_s = passes.kinds_s[:, kind].sum(axis=0) if zero == 3 else passes.kinds_s[1, kind]
            moved_s = taken(moved_s, s)
            if zero < 2 and self.shape.chunks > 1:
                moved_s /= taken(passes.microbatches, p)
            found.append(slowed_by(share, moved_s, taken(computing_s, p)))
        return found

    def _contended_s(
        self, rank: int, p: Numbers, zero: int, slowed: Sequence[Times], window_s: Times
    ) -> tuple[Times, Times | float]:
        """Seconds by which a rank ends its passes later because collectives slow them down, expected and at least. window_s:
        expected duration of the passes, waiting included."""
        passes, shape = self.passes, self.shape
        counts = shape.stage_counts[rank]
        own_s = _weighted(counts, slowed)
        if zero < 2 and shape.chunks == 1:
            # the last microbatch returns through all stages, one after another
            return _weighted(np.bincount(shape.cut.kind_of, minlength=len(slowed)), slowed), own_s
        own_s /= taken(counts @ passes.kinds_s.sum(axis=0), p)
        # compute waits for gathers part of the time, which hides part of the contention
        waiting = _LEAST_UNHIDDEN if zero >= 2 else 1.0
        return window_s * own_s, waiting * taken(passes.microbatches * (counts @ passes.kinds_s.sum(axis=0)), p) * own_s

    def _after_first_s(self, p: Numbers, s: Numbers, zero: int, slowed: Sequence[Times] | None) -> list[Times]:
        """Seconds of a pass over a stage of each kind that remain once the gradients of its first unit are complete, with which
        sums overlap. None remain where sums wait for the whole pass, as they do where gradients of weights are computed
        separately. slowed: seconds by which the pass takes longer."""
        passes, sync, kinds = self.passes, self.sync, range(len(self.shape.cut.kinds))
        if self.shape.splits or (zero < 2 and not self.shape.kept.get("overlap", False)):
            return [_NOTHING for _ in kinds]
        begins, result = taken(passes.begins, p), []
        for kind in kinds:
            left_s = taken(passes.kinds_s[1, kind], p)
            passed_s = taken(passes.backward_s, begins + taken(sync.stop[kind], s))
            passed_s -= taken(passes.backward_s, begins + taken(sync.begin[kind], s))
            left_s -= passed_s
            if slowed is not None:
                left_s += slowed[kind]
            result.append(left_s)
        return result

    def _exposed(
        self, rank: int, p: Numbers, s: Numbers, zero: int, after_first_s: Sequence[Times], summed_s: Times | None
    ) -> tuple[Times, Times, Times]:
        """Seconds of gradient synchronisation after a rank's passes, expected and at least, and least seconds of the step given
        its sums. summed_s: the former of all ranks where simulated, else 0."""
        shape, passes, sync = self.shape, self.passes, self.sync
        final = int(shape.cut.kind_of[shape.own_stages[rank, 0]])
        least_exposed_s = np.maximum(taken(sync.last_s[final], s), taken(sync.sums_s[final], s) - after_first_s[final])
        exposed_s = least_exposed_s
        for one in self._sums[rank]:
            # sums of a rank run one after another: from ZeRO's stage 2 on, those of each microbatch of a round
            before_s, own_s = one.before @ sync.sums_s, sync.sums_s[one.kind]
            ended_s: Times = taken(before_s if zero >= 2 else before_s + own_s, s)
            if zero >= 2:
                ended_s *= taken(passes.per_round, p)
                ended_s += taken(own_s, s)
            ended_s -= after_first_s[one.kind]
            ended_s -= taken(passes.left_s[rank, one.chunk], p)
            exposed_s = np.maximum(exposed_s, ended_s)
        if summed_s is not None:
            own_s = summed_s[shape.equivalent_ranks[rank]].max(axis=0)
            exposed_s = np.where(own_s > 0, np.maximum(least_exposed_s, own_s), exposed_s)
        if zero == 0:
            return exposed_s, least_exposed_s, _NOTHING
        after_s = taken(shape.stage_counts[rank] @ sync.after_s, s) if zero < 3 else _NOTHING
        collectives_s = _NOTHING
        if zero >= 2:
            # sums begin once a microbatch has returned to the rank
            collectives_s = taken(passes.microbatches, p) * taken(shape.stage_counts[rank] @ sync.sums_s, s)
            collectives_s += taken(passes.until_back_s[rank], p) + after_s
        if shape.kept.get("overlap_gather", False):
            return (
                exposed_s + np.maximum(0.0, after_s - taken(shape.stage_counts[rank] @ passes.kinds_s[0], p)),
                least_exposed_s,
                collectives_s,
            )
        return exposed_s + after_s, least_exposed_s + after_s, collectives_s

    def _summed_s(self, p: Numbers, s: Numbers) -> Times:
        """Seconds of sums after the passes of each rank, simulated where sums may take longer than the passes between them,
        else 0, shape (ranks, configurations)."""
        shape, stages, expected = self.shape, self.passes.stages, self.passes.expected
        sums_s = self.sync.sums_s[shape.cut.kind_of[stages.equivalence.first]][:, s]
        between_s = np.broadcast_to(stages.weights_s if shape.splits else stages.backward_s, stages.backward_s.shape)
        at = np.flatnonzero((sums_s > taken(between_s, p, axis=1)).any(axis=0) & taken(expected.followed, p))
        result: Times = np.zeros((shape.stages, len(p)))
        if len(at):
            some = stages.take(p[at])
            found = pass_sequence(shape.schedule, some, sums_s=sums_s[:, at]).simulate(some.microbatches)
            result[:, at] = found.collectives_s
        return result

    def _of_gathering(self, rank: int, p: Numbers, s: Numbers, gathered: _GatherTimes) -> tuple[Times, Times, Times, Times]:
        """Seconds of a rank's passes, of its exposed collectives expected and at least, and least seconds of a step given its
        collectives, for ranks that gather layers before each pass over them."""
        shape, sync = self.shape, self.sync
        final = int(shape.cut.kind_of[shape.own_stages[rank, 0]])
        last_s = taken(sync.last_s[final], s)
        moved_s = sync.sums_s + (1 + self._again) * sync.gathers_s
        least_s = taken(self.passes.microbatches, p) * taken(shape.stage_counts[rank] @ moved_s, s)
        window_s, collectives_s = (one[shape.equivalent_ranks[rank]].max(axis=0) for one in gathered)
        # a rank that is alone in its pipeline was simulated until its last sum
        exposed_s = np.maximum(last_s, collectives_s) if shape.stages > 1 else np.zeros_like(last_s)
        return window_s, exposed_s, last_s, least_s

    @property
    def _again(self) -> bool:
        """Whether parameters gathered for the forward pass are freed after it, and gathered again."""
        return bool(self.shape.kept.get("reshard", True))

    def gather_passes(self, p: Numbers, s: Numbers, zero: int) -> GatherPasses:
        """Expected times of passes for configurations whose ranks gather layers before each pass over them, which follows the
        sums of the pass before. Empty where they do not, or where pipelines have one rank."""
        shape, passes, sync = self.shape, self.passes, self.sync
        first = passes.stages.equivalence.first
        kind_of, layers = shape.cut.kind_of[first], (shape.cut.stops - shape.cut.begins)[first, None]
        if zero < 3 or shape.stages == 1 or shape.keeps:
            return GatherPasses(p[:0], None)
        again_s = self._again * sync.gathers_s
        if shape.splits or (layers != layers[0]).any():
            longer = np.arange(len(p))
        else:
            waits_s = taken(np.array([sync.gathers_s, sync.sums_s + again_s]), s, axis=2)
            longer = np.flatnonzero((waits_s > taken(passes.kinds_s, p, axis=2)).any(axis=(0, 1)))
        if not len(longer):
            return GatherPasses(longer, None)
        at, to = p[longer], s[longer]
        collectives_by_kind_s = sync.gathers_s, again_s, sync.opening_s, sync.sums_s, sync.last_s
        collectives = LayerGatherTimes.of((taken(one[kind_of], to, axis=1) for one in collectives_by_kind_s), layers)
        gathers = GatherInputs(collectives, taken(passes.expected.least_s, at, axis=1))
        stages = passes.stages.take(at)
        if sync.resources:
            ratios = np.array(self._slowed(at, to, zero)) / taken(passes.kinds_s.sum(axis=0), at, axis=1)
            stages = stages.slower(1 + ratios[kind_of])
        return GatherPasses(longer, PassWindows.of(shape.schedule, shape.stage_of, shape.timed_ranks, stages, gathers))

    def _gathered(self, p: Numbers, s: Numbers, gather_passes: GatherPasses, slowed: Sequence[Times] | None) -> _GatherTimes:
        """Expected times of passes and exposed collectives with layer gathers."""
        if self.shape.stages == 1:
            alone_s = self._alone_s(p, s, slowed)[None]
            return _GatherTimes(alone_s, np.zeros_like(alone_s))
        window_s = taken(self.passes.expected.window_s, p, axis=1)
        result = _GatherTimes(window_s, np.zeros_like(window_s))
        if gather_passes.expected is not None:
            found = gather_passes.expected
            result.window_s[:, gather_passes.at], result.collectives_s[:, gather_passes.at] = (
                found.window_s,
                found.collectives_s,
            )
        return result

    def _first_wait_s(self, p: Numbers, s: Numbers) -> Times:
        """Seconds by which the first pass of a step is longer for the gather of parameters that are kept afterwards."""
        kind, sync = int(self.shape.cut.kind_of[0]), self.sync
        opening_s, gathers_s = taken(sync.opening_s[kind], s), taken(sync.gathers_s[kind], s)
        return first_wait_s(opening_s, gathers_s, taken(self.passes.kinds_s[0, kind], p), len(self.shape.cut.ranges[0]))

    def _alone_s(self, p: Numbers, s: Numbers, slowed: Sequence[Times] | None) -> Times:
        """Seconds of a step before the optimizer, for ranks with all layers. Collectives are divided among layers like
        parameters."""
        passes, sync = self.passes, self.sync
        layers_s = taken(passes.layers_s, p, axis=2)
        if slowed is not None:
            layers_s *= 1 + slowed[0] / taken(passes.kinds_s[:, 0].sum(axis=0), p)
        gathers_s, sums_s = taken(sync.gathers_s[0], s), taken(sync.sums_s[0], s)
        moved_s = (passes.parts[:, None] * each for each in (gathers_s, self._again * gathers_s, sums_s))
        return one_rank_s(layers_s, tuple(moved_s), taken(passes.microbatches, p))
