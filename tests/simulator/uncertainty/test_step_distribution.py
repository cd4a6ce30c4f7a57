"""The distribution of single steps: its sources, its median and mean, and its distance to measured steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
import pytest

from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.step_times import StepDistribution
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.uncertainty.response import response_of_scenario
from scaleproof.simulator.uncertainty.step_distribution import (
    DRIFT,
    JITTER,
    NETWORK,
    PERTURBATIONS,
    PROBABILITIES,
    Source,
    distribution_of,
    slowest_normal,
    sources,
)
from tests.simulator.programs import ONLY_COMPUTE

Make = Callable[..., Scenario]
# data parallel over two nodes
NODES = "strategy.workers=8"
VARYING = "cluster.network.variability=0.2"


def of(scenario: Scenario) -> StepDistribution:
    found = predict(scenario).step_distribution
    assert found is not None
    return found


def normal(deviation: float) -> np.ndarray:
    return np.array([deviation * NormalDist().inv_cdf(place) for place in PROBABILITIES.tolist()])


@pytest.mark.parametrize("count", [2, 64, 4096])
def test_the_slowest_of_many_normal_ranks_grows_like_the_root_of_the_logarithm(count: int) -> None:
    quantiles = slowest_normal(count)
    drawn = np.random.default_rng(1).standard_normal((2000, count)).max(axis=1)
    assert quantiles.mean() == pytest.approx(drawn.mean(), abs=0.06)
    assert quantiles.mean() < math.sqrt(2 * math.log(count))
    assert np.all(np.diff(quantiles) > 0)


def test_independent_sources_add_their_variances_and_the_median_stays() -> None:
    found = distribution_of([Source("a", normal(0.03)), Source("b", normal(0.04))], 2.0)
    low_s, high_s = found.quantile_s(0.05), found.quantile_s(0.95)
    assert found.quantile_s(0.5) == pytest.approx(2.0, rel=1e-6)
    assert (high_s - low_s) / 2 == pytest.approx(2 * 1.645 * math.hypot(0.03, 0.04), rel=0.03)
    assert found.shares == pytest.approx({"b": 0.64, "a": 0.36}, rel=0.02)
    assert list(found.shares) == ["b", "a"]
    assert found.percentiles_s[-1] < found.longest_s


def test_the_longest_of_a_thousand_steps_is_its_median() -> None:
    found = distribution_of([Source("a", normal(0.05))], 1.0)
    assert found.longest_s == pytest.approx(math.exp(0.05 * NormalDist().inv_cdf(0.5 ** (1 / 1000))), rel=5e-3)


def test_a_share_of_the_step_varies_by_that_share() -> None:
    whole, half = (distribution_of([Source("a", normal(0.02), share)], 1.0) for share in (1.0, 0.5))
    assert half.spread == pytest.approx(whole.spread / 2, rel=1e-2)


def test_the_median_is_the_predicted_step_time_and_the_mean_above_it(small: Make) -> None:
    run = predict(small(NODES, VARYING))
    found = run.step_distribution
    assert found is not None
    assert found.quantile_s(0.5) == pytest.approx(run.step_time_s, rel=1e-6)
    assert found.mean_s > run.step_time_s
    assert run.step_quantiles_s == found.quantiles_s


def test_the_variability_of_the_network_matters_as_much_as_communication_is_exposed(small: Make) -> None:
    even, varying, hidden = (
        of(small(NODES, "cluster.network.variability=0")),
        of(small(NODES, VARYING)),
        of(small(NODES, *ONLY_COMPUTE, VARYING)),
    )
    assert NETWORK in varying.shares
    assert NETWORK not in even.shares
    assert hidden.spread < varying.spread
    assert even.spread < varying.spread


def test_jitter_and_tails_of_the_scenario_replace_and_add_to_the_defaults(small: Make) -> None:
    plain, jittery = of(small()), of(small("unevenness.compute_jitter=0.3", "steps=200"))
    assert {JITTER, DRIFT} <= plain.shares.keys()
    assert PERTURBATIONS not in plain.shares
    assert JITTER not in jittery.shares
    assert next(iter(jittery.shares)) == PERTURBATIONS
    assert jittery.spread > plain.spread


def test_where_the_step_time_is_a_mean_the_distribution_has_that_mean(small: Make) -> None:
    run = predict(small("unevenness={tail: {share: 0.05, slowdown: 3}}", "steps=200"))
    assert run.step_distribution is not None
    assert run.step_distribution.mean_s == pytest.approx(run.step_time_s, rel=1e-6)
    assert run.step_distribution.quantile_s(0.5) < run.step_time_s


def test_emulated_compute_does_not_jitter(small: Make) -> None:
    assert JITTER not in of(small("compute=paced")).shares


def test_the_distance_is_that_of_kolmogorov_and_smirnov() -> None:
    found = distribution_of([Source("a", normal(0.1))], 1.0)
    draws = np.exp(0.1 * np.random.default_rng(2).standard_normal(5000)).tolist()
    assert found.distance(draws) < 0.03
    assert found.distance([0.1, 0.2]) == 1.0
    assert found.distance([5.0, 6.0, 7.0]) == 1.0
    # all steps at the median: half of the predicted ones are shorter
    assert found.distance([1.0] * 10) == pytest.approx(0.5, abs=0.01)


def test_shapes_are_compared_without_the_speed() -> None:
    found = distribution_of([Source("a", normal(0.1))], 1.0)
    draws = (3 * np.exp(0.1 * np.random.default_rng(3).standard_normal(2000))).tolist()
    compared = found.compared(draws)
    assert compared is not None
    assert compared.distance == 1.0
    assert compared.distance_of_shapes < 0.05
    assert compared.measured_s["p50"] == pytest.approx(3.0, rel=0.02)
    assert found.compared([1.0]) is None


def test_a_slower_network_slows_what_nccl_moves_once() -> None:
    changes = ("cluster.network.variability=0.3", "strategy.overlap=false")
    scenario = load("llama-2-7b-fsdp-a100", changes)
    run = predict(scenario)
    [source] = [one for one in sources(scenario, run, response_of_scenario(scenario)) if one.name == NETWORK]
    slowdown = math.exp(float(np.quantile(source.log_slowdowns, 0.95)))
    assert scenario.cluster.nccl is not None
    assert scenario.cluster.network is not None
    bandwidth_Bps = scenario.cluster.network.bandwidth_Bps / slowdown
    slower = predict(load("llama-2-7b-fsdp-a100", (*changes, f"cluster.network.bandwidth={bandwidth_Bps} B/s")))
    assert 1 + source.share * (slowdown - 1) == pytest.approx(slower.step_time_s / run.step_time_s, rel=0.02)
