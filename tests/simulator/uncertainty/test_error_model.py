"""The error model of predictions: which family a prediction is of, its interval, and what the shipped fits must satisfy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import get_args

import numpy as np
import pytest

from scaleproof.simulator.cluster.quantities import QUANTITIES
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.uncertainty.error_model import (
    ALL,
    EXPOSED,
    MODEL,
    RAW,
    ErrorCase,
    Family,
    Fit,
    LogNormalError,
    Slope,
    case_of_scenario,
    learned_factor,
    log_exposed,
    memory_error,
    shipped,
    similarity,
)

Make = Callable[..., Scenario]

FIT = Fit(0.1, {ALL: (1.0, 2.0), "large": (3.0, 4.0)}, {EXPOSED: Slope(2.0, 0.0, 0.5)})
MEASURED = "training.measured_step={samples: 12, time: 10 ms}"
STATED = "cluster.uncertainty={model: {low: 90%, high: 110%}}"


@pytest.fixture(scope="module")
def llama() -> Scenario:
    return load("llama-2-7b-fsdp-a100")


def test_a_group_without_ends_of_its_own_has_those_of_all() -> None:
    assert FIT.log_ends("small", {}) == (-0.1, 0.2)
    low, high = FIT.log_ends("large", {})
    assert (float(low), float(high)) == pytest.approx((-0.3, 0.4))


def test_covariates_count_within_the_range_that_was_fitted() -> None:
    scales = [float(FIT.scale({EXPOSED: exposed})) for exposed in (-1.0, 0.0, 0.25, 0.5, 1.0)]
    assert scales == pytest.approx([0.1, 0.1, 0.1 * math.exp(0.5), 0.1 * math.exp(1), 0.1 * math.exp(1)])
    low, high = FIT.log_ends(ALL, {EXPOSED: np.array([0.0, 0.5])})
    assert low.shape == high.shape == (2,)


def test_families_follow_from_what_a_scenario_measured(small: Make) -> None:
    assert case_of_scenario(small()).family == "training"
    assert case_of_scenario(small()).group == "default framework"
    assert case_of_scenario(small("framework=ideal")).group == "named framework"
    assert case_of_scenario(small(MEASURED)).family == "scaling"
    for calibrated in (small(STATED), small("compute=paced")):
        assert case_of_scenario(calibrated).family is None
    described = small("framework=gloo-cpu", "cluster.node.cores=8")
    assert case_of_scenario(described).family == "training", "processors that nobody measured are not calibrated"


def test_recorded_models_are_less_certain_on_more_ranks_of_a_node_and_in_16_bits() -> None:
    def width(*changes: str) -> float:
        scenario = load("timm:resnet50", ["cluster=dgx1-v100", "batch=64", *changes])
        case = case_of_scenario(scenario)
        assert case.family == "vision"
        low, high = case.log_ends(scenario.cluster, shipped())
        return float(high - low)

    single, half = "training.precision=fp32", "training.precision=fp16"
    one, eight = "strategy.workers=1", "strategy.workers=8"
    assert width(one, single) < width(one, half) < width(eight, half)
    assert width(one, single) < width(eight, single)


def test_calibrated_clusters_keep_the_prior_or_their_own_interval(small: Make) -> None:
    prior = QUANTITIES[MODEL].prior * 1.6449
    ends = ErrorCase(None).log_ends(small().cluster, shipped())
    assert ends == pytest.approx((-prior, prior))
    stated = small(STATED)
    assert case_of_scenario(stated).log_ends(stated.cluster, shipped()) == pytest.approx((math.log(0.9), math.log(1.1)))


def test_small_errors_of_small_runs_count_less_on_more_nodes(small: Make) -> None:
    taught = small().cluster.model_copy(update={"model_error": 0.6, "model_error_nodes": 2})
    factors = [learned_factor(taught, nodes) for nodes in (1, 2, 4, 64)]
    assert factors[:2] == [0.6, 0.6]
    assert factors == sorted(factors)
    assert factors[2] == pytest.approx(math.sqrt((0.6**2 + 1) / 2))
    assert factors[3] == pytest.approx(1, abs=0.02)
    worse = taught.model_copy(update={"model_error": 1.5})
    assert learned_factor(worse, 64) == 1.5, "errors do not become smaller with size"
    assert learned_factor(small().cluster, 64) == 1


def test_raw_intervals_come_from_the_priors_alone(small: Make) -> None:
    raw, fitted = (predict(small(), errors=errors) for errors in (RAW, None))
    assert raw.step_time_s == fitted.step_time_s, "the error model leaves the prediction as it is"
    assert raw.prediction_interval_s != fitted.prediction_interval_s
    assert raw.memory_interval_bytes is None
    assert case_of_scenario(small()).log_ends(small().cluster, RAW)[1] == pytest.approx(QUANTITIES[MODEL].prior * 1.6449)


@pytest.mark.parametrize("family", get_args(Family))
def test_shipped_fits_have_a_floor_and_exist_without_each_source(family: Family) -> None:
    errors = shipped()
    for one in (errors, *errors.without.values()):
        for group in one.families[family].ends:
            low, high = one.families[family].log_ends(group, {})
            assert low <= -0.0199
            assert high >= 0.0199
    assert any(part.families[family] != errors.families[family] for part in errors.without.values())
    assert errors.left_out("no such source") is errors


def test_shipped_intervals_do_not_narrow_with_the_share_of_exposed_communication() -> None:
    fit = shipped().families["training"]
    widths = [
        np.subtract(*fit.log_ends("named framework", {EXPOSED: log_exposed(share)})[::-1]) for share in (0.0, 0.1, 0.3, 1.0)
    ]
    assert widths == sorted(widths)
    assert log_exposed(0.0) == 0
    assert log_exposed(2.0) == log_exposed(1.0), "a share is at most the whole"


def test_predictions_that_differ_less_have_more_of_their_error_in_common(small: Make) -> None:
    tensor = small("strategy={kind: hybrid, workers: 2, tensor: 2}")
    names = [similarity(small(), other) for other in (small("batch=96"), tensor, small("model.layers=7"))]
    assert names == ["same degrees", "other degrees", "other model"]
    shared = shipped().pairs.shared
    assert 0 < shared["same degrees"] < 1
    assert shared["same degrees"] >= shared["other degrees"]
    assert 0 <= shipped().pairs.reversed_share < 0.1


def test_the_probability_that_memory_suffices_follows_from_its_interval(llama: Scenario) -> None:
    error = LogNormalError(-0.1, 0.1)
    assert error.interval(10.0) == pytest.approx((10 * math.exp(-0.1), 10 * math.exp(0.1)))
    assert error.below(1.0) == pytest.approx(0.5)
    assert error.below(math.exp(0.1)) == pytest.approx(0.95, abs=1e-4)
    known = memory_error(llama)
    assert known is not None
    run = predict(llama, interval=False)
    assert run.memory_interval_bytes == known.interval(run.memory_bytes_per_rank or 0.0)
    assert run.fits_probability == pytest.approx(1.0, abs=0.01)
