"""Pipelines: how long a rank is busy with a step's passes, from its first forward to its last backward pass, in closed form.

Of a step's dependencies each path takes no longer than the step: the longest of some paths is a bound that no replay beats, and
near to it where the paths are the right ones. Arrays have configurations last, which is the fast order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from simulator.estimate.recurrence import Collectives
from simulator.strategy.schedule import ScheduleName

Times = NDArray[np.float64]

# Schedules that have a closed form, and others whose passes are followed; not those whose orders are searched for, which are
# other ones for all times of passes.
CLOSED: Final[tuple[ScheduleName, ...]] = ("1f1b", "interleaved_1f1b", "gpipe")
FOLLOWED: Final[tuple[ScheduleName, ...]] = (
    "looped_bfs", "zb_h1", "zb_h2", "interleaved_zero_bubble", "zb_v", "dualpipe_v",
)  # fmt: skip


@dataclass(frozen=True)
class Stages:
    """Seconds of passes over each stage of the model, shape (stages, configurations); of the messages behind each but the last,
    shape (stages − 1, configurations). microbatches: shape (configurations,). ranks: that have the stages, in a ring or a V.
    weights_s: of backward_s, gradients of weights, where they are made apart.
    forward_more_s, backward_more_s: how much longer a pass takes that follows another on its rank at once."""

    forward_s: Times
    backward_s: Times
    sends_s: Times
    microbatches: NDArray[np.int64]
    ranks: int
    overlap_sends: bool
    weights_s: Times | float = 0.0
    forward_more_s: Times | float = 0.0
    backward_more_s: Times | float = 0.0

    def take(self, at: NDArray[np.int64]) -> Stages:
        """Of some configurations, in which no pass takes longer after another."""
        passes_s = self.forward_s[:, at], self.backward_s[:, at], self.sends_s[:, at]
        weights_s = self.weights_s[:, at] if isinstance(self.weights_s, np.ndarray) else self.weights_s
        return Stages(*passes_s, self.microbatches[at], self.ranks, self.overlap_sends, weights_s)

    @property
    def inputs_s(self) -> Times:
        """Of the least that a backward pass does before the next stage may begin its own."""
        result: Times = self.backward_s - self.weights_s
        return result


def windows(schedule: ScheduleName, stages: Stages) -> tuple[Times, Times]:
    """What is expected, and what it takes at least: seconds from each rank's first pass to the end of its last, shape
    (ranks, configurations)."""
    if stages.ranks == 1:
        forward_s, backward_s, _ = received(stages)
        total = stages.microbatches * (forward_s + backward_s).sum(axis=0, keepdims=True)
        return total, total
    if schedule == "gpipe":
        return _gpipe(stages)
    if schedule == "1f1b":
        return _1f1b(stages)
    return _interleaved(stages)


def per_round(stages: Stages) -> NDArray[np.int64]:
    """Microbatches that go through one chunk after another together, shape (configurations,)."""
    result: NDArray[np.int64] = stages.microbatches // np.maximum(1, stages.microbatches // stages.ranks)
    return result


def gathering(stages: Stages, given: Collectives) -> Stages:
    """Stages whose parameters are gathered layer by layer: for two layers while a rank waits. Where passes follow one another,
    either they take all the time or what is gathered and summed does; a rank with fewer layers than others gathers for none
    before it has summed the gradients of the pass before."""
    forward_s, backward_s, layers = stages.forward_s, stages.backward_s, given.layers
    ahead = np.minimum(1.0, 2 / layers)
    gathers_s, moved_s = given.gathers_s, given.again_s + given.sums_s
    way_forward_s = np.maximum(forward_s, ahead * forward_s + (1 - ahead) * gathers_s)
    way_backward_s = np.maximum(backward_s, ahead * backward_s + (1 - ahead) * moved_s)
    between_s = (layers < layers.max()) * (given.last_s + given.again_s / layers)
    return replace(
        stages, forward_s=way_forward_s, backward_s=way_backward_s,
        forward_more_s=np.maximum(0.0, gathers_s - way_forward_s),
        backward_more_s=np.maximum(0.0, np.maximum(moved_s, backward_s + between_s) - way_backward_s),
    )  # fmt: skip


def _behind(values: Times) -> Times:
    """Sums of each and all behind it."""
    result: Times = np.cumsum(values[::-1], axis=0)[::-1]
    return result


def _more(more_s: Times | float, shape: tuple[int, int, int]) -> Times | float:
    return more_s.reshape(shape) if isinstance(more_s, np.ndarray) else more_s


def _slowest_behind(values: Times) -> Times:
    result: Times = np.maximum.accumulate(values[::-1], axis=0)[::-1]
    return result


def _through(stages: Stages) -> Times:
    """A microbatch's way from each stage to the last and back."""
    both = stages.forward_s + stages.backward_s
    both[:-1] += 2 * stages.sends_s
    return _behind(both)


