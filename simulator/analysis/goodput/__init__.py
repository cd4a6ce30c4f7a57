"""goodput: effective training time ratio of a scenario under failures, and its losses by cause.

Computed twice: in closed form, which assumes that nodes are always available (`renewal`), and by Monte Carlo simulation
(`failure_history`), which includes spare nodes, repairs and training with fewer workers.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np

from scaleproof.simulator.analysis.goodput.failure_history import FailureSimulation
from scaleproof.simulator.analysis.goodput.rates import FailureRates, failure_rates
from scaleproof.simulator.analysis.goodput.renewal import InterruptionTimes, daly_first_s, daly_s, optimum_s, ratio, young_s
from scaleproof.simulator.analysis.goodput.result import CheckpointChoice, Goodput
from scaleproof.simulator.common.errors import FieldError, InputError
from scaleproof.simulator.common.units import format_time_s
from scaleproof.simulator.memory import memory
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.uncertainty.unmodelled import unmodelled

__all__ = ["CheckpointChoice", "Goodput", "goodput"]

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
    if not 0 < days <= _MOST_DAYS:
        raise InputError(f"{days:g} days: give more than 0, and at most {_MOST_DAYS:g}")
    if not 1 <= samples <= _MOST_SAMPLES:
        raise InputError(f"{samples:,} samples: give 1 to {_MOST_SAMPLES:,}")
    run_s, job = days * _DAY_S, failure_rates(scenario)
    times, sizes = job.times, job.sizes
    step_s = scenario.total_samples / sizes.samples_per_s
    interval_s = _interval_s(job, step_s, run_s)
    most = min(_MOST_INTERRUPTIONS, _MOST_PIECES // samples)
    end_s = min(run_s, most / (times.failures_per_s + times.planned_per_s))
    history = FailureSimulation(times, job.chances, job.supply, sizes, end_s, samples, seed, saved=end_s == run_s).run()
    sampled = history.part(_OPTIMUM_PIECES)
    simulated_optimum_s = optimum_s(
        lambda tried_s: float(sampled.useful(tried_s).mean()), *_range_s(times, step_s, end_s), _PRECISION
    )
    intervals_s = {
        "Young": young_s(times.cost_s, times.mtbf_s),
        "Daly": daly_first_s(times.cost_s, times.mtbf_s, times.detection_s + times.restart_s),
        "Daly to higher order": daly_s(times.cost_s, times.mtbf_s),
        "closed form": _optimum_s(times, step_s, run_s),
        "simulated": simulated_optimum_s,
    }
    price_USD_per_s = scenario.cluster.node_USD_per_s(scenario.cluster.node.power_W)
    nodes = sizes.nodes + (job.reliability.spares or 0)
    # mean counts of a sample, scaled from the simulated time to the whole run
    failures, stops, growths = (
        float(counts.mean()) * run_s / end_s for counts in (history.failures, history.stops, history.growths)
    )
    warnings = [note.note for note in unmodelled(scenario)]
    if not memory(scenario).fits:
        warnings.insert(0, "the model does not fit in the devices' memory; see scaleproof predict")
    return Goodput(
        scenario=scenario.name,
        strategy=scenario.strategy.kind,
        framework=scenario.framework.name,
        framework_is_default=scenario.framework_is_default,
        days=days,
        simulated_days=end_s / _DAY_S,
        samples=samples,
        counts=job.counts,
        failures_per_day={name: rate * _DAY_S for name, rate in job.rates_per_s.items()},
        spares=job.reliability.spares,
        in_repair=job.in_repair,
        enough_spares=None if job.in_repair is None else _enough_spares(job.in_repair),
        shares={
            name: (float(share.mean()), *np.quantile(share, _QUANTILES).tolist())
            for name, share in history.parts(interval_s).items()
        },
        expected=ratio(times, interval_s),
        failures=failures,
        stops=stops,
        growths=growths,
        times=times,
        saving=job.saving,
        step_s=step_s,
        interval_s=interval_s,
        is_optimum=job.is_optimum,
        choices=tuple(
            CheckpointChoice(rule, tried_s, ratio(times, tried_s), float(history.useful(tried_s).mean()))
            for rule, tried_s in intervals_s.items()
        ),
        halved=_halved(job, step_s, interval_s, run_s),
        samples_per_s=sizes.samples_per_s,
        tokens_per_sample=scenario.tokens_per_sample,
        cost_USD=None if price_USD_per_s is None else nodes * price_USD_per_s * run_s,
        warnings=tuple(warnings),
        assumed_s=job.reliability.assumed_s,
    )


def _interval_s(job: FailureRates, step_s: float, run_s: float) -> float:
    """Seconds of training between checkpoints, a whole number of steps. Raises FieldError if it is too short or too long."""
    checkpoint, times = job.reliability.checkpoint, job.times
    where = ("reliability", "checkpoint")
    if not 0 < step_s <= run_s:
        what = f"{format_time_s(step_s)}, longer than the run; give more days" if step_s else "no time; see scaleproof predict"
        raise InputError(f"a step takes {what}")
    if times.least_interval_s > run_s:
        written = f"a checkpoint is written in {format_time_s(times.writing_s)}, longer than the run"
        raise FieldError((*where, "bandwidth"), f"{written}; give more, or more days")
    if checkpoint.steps:
        wanted_s = checkpoint.steps * step_s
    elif isinstance(checkpoint.interval_s, float):
        wanted_s = checkpoint.interval_s
    else:
        wanted_s = _optimum_s(times, step_s, run_s)
    # no checkpoint is taken within a step
    interval_s = max(1, round(wanted_s / step_s)) * step_s
    field = (*where, "steps" if checkpoint.steps else "interval")
    if interval_s > run_s:
        raise FieldError(field, f"{format_time_s(interval_s)}, longer than the run; give less, or more days")
    if interval_s < times.least_interval_s:
        written = f"a checkpoint is still being written {format_time_s(times.writing_s)} after its copy"
        raise FieldError(field, f"{format_time_s(interval_s)}, and {written}; give more, or more bandwidth")
    return interval_s


def _optimum_s(times: InterruptionTimes, step_s: float, run_s: float) -> float:
    return optimum_s(lambda interval_s: ratio(times, interval_s), *_range_s(times, step_s, run_s))


def _range_s(times: InterruptionTimes, step_s: float, run_s: float) -> tuple[float, float]:
    """Bounds of the optimal interval: from the time to write a checkpoint, rounded up to steps, to the whole run."""
    low_s = max(1, math.ceil(times.least_interval_s / step_s)) * step_s
    return low_s, max(low_s, run_s)


def _halved(job: FailureRates, step_s: float, interval_s: float, run_s: float) -> dict[str, float]:
    """Ratios in closed form with one loss halved, by loss; the interval is the optimum for each if the job uses the optimum."""
    times = job.times
    changed = {
        "failures": replace(times, failures_per_s=times.failures_per_s / 2),
        "detection": replace(times, detection_s=times.detection_s / 2),
        "restart": replace(times, restart_s=times.restart_s / 2),
        "checkpoints": replace(times, stall_s=times.stall_s / 2, writing_s=times.writing_s / 2),
    }
    return {
        name: ratio(less, _optimum_s(less, step_s, run_s) if job.is_optimum else interval_s) for name, less in changed.items()
    }


def _enough_spares(in_repair: float) -> int:
    """The 99 % quantile of the nodes in repair: a Poisson number, as repairs are an M/G/∞ queue."""
    if in_repair > _LARGE:
        return math.ceil(in_repair + _SUFFICIENT_DEVIATIONS * math.sqrt(in_repair))
    number, term = 0, math.exp(-in_repair)
    total = term
    while total < _SUFFICIENT:
        number += 1
        term *= in_repair / number
        total += term
    return number
