from __future__ import annotations

import csv
import hashlib
import re
from functools import cache

import numpy as np
import pytest

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.settings import facts_of
from scaleproof.simulator.cluster.device.device import Device
from scaleproof.simulator.cluster.device.kernels.parameters import Speed
from scaleproof.simulator.cluster.device.kernels.products import products_s
from scaleproof.simulator.common import catalog
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.read import load_cluster, load_device

NAMES = catalog.names("devices")
DOCUMENT = re.compile(r"arXiv \d{4}\.\d{5}|data sheet|white paper|\bpage\b")
GENERATIONS = {
    "kepler": "volta",
    "pascal": "volta",
    "volta": "volta",
    "turing": "volta",
    "ampere": "ampere",
    "ampere-rtx": "ampere",
    "ada": "ampere",
    "hopper": "hopper",
    "blackwell": "blackwell",
    "blackwell-rtx": "blackwell",
    "cdna": "cdna",
}
WITHOUT_NCCL = ("tpu", "gaudi", "trainium", "apple", "cpu")
ON_PCIE = re.compile(r"gb10|k80|t4|l4|l40s?|a[134]0g?|rtx-.*|.*-(pcie|nvl)|[mp]40.*|mi210")
SHAPE = re.compile(r"(\d+)x(\d+)x(\d+) b=(\d+) layout=(\w+), accumulate=(\w+), out_dtype=(\w+)")


@cache
def device(name: str) -> Device:
    return load_device(catalog.ROOT / "devices" / f"{name}.yaml")


def speed(name: str, precision: str = "bf16") -> Speed:
    own = device(name)
    assert own.kernels is not None
    return own.speed(precision, own.kernels)  # type: ignore[arg-type]


def rows() -> list[dict[str, str]]:
    with (catalog.ROOT / "published" / "gpu_matmul_efficiency.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", NAMES)
def test_each_shipped_device_has_a_plain_name_and_sources(name: str) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)
    assert device(name).description
    assert DOCUMENT.search(device(name).source)


def test_device_names_distinguish_devices() -> None:
    assert len({device(name).name for name in NAMES}) == len(NAMES)


def test_all_required_device_families_ship() -> None:
    families = (
        "k80", "p100", "v100", "t4", "a10g", "a100", "l4", "h100", "h200", "gh200", "b200", "gb200", "b300", "gb300",
        "rtx-pro-6000", "rtx-2080-ti", "rtx-3090", "rtx-4090", "rtx-5090", "rtx-a4000", "rtx-a5000", "rtx-a6000",
        "rtx-6000-ada", "a10", "a30", "a40", "a800", "h800", "h20", "l40", "m40", "p40", "gb10", "mi210", "mi250x", "mi300a",
        "mi350x", "gaudi-2", "gaudi-3", "trainium-1", "trainium-2", "m2-ultra", "mi300x", "mi325x", "mi355x", "tpu-v3",
        "tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-v7", "cpu",
    )  # fmt: skip
    assert [family for family in families if not any(name.startswith(family) for name in NAMES)] == []


def test_every_cluster_names_a_device_or_was_measured() -> None:
    shipped = {device(name).name: device(name) for name in NAMES}
    for name in catalog.names("clusters"):
        cluster: Cluster = load_cluster(catalog.ROOT / "clusters" / f"{name}.yaml")
        assert cluster.provenance or shipped[cluster.device.name] == cluster.device, name


@pytest.mark.parametrize("name", NAMES)
def test_nccl_knows_the_generation_of_its_gpus(name: str) -> None:
    kernels, facts = device(name).kernels, facts_of(device(name).name)
    assert kernels is not None
    if kernels.generation in WITHOUT_NCCL:
        assert facts is None
    else:
        assert facts is not None
        assert facts.generation == GENERATIONS[kernels.generation]
        assert (facts.interconnect == "pcie") == bool(ON_PCIE.fullmatch(name))


@pytest.mark.parametrize("name", NAMES)
def test_a_large_product_reaches_between_a_quarter_and_all_of_the_peak(name: str) -> None:
    for precision in device(name).peak_flops:
        on, side = speed(name, precision), 16384
        moved = on.element_bytes * side * side
        rate = 2 * side**3 / float(products_s(on, side, side, side, 1, 2 * moved, moved))
        assert 0.25 < rate / on.peak_flops < 1


