"""Pipelines: how long a rank is busy with a step's passes, from its first forward to its last backward pass, in closed form.

Of a step's dependencies each path takes no longer than the step: the longest of some paths is a bound that no replay beats, and
near to it where the paths are the right ones. Arrays have configurations last, which is the fast order.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.communication.layer_gathers import LayerGatherTimes
from scaleproof.simulator.analysis.planner.estimate.factorize import taken
from scaleproof.simulator.analysis.planner.estimate.pipeline.equivalent_stages import EquivalentStages
from scaleproof.simulator.strategy.pipeline.schedule import ScheduleName

Times = NDArray[np.float64]

# Schedules that have a closed form, and others whose passes are followed; not those whose orders are searched for, which are
# other ones for all times of passes.
CLOSED: Final[tuple[ScheduleName, ...]] = ("1f1b", "interleaved_1f1b", "gpipe")
FOLLOWED: Final[tuple[ScheduleName, ...]] = (
    "looped_bfs", "zb_h1", "zb_h2", "interleaved_zero_bubble", "zb_v", "dualpipe_v",
)  # fmt: skip


@dataclass(frozen=True)
class StageTimes:
    """Seconds of passes over stages of the model, and of the messages before and behind each, 0 where there is none, shape
    (stages that are told, configurations); `alike` says which stand for others. microbatches: shape (configurations,).
    weights_s: of backward_s, gradients of weights, where they are made apart.
    forward_more_s, backward_more_s: how much longer a pass takes that follows another on its rank at once."""

    forward_s: Times
    backward_s: Times
    before_s: Times
    behind_s: Times
    microbatches: NDArray[np.int64]
    alike: EquivalentStages
    overlap_sends: bool
    weights_s: Times | float = 0.0
    forward_more_s: Times | float = 0.0
    backward_more_s: Times | float = 0.0

    @classmethod
    def each(
        cls, forward_s: Times, backward_s: Times, sends_s: Times, microbatches: NDArray[np.int64], ranks: int,
        overlap_sends: bool, weights_s: Times | float = 0.0,
    ) -> StageTimes:  # fmt: skip
        """All told. sends_s: behind each but the last."""
        before_s, behind_s = (np.pad(sends_s, [ends, (0, 0)]) for ends in ((1, 0), (0, 1)))
        alike = EquivalentStages(range(len(forward_s)), ranks)
        return cls(forward_s, backward_s, before_s, behind_s, microbatches, alike, overlap_sends, weights_s)

    @property
    def ranks(self) -> int:
        """That have the stages, in a ring or a V."""
        return self.alike.ranks

    def take(self, at: NDArray[np.int64]) -> StageTimes:
        """Of some configurations, in which no pass takes longer after another."""
        forward_s, backward_s, before_s, behind_s = (taken(one, at, axis=1) for one in self._passes_s)
        weights_s = taken(self.weights_s, at, axis=1) if isinstance(self.weights_s, np.ndarray) else self.weights_s
        microbatches = taken(self.microbatches, at)
        return StageTimes(forward_s, backward_s, before_s, behind_s, microbatches, self.alike, self.overlap_sends, weights_s)

    def slower(self, factors: Times) -> StageTimes:
        """With passes that take `factors` times as long, shape (stages that are told, configurations)."""
        return replace(
            self, forward_s=self.forward_s * factors, backward_s=self.backward_s * factors, weights_s=self.weights_s * factors
        )

    @property
    def apart(self) -> StageTimes:
        """The same with all stages told."""
        if len(self.alike) == len(self.forward_s):
            return self
        forward_s, backward_s, before_s, behind_s = (one[self.alike.of] for one in self._passes_s)
        rest = (
            one[self.alike.of] if isinstance(one, np.ndarray) else one
            for one in (self.weights_s, self.forward_more_s, self.backward_more_s)
        )  # fmt: skip
        alike = EquivalentStages(range(len(self.alike)), self.ranks)
        return StageTimes(forward_s, backward_s, before_s, behind_s, self.microbatches, alike, self.overlap_sends, *rest)

    @property
    def _passes_s(self) -> tuple[Times, Times, Times, Times]:
        return self.forward_s, self.backward_s, self.before_s, self.behind_s

    @property
    def inputs_s(self) -> Times:
        """Of the least that a backward pass does before the next stage may begin its own."""
        result: Times = self.backward_s - self.weights_s
        return result

    @property
    def way_s(self) -> Times:
        """Of a microbatch there and back through each, and on to the next."""
        both: Times = self.forward_s + self.backward_s
        return both + 2 * self.behind_s


def windows(schedule: ScheduleName, stages: StageTimes, ranks: Sequence[int]) -> tuple[Times, Times]:
    """What is expected, and what it takes at least: seconds from some ranks' first pass to the end of their last, shape
    (ranks, configurations)."""
    if len(stages.alike) == 1:
        total = stages.microbatches * (stages.forward_s + stages.backward_s)
        return total, total
    if schedule == "interleaved_1f1b":
        return _interleaved(stages, ranks)
    form = _gpipe if schedule == "gpipe" else _1f1b
    expected, least = form(stages.apart)
    return expected[ranks], least[ranks]


def per_round(stages: StageTimes) -> NDArray[np.int64]:
    """Microbatches that go through one chunk after another together, shape (configurations,)."""
    result: NDArray[np.int64] = stages.microbatches // np.maximum(1, stages.microbatches // stages.ranks)
    return result


def gathering(stages: StageTimes, given: LayerGatherTimes) -> StageTimes:
    """Stages whose parameters are gathered layer by layer: for two layers while a rank waits. Where passes follow one another,
    either they take all the time or what is gathered and summed does; a rank with fewer layers than others gathers for none
    before it has summed the gradients of the pass before."""
    layers, moved_s = given.layers, given.again_s + given.sums_s
    ahead = np.minimum(1.0, 2 / layers)
    way_forward_s, way_backward_s = (
        np.maximum(pass_s, ahead * pass_s + (1 - ahead) * beside_s)
        for pass_s, beside_s in ((stages.forward_s, given.gathers_s), (stages.backward_s, moved_s))
    )
    between_s = (layers < layers.max()) * (given.last_s + given.again_s / layers)
    return replace(
        stages, forward_s=way_forward_s, backward_s=way_backward_s,
        forward_more_s=np.maximum(0.0, given.gathers_s - way_forward_s),
        backward_more_s=np.maximum(0.0, np.maximum(moved_s, stages.backward_s + between_s) - way_backward_s),
    )  # fmt: skip


def accumulated(each: np.ufunc, values: Times) -> Times:
    """`each.accumulate`, row by row: numpy's own goes down one column after another, which takes ten times as long."""
    result: Times = values.copy()
    for before, row in itertools.pairwise(result):
        each(before, row, out=row)
    return result


