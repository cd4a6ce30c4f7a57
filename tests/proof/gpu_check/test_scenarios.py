"""What is trained at full size can be trained and is forecast to fit, though no GPU is here to try."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scaleproof.proof.gpu_check import comparison, scenarios
from scaleproof.proof.gpu_check.scenarios import RANKS, families
from scaleproof.simulator.cluster.device.device import Device
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.read import load_model
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.calibration import gpu_sizes
from scaleproof.validator.calibration.fit.gpu import machine
from scaleproof.validator.kernels.devices import shipped
from scaleproof.validator.preflight.checks import check_trainable
from scaleproof.validator.verify.verify import check_verifiable
from tests.validator.calibration.fit.test_gpu import facts
from tests.validator.verdicts import in_bulk

SINGLE = [training.name for training in scenarios.FULL.single]


def written(folder: Path, devices: int) -> dict[str, Scenario]:
    """The scenarios of a machine with H200s, in their order."""
    cluster = machine(facts(devices=devices), gpu_sizes.FULL)
    named = scenarios.first_models(scenarios.FULL, cluster)
    named |= scenarios.every_family(scenarios.FULL, devices, cluster) | scenarios.remaining(scenarios.FULL, devices, cluster)
    return {scenario.name: scenario for _, scenario in scenarios.write(named, folder)}


def test_what_one_device_trains_fits_and_can_be_measured(tmp_path: Path) -> None:
    found = written(tmp_path, 1)
    assert list(found) == SINGLE
    for scenario in found.values():
        check_trainable(scenario)
        run = predict(scenario)
        assert run.fits
        assert run.step_time_s * (scenarios.FULL.steps + 3) < 20.0


@pytest.mark.parametrize("devices", [3, *in_bulk(2, 5, 7, 16)])
def test_families_over_any_number_of_devices_can_be_measured_and_forecast(devices: int, tmp_path: Path) -> None:
    found = written(tmp_path, devices)
    replicated = [scenario for name, scenario in found.items() if name not in SINGLE]
    for scenario in replicated:
        check_trainable(scenario)
        assert scenario.name.endswith(("-alone", f"-{scenario.strategy.ranks}"))
        assert predict(scenario).fits
    # each rank has as many samples as the others
    assert max(scenario.strategy.ranks for scenario in replicated) == {5: 4, 7: 6, 16: 12}.get(devices, devices)


def test_ranks_that_share_devices_can_be_measured_and_verified(tmp_path: Path) -> None:
    for _, scenario in scenarios.write(scenarios.shared(scenarios.FULL, 1, ""), tmp_path):
        check_trainable(scenario)
        check_verifiable(scenario)


def test_every_family_is_there_whether_devices_are_shared_or_not() -> None:
    every = {"ddp", "ring", "fp16", "local-sgd", "servers", "asynchronous", "fsdp", "pipeline", "interleaved", "tensor"}
    every |= {"hybrid", "zero-2", "hybrid-zero-1", "hybrid-fsdp", "overlap-tensor", "experts", "ring-attention", "ulysses"}
    for devices in (4, 8):
        found = scenarios.every_family(scenarios.FULL, devices, "cluster")
        assert set(found) == {f"gpt-124m-{name}-{devices}" for name in every}
    assert {name.rpartition("-")[0] for name in families(RANKS)} == every


def test_the_gpts_are_as_large_as_their_names_say() -> None:
    of: Mapping[str, Any] = {"gpt-124m": gpu_sizes.GPT_124M, "gpt-774m": gpu_sizes.GPT_774M}
    untied = {name: gpu_sizes.model_of(fields).parameters() / 1e6 for name, fields in of.items()}
    # the papers' count a head that shares the embedding's weights once
    assert untied["gpt-124m"] - 50304 * 768 / 1e6 == pytest.approx(124, rel=0.01)
    assert untied["gpt-774m"] - 50304 * 1280 / 1e6 == pytest.approx(774, rel=0.01)
    assert load_model("gpt2-small").parameters() == pytest.approx(124e6, rel=0.01)


def test_forecasts_say_how_far_off_they_are(tmp_path: Path) -> None:
    scenario = written(tmp_path, 1)["resnet50-bf16-64"]
    predicted = predict(scenario)
    measured: Run = replace(predicted, origin="measured", step_time_s=predicted.step_time_s / 2)
    device: Device | None = shipped("NVIDIA H200")
    numbers = comparison.compared(scenario, measured, predicted, device)
    assert numbers["uncalibrated_s"] == pytest.approx(2 * numbers["measured_s"], rel=0.5)
    assert numbers["measured_bytes"] < predicted.memory_bytes_per_rank  # type: ignore[operator]
    assert "uncalibrated_s" not in comparison.compared(scenario, measured, predicted, None)
    numbers = {"measured_s": 0.1, "uncalibrated_s": 0.15, "measured_bytes": 2.0**30, "predicted_bytes": 2.0**30}
    assert comparison.describe(numbers) == "measured 100 ms, uncalibrated 150 ms (+50.0 %); memory 1.00 GiB, predicted 0 %"
