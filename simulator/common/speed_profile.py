"""Speed of a rank as a function of time, and the time at which work ends that starts at a given time.

For a piecewise constant speed the work done until time t, A(t), is a piecewise linear, non-decreasing function. Work that
starts at t therefore ends at A⁻¹(A(t) + work), whose cost does not depend on the number of pieces in between.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]

# Relative tolerance for float rounding: work that ends within it of the beginning of a pause has ended before the pause.
_ROUNDING: Final = 1e-12


class Cycle(NamedTuple):
    """A recurring interval with a different speed: from `begins_s` on, for `lasts_s` seconds, a rank works at `speed`, relative
    to the usual speed; likewise at every whole number of periods before and after.

    period_s: infinite for an interval that occurs once. lasts_s: below the period, or infinite.
    """

    period_s: float
    lasts_s: float
    begins_s: float
    speed: float

    @property
    def is_for_ever(self) -> bool:
        """Whether the interval covers all times from 0 on."""
        return math.isinf(self.lasts_s) and self.begins_s <= 0


# Cycles of a rank. The clock of each cycle advances with the work that the cycles before it let through.
Pace = tuple[Cycle, ...]

_CONSTANT: Final = Cycle(math.inf, 0.0, 0.0, 1.0)


class SpeedProfiles:
    """Speed profiles of several tasks. Several ranks may share a task; the last of them ends it."""

    def __init__(self, paces: Sequence[Sequence[Pace]]) -> None:
        """paces: for each task the speed profiles of its ranks; a rank with an empty profile has constant speed."""
        ranks = max(map(len, paces))
        depth = max(1, *(len(pace) for of_task in paces for pace in of_task))
        filled = [
            [[*pace, *[_CONSTANT] * (depth - len(pace))] for pace in (*of_task, *[of_task[0]] * (ranks - len(of_task)))]
            for of_task in paces
        ]
        # by rank and place in its profile, each of shape (4, tasks)
        columns = np.array(filled, dtype=np.float64).transpose(1, 2, 3, 0)
        self._chains = [[_Cycles(np, *cycle[..., None]) for cycle in chain] for chain in columns]
        self._of_first = [[_Cycles(_Plain, *cycle) for cycle in pace] for pace in paces[0]]

    def end_s(self, begin_s: Times, work_s: Times) -> Times:
        """End times, seconds, of tasks started at `begin_s`; both arguments have shape (tasks, samples). Zero work ends
        immediately."""
        ends_s: Times = np.max([_end_s(chain, begin_s, work_s) for chain in self._chains], axis=0)
        return np.where(work_s > 0, np.maximum(ends_s, begin_s), begin_s)

    def lasts_s(self, begin_s: float, work_s: float) -> float:
        """Duration, seconds, of work that the first task starts at `begin_s`."""
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
    """Scalar counterparts of numpy functions, ten times as fast for single numbers."""

    floor, ceil, isfinite, maximum = math.floor, math.ceil, math.isfinite, max
    abs = abs

    @staticmethod
    def where(condition: bool, value: float, other: float) -> float:
        return value if condition else other

    @staticmethod
    def clip(value: float, low: float, high: float) -> float:
        return min(max(value, low), high)


class _Cycles:
    """A cycle as scalars, or one cycle per task as columns of shape (tasks, 1). ops: numpy or `_Plain`."""

    def __init__(self, ops: Any, period_s: Any, lasts_s: Any, begins_s: Any, speed: Any) -> None:
        self.ops, self.lasts_s, self.begins_s, self.speed = ops, lasts_s, begins_s, speed
        self.recurs = ops.isfinite(period_s)
        self.period_s = ops.where(self.recurs, period_s, 1.0)
        # in the slow part of a period: work done and work lost
        self.slow_s = ops.where(speed > 0, lasts_s, 0.0) * speed
        self.lost_s = ops.where(speed < 1, lasts_s, 0.0) * (1 - speed + (speed >= 1))
        self.lost_each_s = ops.where(self.recurs, self.lost_s, 0.0)

    def done_s(self, time_s: Any) -> Any:
        """Work done until `time_s`, in seconds at the usual speed; equal to the time until the cycle first begins."""
        ops, since_s = self.ops, time_s - self.begins_s
        periods = ops.where(self.recurs, ops.floor(since_s / self.period_s), 0.0)
        slow_s = ops.clip(since_s - periods * self.period_s, 0.0, self.lasts_s)
        return time_s - (1 - self.speed) * slow_s - periods * self.lost_each_s

    def reached_s(self, done_s: Any) -> Any:
        """The first time at which the work `done_s` is done."""
        ops, since_s, gained_s = self.ops, done_s - self.begins_s, self.period_s - self.lost_each_s
        periods = since_s / gained_s
        periods = ops.ceil(periods - _ROUNDING * ops.maximum(1.0, ops.abs(periods))) - 1
        periods = ops.where(self.recurs, periods, 0.0)
        rest_s = since_s - periods * gained_s
        slowly_s = rest_s / ops.where(self.speed > 0, self.speed, 1.0)
        within_s = ops.where(rest_s <= 0, rest_s, ops.where(rest_s <= self.slow_s, slowly_s, rest_s + self.lost_s))
        return self.begins_s + periods * self.period_s + within_s
