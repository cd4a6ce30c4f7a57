"""Seconds of a pipeline rank's passes in a step, from its first forward to its last backward pass, in closed form.

The longest of some paths through a step's dependencies is a lower bound of the step time, and a good estimate where the
critical path is among them. Arrays have configurations last, which is the fast order.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.configurations import Numbers
from scaleproof.simulator.parallelism.stages import ScheduleName

Times = NDArray[np.float64]

# Schedules with a closed form, and schedules whose passes are simulated one by one. Orders that are searched for (zb_1p, zb_2p)
# depend on the times of passes and are not estimated.
CLOSED: Final[tuple[ScheduleName, ...]] = ("1f1b", "interleaved_1f1b", "gpipe")
FOLLOWED: Final[tuple[ScheduleName, ...]] = (
    "looped_bfs", "zb_h1", "zb_h2", "interleaved_zero_bubble", "zb_v", "dualpipe_v",
)  # fmt: skip


class LayerGatherTimes(NamedTuple):
    """Seconds of the collectives of ranks that gather parameters layer by layer, shape (stages, configurations).

    gathers_s, again_s: gathers before a forward and before a backward pass over a stage. sums_s: sums of gradients after a
    backward pass; last_s: the last of them. layers: number of layers of each stage, shape (stages, 1). waits_for_sums: whether
    passes wait for sums instead of overlapping with them.
    """

    gathers_s: Times
    again_s: Times
    sums_s: Times
    last_s: Times
    layers: Numbers
    waits_for_sums: bool = False


@dataclass(frozen=True)
class StageTimes:
    """Seconds of passes over the model's stages and of messages between stages, shape (stages, configurations).

    send_s: message after each stage, 0 where the next stage is on the same rank, and after the last. microbatches: shape
    (configurations,). weights_s: the part of backward_s that computes gradients of weights, where a schedule separates it.
    divided_s: extra seconds in backward_s and weights_s for that, which passes lack that a schedule leaves whole.
    forward_more_s, backward_more_s: extra seconds of a pass that follows another on its rank without a gap.
    """

    forward_s: Times
    backward_s: Times
    send_s: Times
    microbatches: Numbers
    ranks: int
    overlap_sends: bool
    weights_s: Times | float = 0.0
    divided_s: Times | float = 0.0
    forward_more_s: Times | float = 0.0
    backward_more_s: Times | float = 0.0

    @property
    def chunks(self) -> int:
        """Number of stages of each rank."""
        return len(self.forward_s) // self.ranks

    def take(self, at: Numbers) -> StageTimes:
        """Times of some configurations."""
        arrays = {one.name: value for one in fields(self) if isinstance(value := getattr(self, one.name), np.ndarray)}
        some: dict[str, Any] = {name: value[..., at] for name, value in arrays.items()}
        return replace(self, **some)

    def slower(self, factors: Times) -> StageTimes:
        """Times with passes multiplied by `factors`, shape (stages, configurations)."""
        names = "forward_s", "backward_s", "weights_s", "divided_s"
        changed: dict[str, Any] = {name: getattr(self, name) * factors for name in names}
        return replace(self, **changed)

    @property
    def receive_s(self) -> Times:
        """Seconds of the message before each stage."""
        return np.roll(self.send_s, 1, axis=0)

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

    @property
    def per_round(self) -> Numbers:
        """Microbatches per round of an interleaved schedule, which pass through one chunk after another, shape
        (configurations,)."""
        result: Numbers = self.microbatches // np.maximum(1, self.microbatches // self.ranks)
        return result

    @cached_property
    def received(self) -> tuple[Times, Times, Times]:
        """Seconds of forward passes and backward passes with the message that each begins with, and seconds of messages that
        overlap with passes.

        Either all messages overlap, or a rank receives a message only when it is ready for it.
        """
        forward_s, backward_s = self.forward_s + self.forward_more_s, self.backward_s + self.backward_more_s
        if self.overlap_sends:
            return forward_s, backward_s, self.send_s
        return forward_s + self.receive_s, backward_s + self.send_s, np.zeros_like(self.send_s)

    def by_chunk(self, values: Times) -> Times:
        """Values of stages, which are assigned to ranks in a ring, as shape (chunks, ranks, configurations)."""
        return values.reshape(-1, self.ranks, values.shape[-1])


def windows(schedule: ScheduleName, stages: StageTimes, ranks: Sequence[int]) -> tuple[Times, Times]:
    """Expected and least seconds from the first pass to the end of the last pass of some ranks, each of shape (ranks,
    configurations)."""
    if len(stages.forward_s) == 1:
        total = stages.microbatches * (stages.forward_s + stages.backward_s)
        return total, total
    if schedule == "interleaved_1f1b":
        return _interleaved(stages, ranks)
    expected, least = _gpipe(stages) if schedule == "gpipe" else _1f1b(stages)
    return expected[ranks], least[ranks]


def with_gathers(stages: StageTimes, gathers: LayerGatherTimes) -> StageTimes:
    """Stage times of ranks that gather parameters layer by layer, up to two layers ahead while a rank waits.

    Where passes follow one another, either compute or collectives determine the duration. A rank with fewer layers than others
    gathers nothing before it has summed the gradients of the pass before.
    """
    none_s = np.zeros_like(gathers.sums_s)
    awaited_s, hidden_s, last_s = (
        (gathers.sums_s, none_s, none_s) if gathers.waits_for_sums else (none_s, gathers.sums_s, gathers.last_s)
    )
    layers, moved_s = gathers.layers, gathers.again_s + hidden_s
    ahead = np.minimum(1.0, 2 / layers)
    way_forward_s, way_backward_s = (
        np.maximum(pass_s, ahead * pass_s + (1 - ahead) * overlapped_s)
        for pass_s, overlapped_s in ((stages.forward_s, gathers.gathers_s), (stages.backward_s, moved_s))
    )
    between_s = (layers < layers.max()) * (last_s + gathers.again_s / layers)
    return replace(
        stages, forward_s=way_forward_s, backward_s=way_backward_s + awaited_s,
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


def _gpipe(stages: StageTimes) -> tuple[Times, Times]:
    """The slowest stage determines the interval between forward passes, and likewise between backward passes."""
    forward_s, backward_s, _ = stages.received
    interval_s = suffix_max(forward_s) + suffix_max(backward_s)
    expected = suffix_sum(stages.round_trip_s) + (stages.microbatches - 1) * interval_s
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
        interval_s = both.copy()
        interval_s[:-1] = np.maximum(both[:-1], (both[:-1] + both[1:]) / 2 + stages.send_s[:-1])
        interval_s[0] = np.maximum(interval_s[0], through[0] / stages.ranks)
    else:
        both = interval_s = both + stages.receive_s + stages.send_s
        own_s += more * stages.send_s + steady * stages.receive_s
    least = through + suffix_max(own_s)
    # a rank is no faster than those before it either, once these have as many microbatches in flight as they may
    expected = suffix_max(own_s + steady * (interval_s - both))
    return through + np.maximum(expected, accumulate(np.maximum, steady * interval_s)), least


def _interleaved(stages: StageTimes, ranks: Sequence[int]) -> tuple[Times, Times]:
    """Rounds of microbatches pass through one chunk after another.

    If a round leaves the first rank's chunk before the round's first microbatch returns from the last rank, the first rank
    waits, as long as it has no backward passes to do: before the first of them, and likewise after the last forward pass.
    """
    count, of_round, by_chunk = stages.ranks, stages.per_round, stages.by_chunk
    forward_s, backward_s, overlapped_s = stages.received
    work_s = stages.microbatches * by_chunk(forward_s + backward_s).sum(axis=0)
    # ranks proceed from chunk to chunk together: each chunk takes as long as on its slowest rank, unless a rank is ahead
    slow_forward_s, slow_backward_s = by_chunk(forward_s).max(axis=1), by_chunk(backward_s).max(axis=1)
    interval_s = stages.microbatches * (slow_forward_s + slow_backward_s).sum(axis=0)
    way_forward_s, way_backward_s = forward_s - stages.forward_more_s, backward_s - stages.backward_more_s
    forward_waits_s = by_chunk(way_forward_s + overlapped_s).sum(axis=1) - of_round * slow_forward_s
    backward_waits_s = by_chunk(way_backward_s + overlapped_s).sum(axis=1) - of_round * slow_backward_s
    waits_s = np.maximum(0.0, forward_waits_s[:-1]).sum(axis=0) + np.maximum(0.0, backward_waits_s[1:]).sum(axis=0)
    # from each rank to the last, in the last chunk and in the first
    bubble_s = suffix_sum(way_forward_s[-count:] + overlapped_s[-count:]) - way_forward_s[-count:] - overlapped_s[-1]
    bubble_s += suffix_sum(way_backward_s[:count] + overlapped_s[:count]) - way_backward_s[:count] - overlapped_s[count - 1]
    expected_s = bubble_s + waits_s + (interval_s + suffix_max(work_s)) / 2
    if not stages.overlap_sends:
        # the message before a rank's first pass belongs to the way there
        work_s -= stages.receive_s[:count]
    # the way there through the first chunks, all work of one rank, and the way back
    through_s = suffix_sum(stages.round_trip_s)
    least_s = np.maximum(0.0, suffix_max(work_s - through_s[:count])) + through_s[:count]
    return expected_s[ranks], least_s[ranks]
