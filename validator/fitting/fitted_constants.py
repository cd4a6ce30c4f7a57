"""Posterior of the constants of a framework and a cluster after a few measured runs.

The logarithm of a measured step time is that of the predicted one plus an error of Student's distribution. Its scale grows with
the part of the step that does not depend on the speed of the device, as errors of published runs do. Each constant has a
log-normal prior around its shipped value (`constants`). All constants are offsets in standard deviations of their priors, so
that one fit holds for scenarios whose shipped values differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from scaleproof.simulator.cluster.quantities import DEVIATIONS
from scaleproof.simulator.memory import memory
from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.uncertainty.error_model import case_of_scenario, shipped
from scaleproof.simulator.uncertainty.response import response_of_scenario
from scaleproof.validator.estimation.posterior import Array, Prior, fit, student, student_reach
from scaleproof.validator.fitting.constants import CONSTANTS, MEMORY, FittedConstant, priors
from scaleproof.validator.fitting.observed_run import ObservedRun

# Step of finite differences in prior standard deviations: larger than the noise of replay, small next to the prior.
_STEP: Final = 0.1
_MOST_ITERATIONS: Final = 12
_CLOSE: Final = 1e-3
# A constant has moved if its interval is narrower by a tenth, or its value is this many prior deviations from the shipped one.
_NARROWER: Final = 0.9
_FAR: Final = 0.25


@dataclass(frozen=True)
class Posterior:
    """Constants after some runs. offsets: in prior standard deviations, shape (constants,). covariance: of the offsets. noise:
    standard deviation of the logarithm of a measured step time around its prediction, where all of the step is computed.
    model_error: ends of the interval of an unseen run's error over those of published runs of the same kind. runs: number of
    runs. nodes: of the largest."""

    constants: tuple[FittedConstant, ...]
    offsets: Array
    covariance: Array
    noise: float
    model_error: float
    runs: int
    nodes: int

    def applied(self, scenario: Scenario) -> Scenario:
        """The scenario with the posterior's constants."""
        return at(scenario, self.constants, self.offsets)

    @cached_property
    def deviations(self) -> Array:
        """Standard deviations of the offsets: 1 for a constant about which the runs say nothing."""
        return np.sqrt(np.diag(self.covariance))

    def interval(self, index: int, value: float) -> tuple[float, float]:
        """The 90 % interval of a constant. value: its shipped value."""
        prior, reach = self.constants[index].prior, DEVIATIONS * float(self.deviations[index])
        return prior.at(value, float(self.offsets[index]) - reach), prior.at(value, float(self.offsets[index]) + reach)

    def has_moved(self, index: int) -> bool:
        """Whether runs taught a constant anything."""
        return bool(self.deviations[index] < _NARROWER or abs(self.offsets[index]) > _FAR)

    def log_deviation(self, slopes: Array) -> float:
        """Standard deviation of the logarithm of a step time by uncertain constants. slopes: its derivatives by the offsets."""
        return float(np.sqrt(slopes @ self.covariance @ slopes))


def fitted(runs: Sequence[ObservedRun], constants: Sequence[FittedConstant] = CONSTANTS) -> Posterior:
    """The posterior of constants after runs: of times, and of memory where runs have it.

    Constants that no run has stay out. Raises FieldError for a scenario whose steps cannot be simulated.
    """
    measured = np.log([run.step_time_s for run in runs])
    scenarios = [run.scenario for run in runs]
    of_times = [one.on(scenario.cluster for scenario in scenarios) for one in constants if one is not MEMORY]
    known = tuple(one for one in of_times if any(one.value(scenario) is not None for scenario in scenarios))
    kinds = [RunErrors.of(scenario) for scenario in scenarios]
    noise = priors().noise * np.array([kind.relative for kind in kinds])
    none = np.zeros(len(known))
    result = fit(
        lambda offsets: (log_times(scenarios, known, offsets) - measured) / noise,
        none,
        student(priors().tail),
        Prior(none, np.ones(len(known))),
        slopes=lambda offsets: slopes(scenarios, known, offsets) / noise[:, None],
        bounds=(_least(known, scenarios) - _CLOSE, np.inf),
        tolerance=_CLOSE,
        most_steps=_MOST_ITERATIONS,
    )
    published = np.array([kind.published for kind in kinds])
    found = Posterior(
        known,
        result.values,
        result.covariance,
        noise=priors().noise * _root_mean_square(result.residuals, result.freedom),
        model_error=predictive_factor(noise * result.residuals / published, result.freedom),
        runs=len(runs),
        nodes=max(scenario.strategy.nodes_needed(scenario.cluster) for scenario in scenarios),
    )
    found = _with_memory(found, runs) if MEMORY in constants else found
    # what runs do not teach keeps its shipped value
    return replace(
        found, offsets=np.where([found.has_moved(index) for index in range(len(found.constants))], found.offsets, 0.0)
    )


