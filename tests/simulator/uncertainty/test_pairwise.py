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
from scaleproof.simulator.uncertainty.pairwise import (
    RatioInterval,
    common,
    is_tie,
    joint_errors,
    of_log_ratios,
    order_words,
    ratio_interval,
)
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


@pytest.mark.parametrize(
    ("ahead", "words"),
    [
        (0.5, "A and B are a tie"),
        (0.6, "A and B are a tie: B is faster with a probability of 60 %"),
        (0.4, "A and B are a tie: A is faster with a probability of 60 %"),
        (0.87, "B is faster than A with a probability of 87 %"),
        (0.04, "A is faster than B with a probability of 96 %"),
        (1.0, "B is faster than A with a probability of over 98 %"),
    ],
)
def test_the_text_names_the_faster_scenario_and_its_probability(ahead: float, words: str) -> None:
    assert RatioInterval(0.9, 1.2, ahead).words() == words


def test_a_large_lead_that_is_likely_is_no_tie() -> None:
    """6,253 and 4,189 images/s differ by half; 13 % that the order is the other one does not make them equal."""
    assert order_words(("ring", "servers"), 0.87, lead=0.49) == (
        "ring is faster than servers with a probability of 87 % (predicted lead 49 %)"
    )
    assert order_words(("H100", "B200"), 0.97, "is cheaper", lead=3.4) == (
        "H100 is cheaper than B200 with a probability of 97 % (predicted factor 4.4)"
    )


@given(ahead=st.floats(0, 1))
def test_exchanged_scenarios_are_a_tie_just_as_well(ahead: float) -> None:
    assert is_tie(ahead) == is_tie(1 - ahead)
    assert not is_tie(ahead) or not RatioInterval(0.9, 1.1, ahead).is_distinguishable
