"""Renewal: what share of its time training is useful, in closed form, where nodes are always at hand.

Failures come at a constant rate, so that all is forgotten at each: training from a checkpoint to the next interruption, and
what it takes to come back, are a cycle, and the share is useful time over time, both in expectation over a cycle
(renewal–reward theorem, Ross, Stochastic Processes, section 3.6). Failures strike while one is noticed and while training
restarts as well, and it all begins again. For synchronous checkpoints and no planned stops this is Daly's expected time to
solution (J. T. Daly, Future Generation Computer Systems 22 (2006) 303–312): M exp(R / M) (exp((τ + δ) / M) − 1) for each τ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

# exp of more is beyond floats
_LARGEST: Final = 700.0
_POINTS: Final = 33


@dataclass(frozen=True)
class Times:
    """What a job's interruptions and checkpoints take. Rates are of interruptions a second.

    stall_s: training stops for each checkpoint; writing_s: from then on until it counts, in which training loses the share
    `slowdown` of its speed. restart_s: from nodes at hand to training. planned_s: of a stop that was announced, beside that.
    """

    failures_per_s: float
    planned_per_s: float
    detection_s: float
    restart_s: float
    planned_s: float
    stall_s: float
    writing_s: float
    slowdown: float

    @property
    def mtbf_s(self) -> float:
        """Mean time between failures of the job."""
        return 1 / self.failures_per_s

    @property
    def cost_s(self) -> float:
        """Training time that a checkpoint costs."""
        return self.stall_s + self.slowdown * self.writing_s

    @property
    def least_interval_s(self) -> float:
        """Training in which a checkpoint is written: the next cannot begin earlier."""
        return self.writing_s * (1 - self.slowdown)

    def period_s(self, interval_s: float) -> float:
        """From a checkpoint to the next."""
        return interval_s + self.cost_s


def ratio(times: Times, interval_s: float) -> float:
    """The expected share of useful time with a checkpoint after each `interval_s` of training."""
    fails, stops = times.failures_per_s, times.planned_per_s
    if fails * (times.detection_s + times.restart_s) > _LARGEST:
        return 0.0
    rate = fails + stops
    at_failure_s = interval_s * _valid_checkpoints(times, interval_s, rate)
    at_stop_s = _progress_s(times, interval_s, rate) if stops else 0.0
    back_s = _back_s(times)
    restarted_s = -math.expm1(-fails * times.restart_s) * (1 / fails + back_s)
    stopped_s = times.stall_s + times.writing_s + times.planned_s + restarted_s
    # per interruption, both multiplied with the rate
    cycle = 1 + fails * back_s + stops * stopped_s
    return (fails * at_failure_s + stops * at_stop_s) / cycle


def _back_s(times: Times) -> float:
    """Expected time from a failure to training: detection and restart, in which failures begin it anew."""
    return math.expm1(times.failures_per_s * (times.detection_s + times.restart_s)) / times.failures_per_s


def _valid_checkpoints(times: Times, interval_s: float, rate: float) -> float:
    """Expected number of checkpoints that are written before an interruption: the sum over all of the chance to get there."""
    first_s = interval_s + times.stall_s + times.writing_s
    period = rate * times.period_s(interval_s)
    return math.exp(-rate * first_s) / -math.expm1(-period)


def _progress_s(times: Times, interval_s: float, rate: float) -> float:
    """Expected useful time until an interruption at which nothing is lost: ∫ speed · exp(−rate · t) dt."""
    period_s = times.period_s(interval_s)
    stall, written = math.exp(-rate * times.stall_s), math.exp(-rate * (times.stall_s + times.writing_s))
    each = (1 - times.slowdown) * (stall - written) + written - math.exp(-rate * period_s)
    begun = math.exp(-rate * interval_s) / -math.expm1(-rate * period_s)
    return (-math.expm1(-rate * interval_s) + begun * each) / rate


def optimum_s(ratio_of: Callable[[float], float], low_s: float, high_s: float, precision: float = 1e-5) -> float:
    """The interval with the largest ratio, which rises and then falls: points evenly spaced by logarithm, and again around
    the best of them."""
    while high_s / low_s > 1 + precision:
        points_s = np.geomspace(low_s, high_s, _POINTS)
        best = int(np.argmax([ratio_of(float(point_s)) for point_s in points_s]))
        low_s, high_s = float(points_s[max(0, best - 1)]), float(points_s[min(_POINTS - 1, best + 1)])
    return math.sqrt(low_s * high_s)


def young_s(cost_s: float, mtbf_s: float) -> float:
    """J. W. Young, Communications of the ACM 17 (1974) 530–531."""
    return math.sqrt(2 * cost_s * mtbf_s)


def daly_first_s(cost_s: float, mtbf_s: float, restart_s: float) -> float:
    """Daly 2006, to first order; restart_s: from a failure to training. Where it would be below zero: M."""
    if cost_s >= 2 * (mtbf_s + restart_s):
        return mtbf_s
    return math.sqrt(2 * cost_s * (mtbf_s + restart_s)) - cost_s


def daly_s(cost_s: float, mtbf_s: float) -> float:
    """Daly 2006, to higher order."""
    if cost_s >= 2 * mtbf_s:
        return mtbf_s
    share = cost_s / (2 * mtbf_s)
    return math.sqrt(2 * cost_s * mtbf_s) * (1 + math.sqrt(share) / 3 + share / 9) - cost_s
