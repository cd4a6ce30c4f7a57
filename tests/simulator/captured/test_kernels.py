"""Times of recorded operators, and how they are known."""

from __future__ import annotations

import csv
import gzip
from collections import defaultdict

import pytest

from scaleproof.simulator.captured.kernels import Certainty, KernelTimes, measured_ranges
from scaleproof.simulator.cluster.device.device import Device
from scaleproof.simulator.common import catalog
from scaleproof.simulator.frameworks import shipped
from scaleproof.simulator.model.torch_operators import Work, work_of
from scaleproof.simulator.scenario.read import load_device


def device(name: str) -> Device:
    return load_device(name)


def times(name: str, *works: tuple[Work, str]) -> list[tuple[float, Certainty, bool]]:
    return list(KernelTimes(device(name), shipped("pytorch-ddp")).times(works))


def product(m: int, n: int, k: int) -> Work:
    return work_of("aten::mm", [(m, k), (k, n)], {}, 2.0 * (m * k + k * n + m * n))


def test_a_large_product_reaches_a_large_share_of_the_peak_and_never_more() -> None:
    ((seconds, known, moves),) = times("h100-80gb-sxm", (product(8192, 8192, 8192), "bf16"))
    share = 2 * 8192**3 / seconds / device("h100-80gb-sxm").peak_flops["bf16"]
    assert 0.5 < share < 1
    assert (known, moves) == (Certainty.MEASURED, False)


def test_moved_bytes_take_the_time_of_the_memory_and_a_launch() -> None:
    gpu = device("h100-80gb-sxm")
    ((seconds, known, moves),) = times("h100-80gb-sxm", (work_of("aten::add.Tensor", [], {}, 3e9), "bf16"))
    assert gpu.kernels is not None
    assert seconds == pytest.approx(gpu.kernels.launch_s + 3e9 / (gpu.memory_bandwidth_Bps * gpu.kernels.memory_share))
    assert (known, moves) == (Certainty.EXTRAPOLATED, True)


def test_an_unknown_operator_takes_the_time_of_its_bytes_and_is_never_free() -> None:
    unknown, added = times(
        "h100-80gb-sxm", (work_of("lib::op", [], {}, 3e9), "bf16"), (work_of("aten::add", [], {}, 3e9), "bf16")
    )
    assert unknown[0] == added[0] > 0
    assert unknown[1] == Certainty.UNKNOWN
    ((seconds, *_),) = times("h100-80gb-sxm", (work_of("lib::op", [], {}, 0.0), "bf16"))
    assert seconds > 0


def test_shapes_outside_of_the_measured_ones_are_extrapolated() -> None:
    _, small, narrow = times(
        "h100-80gb-sxm",
        (product(8192, 8192, 8192), "bf16"),
        (product(64, 8192, 8192), "bf16"),
        (product(1024, 100, 1024), "bf16"),
    )
    assert small[1] == narrow[1] == Certainty.EXTRAPOLATED
    ((_, known, _),) = times("a100-40gb-pcie", (product(8192, 8192, 8192), "bf16"))
    assert known == Certainty.EXTRAPOLATED


def test_a_processor_core_adds_up_calls_flops_and_bytes() -> None:
    small, large = times("cpu-core", (product(64, 64, 64), "fp32"), (product(512, 512, 512), "bf16"))
    assert 0 < small[0] < large[0]
    assert large[0] > 2 * 512**3 / device("cpu-core").peak_flops["fp32"]


def test_ranges_are_those_of_the_table_of_measured_kernels() -> None:
    """What counts as measured is what published/gpu_kernels.csv.gz has."""
    names = {"B200-SXM": "B200-180GB-SXM"}
    fields = {
        "gemm": {"m": "m", "n": "n", "k": "k"},
        "attention_forward": {"queries": "seq", "keys": "seq", "width": "head_dim"},
    }
    found: dict[tuple[str, str], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    with gzip.open(catalog.ROOT / "published" / "gpu_kernels.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            kind = f"products {row['precision']}" if row["kind"] == "gemm" else "attention"
            for name, column in fields.get(row["kind"], {}).items():
                found[names.get(row["gpu"], row["gpu"]), kind][name].append(int(row[column]))
    expected = {key: {name: [min(sizes), max(sizes)] for name, sizes in by_name.items()} for key, by_name in found.items()}
    assert {(gpu, kind): dict(own) for gpu, kinds in measured_ranges().items() for kind, own in kinds.items()} == expected
