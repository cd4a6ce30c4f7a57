"""Duration of a pipeline rank's passes in a step, from its first forward to its last backward pass, in closed form.

The longest of some paths through a step's dependencies is a lower bound of the step time, and a good estimate where the
critical path is among them. Arrays have configurations last, which is the fast order.
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

# Schedules with a closed form, and schedules whose passes are simulated one by one. Orders that are searched for (zb_1p, zb_2p)
# depend on the times of passes and are not estimated.
CLOSED: Final[tuple[ScheduleName, ...]] = ("1f1b", "interleaved_1f1b", "gpipe")
FOLLOWED: Final[tuple[ScheduleName, ...]] = (
    "looped_bfs", "zb_h1", "zb_h2", "interleaved_zero_bubble", "zb_v", "dualpipe_v",
)  # fmt: skip


@dataclass(frozen=True)
class StageTimes:
    """Seconds of passes over the model's stages and of messages between stages, shape (distinct stages, configurations).

    `equivalence` maps each stage to the distinct stage that stands for it. receive_s, send_s: messages into and out of each
    stage, 0 where there is none. microbatches: shape (configurations,). weights_s: the part of backward_s that computes
    gradients of weights, where a schedule separates it. forward_more_s, backward_more_s: extra seconds of a pass that follows
    another on its rank without a gap.
    """

    forward_s: Times
    backward_s: Times
    receive_s: Times
    send_s: Times
    microbatches: NDArray[np.int64]
    equivalence: EquivalentStages
    overlap_sends: bool
    weights_s: Times | float = 0.0
    forward_more_s: Times | float = 0.0
    backward_more_s: Times | float = 0.0

    @classmethod
    def separate(
        cls, forward_s: Times, backward_s: Times, sends_s: Times, microbatches: NDArray[np.int64], ranks: int,
        overlap_sends: bool, weights_s: Times | float = 0.0,
    ) -> StageTimes:  # fmt: skip
        """Times of stages that are all given separately. sends_s: messages after each stage but the last."""
        receive_s, send_s = (np.pad(sends_s, [ends, (0, 0)]) for ends in ((1, 0), (0, 1)))
        equivalence = EquivalentStages(range(len(forward_s)), ranks)
        return cls(forward_s, backward_s, receive_s, send_s, microbatches, equivalence, overlap_sends, weights_s)

    @property
    def ranks(self) -> int:
        """Number of ranks, to which stages are assigned in a ring or a V."""
        return self.equivalence.ranks

    def take(self, at: NDArray[np.int64]) -> StageTimes:
        """Times of some configurations, without the extra seconds of passes that follow one another."""
        forward_s, backward_s, receive_s, send_s = (taken(one, at, axis=1) for one in self._passes_s)
        weights_s = taken(self.weights_s, at, axis=1) if isinstance(self.weights_s, np.ndarray) else self.weights_s
        microbatches = taken(self.microbatches, at)
        return StageTimes(
            forward_s, backward_s, receive_s, send_s, microbatches, self.equivalence, self.overlap_sends, weights_s
        )

    def slower(self, factors: Times) -> StageTimes:
        """Times with passes multiplied by `factors`, shape (distinct stages, configurations)."""
        return replace(
            self, forward_s=self.forward_s * factors, backward_s=self.backward_s * factors, weights_s=self.weights_s * factors
        )

    @property
    def expanded(self) -> StageTimes:
        """The same times with one row for every stage."""
        if len(self.equivalence) == len(self.forward_s):
            return self
        forward_s, backward_s, receive_s, send_s = (one[self.equivalence.representative] for one in self._passes_s)
        rest = (
            one[self.equivalence.representative] if isinstance(one, np.ndarray) else one
            for one in (self.weights_s, self.forward_more_s, self.backward_more_s)
        )  # fmt: skip
        equivalence = EquivalentStages(range(len(self.equivalence)), self.ranks)
        return StageTimes(forward_s, backward_s, receive_s, send_s, self.microbatches, equivalence, self.overlap_sends, *rest)

    @property
    def _passes_s(self) -> tuple[Times, Times, Times, Times]:
        return self.forward_s, self.backward_s, self.receive_s, self.send_s

    @property
    def inputs_s(self) -> Times:
        """Seconds of gradients of inputs: what a backward pass computes before the preceding stage can begin its own."""
        result: Times = self.backward_s - self.weights_s
        return result

    @property
    def round_trip_s(self) -> Times:
        """Seconds of a microbatch's forward and backward pass over each stage and of the messages to the next stage and
        back."""
        both: Times = self.forward_s + self.backward_s
        return both + 2 * self.send_s


def windows(schedule: ScheduleName, stages: StageTimes, ranks: Sequence[int]) -> tuple[Times, Times]:
    """Expected and least seconds from the first pass to the end of the last pass of some ranks, each of shape (ranks,
    configurations)."""
    if len(stages.equivalence) == 1:
        total = stages.microbatches * (stages.forward_s + stages.backward_s)
        return total, total
    if schedule == "interleaved_1f1b":
        return _interleaved(stages, ranks)
    form = _gpipe if schedule == "gpipe" else _1f1b
    expected, least = form(stages.expanded)
    return expected[ranks], least[ranks]


def per_round(stages: StageTimes) -> NDArray[np.int64]:
    """Microbatches per round of an interleaved schedule, which pass through one chunk after another, shape
    (configurations,)."""
    result: NDArray[np.int64] = stages.microbatches // np.maximum(1, stages.microbatches // stages.ranks)
    return result


def with_gathers(stages: StageTimes, gathers: LayerGatherTimes) -> StageTimes:
    """Stage times of ranks that gather parameters layer by layer, up to two layers ahead while a rank waits.

    Where passes follow one another, either compute or collectives determine the duration. A rank with fewer layers than others
    gathers nothing before it has summed the gradients of the pass before.
    """
    layers, moved_s = gathers.layers, gathers.again_s + gathers.sums_s
    ahead = np.minimum(1.0, 2 / layers)
    way_forward_s, way_backward_s = (
        np.maximum(pass_s, ahead * pass_s + (1 - ahead) * overlapped_s)
        for pass_s, overlapped_s in ((stages.forward_s, gathers.gathers_s), (stages.backward_s, moved_s))
    )
    between_s = (layers < layers.max()) * (gathers.last_s + gathers.again_s / layers)
    return replace(
        stages, forward_s=way_forward_s, backward_s=way_backward_s,
        forward_more_s=np.maximum(0.0, gathers.gathers_s - way_forward_s),
        backward_more_s=np.maximum(0.0, np.maximum(moved_s, stages.backward_s + between_s) - way_backward_s),
    )  # fmt: skip


def accumulate(ufunc: np.ufunc, values: Times) -> Times:
    """`ufunc.accumulate` along rows. numpy's own goes down one column after another, which is ten times slower."""
    result: Times = values.copy()
    for before, row in itertools.pairwise(result):
        ufunc(before, row, out=row)
    return result


