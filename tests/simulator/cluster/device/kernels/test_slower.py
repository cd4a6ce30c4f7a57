"""A slower device is slower by the same factor in all kernels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.cluster import Device
from scaleproof.simulator.cluster.device.device import Precision
from scaleproof.simulator.cluster.device.kernels.products import products_s
from scaleproof.simulator.cluster.quantities import slowed
from scaleproof.simulator.common.catalog import ROOT
from scaleproof.simulator.frameworks import Execution, TrainingWork
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.recompute import NO_RECOMPUTE
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.read import load_device
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.scenario_job import job_of

DENSE, MIXTURE = (
    load(name, ["cluster=dgx-h100", "cluster.device=h100-80gb-sxm"])
    for name in ("llama-2-7b-fsdp-a100", "mixtral-8x7b-experts-h100")
)


def device_of(name: str) -> Device:
    return load_device(ROOT / "devices" / f"{name}.yaml")


def layers(scenario: Scenario) -> tuple[Layer, ...]:
    """The first, a middle and the last layer."""
    found = job_of(scenario).layers
    return found[0], found[len(found) // 2], found[-1]


@given(slowdown=st.floats(0.5, 2), samples=st.integers(1, 8))
@pytest.mark.parametrize("scenario", [DENSE, MIXTURE], ids=["dense", "mixture"])
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_kernels_of_a_slower_device_take_longer_by_its_slowdown(
    precision: Precision, scenario: Scenario, slowdown: float, samples: int
) -> None:
    device, worse = scenario.cluster.device, slowed(scenario.cluster, {"device": slowdown}).device
    for layer in layers(scenario):
        expected_s = [slowdown * one_s for one_s in device.layer_s(layer, samples, precision)]
        assert worse.layer_s(layer, samples, precision) == pytest.approx(expected_s, rel=1e-6)


@pytest.mark.parametrize("scenario", [DENSE, MIXTURE], ids=["dense", "mixture"])
@pytest.mark.parametrize("device", ["h100-80gb-sxm", "h200-141gb-sxm", "a100-80gb-sxm"])
def test_layers_in_a_framework_take_longer_by_the_slowdown_of_the_device(scenario: Scenario, device: str) -> None:
    """Rates of attention that the framework names come from the device or from its generation."""
    given, work = job_of(scenario), TrainingWork("bf16", "adam", NO_RECOMPUTE)
    usual = device_of(device)
    worse = slowed(given.cluster.model_copy(update={"device": usual}), {"device": 1.3}).device
    # the framework's own time for a microbatch is not the device's
    framework = given.framework.model_copy(update={"host": given.framework.host.model_copy(update={"microbatch_s": 0.0})})
    for layer in layers(scenario):
        expected_s = [1.3 * one_s for one_s in Execution(usual, framework, work).layer_s(layer, 2)]
        assert Execution(worse, framework, work).layer_s(layer, 2) == pytest.approx(expected_s, rel=1e-6)


@pytest.mark.parametrize("device", ["h100-80gb-sxm", "h200-141gb-sxm"])
def test_products_in_bursts_take_longer_by_the_slowdown_of_the_device(device: str) -> None:
    """Of the device's own rates, and of those of its generation."""
    usual = device_of(device)
    worse = slowed(DENSE.cluster.model_copy(update={"device": usual}), {"device": 1.3}).device
    sizes = np.array([16.0, 512.0, 8192.0])
    usual_s, worse_s = (
        products_s(one.speed("bf16", one.kernels, burst=True), sizes, sizes, sizes, 1, 4 * sizes**2, 2 * sizes**2)
        for one in (usual, worse)
        if one.kernels is not None
    )
    np.testing.assert_allclose(worse_s, 1.3 * usual_s, rtol=1e-6)
