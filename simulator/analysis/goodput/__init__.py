"""goodput: effective training time ratio of a scenario under failures, and its losses by cause.

Computed twice: in closed form, which assumes that nodes are always available (`renewal`), and by Monte Carlo simulation
(`failure_history`), which includes spare nodes, repairs and training with fewer workers.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.goodput.failure_history import FailureHistory, simulate
from scaleproof.simulator.analysis.goodput.rates import FailureRates, failure_rates
from scaleproof.simulator.analysis.goodput.renewal import InterruptionTimes, daly_first_s, daly_s, optimum_s, ratio, young_s
from scaleproof.simulator.analysis.goodput.result import CheckpointChoice, Goodput
from scaleproof.simulator.analysis.goodput.time_shares import PARTS, Floats, TimeShares
from scaleproof.simulator.common.errors import FieldError, InputError
from scaleproof.simulator.common.units import format_time_s
from scaleproof.simulator.memory import memory
from scaleproof.simulator.prediction.accounting import tokens_per_sample
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.uncertainty.unmodelled import unmodelled

__all__ = ["PARTS", "CheckpointChoice", "Goodput", "goodput"]

DAYS: Final = 30.0
SAMPLES: Final = 1000
_DAY_S: Final = 86400.0
# Interruptions of one sample, each a row of array operations, and pieces of all samples: limits for a run time of seconds.
_MOST_INTERRUPTIONS: Final = 3_000
_MOST_PIECES: Final = 4_000_000
_MOST_SAMPLES: Final = 10_000
_MOST_DAYS: Final = 1e12
# relative precision of the simulated optimum, and the number of pieces that it is computed from
_PRECISION: Final = 0.01
_OPTIMUM_PIECES: Final = 100_000
_QUANTILES: Final = (0.05, 0.95)
# share of the time in which spares are to suffice, as standard deviations of a normal distribution, and the number of nodes in
# repair above which the normal distribution is used
_SUFFICIENT: Final = 0.99
_SUFFICIENT_DEVIATIONS: Final = 2.326
_LARGE: Final = 500


def goodput(scenario: Scenario, days: float = DAYS, samples: int = SAMPLES, seed: int = 0) -> Goodput:
    """The effective training time ratio of a scenario over `days`, losses by cause, and the ratio with other checkpoint
    intervals.

    samples: number of Monte Carlo samples. Raises FieldError where `reliability` is missing or inconsistent, InputError for
    days or samples that are out of range.
    """
    run_s = _run_s(days, samples)
    rates = failure_rates(scenario)
    step_s = scenario.total_samples / rates.sizes.samples_per_s
    interval_s = _interval_s(rates, step_s, run_s)
    interruptions_per_s = rates.times.failures_per_s + rates.times.planned_per_s
    most = min(_MOST_INTERRUPTIONS, _MOST_PIECES // samples)
    simulated_s = min(run_s, most / interruptions_per_s)
    history = simulate(
        rates.times, rates.chances, rates.supply, rates.sizes, simulated_s, samples, seed, saved=simulated_s == run_s
    )
    shares = TimeShares(history, rates.times)
    return _result(rates, shares, history, days, step_s, interval_s)


def _run_s(days: float, samples: int) -> float:
    if not 0 < days <= _MOST_DAYS:
        raise InputError(f"{days:g} days: give more than 0, and at most {_MOST_DAYS:g}")
    if not 1 <= samples <= _MOST_SAMPLES:
        raise InputError(f"{samples:,} samples: give 1 to {_MOST_SAMPLES:,}")
    return days * _DAY_S


def _interval_s(rates: FailureRates, step_s: float, run_s: float) -> float:
    """Seconds of training between checkpoints, a whole number of steps. Raises FieldError if it is too short or too long."""
    checkpoint, times = rates.reliability.checkpoint, rates.times
    field = "steps" if checkpoint.steps else "interval"
    where = ("reliability", "checkpoint", field)
    if not 0 < step_s <= run_s:
        what = f"{format_time_s(step_s)}, longer than the run; give more days" if step_s else "no time; see scaleproof predict"
        raise InputError(f"a step takes {what}")
    if times.least_interval_s > run_s:
        written = f"a checkpoint is written in {format_time_s(times.writing_s)}, longer than the run"
        raise FieldError((*where[:2], "bandwidth"), f"{written}; give more, or more days")
    if checkpoint.steps:
        wanted_s = checkpoint.steps * step_s
    elif isinstance(checkpoint.interval_s, float):
        wanted_s = checkpoint.interval_s
    else:
        wanted_s = _optimum_s(times, step_s, run_s)
    # no checkpoint is taken within a step
    interval_s = max(1, round(wanted_s / step_s)) * step_s
    if interval_s > run_s:
        raise FieldError(where, f"{format_time_s(interval_s)}, longer than the run; give less, or more days")
    if interval_s < times.least_interval_s:
        written = f"a checkpoint is still being written {format_time_s(times.writing_s)} after its copy"
        raise FieldError(where, f"{format_time_s(interval_s)}, and {written}; give more, or more bandwidth")
    return interval_s


def _optimum_s(times: InterruptionTimes, step_s: float, run_s: float) -> float:
    return optimum_s(lambda interval_s: ratio(times, interval_s), *_range_s(times, step_s, run_s))


def _range_s(times: InterruptionTimes, step_s: float, run_s: float) -> tuple[float, float]:
    """Bounds of the optimal interval: from the time to write a checkpoint, rounded up to steps, to the whole run."""
    low_s = max(1, math.ceil(times.least_interval_s / step_s)) * step_s
    return low_s, max(low_s, run_s)


def _result(
    rates: FailureRates, shares: TimeShares, history: FailureHistory, days: float, step_s: float, interval_s: float
) -> Goodput:
    scenario, times, run_s = rates.scenario, rates.times, days * _DAY_S
    low_s, high_s = _range_s(times, step_s, history.end_s)
    sampled = TimeShares(history.part(_OPTIMUM_PIECES), times)
    simulated_s = optimum_s(lambda tried_s: float(sampled.useful(tried_s).mean()), low_s, high_s, _PRECISION)
    restart_s = times.detection_s + times.restart_s
    intervals_s = {
        "Young": young_s(times.cost_s, times.mtbf_s),
        "Daly": daly_first_s(times.cost_s, times.mtbf_s, restart_s),
        "Daly to higher order": daly_s(times.cost_s, times.mtbf_s),
        "closed form": _optimum_s(times, step_s, run_s),
        "simulated": simulated_s,
    }
    parts = shares.parts(interval_s)
    nodes = rates.sizes.nodes + (rates.reliability.spares or 0)
    price_USD_per_s = scenario.cluster.node_USD_per_s(scenario.cluster.node.power_W)
    return Goodput(
        scenario=scenario.name,
        strategy=scenario.strategy.kind,
        framework=scenario.framework.name,
        framework_is_default=scenario.framework_is_default,
        days=days,
        simulated_days=history.end_s / _DAY_S,
        samples=history.samples,
        counts=rates.counts,
        failures_per_day={name: rate * _DAY_S for name, rate in rates.rates_per_s.items()},
        spares=rates.reliability.spares,
        in_repair=rates.in_repair,
        enough_spares=None if rates.in_repair is None else _enough_spares(rates.in_repair),
        shares={name: _with_interval(share) for name, share in parts.items()},
        expected=ratio(times, interval_s),
        failures=_mean(history.failures, history, run_s),
        stops=_mean(history.stops, history, run_s),
        growths=_mean(history.growths, history, run_s),
        times=times,
        saving=rates.saving,
        step_s=step_s,
        interval_s=interval_s,
        is_optimum=_is_optimum(rates),
        choices=tuple(_choice(name, wanted_s, times, shares) for name, wanted_s in intervals_s.items()),
        halved=_halved(rates, step_s, interval_s, run_s),
        samples_per_s=rates.sizes.samples_per_s,
        tokens_per_sample=tokens_per_sample(scenario.model),
        cost_USD=None if price_USD_per_s is None else nodes * price_USD_per_s * run_s,
        warnings=_warnings(rates),
        assumed_s=rates.reliability.assumed_s,
    )


def _with_interval(share: Floats) -> tuple[float, float, float]:
    """Mean of the samples, and the bounds of their 90 % interval."""
    low, high = np.quantile(share, _QUANTILES)
    return float(share.mean()), float(low), float(high)


def _mean(counted: NDArray[np.int64], history: FailureHistory, run_s: float) -> float:
    """Mean count per sample, scaled from the simulated time to the whole run."""
    return float(counted.mean()) * run_s / history.end_s


def _choice(rule: str, interval_s: float, times: InterruptionTimes, shares: TimeShares) -> CheckpointChoice:
    return CheckpointChoice(rule, interval_s, ratio(times, interval_s), float(shares.useful(interval_s).mean()))


def _halved(rates: FailureRates, step_s: float, interval_s: float, run_s: float) -> dict[str, float]:
    """Ratios in closed form with one loss halved, by loss; the interval is the optimum for each if the job uses the optimum."""
    times = rates.times
    changed = {
        "failures": replace(times, failures_per_s=times.failures_per_s / 2),
        "detection": replace(times, detection_s=times.detection_s / 2),
        "restart": replace(times, restart_s=times.restart_s / 2),
        "checkpoints": replace(times, stall_s=times.stall_s / 2, writing_s=times.writing_s / 2),
    }
    optimal = _is_optimum(rates)
    return {name: ratio(one, _optimum_s(one, step_s, run_s) if optimal else interval_s) for name, one in changed.items()}


def _enough_spares(in_repair: float) -> int:
    """The 99 % quantile of the nodes in repair: a Poisson number, as repairs are an M/G/∞ queue."""
    deviation = math.sqrt(in_repair)
    if in_repair > _LARGE:
        return math.ceil(in_repair + _SUFFICIENT_DEVIATIONS * deviation)
    number, term = 0, math.exp(-in_repair)
    total = term
    while total < _SUFFICIENT:
        number += 1
        term *= in_repair / number
        total += term
    return number


def _is_optimum(rates: FailureRates) -> bool:
    checkpoint = rates.reliability.checkpoint
    return checkpoint.steps is None and checkpoint.interval_s == "optimum"


def _warnings(rates: FailureRates) -> tuple[str, ...]:
    notes = tuple(one.note for one in unmodelled(rates.scenario))
    if memory(rates.scenario).fits:
        return notes
    return ("the model does not fit in the devices' memory; see scaleproof predict", *notes)
