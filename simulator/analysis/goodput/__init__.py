"""goodput: what is left of a scenario's throughput where things fail: the share of time in which training gets on.

Told twice: in closed form, where nodes are always at hand (`renewal`), and by simulating what happens by chance (`history`),
which knows of spare nodes, repairs and fewer workers as well.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.goodput.failure_history import History, simulate
from scaleproof.simulator.analysis.goodput.rates import FailureRates, setting
from scaleproof.simulator.analysis.goodput.renewal import Times, daly_first_s, daly_s, optimum_s, ratio, young_s
from scaleproof.simulator.analysis.goodput.result import CheckpointChoice, Goodput
from scaleproof.simulator.analysis.goodput.time_shares import PARTS, Floats, Shares
from scaleproof.simulator.common.errors import FieldError, InputError
from scaleproof.simulator.common.units import format_time_s
from scaleproof.simulator.memory import memory
from scaleproof.simulator.run.accounting import tokens_per_sample
from scaleproof.simulator.scenario.schema import Scenario

__all__ = ["PARTS", "CheckpointChoice", "Goodput", "goodput"]

DAYS: Final = 30.0
SAMPLES: Final = 1000
_DAY_S: Final = 86400.0
# Of a sample, which is a row of array operations each, and of all samples together: so that it takes seconds.
_MOST_INTERRUPTIONS: Final = 3_000
_MOST_PIECES: Final = 4_000_000
_MOST_SAMPLES: Final = 10_000
_MOST_DAYS: Final = 1e12
# the simulated optimum is not known better, from so many pieces
_PRECISION: Final = 0.01
_ENOUGH_PIECES: Final = 100_000
_QUANTILES: Final = (0.05, 0.95)
# how often spares are to be enough, the same in standard deviations, and from which number on those tell it
_NEARLY_ALWAYS: Final = 0.99
_NEARLY_ALWAYS_DEVIATIONS: Final = 2.326
_LARGE: Final = 500


def goodput(scenario: Scenario, days: float = DAYS, samples: int = SAMPLES, seed: int = 0) -> Goodput:
    """The effective training time ratio of so many days of `scenario`, its parts, and what other intervals between checkpoints
    would give, over so many samples of what may happen.

    Raises FieldError where `reliability` is missing or does not fit, InputError for days and samples that cannot be.
    """
    run_s = _run_s(days, samples)
    found = setting(scenario)
    step_s = scenario.total_samples / found.sizes.samples_per_s
    interval_s = _interval_s(found, step_s, run_s)
    interruptions_per_s = found.times.failures_per_s + found.times.planned_per_s
    most = min(_MOST_INTERRUPTIONS, _MOST_PIECES // samples)
    simulated_s = min(run_s, most / interruptions_per_s)
    history = simulate(
        found.times, found.chances, found.supply, found.sizes, simulated_s, samples, seed, saved=simulated_s == run_s
    )
    shares = Shares(history, found.times)
    return _result(found, shares, history, days, step_s, interval_s)


def _run_s(days: float, samples: int) -> float:
    if not 0 < days <= _MOST_DAYS:
        raise InputError(f"{days:g} days: give more than none, and {_MOST_DAYS:g} at most")
    if not 1 <= samples <= _MOST_SAMPLES:
        raise InputError(f"{samples:,} samples: give 1 to {_MOST_SAMPLES:,}")
    return days * _DAY_S


def _interval_s(found: FailureRates, step_s: float, run_s: float) -> float:
    """Of training between checkpoints, in whole steps. Raises FieldError where it does not fit."""
    checkpoint, times = found.reliability.checkpoint, found.times
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
        told = f"{format_time_s(interval_s)}, and a checkpoint is still written {format_time_s(times.writing_s)} after its copy"
        raise FieldError(where, f"{told}; give more, or more bandwidth")
    return interval_s


def _optimum_s(times: Times, step_s: float, run_s: float) -> float:
    return optimum_s(lambda interval_s: ratio(times, interval_s), *_range_s(times, step_s, run_s))


def _range_s(times: Times, step_s: float, run_s: float) -> tuple[float, float]:
    """Between which intervals the optimum is: a step or as many as a checkpoint is written in, and the run."""
    low_s = max(1, math.ceil(times.least_interval_s / step_s)) * step_s
    return low_s, max(low_s, run_s)


def _result(found: FailureRates, shares: Shares, history: History, days: float, step_s: float, interval_s: float) -> Goodput:
    scenario, times, run_s = found.scenario, found.times, days * _DAY_S
    low_s, high_s = _range_s(times, step_s, history.end_s)
    some = Shares(history.part(_ENOUGH_PIECES), times)
    simulated_s = optimum_s(lambda tried_s: float(some.useful(tried_s).mean()), low_s, high_s, _PRECISION)
    restart_s = times.detection_s + times.restart_s
    intervals_s = {
        "Young": young_s(times.cost_s, times.mtbf_s),
        "Daly": daly_first_s(times.cost_s, times.mtbf_s, restart_s),
        "Daly to higher order": daly_s(times.cost_s, times.mtbf_s),
        "closed form": _optimum_s(times, step_s, run_s),
        "simulated": simulated_s,
    }
    each = shares.parts(interval_s)
    nodes = found.sizes.nodes + (found.reliability.spares or 0)
    price_USD_per_s = scenario.cluster.node.price_USD_per_s
    return Goodput(
        scenario=scenario.name,
        strategy=scenario.strategy.kind,
        framework=scenario.framework.name,
        framework_is_default=scenario.framework_is_default,
        days=days,
        simulated_days=history.end_s / _DAY_S,
        samples=history.samples,
        counts=found.counts,
        failures_per_day={name: rate * _DAY_S for name, rate in found.rates_per_s.items()},
        spares=found.reliability.spares,
        in_repair=found.in_repair,
        enough_spares=None if found.in_repair is None else _enough(found.in_repair),
        shares={name: _told(one) for name, one in each.items()},
        expected=ratio(times, interval_s),
        failures=_mean(history.failures, history, run_s),
        stops=_mean(history.stops, history, run_s),
        growths=_mean(history.growths, history, run_s),
        times=times,
        saving=found.saving,
        step_s=step_s,
        interval_s=interval_s,
        is_optimum=_is_optimum(found),
        choices=tuple(_choice(name, wanted_s, times, shares) for name, wanted_s in intervals_s.items()),
        halved=_halved(found, step_s, interval_s, run_s),
        samples_per_s=found.sizes.samples_per_s,
        tokens_per_sample=tokens_per_sample(scenario.model),
        cost_USD=None if price_USD_per_s is None else nodes * price_USD_per_s * run_s,
        warnings=_warnings(found),
    )


def _told(share: Floats) -> tuple[float, float, float]:
    """Mean, and between what it is with a probability of 90 %."""
    low, high = np.quantile(share, _QUANTILES)
    return float(share.mean()), float(low), float(high)


def _mean(counted: NDArray[np.int64], history: History, run_s: float) -> float:
    """Of all samples, in the whole run."""
    return float(counted.mean()) * run_s / history.end_s


def _choice(rule: str, interval_s: float, times: Times, shares: Shares) -> CheckpointChoice:
    return CheckpointChoice(rule, interval_s, ratio(times, interval_s), float(shares.useful(interval_s).mean()))


def _halved(found: FailureRates, step_s: float, interval_s: float, run_s: float) -> dict[str, float]:
    """In closed form; the interval is the best for each, where it was."""
    times = found.times
    changed = {
        "failures": replace(times, failures_per_s=times.failures_per_s / 2),
        "detection": replace(times, detection_s=times.detection_s / 2),
        "restart": replace(times, restart_s=times.restart_s / 2),
        "checkpoints": replace(times, stall_s=times.stall_s / 2, writing_s=times.writing_s / 2),
    }
    best = _is_optimum(found)
    return {name: ratio(one, _optimum_s(one, step_s, run_s) if best else interval_s) for name, one in changed.items()}


def _enough(in_repair: float) -> int:
    """Of which a Poisson number is not more 99 % of the time: nodes in repair are an M/G/∞ queue."""
    deviation = math.sqrt(in_repair)
    if in_repair > _LARGE:
        return math.ceil(in_repair + _NEARLY_ALWAYS_DEVIATIONS * deviation)
    number, term = 0, math.exp(-in_repair)
    total = term
    while total < _NEARLY_ALWAYS:
        number += 1
        term *= in_repair / number
        total += term
    return number


def _is_optimum(found: FailureRates) -> bool:
    checkpoint = found.reliability.checkpoint
    return checkpoint.steps is None and checkpoint.interval_s == "optimum"


def _warnings(found: FailureRates) -> tuple[str, ...]:
    told = []
    if not memory(found.scenario).fits:
        told.append("the model does not fit into its devices' memory; see scaleproof predict")
    return tuple(told)
