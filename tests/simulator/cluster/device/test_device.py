from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scaleproof.simulator.cluster.device.device import Device, MeasuredLayer
from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import Attention, Matmul, MemoryBound
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.read import load_cluster, load_device
from scaleproof.simulator.scenario.schema import Scenario

KERNELS = {"generation": "ampere", "processors": 10, "tile_share": 0.8, "memory_share": 0.8, "launch": "2 us"}
OWN = {"name": "own", "peak": {"fp32": "1 TFLOP/s"}, "memory": "1 GiB", "memory_bandwidth": "100 GB/s"}
SCENARIO = """\
model: {kind: mlp, layers: 2, inputs: 8, hidden: 8, outputs: 8}
cluster: CLUSTER
strategy: {kind: data_parallel, workers: 1}
batch: 4
"""
LINEAR = Matmul("linear", 64, 1024, 1024)
PLAIN = Attention("attention", 8, 8, 128, 128, 64, 64)


def block(*operators: Any) -> Layer:
    return Layer("block", "kind of block", operators, (1024 * 1024,), 1024)


def device(**fields: object) -> Device:
    return Device.model_validate(OWN | fields)


def scenario(folder: Path, cluster: str, *overrides: str) -> Scenario:
    path = folder / "scenario.yaml"
    path.write_text(SCENARIO.replace("CLUSTER", cluster))
    return load(path, overrides)


def a100() -> Device:
    return load_cluster(catalog.ROOT / "clusters" / "selene-a100.yaml").device


def test_a_device_without_kernels_has_a_constant_efficiency() -> None:
    flat = device(efficiency=0.5, layer_overhead="1 ms")
    flops_s = 2 * 64 * 1024 * 1024 * 3 / 0.5e12
    mixed = block(LINEAR, MemoryBound("norm", 10**6, 10**6, 10**6, 10**6))
    for layer in (block(LINEAR), mixed):
        assert flat.layer_s(layer, 3, "fp32") == pytest.approx((1e-3 + flops_s, 1e-3 + 2 * flops_s))
    assert device().layer_s(mixed, 3, "fp32") == pytest.approx((flops_s / 2, flops_s))


def test_kernel_times_depend_on_the_operator() -> None:
    own, norm = device(kernels=KERNELS), MemoryBound("norm", 10**6, 10**6, 10**6, 10**6)
    with_norm, without = (own.layer_s(block(*operators), 3, "fp32") for operators in ((LINEAR, norm), (LINEAR,)))
    took_s = 2e-6 + 4 * 2 * 3e6 / 80e9
    assert [a - b for a, b in zip(with_norm, without, strict=True)] == pytest.approx([took_s, took_s])


def test_a_given_efficiency_replaces_kernels() -> None:
    flat, both = device(efficiency=0.5), device(efficiency=0.5, kernels=KERNELS)
    assert both.layer_s(block(LINEAR), 3, "fp32") == flat.layer_s(block(LINEAR), 3, "fp32")


def measured_layer(samples: list[float], forward: list[str]) -> MeasuredLayer:
    """A measured layer whose backward pass takes as long as its forward pass."""
    return MeasuredLayer.model_validate(
        {"signature": "a", "precision": "fp32", "samples": samples, "forward": forward, "backward": forward}
    )


def test_times_of_a_measured_layer_are_those_of_the_nearest_numbers_of_samples() -> None:
    # a library that changes its algorithm at 16 samples
    layer = measured_layer([4, 8, 16, 32], ["40 ms", "80 ms", "50 ms", "90 ms"])
    times_ms = [1e3 * layer.passes_s(samples)[0] for samples in (1, 4, 6, 8, 12, 16, 32, 64)]
    assert times_ms == pytest.approx([10, 40, 60, 80, 65, 50, 90, 170])
    # more samples never take less time than those that were timed
    assert measured_layer([8, 16], ["80 ms", "50 ms"]).passes_s(32)[0] == pytest.approx(0.1)
    assert measured_layer([8], ["80 ms"]).passes_s(2)[0] == pytest.approx(0.02)
    # fewer than the first do not take less than no time
    assert measured_layer([8, 16], ["1 ms", "10 ms"]).passes_s(1)[0] == 0


