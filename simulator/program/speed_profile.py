"""Pace: how fast a rank works as time passes, where that changes by the clock, and when work that it begins ends.

A speed that is constant in stretches makes the work done by any instant a broken line that only rises. So work that begins at
t ends where the line has risen by as much: A⁻¹(A(t) + work), which takes as long to find however many stretches lie between.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]

# Work that ends this share of the time before a stretch in which nothing is done has ended before it: float rounding.
_ROUNDING: Final = 1e-12


class Cycle(NamedTuple):
    """From `begins_s` on for `lasts_s` work is done at `speed`, a share of the usual one; before, at any whole number of
    periods from there, and for as long, too. An infinite period: once. lasts_s is below the period, or infinite."""

    period_s: float
    lasts_s: float
    begins_s: float
    speed: float

    @property
    def is_for_ever(self) -> bool:
        """Whether it is on from the beginning and never ends."""
        return math.isinf(self.lasts_s) and self.begins_s <= 0


# Of several each counts its time in what those before it leave.
Pace = tuple[Cycle, ...]

_STEADY: Final = Cycle(math.inf, 0.0, 0.0, 1.0)


class Pacing:
    """The paces of some tasks, each of which several ranks may share: the last of them ends it."""

    def __init__(self, paces: Sequence[Sequence[Pace]]) -> None:
        """paces: of each task those of its ranks; a rank that has none is steady."""
        ranks = max(map(len, paces))
        depth = max(1, *(len(pace) for of_task in paces for pace in of_task))
        filled = [
            [[*pace, *[_STEADY] * (depth - len(pace))] for pace in (*of_task, *[of_task[0]] * (ranks - len(of_task)))]
            for of_task in paces
        ]
        # by rank and place in its pace, each of shape (4, tasks)
        columns = np.array(filled, dtype=np.float64).transpose(1, 2, 3, 0)
        self._chains = [[_Cycles(np, *each[..., None]) for each in chain] for chain in columns]
        self._of_first = [[_Cycles(_Plain, *cycle) for cycle in pace] for pace in paces[0]]

    def end_s(self, begin_s: Times, work_s: Times) -> Times:
        """When work ends that the tasks begin then, both of shape (tasks, samples); what is no work ends when it begins."""
        ends_s: Times = np.max([_end_s(chain, begin_s, work_s) for chain in self._chains], axis=0)
        return np.where(work_s > 0, np.maximum(ends_s, begin_s), begin_s)

    def lasts_s(self, begin_s: float, work_s: float) -> float:
        """How long work takes that the first of the tasks begins then."""
        ends_s = [_end_s(chain, begin_s, work_s) for chain in self._of_first]
        return max(0.0, max(ends_s) - begin_s) if work_s > 0 else 0.0


def _end_s(chain: Sequence[_Cycles], begin_s: Any, work_s: Any) -> Any:
    clock_s = begin_s
    for cycles in chain:
        clock_s = cycles.done_s(clock_s)
    clock_s = clock_s + work_s
    for cycles in reversed(chain):
        clock_s = cycles.reached_s(clock_s)
    return clock_s


class _Plain:
    """What numpy does to arrays, for single numbers: a tenth of the time."""

    floor, ceil, isfinite, maximum = math.floor, math.ceil, math.isfinite, max
    abs = abs

    @staticmethod
    def where(condition: bool, value: float, other: float) -> float:
        return value if condition else other

    @staticmethod
    def clip(value: float, low: float, high: float) -> float:
        return min(max(value, low), high)


class _Cycles:
    """A cycle as plain numbers, or of each task one, as columns of shape (tasks, 1). ops: what calculates with them."""

    def __init__(self, ops: Any, period_s: Any, lasts_s: Any, begins_s: Any, speed: Any) -> None:
        self.ops, self.lasts_s, self.begins_s, self.speed = ops, lasts_s, begins_s, speed
        self.recurs = ops.isfinite(period_s)
        self.period_s = ops.where(self.recurs, period_s, 1.0)
        # in the slow part of a period: what is done, and what is left undone
        self.slow_s = ops.where(speed > 0, lasts_s, 0.0) * speed
        self.lost_s = ops.where(speed < 1, lasts_s, 0.0) * (1 - speed + (speed >= 1))
        self.lost_each_s = ops.where(self.recurs, self.lost_s, 0.0)

    def done_s(self, time_s: Any) -> Any:
        """What is done by then, in seconds at the usual speed; as many as there are on the clock when it first begins."""
        ops, since_s = self.ops, time_s - self.begins_s
        periods = ops.where(self.recurs, ops.floor(since_s / self.period_s), 0.0)
        slow_s = ops.clip(since_s - periods * self.period_s, 0.0, self.lasts_s)
        return time_s - (1 - self.speed) * slow_s - periods * self.lost_each_s

    def reached_s(self, done_s: Any) -> Any:
        """The first instant by which so much is done."""
        ops, since_s, gained_s = self.ops, done_s - self.begins_s, self.period_s - self.lost_each_s
        periods = since_s / gained_s
        periods = ops.ceil(periods - _ROUNDING * ops.maximum(1.0, ops.abs(periods))) - 1
        periods = ops.where(self.recurs, periods, 0.0)
        rest_s = since_s - periods * gained_s
        slowly_s = rest_s / ops.where(self.speed > 0, self.speed, 1.0)
        within_s = ops.where(rest_s <= 0, rest_s, ops.where(rest_s <= self.slow_s, slowly_s, rest_s + self.lost_s))
        return self.begins_s + periods * self.period_s + within_s
