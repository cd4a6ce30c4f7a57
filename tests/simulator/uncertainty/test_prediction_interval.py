"""How far predictions may be off: against closed forms, against predictions on slower clusters, and what must hold of all."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from scaleproof.simulator.cluster.quantities import DEVIATIONS, QUANTITIES, slowed
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.uncertainty.draws import drawn, interval, normal_draws
from scaleproof.simulator.uncertainty.error_model import RAW, ErrorCase
from scaleproof.simulator.uncertainty.linear_response import linear_response, of_closed_form
from scaleproof.simulator.uncertainty.prediction_interval import DRAWS, PredictionInterval, of_response, spread
from scaleproof.simulator.uncertainty.priors import Priors
from scaleproof.simulator.uncertainty.response import response_of_scenario
from tests.simulator.clusters import plain
from tests.simulator.programs import ONLY_COMPUTE

Make = Callable[..., Scenario]

# the links' latencies and bandwidths, and what computes
NAMES = ("device", "node.link.bandwidth", "node.link.latency", "network.bandwidth", "network.latency")
STATIC = (
    "strategy={kind: data_parallel, workers: 8}",
    "strategy={kind: data_parallel, workers: 8, overlap: false}",
    "strategy={kind: pipeline, stages: 6, microbatches: 6}",
    "strategy={kind: hybrid, workers: 2, stages: 2, tensor: 4, sequence_parallel: true, microbatches: 4}",
    "strategy={kind: parameter_server, workers: 4, servers: 2}",
)
ASYNCHRONOUS = "strategy={kind: parameter_server, workers: 4, servers: 2, mode: asynchronous}"


def exactly(**intervals: str) -> str:
    """Intervals of the small cluster's shares, such as `model='95 % 105 %'`; those not named are exact."""
    as_given = {
        "device": "100 % 100 %", "model": "100 % 100 %",
        "network.bandwidth": "10Gbit/s 10Gbit/s", "network.latency": "20us 20us",
        "node.link.bandwidth": "10GB/s 10GB/s", "node.link.latency": "5us 5us",
    } | intervals  # fmt: skip
    parts = (f"{name}: {{low: {low}, high: {high}}}" for name, (low, high) in ((n, _two(t)) for n, t in as_given.items()))
    return f"cluster.uncertainty={{{', '.join(parts)}}}"


def _two(text: str) -> tuple[str, str]:
    low, _, high = text.replace(" %", "%").partition(" ")
    return low, high


def of_draws(step_times: Callable[[NDArray[np.float64]], NDArray[np.float64]], priors: Priors) -> PredictionInterval:
    """The interval of 4,000 draws of slowdown factors."""
    logs, _ = drawn(lambda normal: np.log(step_times(priors.factors(normal))), len(priors.names), 4000)
    return PredictionInterval(*np.exp(interval(logs)).tolist(), {})


def log_width(found: PredictionInterval) -> float:
    return math.log(found.high / found.low)


@pytest.mark.parametrize("strategy", [*STATIC, ASYNCHRONOUS])
def test_without_uncertainty_the_interval_has_no_width(small: Make, strategy: str) -> None:
    found = spread(small(strategy, exactly()))
    assert (found.low, found.high, found.shares) == (1, 1, {})


def test_only_device_and_model_matter_in_compute_bound_steps(small: Make) -> None:
    """Two independent lognormal factors: the deviations of their logarithms add up in squares."""
    found = spread(small(*ONLY_COMPUTE), errors=RAW)
    device, model = (QUANTITIES[name].prior for name in ("device", "model"))
    assert found.shares["device"] == pytest.approx(device**2 / (device**2 + model**2), rel=0.01)
    assert found.shares["device"] + found.shares["model"] == pytest.approx(1, abs=1e-6)
    half = NormalDist().inv_cdf(0.95) * math.hypot(device, model)
    # draws are few, and a device that is slower by a tenth takes a tenth longer, not exp(a tenth)
    assert math.log(found.low) == pytest.approx(-half, rel=0.01)
    assert math.log(found.high) == pytest.approx(half, rel=0.01)


