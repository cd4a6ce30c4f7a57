"""Search for zero-bubble schedules, given pass times and a memory limit: ZB-1p and ZB-2p (arXiv 2401.10241, section 3.1)."""

from __future__ import annotations

import math
from itertools import product
from typing import Final

import numpy as np

from scaleproof.simulator.strategy.pipeline.passes import Pass, Passes, PassTimes, starts

# Tolerance for comparing activation counts.
_CLOSE: Final = 1e-9


def fastest_order(ranks: int, microbatches: int, times: PassTimes, limit: int, handcrafted: list[Passes]) -> list[Passes]:
    """The passes of all ranks, of which each keeps at most `limit` activations. Of the orders that the choices of the paper's
    heuristic lead to, and a handcrafted one, the order whose slowest rank finishes soonest after its start."""
    choices = product((False, True), repeat=2)
    candidates = [_PlannedPasses(ranks, microbatches, times, limit, *choice).ranks_passes for choice in choices]
    candidates.append(handcrafted)
    pass_times_s = {Pass.FORWARD: times.forward, Pass.INPUT: times.backward_input, Pass.WEIGHT: times.backward_weight}

    def slowest_s(ranks_passes: list[Passes]) -> float:
        start_s = starts("zb_1p", 1, ranks_passes, microbatches, pass_times_s, times.send)
        return max(
            own[-1] + pass_times_s[Pass(passes[-1, 0])] - own[0] for own, passes in zip(start_s, ranks_passes, strict=True)
        )

    return min(candidates, key=slowest_s)


class _Rank:
    """Passes of a rank that are planned so far, and their end times."""

    def __init__(self, start_s: float) -> None:
        self.start_s = start_s
        self.now_s = start_s
        self.idle_s = 0.0
        self.passes: list[tuple[Pass, int, int]] = []
        self.ends_s: dict[Pass, list[float]] = {Pass.FORWARD: [], Pass.INPUT: [], Pass.WEIGHT: []}

    def done(self, kind: Pass) -> int:
        return len(self.ends_s[kind])

    @property
    def waiting(self) -> int:
        """Number of weight gradients that can be computed."""
        return self.done(Pass.INPUT) - self.done(Pass.WEIGHT)

    def add(self, kind: Pass, pass_times_s: float, arrived_s: float = 0.0) -> None:
        gap_s = max(0.0, arrived_s - self.now_s)
        self.passes.append((kind, 0, self.done(kind)))
        self.idle_s += gap_s
        self.now_s += gap_s + pass_times_s
        self.ends_s[kind].append(self.now_s)


class _PlannedPasses:
    """Passes of all ranks, each planned together with its time.

    overrun: a rank that waits for its first backward pass runs one more forward pass even if that delays the backward pass.
    skip: a rank that is several forward passes ahead of the next rank skips one if it has other work.
    """

    def __init__(self, ranks: int, microbatches: int, times: PassTimes, limit: int, overrun: bool, skip: bool) -> None:
        self.times, self.microbatches, self.limit = times, microbatches, limit
        self.ranks = [_Rank(rank * (times.forward + times.send)) for rank in range(ranks)]
        self._warm_up(overrun)
        for _ in range(1, microbatches):
            for index, rank in enumerate(self.ranks):
                if rank.done(Pass.FORWARD) < microbatches and not (skip and self._can_skip(index)):
                    self._forward(index)
            for index in reversed(range(ranks)):
                self._input(index)
        for rank in self.ranks:
            while rank.waiting:
                self._weight(rank)

    @property
    def ranks_passes(self) -> list[Passes]:
        return [np.array(rank.passes) for rank in self.ranks]

    def _warm_up(self, overrun: bool) -> None:
        """Plans as many forward passes as fit before the first backward pass, which reaches the last rank first.

        A rank is always one forward pass ahead of the next, so it may keep one activation less for each rank before it.
        """
        counts: list[int] = []
        arrived_s = self.ranks[-1].start_s + self.times.forward
        for index, rank in reversed(list(enumerate(self.ranks))):
            fit = (arrived_s - rank.start_s) / self.times.forward if self.times.forward else self.microbatches
            count = math.ceil(fit - _CLOSE) if overrun else math.floor(fit + _CLOSE)
            counts.append(min(count, self.limit - index, self.microbatches))
            begins_s = max(arrived_s, rank.start_s + counts[-1] * self.times.forward)
            arrived_s = begins_s + self.times.backward_input + self.times.send
        for index, count in enumerate(reversed(counts)):
            for _ in range(count):
                self._forward(index)
        for index in reversed(range(len(self.ranks))):
            self._input(index)

    def _can_skip(self, index: int) -> bool:
        """Whether a rank can skip its next forward pass, because it is ahead and has enough work until its backward pass."""
        if index == len(self.ranks) - 1:
            return False
        rank, next_rank = self.ranks[index : index + 2]
        if rank.done(Pass.FORWARD) - next_rank.done(Pass.FORWARD) < 2:
            return False
        arrives_s = next_rank.now_s + self.times.forward + self.times.backward_input + self.times.send
        return rank.now_s + rank.waiting * self.times.backward_weight >= arrives_s

    def _forward(self, index: int) -> None:
        rank = self.ranks[index]
        while self._activations(rank) + 1 > self.limit + _CLOSE:
            self._weight(rank)
        arrived_s = self._sent_s(Pass.FORWARD, index - 1, rank.done(Pass.FORWARD)) if index else 0.0
        self._fill(rank, arrived_s)
        rank.add(Pass.FORWARD, self.times.forward, arrived_s)

    def _input(self, index: int) -> None:
        rank = self.ranks[index]
        arrived_s = 0.0
        if index < len(self.ranks) - 1:
            arrived_s = self._sent_s(Pass.INPUT, index + 1, rank.done(Pass.INPUT))
            self._fill(rank, arrived_s)
        rank.add(Pass.INPUT, self.times.backward_input, arrived_s)

    def _activations(self, rank: _Rank) -> float:
        """Number of allocated activations; those that only the weight gradient still needs count by the share that it needs."""
        return rank.done(Pass.FORWARD) - rank.done(Pass.INPUT) + rank.waiting * self.times.kept

    def _weight(self, rank: _Rank) -> None:
        rank.add(Pass.WEIGHT, self.times.backward_weight)

    def _sent_s(self, kind: Pass, index: int, microbatch: int) -> float:
        return self.ranks[index].ends_s[kind][microbatch] + self.times.send

    def _fill(self, rank: _Rank, until_s: float) -> None:
        """Plans weight gradients while the rank would wait. One that does not fit is planned only if waiting would make the
        rank the one with the most idle time."""
        while rank.waiting and (gap_s := until_s - rank.now_s) > 0:
            longest_idle_s = max(other.idle_s for other in self.ranks)
            if gap_s < self.times.backward_weight and rank.idle_s + gap_s <= longest_idle_s:
                break
            self._weight(rank)
