"""What is trained at full size can be trained and is forecast to fit, though no GPU is here to try."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.read import load_model
from scaleproof.validator.calibration.gpu_check import sizes, training
from scaleproof.validator.calibration.gpu_check.cluster import ProbeResults, describe
from scaleproof.validator.calibration.gpu_check.families import ALONE, RANKS, SAMPLES, families
from scaleproof.validator.calibration.gpu_check.probing import model_of
from scaleproof.validator.calibration.gpu_check.training import PredictionErrors
from scaleproof.validator.calibration.gpus import shipped
from scaleproof.validator.launch.preflight.checks import check_trainable
from tests.validator.calibration.gpu_check.test_cluster import facts


def h200(devices: int) -> Cluster:
    described = describe(ProbeResults(facts(), devices), "")
    described["node"]["link"] = {"bandwidth": "450 GB/s", "latency": "5 us"}
    return Cluster.model_validate(described)


@pytest.mark.parametrize("training_", sizes.FULL.trainings, ids=lambda t: t.name)
def test_what_one_device_trains_fits_and_can_be_measured(training_: sizes.Training) -> None:
    scenario = training._scenario(training_.name, training_, training_.batch, h200(1), ALONE, sizes.FULL.steps)
    check_trainable(scenario)
    run = predict(scenario)
    assert run.fits
    assert run.step_time_s * (sizes.FULL.steps + 3) < 20.0


@pytest.mark.parametrize("devices", [2, 3, 4, 6, 8])
def test_families_over_any_number_of_devices_can_be_measured_and_forecast(devices: int) -> None:
    cluster = h200(max(4, devices))
    for name, fields in families((2, 4, devices)).items():
        scenario = training._scenario(name, sizes.FULL.replicated, SAMPLES, cluster, fields, sizes.FULL.steps)
        check_trainable(scenario)
        assert name.endswith(f"-{scenario.strategy.ranks}")
        assert predict(scenario).step_time_s > 0


def test_every_family_is_there_whether_devices_are_shared_or_not() -> None:
    every = {"ddp", "ring", "fp16", "local-sgd", "servers", "asynchronous", "fsdp", "pipeline", "tensor", "hybrid"}
    assert {name.rpartition("-")[0] for name in families(RANKS)} == every


@pytest.mark.parametrize("plan", [sizes.FULL, sizes.DRY])
def test_layers_are_timed_of_models_that_exist(plan: sizes.Sizes) -> None:
    for fields, _, samples in plan.layers:
        assert model_of(fields).build_layers()
        assert len(samples) >= 2, "a line needs two points"


def test_the_gpts_are_as_large_as_their_names_say() -> None:
    of: Mapping[str, Any] = {"gpt-124m": sizes.GPT_124M, "gpt-774m": sizes.GPT_774M}
    untied = {name: model_of(fields).parameters() / 1e6 for name, fields in of.items()}
    # the papers' count a head that shares the embedding's weights once
    assert untied["gpt-124m"] - 50304 * 768 / 1e6 == pytest.approx(124, rel=0.01)
    assert untied["gpt-774m"] - 50304 * 1280 / 1e6 == pytest.approx(774, rel=0.01)
    assert load_model("gpt2-small").parameters() == pytest.approx(124e6, rel=0.01)


def test_samples_of_other_steps_do_not_count_as_a_steps_memory() -> None:
    [resnet] = [t for t in sizes.FULL.trainings if t.name == "resnet50-fp32-64"]
    scenario = training._scenario(resnet.name, resnet, 64, h200(1), ALONE, 10)
    assert training._ahead_bytes(scenario) == (10 + scenario.training.warmup_steps - 1) * 64 * (3 * 224 * 224 * 4 + 8)


def test_forecasts_say_how_far_off_they_are() -> None:
    text = str(PredictionErrors(0.1, 0.11, 0.15, 2**30, 2**30))
    assert text == "measured 100 ms, predicted 110 ms (+10.0%), uncalibrated 150 ms (+50.0%); memory 1.00 GiB, predicted +0.0%"
    assert "uncalibrated" not in str(PredictionErrors(0.1, 0.11, None, 2**30, None))


def test_devices_ship_with_forecasts_of_their_own() -> None:
    assert shipped("NVIDIA H200") is not None
    assert shipped("Unheard Of") is None
