"""Whether two scenarios are distinguishable: shared errors cancel, others add up."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.cluster.quantities import QUANTITIES
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.uncertainty.pairwise import RatioInterval, of_log_ratios, ratio_interval
from scaleproof.simulator.uncertainty.priors import common, joint_errors
from tests.simulator.programs import ONLY_COMPUTE

Make = Callable[..., Scenario]
SERVERS = "strategy={kind: parameter_server, workers: 4, servers: 2}"


def test_a_scenario_is_indistinguishable_from_itself(small: Make) -> None:
    result = ratio_interval(small(), small(), 1.0)
    assert (result.low, result.high, result.ahead) == (pytest.approx(1), pytest.approx(1), 0.5)
    assert not result.is_distinguishable


def test_only_equal_cluster_quantities_have_common_errors(small: Make) -> None:
    a, b = small(), small("cluster.network.bandwidth=20 Gbit/s")
    assert common("network.bandwidth", a, b) == 0
    assert common("network.latency", a, b) == 1
    assert common("device", a, b) == 1
    assert common("device", a, small("cluster.device.memory_bandwidth=50 GB/s")) == 0
    assert common("device", a, small("cluster.device.memory=1 GiB")) == 1
    assert common("network.latency", a, small("cluster.uncertainty={network.latency: {low: 19us, high: 21us}}")) == 0


def test_model_error_is_common_for_equal_training_and_partly_for_equal_kinds(small: Make) -> None:
    assert common("model", small(), small("cluster.network.bandwidth=20 Gbit/s")) == 1
    assert 0 < common("model", small(), small("strategy.bucket=1 MiB")) < 1
    assert common("model", small(), small(SERVERS)) <= common("model", small(), small("strategy.bucket=1 MiB"))
    calibrated = "cluster.uncertainty={model: {low: 90%, high: 110%}}"
    assert common("model", small(), small(calibrated)) == 0, "of another family"
    assert common("model", small(calibrated), small(calibrated, "strategy.bucket=1 MiB")) == 0.5
    assert common("model", small(calibrated), small(calibrated, SERVERS)) == 0
    assert common("model", small(calibrated), small(calibrated, "model.layers=7")) == 0


def test_errors_of_two_scenarios_are_standard_and_correlate_by_what_they_have_in_common(small: Make) -> None:
    a, b = small(), small("strategy.bucket=1 MiB")
    names = ("device", "model")
    first, second = joint_errors(a, b, (names, names))
    for weights in (first, second):
        assert weights @ weights.T == pytest.approx(np.eye(2))
    assert np.diag(first @ second.T) == pytest.approx([common(name, a, b) for name in names])


def test_compute_bound_speedup_on_one_device_has_no_device_error(small: Make) -> None:
    """The device's error moves both equally; a device of twice the peak is another one, whose error is its own."""
    a = small(*ONLY_COMPUTE)
    same = ratio_interval(a, small(*ONLY_COMPUTE, "batch=96"), 1.0)
    assert math.log(same.high / same.low) < 1e-3
    other = ratio_interval(a, small(*ONLY_COMPUTE, "cluster.device.peak={fp32: 1.1 TFLOP/s}"), 1.1)
    width = 2 * NormalDist().inv_cdf(0.95) * math.hypot(*[QUANTITIES["device"].prior] * 2)
    assert math.log(other.high / other.low) == pytest.approx(width, rel=0.05)
    assert other.ahead == pytest.approx(NormalDist().cdf(math.log(1.1) / math.hypot(0.1, 0.1)), abs=0.03)
    assert not other.is_distinguishable


def test_model_errors_of_different_strategies_are_independent_on_calibrated_clusters(small: Make) -> None:
    calibrated = "cluster.uncertainty={device: {low: 100%, high: 100%}, model: {low: 90%, high: 111.111%}}"
    result = ratio_interval(small(*ONLY_COMPUTE, calibrated), small(*ONLY_COMPUTE, SERVERS, calibrated), 1.0)
    width = 2 * math.hypot(*[math.log(1 / 0.9)] * 2)
    assert math.log(result.high / result.low) == pytest.approx(width, rel=0.05)


@given(mean=st.floats(-0.3, 0.3), deviation=st.floats(0.01, 0.3))
def test_the_probability_follows_a_lognormal_distribution(mean: float, deviation: float) -> None:
    drawn = mean + deviation * np.array([NormalDist().inv_cdf((i + 0.5) / 64) for i in range(64)])
    result = of_log_ratios(drawn)
    assert result.ahead == pytest.approx(NormalDist(mean, deviation).cdf(0.0) * -1 + 1, abs=0.01)
    assert math.log(result.low) == pytest.approx(mean - 1.645 * deviation, abs=0.02 * deviation)
    assert 1 - result.ahead == pytest.approx(of_log_ratios(-drawn).ahead, abs=1e-9)


def test_the_text_names_the_faster_scenario_or_reports_no_difference() -> None:
    assert RatioInterval(0.9, 1.2, 0.6).words() == "the two cannot be distinguished: B is faster with a probability of 60 %"
    assert RatioInterval(1.1, 1.2, 1.0).words() == "B is faster with a probability of over 98 %"
    assert RatioInterval(0.8, 0.99, 0.04).words() == "A is faster with a probability of 96 %"
    assert RatioInterval(0.8, 0.99, 0.04).words("cheaper") == "A is cheaper with a probability of 96 %"
