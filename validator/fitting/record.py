"""The record of a fit: predictions of its runs and its target before and after, constants, next runs and regret."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from scaleproof.simulator.analysis.fit_record import (
    FILE,
    FitConstant,
    FitRecord,
    FitRegret,
    FitRun,
    FitTarget,
    NextRun,
    layout_of,
)
from scaleproof.simulator.common.atomic_file import write_atomically
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.dump import dump_part
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.fitting.constants import prior_interval
from scaleproof.validator.fitting.fit import FittedRuns
from scaleproof.validator.fitting.fit_file import with_posterior
from scaleproof.validator.fitting.fitted_constants import Posterior, slopes
from scaleproof.validator.fitting.observed_run import ObservedRun

_MOST_NEXT: Final = 5


def of(fit: FittedRuns) -> FitRecord:
    """The record of a fit."""
    posterior, target = fit.posterior, fit.target
    most = max(run.gpus for run in fit.runs)
    runs = (
        *(_run(run, posterior, most, True) for run in fit.runs),
        *(_run(run, posterior, most, False) for run in fit.checked),
    )
    return FitRecord(
        model=target.model.name or target.model.kind,
        cluster=target.cluster.name or "a cluster",
        framework=target.framework.name,
        constants=tuple(_constants(posterior, target)),
        runs=runs,
        noise=posterior.noise,
        target=_target(target, posterior, most),
        deviation=posterior.log_deviation(slopes([target], posterior.constants, posterior.offsets)[0]),
        next_runs=tuple(
            NextRun(
                layout=layout_of(one.scenario),
                gpus=one.scenario.strategy.training_ranks,
                step_time_s=one.step_s,
                deviation=one.deviation,
                fields="\n".join(dump_part(one.scenario, part) for part in ("strategy", "training", "batch")),
            )
            for one in fit.candidates[:_MOST_NEXT]
        ),
        candidates=len(fit.candidates),
        regrets=tuple(_regrets(runs)),
    )


def write(record: FitRecord, folder: Path) -> None:
    """Writes a record into a folder, which is made. Raises InputError where that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / FILE, record.to_json().encode())
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror}; give a folder that can be written") from None


def _constants(posterior: Posterior, target: Scenario) -> Iterator[FitConstant]:
    for index, constant in enumerate(posterior.constants):
        value = constant.value(target)
        if value is None:
            continue
        prior_low, prior_high = map(constant.format, prior_interval(constant, value))
        low, high = map(constant.format, posterior.interval(index, value))
        yield FitConstant(
            name=constant.name,
            meaning=constant.meaning,
            prior=constant.format(value),
            prior_low=prior_low,
            prior_high=prior_high,
            value=constant.format(constant.prior.at(value, float(posterior.offsets[index]))),
            low=low,
            high=high,
            offset=float(posterior.offsets[index]),
            deviation=float(posterior.deviations[index]),
            moved=posterior.has_moved(index),
        )


def _run(run: ObservedRun, posterior: Posterior, most_gpus: int, is_given: bool) -> FitRun:
    scenario = run.scenario
    after = timed(with_posterior(scenario, posterior), interval=True)
    assert after.prediction_interval_s is not None
    low_s, high_s = after.prediction_interval_s
    gpus, samples = scenario.strategy.training_ranks, scenario.total_samples
    return FitRun(
        place=run.place,
        layout=layout_of(scenario),
        gpus=gpus,
        group=f"{scenario.model.name or scenario.model.kind}, {gpus} GPUs, batch {samples}",
        measured_s=run.step_time_s,
        before_s=timed(scenario).step_time_s,
        after_s=after.step_time_s,
        low_s=low_s,
        high_s=high_s,
        is_given=is_given,
        is_extrapolated=gpus > most_gpus,
    )


def _target(target: Scenario, posterior: Posterior, most_gpus: int) -> FitTarget:
    before, after = timed(target, interval=True), timed(with_posterior(target, posterior), interval=True)
    assert before.prediction_interval_s is not None
    assert after.prediction_interval_s is not None
    gpus = target.strategy.training_ranks
    return FitTarget(
        name=target.name,
        layout=layout_of(target),
        gpus=gpus,
        before_s=before.step_time_s,
        before_low_s=before.prediction_interval_s[0],
        before_high_s=before.prediction_interval_s[1],
        after_s=after.step_time_s,
        low_s=after.prediction_interval_s[0],
        high_s=after.prediction_interval_s[1],
        is_extrapolated=gpus > most_gpus,
    )


def _regrets(runs: Sequence[FitRun]) -> Iterator[FitRegret]:
    """The regret of each group of several layouts."""
    ordered = sorted(runs, key=lambda run: run.group)
    for group, members in itertools.groupby(ordered, key=lambda run: run.group):
        own = list(members)
        if len({run.layout for run in own}) > 1:
            chosen, best = min(own, key=lambda run: run.after_s), min(own, key=lambda run: run.measured_s)
            regret = chosen.measured_s / best.measured_s - 1
            yield FitRegret(group=group, runs=len(own), chosen=chosen.layout, best=best.layout, regret=regret)