def suffix_sum(values: Times) -> Times:
    """Sums of each row and all rows after it."""
    return accumulate(np.add, values[::-1])[::-1]


def suffix_max(values: Times) -> Times:
    """Maximum of each row and all rows after it."""
    return accumulate(np.maximum, values[::-1])[::-1]


def received(stages: StageTimes) -> tuple[Times, Times, Times]:
    """Seconds of forward passes and backward passes with the message that each begins with, and seconds of messages that
    overlap with passes.

    Either all messages overlap, or a rank receives a message only when it is ready for it.
    """
    forward_s, backward_s = stages.forward_s + stages.forward_more_s, stages.backward_s + stages.backward_more_s
    if stages.overlap_sends:
        return forward_s, backward_s, stages.send_s
    forward_s += stages.receive_s
    backward_s += stages.send_s
    return forward_s, backward_s, np.zeros_like(stages.send_s)


def _gpipe(stages: StageTimes) -> tuple[Times, Times]:
    """The slowest stage determines the interval between forward passes, and likewise between backward passes."""
    forward_s, backward_s, _ = received(stages)
    pace_s = suffix_max(forward_s) + suffix_max(backward_s)
    expected = suffix_sum(stages.round_trip_s) + (stages.microbatches - 1) * pace_s
    return expected, expected