@pytest.mark.parametrize(
    ("gpu", "name", "bound"), [("NVIDIA A100 PCIe", "a100-80gb-pcie", 0.04), ("NVIDIA B200 SXM", "b200-180gb-sxm", 0.11)]
)
def test_mean_error_of_shapes_not_used_in_the_fit_is_bounded(gpu: str, name: str, bound: float) -> None:
    """What power sustains was fitted to the other half of these shapes; waves and ramps to products of another library."""
    errors, on = [], speed(name)
    for row in rows():
        match = SHAPE.fullmatch(row["best_shape_MxNxK"])
        if row["gpu"] != gpu or match is None:
            continue
        m, n, k, batch = (int(match[i]) for i in range(1, 5))
        if int(hashlib.sha256(f"{gpu} {m}x{n}x{k} {batch} {match[5]}".encode()).hexdigest(), 16) % 2 == 0:
            continue
        written = m * n * batch * (4 if match[7] == "fp32" else 2)
        read = 2 * (m * k + k * n) * batch + (written if match[6] == "True" else 0)
        seconds = float(products_s(on, m, n, k, batch, read, written))
        errors.append(seconds / (2 * m * n * k * batch / (float(row["mamf_tflops_measured"]) * 1e12)) - 1)
    assert len(errors) > 80
    assert np.abs(errors).mean() < bound


@pytest.mark.parametrize(
    ("gpu", "name"),
    [
        ("NVIDIA A100 PCIe", "a100-40gb-pcie"), ("NVIDIA A100 SXM", "a100-80gb-sxm"), ("NVIDIA A100 SXM", "a100-40gb-sxm"),
        ("NVIDIA H100 SXM (H200 same)", "h100-80gb-sxm"), ("NVIDIA H100 SXM (H200 same)", "h200-141gb-sxm"),
        ("NVIDIA B200 SXM", "b200-180gb-sxm"), ("NVIDIA GB200 SXM", "gb200-186gb"), ("AMD MI300X", "mi300x-192gb-oam"),
    ],
)  # fmt: skip
def test_large_products_are_not_faster_than_the_best_measured_shape(gpu: str, name: str) -> None:
    """By more than the search's own luck."""
    best = next(float(row["mamf_tflops_measured"]) * 1e12 for row in rows() if (row["gpu"], row["dtype"]) == (gpu, "bf16"))
    on = speed(name)
    for side in (4096, 8192, 16384):
        rate = 2 * side**3 / float(products_s(on, side, side, side, 1, 4 * side * side, 2 * side * side))
        assert 0.5 * best < rate < 1.05 * best


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_every_device_trains_a_small_gpt_in_each_precision(name: str) -> None:
    for precision in device(name).peak_flops:
        trains_a_small_gpt(name, precision)


def trains_a_small_gpt(name: str, precision: str) -> None:
    model = {"kind": "gpt", "layers": 2, "hidden": 256, "heads": 4, "vocabulary": 1024, "sequence": 128}
    cluster = {
        "nodes": 1, "node": {"devices": 2, "link": {"bandwidth": "10 GB/s", "latency": "5 us"}}, "device": {"base": name},
    }  # fmt: skip
    run = predict(load({
        "model": model, "cluster": cluster, "strategy": {"kind": "data_parallel", "workers": 2}, "batch": 8,
        "training": {"precision": precision}, "framework": "ideal",
    }))  # fmt: skip
    assert run.prediction_interval_s is not None
    low_s, high_s = run.prediction_interval_s
    assert 0 < low_s < run.step_time_s < high_s


@pytest.mark.parametrize(("precision", "least", "most"), [("fp16", 83 / 112, 101 / 112), ("fp32", 0.75, 0.95)])
def test_large_products_of_a_v100_reach_what_was_measured_of_them(precision: str, least: float, most: float) -> None:
    """cuBLAS on a V100 PCIe with early and with later kernels; in single precision a seventh of the early ones' rate."""
    on, side = speed("v100-16gb-pcie", precision), 8192
    moved = on.element_bytes * side**2
    reached = 2 * side**3 / float(products_s(on, side, side, side, 1, 2 * moved, moved)) / on.peak_flops
    assert least < reached < most


def test_a_v100_delivers_one_and_a_half_times_the_bytes_of_a_p100() -> None:
    volta, pascal = (speed(name, "fp32").reached_Bps for name in ("v100-16gb-sxm2", "p100-sxm2"))
    assert volta == pytest.approx(1.5 * pascal, rel=0.02)