def test_an_interval_that_excludes_the_nominal_value_shifts_the_step_time(small: Make) -> None:
    found = spread(small(exactly(model="110 % 120 %")))
    assert (found.low, found.high) == pytest.approx((1.1, 1.2), rel=2e-3)


@pytest.mark.parametrize("strategy", STATIC)
def test_the_response_equals_predictions_on_slower_clusters(small: Make, strategy: str) -> None:
    """Within 1 %, all quantities slower or faster at once."""
    scenario = small(strategy)
    answer = response_of_scenario(scenario)
    random = np.random.default_rng(0)
    draws = {name: np.exp(0.1 * random.standard_normal(4)) for name in NAMES}
    found = answer.step_times(np.array([draws.get(name, np.ones(4)) for name in answer.priors.names]))
    first_s = predict(scenario, interval=False).step_time_s
    for draw, times in enumerate(found):
        cluster = slowed(scenario.cluster, {name: float(values[draw]) for name, values in draws.items()})
        again_s = predict(scenario.model_copy(update={"cluster": cluster}), interval=False).step_time_s
        assert first_s * times == pytest.approx(again_s, rel=0.01)


@pytest.mark.parametrize("network", ["10 Gbit/s", "1 Gbit/s"])
@pytest.mark.parametrize("strategy", STATIC)
def test_the_interval_is_that_of_many_replayed_draws(small: Make, strategy: str, network: str) -> None:
    """Within 2 % of the width, although most draws are not replayed."""
    response = response_of_scenario(small(strategy, f"cluster.network.bandwidth={network}"))
    expected, found = of_draws(response.step_times, response.priors), of_response(response)
    assert np.log(found[:2]) == pytest.approx(np.log(expected[:2]), abs=0.02 * log_width(expected))


@pytest.mark.parametrize("strategy", [STATIC[0], ASYNCHRONOUS])
def test_all_quantities_slower_by_a_tenth_take_a_tenth_longer(small: Make, strategy: str) -> None:
    """Nothing in these scenarios takes time but by one of them."""
    answer = response_of_scenario(small(strategy, "steps=20"))
    times = answer.step_times(np.array([[1.0 if name == "model" else 1.1] for name in answer.priors.names]))
    assert times[0] == pytest.approx(1.1, rel=0.02)


def test_emulated_runs_do_not_depend_on_the_device(small: Make) -> None:
    assert "device" in spread(small()).shares
    assert "device" not in spread(small("compute=paced")).shares


def test_jitter_does_not_widen_the_interval(small: Make) -> None:
    even, uneven = (spread(small(f"unevenness={{compute_jitter: {jitter}}}")) for jitter in (0, 0.1))
    assert uneven.low == pytest.approx(even.low)
    assert uneven.high == pytest.approx(even.high)


def test_the_interval_of_a_maximum_follows_its_distribution() -> None:
    """The larger of two equal lognormals is below t with the square of the probability that one is."""
    cluster = plain(network={}, uncertainty={name: {"low": "80 %", "high": "125 %"} for name in ("device", "model")})
    found = of_draws(lambda factors: factors.max(axis=0), Priors.of(("device", "model"), cluster))
    deviation = math.log(1.25) / NormalDist().inv_cdf(0.95)
    for probability, bound in ((0.05, found.low), (0.95, found.high)):
        expected = NormalDist(sigma=deviation).inv_cdf(math.sqrt(probability))
        assert math.log(bound) == pytest.approx(expected, abs=0.02)


@given(count=st.integers(8, 100), along=st.lists(st.floats(-1, 1), min_size=1, max_size=6))
def test_draws_are_evenly_spaced_along_the_gradient(count: int, along: list[float]) -> None:
    direction = np.array(along)
    length = float(np.linalg.norm(direction))
    draws = normal_draws(count, direction)
    assert draws.shape == (len(along), count)
    if length > 1e-3:
        midpoints = [NormalDist().inv_cdf((part + 0.5) / count) for part in range(count)]
        assert np.sort(direction @ draws / length) == pytest.approx(midpoints, abs=1e-6)


def test_draws_are_standard_normal_and_independent() -> None:
    draws = normal_draws(256, np.array([1.0, 2.0, -1.0, 0.5]))
    assert draws.mean(axis=1) == pytest.approx(np.zeros(4), abs=1e-9)
    assert np.cov(draws) == pytest.approx(np.eye(4), abs=0.01)
    assert np.cov(draws**2) == pytest.approx(2 * np.eye(4), abs=0.4)