def received(stages: Stages) -> tuple[Times, Times, Times]:
    """Seconds of passes with the message that each begins with, and of messages beside them: all, where they move beside
    passes; otherwise a rank that is ready for a message only then gets it."""
    forward_s, backward_s = stages.forward_s + stages.forward_more_s, stages.backward_s + stages.backward_more_s
    if stages.overlap_sends:
        return forward_s, backward_s, stages.sends_s
    forward_s[1:] += stages.sends_s
    backward_s[:-1] += stages.sends_s
    return forward_s, backward_s, np.zeros_like(stages.sends_s)


def _gpipe(stages: Stages) -> tuple[Times, Times]:
    """The slowest stage sets the pace of all forward passes, and that of all backward passes."""
    forward_s, backward_s, _ = received(stages)
    pace_s = _slowest_behind(forward_s) + _slowest_behind(backward_s)
    expected = _through(stages) + (stages.microbatches - 1) * pace_s
    return expected, expected


def _1f1b(stages: Stages) -> tuple[Times, Times]:
    """Once the pipeline is full, each rank has a forward and a backward pass in turn, and waits for what it sends in between;
    where sends move beside passes, the way to the next rank and back sets the pace if it takes longer."""
    forward_s, backward_s = stages.forward_s + stages.forward_more_s, stages.backward_s + stages.backward_more_s
    both, more, sends_s = forward_s + backward_s, stages.microbatches - 1, stages.sends_s
    ahead = np.arange(stages.ranks)[::-1, None]
    steady = np.maximum(more - ahead, 0)
    through = _through(stages)
    paced_s = both.copy()
    if stages.overlap_sends:
        paced_s[:-1] = np.maximum(both[:-1], (both[:-1] + both[1:]) / 2 + sends_s)
        paced_s[0] = np.maximum(paced_s[0], through[0] / stages.ranks)
        own_s = more * backward_s + steady * forward_s
    else:
        paced_s[:-1] += sends_s
        paced_s[1:] += sends_s
        own_s = more * backward_s + steady * forward_s
        own_s[:-1] += more * sends_s
        own_s[1:] += steady[1:] * sends_s
        both = paced_s
    least = through + _slowest_behind(own_s)
    # a rank is no faster than those before it either, once these are as far ahead as they may be
    expected = _slowest_behind(own_s + steady * (paced_s - both))
    return through + np.maximum(expected, np.maximum.accumulate(steady * paced_s, axis=0)), least


def _interleaved(stages: Stages) -> tuple[Times, Times]:
    """Rounds of microbatches go through one chunk after another. Where a round is through with a chunk on the first rank before
    its first microbatch has come round from the last, the first rank waits, as long as there are no backward passes to do
    meanwhile: before the first of them, and likewise after the last forward pass."""
    ranks, count, microbatches = stages.ranks, len(stages.forward_s), stages.microbatches
    forward_s, backward_s, beside_s = received(stages)
    shape = count // ranks, ranks, -1
    forward, backward, sends = (values.reshape(shape) for values in (forward_s, backward_s, np.pad(beside_s, [(0, 1), (0, 0)])))
    work = microbatches * (forward.sum(axis=0) + backward.sum(axis=0))
    # ranks go from chunk to chunk together: the slowest has to be waited for in each, as far as nobody is ahead
    together = microbatches * (forward.max(axis=1).sum(axis=0) + backward.max(axis=1).sum(axis=0))
    pace = (together + _slowest_behind(work)) / 2
    way_forward, way_backward = forward - _more(stages.forward_more_s, shape), backward - _more(stages.backward_more_s, shape)
    bubble = np.zeros_like(work)
    bubble[:-1] = _behind(way_forward[-1, 1:] + way_backward[0, 1:] + sends[0, :-1] + sends[-1, :-1])
    of_round = per_round(stages)
    waits = sum(
        np.maximum(0.0, way.sum(axis=1) + beside.sum(axis=1) - of_round * passes.max(axis=1)).sum(axis=0)
        for way, passes, beside in (
            (way_forward[:-1], forward[:-1], sends[:-1]),
            (way_backward[1:], backward[1:], sends[1:]),
        )
    )
    if not stages.overlap_sends:
        # what a rank's first pass begins with is on the way there
        work[1:] -= stages.sends_s[: ranks - 1]
    # a way there through the first chunks, all that one rank does, and the way back
    there = np.zeros_like(work)
    first = stages.forward_s[: ranks - 1] + stages.backward_s[: ranks - 1] + 2 * stages.sends_s[: ranks - 1]
    there[1:] = np.cumsum(first, axis=0)
    least = np.maximum(_slowest_behind(there + work) - there, _through(stages)[:ranks])
    return bubble + waits + pace, least


def unlike_s(stages: Stages) -> Times:
    """How much longer ranks with several stages take in step, stage by stage, than the slowest takes alone, shape (ranks,
    configurations): half of that is what is expected to be lost."""
    each_s = (stages.forward_s + stages.backward_s).reshape(-1, stages.ranks, len(stages.microbatches))
    together_s = each_s.max(axis=1).sum(axis=0)
    result: Times = stages.microbatches * (together_s - _slowest_behind(each_s.sum(axis=0)))
    return result / 2
