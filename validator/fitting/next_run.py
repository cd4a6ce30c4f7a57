"""The run to measure next: the layout whose measurement is expected to narrow the prediction of a target most.

The logarithm of a step time is linear in the constants near the posterior's mode, so that the variance of a target after one
more measurement follows without its result (c-optimal design; Chaloner and Verdinelli, Bayesian experimental design, 1995).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.fit_record import layout_of
from scaleproof.simulator.analysis.planner.candidates import Candidates
from scaleproof.simulator.analysis.planner.estimate import Configurations, every
from scaleproof.simulator.analysis.planner.space import spaces
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.uncertainty.error_model import memory_error, most_fitting_bytes
from scaleproof.validator.fitting.fitted_constants import Posterior, RunErrors, log_times, slopes
from scaleproof.validator.fitting.observed_run import ObservedRun

Amounts = NDArray[np.float64]

# Layouts of one number of GPUs with different degrees of model parallelism, the fastest first, and of all numbers.
_MOST_OF_SIZE: Final = 6
_MOST: Final = 32


@dataclass(frozen=True)
class NextRun:
    """A layout that may be measured. step_s: predicted seconds of a step. deviation: standard deviation of the logarithm of the
    target's step time by uncertain constants, once this run is measured."""

    scenario: Scenario
    step_s: float
    deviation: float


def ranked(posterior: Posterior, target: Scenario, runs: Sequence[ObservedRun], most_gpus: int | None = None) -> list[NextRun]:
    """Layouts that are not measured yet, the one that narrows the target most first.

    most_gpus: largest number of GPUs; that of the runs if None.
    """
    most = most_gpus or max(run.gpus for run in runs)
    known = {layout_key(run.scenario) for run in runs}
    scenarios = [one for one in _layouts(posterior.applied(target), most) if layout_key(one) not in known]
    if not scenarios:
        return []
    # they have the posterior's constants already, which the derivatives start from
    zero = np.zeros(len(posterior.constants))
    of_target = slopes([target], posterior.constants, posterior.offsets)[0]
    of_runs = slopes(scenarios, posterior.constants, zero)
    times_s = np.exp(log_times(scenarios, posterior.constants, zero))
    noises = [posterior.noise * RunErrors.of(one).relative for one in scenarios]
    deviations = [deviation_after(posterior, of_target, *run) for run in zip(of_runs, noises, strict=True)]
    order = np.argsort(deviations, kind="stable")
    return [NextRun(scenarios[index], float(times_s[index]), deviations[index]) for index in order.tolist()]


def deviation_after(posterior: Posterior, of_target: Amounts, of_run: Amounts, noise: float) -> float:
    """Standard deviation of the logarithm of the target's step time by uncertain constants after one more measurement.

    of_target, of_run: derivatives of the logarithms of the step times of target and measured run by the constants' offsets.
    noise: standard deviation of the logarithm of the measured step time around its prediction.
    """
    shared = float(of_target @ posterior.covariance @ of_run)
    variance = posterior.log_deviation(of_target) ** 2
    return math.sqrt(max(0.0, variance - shared**2 / (noise**2 + posterior.log_deviation(of_run) ** 2)))


def layout_key(scenario: Scenario) -> tuple[object, ...]:
    """What distinguishes layouts of one model: number of GPUs, degrees, microbatches, ZeRO stage and recomputation."""
    return scenario.model, scenario.strategy.training_ranks, layout_of(scenario)


def _layouts(scenario: Scenario, most: int) -> Iterator[Scenario]:
    """Layouts that fit on powers of two GPUs, the most GPUs first."""
    yielded = 0
    sizes = [2**power for power in range(most.bit_length()) if 2**power <= most]
    for gpus in dict.fromkeys((most, *reversed(sizes))):
        for one in _fastest(scenario, gpus):
            if yielded < _MOST:
                yielded += 1
                yield one


def _fastest(scenario: Scenario, gpus: int) -> Iterator[Scenario]:
    """The fastest layouts that fit, of different degrees, and those that are the most similar to the scenario's."""
    nodes = -(-gpus // scenario.cluster.node.devices)
    try:
        larger = scenario.model_copy(update={"cluster": scenario.cluster.with_nodes(nodes)})
        parts = [every(one) for one in spaces(larger, gpus)]
    except InputError:
        # the model or the framework has no hybrid layout on these GPUs
        return
    found = Candidates(tuple(parts))
    if not len(found):
        return
    most_bytes = most_fitting_bytes(scenario.cluster.device.capacity_bytes, memory_error(scenario))
    rows = np.flatnonzero(found.memory_bytes() <= most_bytes)
    by_time = rows[np.argsort(found.times(rows).expected_s, kind="stable")]
    # what limits the fastest layouts may not be what limits the target
    similar = by_time[np.argsort(_distance(parts, scenario)[by_time], kind="stable")]
    chosen = [row for some in (by_time, similar) for row in found.first_of_degrees(some)[:_MOST_OF_SIZE]]
    for row in dict.fromkeys(chosen):
        try:
            yield found.scenario(row)
        except InputError:
            continue


def _distance(parts: Sequence[Configurations], scenario: Scenario) -> Amounts:
    """Octaves between the degrees and microbatches of configurations and those of a scenario, shape (configurations,)."""
    strategy = scenario.strategy
    own = {
        "tensor": strategy.plan.tensor,
        "stages": strategy.stages,
        "samples": scenario.samples_per_worker // strategy.microbatches,
        "chunks": getattr(strategy, "chunks", 1),
    }
    octaves = [np.log2(np.concatenate([getattr(part, name) for part in parts]) / value) for name, value in own.items()]
    return np.asarray(np.abs(octaves).sum(axis=0))