def _with_memory(posterior: Posterior, runs: Sequence[ObservedRun]) -> Posterior:
    """The posterior with the factor on memory, whose logarithm is normal; the same without runs that have memory."""
    logs = [math.log(run.memory_bytes / _reported_bytes(run.scenario)) for run in runs if run.memory_bytes is not None]
    if not logs:
        return posterior
    none, one = np.zeros(1), np.ones(1)
    found = fit(lambda offset: (offset * MEMORY.prior.factor - logs) / priors().memory_noise, none, prior=Prior(none, one))
    covariance = np.pad(posterior.covariance, (0, 1))
    covariance[-1, -1] = found.covariance[0, 0]
    constants, offsets = (*posterior.constants, MEMORY), np.append(posterior.offsets, found.values)
    return replace(posterior, constants=constants, offsets=offsets, covariance=covariance)


def _reported_bytes(scenario: Scenario) -> float:
    """Predicted bytes of the fullest rank, as the framework's logs report them."""
    reports = scenario.framework.memory.reports
    return float(max(getattr(rank, reports) for rank in memory(scenario).ranks))


def at(scenario: Scenario, constants: Sequence[FittedConstant], offsets: Array) -> Scenario:
    """The scenario with constants at offsets from their values."""
    for constant, offset in zip(constants, offsets.tolist(), strict=True):
        scenario = constant.moved(scenario, offset)
    return scenario


def log_times(scenarios: Sequence[Scenario], constants: Sequence[FittedConstant], offsets: Array) -> Array:
    """Natural logarithms of predicted step times in seconds, shape (scenarios,)."""
    return np.log([timed(at(scenario, constants, offsets)).step_time_s for scenario in scenarios])


def slopes(scenarios: Sequence[Scenario], constants: Sequence[FittedConstant], offsets: Array) -> Array:
    """Derivatives of the logarithms of step times by the offsets, shape (scenarios, constants)."""
    own = log_times(scenarios, constants, offsets)
    moved = [
        own if one is MEMORY else log_times(scenarios, constants, offsets + _STEP * row)
        for one, row in zip(constants, np.eye(len(constants)), strict=True)
    ]
    return (np.stack(moved, axis=1) - own[:, None]) / _STEP if moved else np.zeros((len(own), 0))


def _least(constants: Sequence[FittedConstant], scenarios: Sequence[Scenario]) -> Array:
    """The least offset of each constant."""
    values = ([v for s in scenarios if (v := one.value(s)) is not None] for one in constants)
    return np.array([one.prior.least(known) for one, known in zip(constants, values, strict=True)])


class RunErrors(NamedTuple):
    """Errors that predictions of a run have. relative: their scale over that of a step that is all computed. published:
    standard deviation of the logarithm of the step time by the model errors of published runs of the same kind."""

    relative: float
    published: float

    @classmethod
    def of(cls, scenario: Scenario) -> RunErrors:
        """The errors of a scenario's step time, with its framework named: its constants are what runs teach."""
        case = case_of_scenario(scenario.model_copy(update={"framework": scenario.framework}))
        exposed = response_of_scenario(scenario).exposed
        low, high = case.log_ends(scenario.cluster.model_copy(update={"model_error": 1.0}), shipped(), exposed)
        return cls(case.relative_scale(shipped(), exposed), float(high - low) / (2 * DEVIATIONS))


def _root_mean_square(residuals: Array, freedom: float) -> float:
    """Root mean square of residuals together with an expected value of 1, which counts as `noise_runs` values.

    freedom: number of values that the residuals count as, which is less than theirs by what the fit took up.
    """
    runs = priors().noise_runs
    return float(np.sqrt((runs + (residuals**2).sum()) / (runs + freedom)))


def predictive_factor(residuals: Array, freedom: float) -> float:
    """End of the 90 % interval of one more error over that before any residual is seen, which is `DEVIATIONS`.

    residuals: in standard deviations that were expected. freedom: as for `_root_mean_square`. The deviation is as uncertain as
    after `noise_runs` values (its square has an inverse gamma distribution), so that errors have Student's distribution.
    """
    runs = priors().noise_runs
    before, after = (student_reach(number) for number in (runs, runs + freedom))
    square = runs * (DEVIATIONS / before) ** 2 + float((residuals**2).sum())
    return after / DEVIATIONS * math.sqrt(square / (runs + freedom))
