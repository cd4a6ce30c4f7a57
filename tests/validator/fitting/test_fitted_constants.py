"""The posterior of constants: what runs teach, how sure it is, and what single runs far off do."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scaleproof.simulator.cluster.quantities import DEVIATIONS
from scaleproof.simulator.memory import memory
from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.read import load_cluster
from scaleproof.validator.calibration.imports.reading import ImportNotes
from scaleproof.validator.fitting.constants import CONSTANTS, constant_named, priors
from scaleproof.validator.fitting.fitted_constants import Posterior, fitted, log_times, predictive_factor
from scaleproof.validator.fitting.observations import observed
from scaleproof.validator.fitting.observed_run import ObservedRun
from tests.validator.fitting.tables import LAYOUTS, REFERENCE, step_s, table

TRUTH = {"kernel_scale": 1.2, "host_scale": 0.7}


def runs_of(path: Path, truth: dict[str, float]) -> tuple[ObservedRun, ...]:
    return observed([table(path / "runs.csv", truth)], REFERENCE, [], ImportNotes())


def value(posterior: Posterior, name: str) -> tuple[float, float, float]:
    """A constant of the reference scenario and its 90 % interval."""
    names = [one.name for one in posterior.constants]
    index, own = names.index(name), constant_named(name).value(load(REFERENCE))
    assert own is not None
    return constant_named(name).prior.at(own, float(posterior.offsets[index])), *posterior.interval(index, own)


def test_every_constant_has_a_prior_with_a_reason() -> None:
    assert set(priors().constants) == {one.name for one in CONSTANTS}
    for prior in priors().constants.values():
        assert (prior.factor > 0) != (prior.add_s > 0)
        assert prior.reason


@pytest.mark.parametrize(("cluster", "deviation"), [("dgx-h100", 0.10), ("gb300-nvl72", 0.15), ("netlab-200mbit", 0.20)])
def test_kernels_are_as_uncertain_as_the_device(cluster: str, deviation: float) -> None:
    clusters = [load(REFERENCE, ["cluster=dgx-h100"]).cluster, load_cluster(cluster)]
    constant = constant_named("kernel_scale").on(clusters)
    assert constant.prior.factor == pytest.approx(deviation)
    assert pickle.loads(pickle.dumps(constant)) == constant
    assert constant_named("network.bandwidth").on(clusters).prior.factor == 0.30, "wider than the cluster's own"
    assert constant_named("host_scale").on(clusters) is constant_named("host_scale")


@pytest.mark.parametrize("count", [0, 1, 5, 50])
def test_intervals_after_residuals_contain_nine_in_ten_errors(count: int) -> None:
    """Systems differ in the size of their errors, by as much as `noise_runs` residuals would leave open."""
    random, runs = np.random.default_rng(count), priors().noise_runs
    # before any residual the 90 % interval ends at 1.6449
    unit = DEVIATIONS / 2.1318
    scales = unit * np.sqrt(runs / random.chisquare(runs, 20_000))
    residuals = random.normal(size=(len(scales), count)) * scales[:, None]
    ends = np.array([DEVIATIONS * predictive_factor(own, count) for own in residuals[:4000]])
    unseen = np.abs(random.normal(size=len(ends))) * scales[: len(ends)]
    assert (unseen < ends).mean() == pytest.approx(0.9, abs=0.015)


def test_residuals_that_constants_took_up_do_not_narrow_intervals() -> None:
    assert predictive_factor(np.zeros(0), 0.0) == pytest.approx(1, abs=1e-3)
    assert predictive_factor(np.zeros(3), 0.5) > predictive_factor(np.zeros(3), 3.0)
    assert predictive_factor(np.ones(400), 400.0) == pytest.approx(1, abs=0.02)


@pytest.mark.full
def test_runs_teach_the_constants_that_they_depend_on(tmp_path: Path) -> None:
    posterior = fitted(runs_of(tmp_path, TRUTH))
    for name, true in TRUTH.items():
        _, low, high = value(posterior, name)
        assert low < true < high
    kernels, low, high = value(posterior, "kernel_scale")
    # between the prior and what the runs say
    assert 1.1 < kernels < 1.2
    assert high / low < 1.25 < 1.38, "narrower than the prior"


@pytest.mark.full
def test_predictions_of_the_runs_become_right(tmp_path: Path) -> None:
    runs = runs_of(tmp_path, TRUTH)
    posterior = fitted(runs)
    scenarios, measured = [run.scenario for run in runs], np.log([run.step_time_s for run in runs])
    before, after = (
        np.abs(log_times(scenarios, posterior.constants, offsets) - measured).max()
        for offsets in (0 * posterior.offsets, posterior.offsets)
    )
    assert after < 0.4 * before


def test_perfect_predictions_change_nothing(tmp_path: Path) -> None:
    posterior = fitted(runs_of(tmp_path, {}))
    assert np.abs(posterior.offsets).max() < 0.02
    assert posterior.noise < priors().noise
    assert posterior.model_error < 1


@pytest.mark.full
def test_one_run_is_enough_and_teaches_less_than_five(tmp_path: Path) -> None:
    runs = runs_of(tmp_path, TRUTH)
    one, five = fitted(runs[:1]), fitted(runs)
    names = [constant.name for constant in one.constants]
    index = names.index("kernel_scale")
    assert one.has_moved(index)
    assert five.deviations[index] < one.deviations[index] < 1
    assert not one.has_moved(names.index("network.bandwidth")), "the run stays inside a node"


@pytest.mark.full
def test_a_run_that_is_far_off_hardly_moves_the_others(tmp_path: Path) -> None:
    runs = runs_of(tmp_path, {})
    sick = (*runs[:-1], replace(runs[-1], step_time_s=4 * runs[-1].step_time_s))
    posterior = fitted(sick)
    assert np.abs(posterior.offsets).max() < 0.7
    assert posterior.noise > 4 * priors().noise, "the error that remains says that predictions are uncertain"


def test_times_do_not_fall_below_zero() -> None:
    scenario = load(REFERENCE)
    assert constant_named("host.microbatch").prior.at(0.0, -3.0) == 0.0
    faster = ObservedRun("run", scenario, 0.5 * step_s(LAYOUTS[0], {}))
    assert (fitted([faster]).applied(scenario).framework.host.microbatch_s) == 0.0


def test_memory_teaches_its_factor_alone() -> None:
    scenario = load(REFERENCE)
    predicted_bytes = max(rank.allocated_bytes for rank in memory(scenario).ranks)
    run = ObservedRun("run", scenario, step_s(LAYOUTS[0], {}))
    runs = [replace(run, step_time_s=timed(scenario).step_time_s, memory_bytes=1.2 * predicted_bytes)] * 3
    posterior = fitted(runs)
    factor, low, high = value(posterior, "memory.scale")
    assert 1.1 < factor < 1.2
    assert low < 1.2 < high
    applied = posterior.applied(scenario)
    assert max(rank.allocated_bytes for rank in memory(applied).ranks) == pytest.approx(factor * predicted_bytes)
    assert timed(applied).step_time_s == pytest.approx(timed(scenario).step_time_s, rel=0.01)
    assert "memory.scale" not in [one.name for one in fitted([replace(runs[0], memory_bytes=None)]).constants]