def behind(values: Times) -> Times:
    """Sums of each and all behind it."""
    return accumulated(np.add, values[::-1])[::-1]


def slowest_behind(values: Times) -> Times:
    """The largest of each and all behind it."""
    return accumulated(np.maximum, values[::-1])[::-1]


def received(stages: StageTimes) -> tuple[Times, Times, Times]:
    """Seconds of passes with the message that each begins with, and of messages beside them: all, where they move beside
    passes; otherwise a rank that is ready for a message only then gets it."""
    forward_s, backward_s = stages.forward_s + stages.forward_more_s, stages.backward_s + stages.backward_more_s
    if stages.overlap_sends:
        return forward_s, backward_s, stages.behind_s
    forward_s += stages.before_s
    backward_s += stages.behind_s
    return forward_s, backward_s, np.zeros_like(stages.behind_s)


def _gpipe(stages: StageTimes) -> tuple[Times, Times]:
    """The slowest stage sets the pace of all forward passes, and that of all backward passes."""
    forward_s, backward_s, _ = received(stages)
    pace_s = slowest_behind(forward_s) + slowest_behind(backward_s)
    expected = behind(stages.way_s) + (stages.microbatches - 1) * pace_s
    return expected, expected


def _1f1b(stages: StageTimes) -> tuple[Times, Times]:
    """Once the pipeline is full, each rank has a forward and a backward pass in turn, and waits for what it sends in between;
    where sends move beside passes, the way to the next rank and back sets the pace if it takes longer."""
    forward_s, backward_s = stages.forward_s + stages.forward_more_s, stages.backward_s + stages.backward_more_s
    both, more = forward_s + backward_s, stages.microbatches - 1
    ahead = np.arange(stages.ranks)[::-1, None]
    steady = np.maximum(more - ahead, 0)
    through = behind(stages.way_s)
    own_s = more * backward_s + steady * forward_s
    if stages.overlap_sends:
        paced_s = both.copy()
        paced_s[:-1] = np.maximum(both[:-1], (both[:-1] + both[1:]) / 2 + stages.behind_s[:-1])
        paced_s[0] = np.maximum(paced_s[0], through[0] / stages.ranks)
    else:
        both = paced_s = both + stages.before_s + stages.behind_s
        own_s += more * stages.behind_s + steady * stages.before_s
    least = through + slowest_behind(own_s)
    # a rank is no faster than those before it either, once these are as far ahead as they may be
    expected = slowest_behind(own_s + steady * (paced_s - both))
    return through + np.maximum(expected, accumulated(np.maximum, steady * paced_s)), least


