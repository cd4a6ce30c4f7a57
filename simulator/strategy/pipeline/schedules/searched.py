"""Orders that are searched for: ZB-1p and ZB-2p, by what passes take and how much a rank may hold."""

from __future__ import annotations

import math
from itertools import product
from typing import Final

from scaleproof.simulator.strategy.pipeline.schedules import written
from scaleproof.simulator.strategy.pipeline.schedules.passes import Lane, Pass, PassTimes, StageOrder, starts
from scaleproof.simulator.strategy.pipeline.schedules.written import numbered

# fits that differ by less are the same
_CLOSE: Final = 1e-9


def zero_bubble(ranks: int, microbatches: int, times: PassTimes, reach: int) -> list[Lane]:
    """The heuristic of arXiv 2401.10241, section 3.1, for ranks that may hold reach · ranks activations: of the orders that its
    choices lead to, and of what is written down for as much memory, that whose slowest rank is done soonest after it began."""
    choices = product((False, True), repeat=2)
    found = [_PlannedPasses(ranks, microbatches, times, reach * ranks, *each).lanes for each in choices]
    found.append([numbered(written.zero_bubble(ranks, rank, microbatches, 1, reach), microbatches) for rank in range(ranks)])
    took_s = {Pass.FORWARD: times.forward, Pass.INPUT: times.backward_input, Pass.WEIGHT: times.backward_weight}

    def slowest_s(lanes: list[Lane]) -> float:
        began_s = starts(StageOrder("zb_1p", ranks, 1), lanes, microbatches, took_s, times.send)
        return max(own[-1] + took_s[lane[-1][0]] - own[0] for own, lane in zip(began_s, lanes, strict=True))

    return min(found, key=slowest_s)


class _Rank:
    """What a rank has been given to do so far, and when it will have done it."""

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.now_s = began_s
        self.idle_s = 0.0
        self.lane: Lane = []
        self.ends_s: dict[Pass, list[float]] = {Pass.FORWARD: [], Pass.INPUT: [], Pass.WEIGHT: []}

    def done(self, kind: Pass) -> int:
        return len(self.ends_s[kind])

    @property
    def waiting(self) -> int:
        """Gradients of weights that can be made."""
        return self.done(Pass.INPUT) - self.done(Pass.WEIGHT)

    def add(self, kind: Pass, took_s: float, arrived_s: float = 0.0) -> None:
        gap_s = max(0.0, arrived_s - self.now_s)
        self.lane.append((kind, 0, self.done(kind)))
        self.idle_s += gap_s
        self.now_s += gap_s + took_s
        self.ends_s[kind].append(self.now_s)


class _PlannedPasses:
    """The passes of all ranks, each planned at once with the time at which it will run.

    overrun: a rank waiting for its first backward pass runs one more forward pass though that will keep it waiting. skip: a
    rank that is ahead of the next by several forward passes leaves one out where it has other work.
    """

    def __init__(self, ranks: int, microbatches: int, times: PassTimes, most: int, overrun: bool, skip: bool) -> None:
        self.times, self.microbatches, self.most = times, microbatches, most
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
    def lanes(self) -> list[Lane]:
        return [rank.lane for rank in self.ranks]

    def _warm_up(self, overrun: bool) -> None:
        """As many forward passes as there is time for before the first backward pass, which comes to the last rank first.

        A rank is always ahead of the next by a forward pass, so it may hold one less for each rank before it.
        """
        counts: list[int] = []
        arrived_s = self.ranks[-1].began_s + self.times.forward
        for index, rank in reversed(list(enumerate(self.ranks))):
            fit = (arrived_s - rank.began_s) / self.times.forward if self.times.forward else self.microbatches
            count = math.ceil(fit - _CLOSE) if overrun else math.floor(fit + _CLOSE)
            counts.append(min(count, self.most - index, self.microbatches))
            begins_s = max(arrived_s, rank.began_s + counts[-1] * self.times.forward)
            arrived_s = begins_s + self.times.backward_input + self.times.send
        for index, count in enumerate(reversed(counts)):
            for _ in range(count):
                self._forward(index)
        for index in reversed(range(len(self.ranks))):
            self._input(index)

    def _can_skip(self, index: int) -> bool:
        """Whether a rank can do without its next forward pass, being ahead, and have enough to do until its backward pass."""
        if index == len(self.ranks) - 1:
            return False
        rank, behind = self.ranks[index : index + 2]
        if rank.done(Pass.FORWARD) - behind.done(Pass.FORWARD) < 2:
            return False
        arrives_s = behind.now_s + self.times.forward + self.times.backward_input + self.times.send
        return rank.now_s + rank.waiting * self.times.backward_weight >= arrives_s

    def _forward(self, index: int) -> None:
        rank = self.ranks[index]
        while self._held(rank) + 1 > self.most + _CLOSE:
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

    def _held(self, rank: _Rank) -> float:
        """Activations, those of which only the gradient of the weights is left by the share that it needs."""
        return rank.done(Pass.FORWARD) - rank.done(Pass.INPUT) + rank.waiting * self.times.kept

    def _weight(self, rank: _Rank) -> None:
        rank.add(Pass.WEIGHT, self.times.backward_weight)

    def _sent_s(self, kind: Pass, index: int, microbatch: int) -> float:
        return self.ranks[index].ends_s[kind][microbatch] + self.times.send

    def _fill(self, rank: _Rank, until_s: float) -> None:
        """Gradients of weights while the rank would wait; where the last does not fit, only if waiting would make the rank the
        one that has waited longest."""
        while rank.waiting and (gap_s := until_s - rank.now_s) > 0:
            longest_s = max(each.idle_s for each in self.ranks)
            if gap_s < self.times.backward_weight and rank.idle_s + gap_s <= longest_s:
                break
            self._weight(rank)
