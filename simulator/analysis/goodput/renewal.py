"""Effective training time ratio in closed form, where nodes are always available.

Failures are a Poisson process. Training up to an interruption and the return to training are a renewal cycle, and the ratio is
the expected useful time of a cycle over its expected duration (renewal-reward theorem, Ross, Stochastic Processes, section
3.6). Failures also occur during detection and restart, which then start again. For synchronous checkpoints and no planned stops
this is Daly's expected time to solution (J. T. Daly, Future Generation Computer Systems 22 (2006) 303–312):
M exp(R / M) (exp((τ + δ) / M) − 1) for each τ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

# exp of a larger argument overflows
_LARGEST: Final = 700.0
_POINTS: Final = 33


@dataclass(frozen=True)
class InterruptionTimes:
    """Rates and durations of a job's interruptions and checkpoints.

    failures_per_s, planned_per_s: interruptions per second. stall_s: training stops for each checkpoint. writing_s: time after
    that until the checkpoint is valid, in which training loses the share `slowdown` of its speed. restart_s: from the time at
    which nodes are available to training. planned_s: duration of a planned stop in addition to the restart.
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
        """Mean seconds between failures of the job."""
        return 1 / self.failures_per_s

    @property
    def cost_s(self) -> float:
        """Seconds of training time lost to a checkpoint."""
        return self.stall_s + self.slowdown * self.writing_s

    @property
    def least_interval_s(self) -> float:
        """Seconds of training during which a checkpoint is written: the shortest possible interval."""
        return self.writing_s * (1 - self.slowdown)

    def period_s(self, interval_s: float) -> float:
        """Seconds from one checkpoint to the next."""
        return interval_s + self.cost_s


def ratio(times: InterruptionTimes, interval_s: float) -> float:
    """The effective training time ratio with a checkpoint after each `interval_s` of training."""
    fails, stops = times.failures_per_s, times.planned_per_s
    if fails * (times.detection_s + times.restart_s) > _LARGEST:
        return 0.0
    rate = fails + stops
    at_failure_s = interval_s * _valid_checkpoints(times, interval_s, rate)
    at_stop_s = _progress_s(times, interval_s, rate) if stops else 0.0
    recovery_s = _recovery_s(times)
    restarted_s = -math.expm1(-fails * times.restart_s) * (1 / fails + recovery_s)
    stopped_s = times.stall_s + times.writing_s + times.planned_s + restarted_s
    # expectations per interruption, both multiplied by the rate
    cycle = 1 + fails * recovery_s + stops * stopped_s
    return (fails * at_failure_s + stops * at_stop_s) / cycle


def _recovery_s(times: InterruptionTimes) -> float:
    """Expected seconds from a failure to training: detection and restart, which failures restart."""
    return math.expm1(times.failures_per_s * (times.detection_s + times.restart_s)) / times.failures_per_s


def _valid_checkpoints(times: InterruptionTimes, interval_s: float, rate: float) -> float:
    """Expected number of checkpoints written before an interruption: the sum of each one's probability to be written."""
    first_s = interval_s + times.stall_s + times.writing_s
    period = rate * times.period_s(interval_s)
    return math.exp(-rate * first_s) / -math.expm1(-period)


def _progress_s(times: InterruptionTimes, interval_s: float, rate: float) -> float:
    """Expected useful seconds until an interruption at which nothing is lost: ∫ speed · exp(−rate · t) dt."""
    period_s = times.period_s(interval_s)
    stall, written = math.exp(-rate * times.stall_s), math.exp(-rate * (times.stall_s + times.writing_s))
    per_period = (1 - times.slowdown) * (stall - written) + written - math.exp(-rate * period_s)
    begun = math.exp(-rate * interval_s) / -math.expm1(-rate * period_s)
    return (-math.expm1(-rate * interval_s) + begun * per_period) / rate


def optimum_s(ratio_of: Callable[[float], float], low_s: float, high_s: float, precision: float = 1e-5) -> float:
    """The interval with the largest ratio, a unimodal function: evaluates points evenly spaced by logarithm, then again around
    the best one, until `precision` is reached."""
    while high_s / low_s > 1 + precision:
        points_s = np.geomspace(low_s, high_s, _POINTS)
        best = int(np.argmax([ratio_of(float(point_s)) for point_s in points_s]))
        low_s, high_s = float(points_s[max(0, best - 1)]), float(points_s[min(_POINTS - 1, best + 1)])
    return math.sqrt(low_s * high_s)


def young_s(cost_s: float, mtbf_s: float) -> float:
    """Optimal checkpoint interval in seconds by J. W. Young, Communications of the ACM 17 (1974) 530–531."""
    return math.sqrt(2 * cost_s * mtbf_s)


def daly_first_s(cost_s: float, mtbf_s: float, restart_s: float) -> float:
    """Optimal checkpoint interval in seconds by Daly 2006, to first order; the MTBF where the formula would be negative.

    restart_s: from a failure to training.
    """
    if cost_s >= 2 * (mtbf_s + restart_s):
        return mtbf_s
    return math.sqrt(2 * cost_s * (mtbf_s + restart_s)) - cost_s


def daly_s(cost_s: float, mtbf_s: float) -> float:
    """Optimal checkpoint interval in seconds by Daly 2006, to higher order."""
    if cost_s >= 2 * mtbf_s:
        return mtbf_s
    share = cost_s / (2 * mtbf_s)
    return math.sqrt(2 * cost_s * mtbf_s) * (1 + math.sqrt(share) / 3 + share / 9) - cost_s