def _1f1b(stages: StageTimes) -> tuple[Times, Times]:
    """Once the pipeline is full, each rank alternates forward and backward passes and waits for what it sends in between. Where
    sends overlap with passes, the way to the next rank and back determines the interval if it takes longer."""
    forward_s, backward_s = stages.forward_s + stages.forward_more_s, stages.backward_s + stages.backward_more_s
    both, more = forward_s + backward_s, stages.microbatches - 1
    ahead = np.arange(stages.ranks)[::-1, None]
    steady = np.maximum(more - ahead, 0)
    through = suffix_sum(stages.round_trip_s)
    own_s = more * backward_s + steady * forward_s
    if stages.overlap_sends:
        paced_s = both.copy()
        paced_s[:-1] = np.maximum(both[:-1], (both[:-1] + both[1:]) / 2 + stages.send_s[:-1])
        paced_s[0] = np.maximum(paced_s[0], through[0] / stages.ranks)
    else:
        both = paced_s = both + stages.receive_s + stages.send_s
        own_s += more * stages.send_s + steady * stages.receive_s
    least = through + suffix_max(own_s)
    # a rank is no faster than those before it either, once these have as many microbatches in flight as they may
    expected = suffix_max(own_s + steady * (paced_s - both))
    return through + np.maximum(expected, accumulate(np.maximum, steady * paced_s)), least


def _interleaved(stages: StageTimes, some: Sequence[int]) -> tuple[Times, Times]:
    """Rounds of microbatches pass through one chunk after another.

    If a round leaves the first rank's chunk before the round's first microbatch returns from the last rank, the first rank
    waits, as long as it has no backward passes to do: before the first of them, and likewise after the last forward pass.
    """
    equivalence, microbatches, of_round = stages.equivalence, stages.microbatches, per_round(stages)
    chunks, ranks, count = equivalence.by_chunk, equivalence.by_rank, equivalence.ranks
    forward_s, backward_s, overlapped_s = received(stages)
    work_s = microbatches * (ranks.counts @ (forward_s + backward_s))
    # ranks proceed from chunk to chunk together: each chunk takes as long as on its slowest rank, unless a rank is ahead
    slowest_s = chunks.slowest(forward_s), chunks.slowest(backward_s)
    pace_s = (microbatches * (chunks.total @ (slowest_s[0] + slowest_s[1])) + ranks.slowest(work_s, some)) / 2
    ways_s = forward_s - stages.forward_more_s, backward_s - stages.backward_more_s
    waits_s = np.zeros_like(pace_s[0])
    for round_trip_s, slow_s, often in zip(ways_s, slowest_s, (chunks.without_last, chunks.without_first), strict=True):
        waits_s += often @ np.maximum(0.0, chunks.counts @ (round_trip_s + overlapped_s) - of_round * slow_s)
    first = np.array(some)
    # from each rank to the last, in the last chunk and in the first
    last, back = len(equivalence) - count + first, first
    bubble_s = equivalence.between(last + 1, len(equivalence)) @ ways_s[0] + equivalence.between(back + 1, count) @ ways_s[1]
    bubble_s += (equivalence.between(last, len(equivalence) - 1) + equivalence.between(back, count - 1)) @ overlapped_s
    if not stages.overlap_sends:
        # the message before a rank's first pass belongs to the way there
        work_s -= stages.receive_s[ranks.first]
    # the way there through the first chunks, all work of one rank, and the way back
    through_s = stages.round_trip_s
    least_s = (
        ranks.slowest(equivalence.between(0, ranks.last) @ through_s + work_s, some) - equivalence.between(0, first) @ through_s
    )
    return bubble_s + waits_s + pace_s, np.maximum(least_s, equivalence.between(first, len(equivalence)) @ through_s)


def imbalance_s(stages: StageTimes) -> Times:
    """Expected loss of seconds because ranks with several stages proceed chunk by chunk at the speed of the slowest, shape
    (configurations,): half of the difference to the slowest rank alone."""
    each_s, equivalence = stages.forward_s + stages.backward_s, stages.equivalence
    together_s = equivalence.by_chunk.total @ equivalence.by_chunk.slowest(each_s)
    alone_s = equivalence.by_rank.slowest(equivalence.by_rank.counts @ each_s, [equivalence.ranks - 1])[0]
    result: Times = stages.microbatches * (together_s - alone_s)
    return result / 2