def _interleaved(stages: StageTimes, some: Sequence[int]) -> tuple[Times, Times]:
    """Rounds of microbatches go through one chunk after another. Where a round is through with a chunk on the first rank before
    its first microbatch has come round from the last, the first rank waits, as long as there are no backward passes to do
    meanwhile: before the first of them, and likewise after the last forward pass."""
    alike, microbatches, of_round = stages.alike, stages.microbatches, per_round(stages)
    chunks, ranks, count = alike.by_chunk, alike.by_rank, alike.ranks
    forward_s, backward_s, beside_s = received(stages)
    work_s = microbatches * (ranks.counts @ (forward_s + backward_s))
    # ranks go from chunk to chunk together: the slowest has to be waited for in each, as far as nobody is ahead
    slowest_s = chunks.slowest(forward_s), chunks.slowest(backward_s)
    pace_s = (microbatches * (chunks.every @ (slowest_s[0] + slowest_s[1])) + ranks.slowest(work_s, some)) / 2
    ways_s = forward_s - stages.forward_more_s, backward_s - stages.backward_more_s
    waits_s = np.zeros_like(pace_s[0])
    for way_s, slow_s, often in zip(ways_s, slowest_s, (chunks.before, chunks.behind), strict=True):
        waits_s += often @ np.maximum(0.0, chunks.counts @ (way_s + beside_s) - of_round * slow_s)
    first = np.array(some)
    # from each rank to the last, in the last chunk and in the first
    last, back = len(alike) - count + first, first
    bubble_s = alike.between(last + 1, len(alike)) @ ways_s[0] + alike.between(back + 1, count) @ ways_s[1]
    bubble_s += (alike.between(last, len(alike) - 1) + alike.between(back, count - 1)) @ beside_s
    if not stages.overlap_sends:
        # what a rank's first pass begins with is on the way there
        work_s -= stages.before_s[ranks.first]
    # a way there through the first chunks, all that one rank does, and the way back
    through_s = stages.way_s
    least_s = ranks.slowest(alike.between(0, ranks.last) @ through_s + work_s, some) - alike.between(0, first) @ through_s
    return bubble_s + waits_s + pace_s, np.maximum(least_s, alike.between(first, len(alike)) @ through_s)


def unlike_s(stages: StageTimes) -> Times:
    """How much longer ranks with several stages take in step, stage by stage, than the slowest from some rank on takes alone,
    where that is the most, shape (configurations,): half of that is what is expected to be lost."""
    each_s, alike = stages.forward_s + stages.backward_s, stages.alike
    together_s = alike.by_chunk.every @ alike.by_chunk.slowest(each_s)
    alone_s = alike.by_rank.slowest(alike.by_rank.counts @ each_s, [alike.ranks - 1])[0]
    result: Times = stages.microbatches * (together_s - alone_s)
    return result / 2