@example(shares=[0.21875, 0.03125, 0.1171875])
@given(shares=st.lists(st.floats(0.01, 0.3), min_size=3, max_size=3))
def test_a_linear_response_has_the_interval_of_its_draws(shares: list[float]) -> None:
    """Within 3 % of the width; the model error scales the whole step."""
    cluster, names = plain(2, 2), ("device", "network.bandwidth", "network.latency")

    def times(factors: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray((1 + np.array(shares) @ (factors[1:] - 1)) * factors[0])

    def slower_s(slowdowns: dict[str, float]) -> NDArray[np.float64]:
        return times(np.array([[slowdowns.get(name, 1.0)] for name in ("model", *names)]))

    found = of_draws(times, Priors.of(("model", *names), cluster))
    linear = linear_response(np.ones(1), slower_s, names, cluster, ErrorCase(None))
    assert np.log(linear.interval(0)) == pytest.approx(np.log(found[:2]), abs=0.03 * log_width(found))


@given(limit=st.floats(1.15, 1.3))
def test_ends_of_bent_step_times_follow_the_longest_path(limit: float) -> None:
    """Computation beyond a limit is no longer hidden behind communication, which has a slope of a fifth before."""
    cluster = plain(2, 2, uncertainty={"device": {"low": "60 %", "high": "170 %"}})

    def times(factors: NDArray[np.float64]) -> NDArray[np.float64]:
        hidden = 1 + 0.2 * (factors[1] - 1)
        return np.asarray(np.maximum(hidden, hidden + 0.8 * (factors[1] - limit)) * factors[0])

    def slower_s(slowdowns: dict[str, float]) -> NDArray[np.float64]:
        return times(np.array([[slowdowns.get(name, 1.0)] for name in ("model", "device")]))

    found = of_draws(times, Priors.of(("model", "device"), cluster))
    response = linear_response(np.ones(1), slower_s, ("device",), cluster, ErrorCase(None))
    assert response.interval(0)[1] < 0.95 * found.high
    assert response.bent_intervals(times)[:, 0].tolist() == pytest.approx([found.low, found.high], rel=0.02)


def test_intervals_of_a_closed_form_follow_its_quantities() -> None:
    cluster = plain(2, 2, uncertainty={"model": {"low": "100 %", "high": "100 %"}})
    assert cluster.network is not None
    found = of_closed_form(lambda on: 1e9 / on.network.bandwidth_Bps if on.network else 0.0, cluster, ErrorCase(None))
    half = QUANTITIES["network.bandwidth"].prior * NormalDist().inv_cdf(0.95)
    assert (found.low, found.high) == pytest.approx((math.exp(-half), math.exp(half)), rel=1e-3)


@given(st.floats(0.0, 0.5), st.floats(0.01, 0.5))
def test_draws_widen_an_interval_as_an_independent_source(own: float, deviation: float) -> None:
    reach = DEVIATIONS
    before = PredictionInterval(math.exp(-reach * own), math.exp(reach * own), {"device": 1.0} if own else {})
    after = before.with_draws(deviation)
    assert math.log(after.high) == pytest.approx(reach * math.hypot(own, deviation))
    assert math.log(after.low) == pytest.approx(-math.log(after.high))
    assert after.shares[DRAWS] == pytest.approx(deviation**2 / (deviation**2 + own**2))
    assert sum(after.shares.values()) == pytest.approx(1)


def test_short_runs_of_asynchronous_workers_vary_from_draw_to_draw(small: Make) -> None:
    """A long run, and one of synchronous workers, are what they are in every draw."""
    servers = "strategy={{kind: parameter_server, workers: 4, servers: 2, mode: {}}}"
    short = predict(small(servers.format("asynchronous"), "batch=64", "steps=12"))
    assert short.spread[DRAWS] > 0.01
    for steady in ((servers.format("asynchronous"), "batch=64"), (servers.format("synchronous"), "batch=64", "steps=12")):
        assert DRAWS not in predict(small(*steady)).spread