@pytest.mark.parametrize(
    ("samples", "forward", "message"),
    [([4, 1], ["1 ms", "2 ms"], "rising order"), ([1, 4], ["1 ms"], "1 durations for 2 numbers"), ([], [], "at least 1")],
)
def test_measured_layers_need_a_duration_for_each_number_of_samples(
    samples: list[float], forward: list[str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        measured_layer(samples, forward)


@pytest.mark.parametrize("fields", [{}, {"kernels": KERNELS}])
def test_some_operators_are_a_part_of_the_forward_pass(fields: dict[str, object]) -> None:
    own, layer = device(**fields), block(LINEAR, PLAIN)
    forward_s, _ = own.layer_s(layer, 2, "fp32")
    alone_s, _ = own.layer_s(block(PLAIN), 2, "fp32")
    assert own.share_s(layer, (PLAIN,), 2, "fp32") == pytest.approx(alone_s)
    assert 0 < alone_s < forward_s
    assert own.share_s(block(LINEAR), (), 2, "fp32") == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"memory_bandwidth": 0}, "the bandwidth is zero"),
        ({"peak": {"fp32": 0}}, "the compute rate is zero"),
        ({"kernels": KERNELS, "layer_overhead": "1 ms"}, "layer_overhead: goes with an efficiency"),
        ({"kernels": KERNELS | {"tile_share": 1.5}}, "tile_share"),
        ({"kernels": KERNELS | {"generation": "maxwell"}}, "generation"),
    ],
)
def test_devices_without_usable_speeds_are_rejected(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        device(**fields)


# Devices as parts of a cluster


def test_a_cluster_can_name_a_shipped_device(tmp_path: Path) -> None:
    shipped = a100()
    assert shipped.name == "A100-80GB-SXM"
    assert scenario(tmp_path, "{node: {}, device: a100-80gb-sxm}").cluster.device == shipped
    (tmp_path / "cluster.yaml").write_text("node: {}\ndevice: a100-80gb-sxm\n")
    assert scenario(tmp_path, "./cluster.yaml").cluster.device == shipped
    assert load_cluster(tmp_path / "cluster.yaml").device == shipped


def test_fields_next_to_a_base_override_it(tmp_path: Path) -> None:
    changed = scenario(
        tmp_path, "{node: {}, device: {base: a100-80gb-sxm, name: mine, memory: 60 GiB, kernels: {launch: 7 us}}}"
    ).cluster.device
    base = a100()
    assert (changed.name, changed.memory_bytes) == ("mine", 60 * 2**30)
    assert changed.kernels is not None
    assert base.kernels is not None
    assert changed.kernels.launch_s == 7e-6
    assert changed.kernels.model_copy(update={"launch_s": base.kernels.launch_s}) == base.kernels
    assert changed.peak_flops == base.peak_flops
    flat = scenario(tmp_path, "{node: {}, device: {base: a100-80gb-sxm, efficiency: 0.6}}").cluster.device
    assert flat.layer_s(block(LINEAR), 3, "bf16")[0] == pytest.approx(2 * 64 * 1024**2 * 3 / (0.6 * 312e12))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "a100-80gb-smx",
            "scenario.yaml:2:21: cluster.device: no device is called 'a100-80gb-smx'; did you mean 'a100-80gb-sxm'?",
        ),
        ("./none.yaml", "cluster.device: ./none.yaml: no such file"),
        ("{base: a100}", "cluster.device.base: no device is called 'a100'"),
        ("{base: 7}", "cluster.device.base: expected the name or path of a device, got '7'"),
        ("{base: ./based.yaml}", "based.yaml:1:1: device.base: its bases form a cycle"),
        ("{base: a100-80gb-sxm, memroy: 1 GiB}", "cluster.device.memroy: unknown key; did you mean 'memory'?"),
        ("{base: a100-80gb-sxm, memory: 1 GB/s}", "cluster.device.memory: 'GB/s' is not a unit of size"),
        ("{base: a100-80gb-sxm, kernels: {launch: 3}}", "cluster.device.kernels.launch: 3 has no unit"),
    ],
)
def test_unknown_devices_are_reported_with_their_place(tmp_path: Path, given: str, message: str) -> None:
    (tmp_path / "based.yaml").write_text("base: ./based.yaml\n")
    with pytest.raises(ScenarioError) as error:
        scenario(tmp_path, f"{{node: {{}}, device: {given}}}")
    assert message in str(error.value)


def test_measured_layers_take_precedence_over_kernels() -> None:
    timed = {"samples": [1, 11], "forward": ["3 ms", "23 ms"], "backward": ["3 ms", "23 ms"]}
    measured = {"signature": "kind of block", "precision": "fp32", **timed}
    own = device(kernels=KERNELS, measured_layers=[measured])
    assert own.layer_s(block(LINEAR), 10, "fp32") == pytest.approx((21e-3, 21e-3))
    assert own.layer_s(Layer("a", "another", (LINEAR,), (1,), 1), 10, "fp32") != pytest.approx((21e-3, 21e-3))


@pytest.mark.parametrize(
    ("name", "noun"),
    [("h100-80gb-sxm", "GPU"), ("m4-max", "GPU"), ("tpu-v5p", "TPU"), ("gaudi-3", "device"), ("cpu-32core", "rank")],
)
def test_devices_are_called_what_they_are(name: str, noun: str) -> None:
    assert load_device(name).noun == noun
