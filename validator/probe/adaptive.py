"""Repetition of a timed step until its median is precise enough or the time budget is spent.

The precision follows from order statistics: of n times, each below the median with probability one half, the median lies
between the k-th smallest and the k-th largest with a probability given by the binomial distribution, whatever the distribution
of the times (David & Nagaraja 2003, section 7.1). Disturbed times stay in the samples, because they hardly move a median.
Repetitions from which a virtual machine's host took cores do not count, unless they are more than half: such periods last for
seconds.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any, Final, NamedTuple

import torch

from scaleproof.validator.launch.rank import here
from scaleproof.validator.probe.peers import ALONE, Peers
from scaleproof.validator.probe.points import NARROW, TIME, Point
from scaleproof.validator.record import status_board
from scaleproof.validator.record.cpu_usage import lost_s

# Half the width of the median's interval, relative to the median.
NARROW_ENOUGH: Final = 0.02
_CONFIDENCE: Final = 0.90
_FIRST_BATCH: Final = 8
_MOST: Final = 500
# A size is left out if this many repetitions of it, warm-up included, do not fit into the remaining time.
_WORTHWHILE: Final = 3
# Largest share of a repetition for which the host may take a core without the repetition counting as disturbed.
_UNDISTURBED: Final = 0.02

# One repetition; returns its duration in seconds.
Step = Callable[[], float]


class Repetition(NamedTuple):
    """seconds: duration. lost_s: core-seconds that the host of this virtual machine gave to others meanwhile."""

    seconds: float
    lost_s: float


class Samples(NamedTuple):
    """seconds: of each repetition. stopped: "narrow" or "time". cores_busy: cores that all peers together kept busy. step_s:
    seconds from one repetition to the next. spent_s: seconds in total. The last two are the same on all peers."""

    seconds: tuple[float, ...]
    stopped: str
    cores_busy: float
    step_s: float
    spent_s: float

    def point(
        self, probe: str, what: str, where: str, ranks: Sequence[int], size: float, unit: str, group: str = "", **numbers: float
    ) -> Point:
        """The point of a probe that has these samples."""
        measured = (self.seconds, self.stopped, self.cores_busy, numbers)
        return Point(probe, what, where, tuple(ranks), group, float(size), unit, *measured)


class DeviceTimer:
    """Marks on a device's own time line, or on the host's clock for a CPU, and the seconds between them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.is_gpu: Final = device.type == "cuda"

    def mark(self) -> Any:
        """Mark at the completion of all work that has been submitted to the device."""
        if not self.is_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def wait(self) -> None:
        """Waits until the device has completed all submitted work."""
        if self.is_gpu:
            torch.cuda.synchronize(self._device)

    def seconds(self, first: Any, second: Any) -> float:
        """Seconds between two marks that have completed."""
        return float(first.elapsed_time(second) * 1e-3 if self.is_gpu else second - first)


def timed(step: Callable[[], object], parts: int = 1) -> Step:
    """Step that returns the seconds of `step` on this rank's device, divided by `parts`."""
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
    """Times of repetitions until their median is precise enough, the same on all peers; at most about `budget_s` seconds or
    500.

    If the first repetition uses up the budget, it is the only one; otherwise the first two are warm-up.
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


def sustain(step: Step, budget_s: float) -> Samples:
    """Times of repetitions of a rank without a pause for `budget_s` seconds, in order, the first included."""
    counted = _Batches(step, ALONE)
    repetitions = counted.run(1)
    while counted.spent_s < budget_s:
        repetitions += counted.run(1)
    return counted.samples(repetitions, TIME)


def undisturbed(repetitions: Sequence[Repetition]) -> list[float]:
    """Seconds of the repetitions that the machine's host did not disturb, or of the half that it disturbed least."""
    lost = [repetition.lost_s / repetition.seconds if repetition.seconds > 0 else 0.0 for repetition in repetitions]
    most = max(_UNDISTURBED, statistics.median(lost))
    return [repetition.seconds for repetition, share in zip(repetitions, lost, strict=True) if share <= most]


def by_size(
    step_of: Callable[[int], Step], sizes: Sequence[int], budget_s: float, peers: Peers = ALONE
) -> Iterator[tuple[int, Samples]]:
    """Samples of each size, smallest first, within `budget_s` seconds in total; time that a size does not use goes to the next.

    Shares of the time rise with the size, in the ratio 1 to 2 to 3 and so on, as repetitions of large sizes last longer. Ends
    before a size that would take longer than the remaining time, extrapolated from the two sizes before it. What happens once,
    such as the creation of a communicator, is not timed.
    """
    left_s, before, last = budget_s, (0, 0.0), (0, 0.0)
    ordered = sorted(set(sizes))
    if ordered:
        step_of(ordered[0])()
    for place, size in enumerate(ordered):
        slope = max(last[1] - before[1], 0.0) / (last[0] - before[0]) if before[0] else 0.0
        if place and _WORTHWHILE * (last[1] + slope * (size - last[0])) > left_s:
            return
        share = (place + 1) / sum(range(place + 1, len(ordered) + 1))
        samples = repeat(step_of(size), left_s * share, peers)
        yield size, samples
        left_s -= samples.spent_s
        before, last = last, (size, samples.step_s)


def half_width(seconds: Sequence[float]) -> float:
    """Half the width of the median's 90 % interval, relative to the median; infinite if there are too few times."""
    rank = _order(len(seconds))
    if not rank:
        return math.inf
    ordered = sorted(seconds)
    median_s = statistics.median(ordered)
    return (ordered[-rank] - ordered[rank - 1]) / 2 / median_s if median_s > 0 else 0.0


@functools.cache
def _order(count: int) -> int:
    """Largest k for which the k-th smallest and the k-th largest of `count` times enclose the median at the confidence; 0 if
    there is no such k."""
    # probability that at most k of `count` times lie below the median, in units of 2^-count
    allowed, cases = Fraction(1 - _CONFIDENCE) / 2 * 2**count, 0
    for k in range(count // 2):
        cases += math.comb(count, k)
        if cases > allowed:
            return k
    return count // 2


class _Batches:
    """Repetitions in batches; after each batch the peers agree on its times."""

    def __init__(self, step: Step, peers: Peers) -> None:
        self._step, self._peers = step, peers
        self._first_s = time.perf_counter()
        self.step_s = self.spent_s = 0.0
        self.begin()

    def begin(self) -> None:
        """Starts counting busy cores."""
        self._cpu_s, self._begin_s = time.process_time(), time.perf_counter()

    def run(self, count: int) -> list[Repetition]:
        """Runs `count` repetitions."""
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
