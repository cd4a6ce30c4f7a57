"""Repeating what is timed until its median is known well enough, or its time is spent.

How well is told by order statistics: of n times, each below the median with probability one half, the median lies between the
k-th smallest and the k-th largest with a probability that the binomial distribution gives, however the times are distributed
(David & Nagaraja 2003, section 7.1). Times that something else has spoilt stay in the samples: they hardly move a median. But
repetitions from which a virtual machine's host took cores do not count where as many others do: that lasts for seconds.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Final, NamedTuple

from scaleproof.validator.launch import status_board
from scaleproof.validator.launch.rank import here
from scaleproof.validator.probe.peers import ALONE, Peers
from scaleproof.validator.probe.points import NARROW, TIME, Point
from scaleproof.validator.record.cpu_usage import lost_s

# Half of the interval of the median over the median.
NARROW_ENOUGH: Final = 0.02
_CONFIDENCE: Final = 0.90
_FIRST_BATCH: Final = 8
_MOST: Final = 500
# A size is left out where so many repetitions of it, the warm-up's among them, do not fit into what is left.
_WORTHWHILE: Final = 3
# Cores of which the host takes no more, as a share of a repetition, are left alone.
_LEFT_ALONE: Final = 0.02

# One repetition; returns the seconds that it took.
Step = Callable[[], float]


class Repetition(NamedTuple):
    """seconds: it took. lost_s: of cores that this machine's host gave to others meanwhile."""

    seconds: float
    lost_s: float


class Samples(NamedTuple):
    """stopped: "narrow" or "time". cores_busy: cores that all peers together kept busy. step_s: seconds from one repetition to
    the next. spent_s: seconds in all. The last two are the same on all peers."""

    seconds: tuple[float, ...]
    stopped: str
    cores_busy: float
    step_s: float
    spent_s: float

    def point(
        self, probe: str, what: str, where: str, ranks: Sequence[int], size: float, unit: str, group: str = "", **numbers: float
    ) -> Point:
        """A point that has them."""
        told = (self.seconds, self.stopped, self.cores_busy, numbers)
        return Point(probe, what, where, tuple(ranks), group, float(size), unit, *told)


def timed(step: Callable[[], object], parts: int = 1) -> Step:
    """Seconds of a step on this rank's device, over `parts`."""
    # gpu's exchanges need network's, which are timed here
    from scaleproof.validator.probe.device_timer import DeviceTimer

    clock = DeviceTimer(here().device)

    def repetition() -> float:
        clock.wait()
        begin = clock.mark()
        step()
        end = clock.mark()
        clock.wait()
        return clock.seconds(begin, end) / parts

    return repetition


def repeat(step: Step, budget_s: float, peers: Peers = ALONE) -> Samples:
    """Times of as many repetitions as it takes, the same on all peers: for about `budget_s` seconds, or five hundred, at most.

    A first one that takes all that time is the only one; else the first two count for nothing.
    """
    counted = _Batches(step, peers)
    first = counted.run(1)
    if counted.spent_s >= budget_s:
        return counted.samples(first, TIME)
    counted.run(1)
    repetitions: list[Repetition] = []
    counted.begin()
    while True:
        fit = int((budget_s - counted.spent_s) / counted.step_s)
        count = min(max(_FIRST_BATCH, len(repetitions) // 2), fit, _MOST - len(repetitions))
        if count < 1 and repetitions:
            return counted.samples(repetitions, TIME)
        repetitions += counted.run(max(count, 1))
        if half_width(undisturbed(repetitions)) <= NARROW_ENOUGH:
            return counted.samples(repetitions, NARROW)


def undisturbed(repetitions: Sequence[Repetition]) -> list[float]:
    """Seconds of those that the machine's host left alone, or of the half that it disturbed least."""
    lost = [one.lost_s / one.seconds if one.seconds > 0 else 0.0 for one in repetitions]
    most = max(_LEFT_ALONE, statistics.median(lost))
    return [one.seconds for one, share in zip(repetitions, lost, strict=True) if share <= most]


def by_size(
    step_of: Callable[[int], Step], sizes: Sequence[int], budget_s: float, peers: Peers = ALONE
) -> Iterator[tuple[int, Samples]]:
    """Samples of each size, the smallest first, in `budget_s` seconds for all; what a size leaves over the next ones have.

    Ends before a size that would take longer than what is left, as the two before it tell.
    """
    left_s, before, last = budget_s, (0, 0.0), (0, 0.0)
    ordered = sorted(set(sizes))
    for place, size in enumerate(ordered):
        slope = max(last[1] - before[1], 0.0) / (last[0] - before[0]) if before[0] else 0.0
        if place and _WORTHWHILE * (last[1] + slope * (size - last[0])) > left_s:
            return
        samples = repeat(step_of(size), left_s / (len(ordered) - place), peers)
        yield size, samples
        left_s -= samples.spent_s
        before, last = last, (size, samples.step_s)


def half_width(seconds: Sequence[float]) -> float:
    """Half of the 90 % interval of the median, over the median; infinite where there are too few times to tell."""
    rank = _order(len(seconds))
    if not rank:
        return math.inf
    ordered = sorted(seconds)
    median_s = statistics.median(ordered)
    return (ordered[-rank] - ordered[rank - 1]) / 2 / median_s if median_s > 0 else 0.0


@functools.cache
def _order(count: int) -> int:
    """The largest k with which the k-th smallest and the k-th largest of so many times enclose the median at the confidence;
    0 where there is none."""
    # that at most k of `count` times are below the median, on one side, in whole numbers of 2^-count
    allowed, cases = Fraction(1 - _CONFIDENCE) / 2 * 2**count, 0
    for k in range(count // 2):
        cases += math.comb(count, k)
        if cases > allowed:
            return k
    return count // 2


class _Batches:
    """Repetitions, some at a time; after each the peers settle on what they took."""

    def __init__(self, step: Step, peers: Peers) -> None:
        self._step, self._peers = step, peers
        self._first_s = time.perf_counter()
        self.step_s = self.spent_s = 0.0
        self.begin()

    def begin(self) -> None:
        """From here on cores are counted."""
        self._cpu_s, self._begin_s = time.process_time(), time.perf_counter()

    def run(self, count: int) -> list[Repetition]:
        """So many repetitions."""
        here().status.enter(status_board.BETWEEN_PHASES)
        begin_s = time.perf_counter()
        own, lost = [], [lost_s()]
        for _ in range(count):
            own.append(self._step())
            lost.append(lost_s())
        end_s = time.perf_counter()
        each_lost_s = [after - before for before, after in pairwise(lost)]
        *settled, took_s, self.spent_s = self._peers.settle([*own, *each_lost_s, end_s - begin_s, end_s - self._first_s])
        self.step_s = max(took_s / count, 1e-9)
        return [Repetition(*both) for both in zip(settled[:count], settled[count:], strict=True)]

    def samples(self, repetitions: Sequence[Repetition], stopped: str) -> Samples:
        busy = (time.process_time() - self._cpu_s) / (time.perf_counter() - self._begin_s)
        return Samples(tuple(undisturbed(repetitions)), stopped, self._peers.total(busy), self.step_s, self.spent_s)
