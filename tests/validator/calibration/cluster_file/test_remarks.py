"""Probe results that are shown but not used by predictions."""

from __future__ import annotations

import re

import pytest
import yaml

from scaleproof.commands.text.calibration import table
from scaleproof.simulator.scenario.training import Input
from scaleproof.validator.calibration.cluster_file.remarks import NAMES, failed, remarks
from scaleproof.validator.probe.points import Point


def _point(probe: str, what: str, size: float, seconds: float, **numbers: float) -> Point:
    return Point(probe, what, "rank 0", (0, 1), "same node", size, "", (seconds,), "narrow", numbers=numbers)


COPIED_Bps = {"host to device": 20e9, "device to host": 10e9, "device 0 to 1": 1e9}
POINTS = [
    Point(
        "matmul",
        "sustained bf16 8x8x8",
        "rank 0",
        (0,),
        "sustained",
        1e12,
        "flops",
        (1e-3, 1.25e-3, 1.25e-3),
        "time",
        numbers={"clock_MHz": 1410, "power_W": 699, "temperature_C": 63},
    ),
    Point("matmul", "sustained fp32 8x8x8", "rank 0", (0,), "sustained", 1e12, "flops", (1e-2,), "time"),
    _point("matmul", "bf16 8x8x8", 1e12, 1e-3),
    _point("overlap", "compute", 1e6, 0.0, alone_s=0.01, together_s=0.012),
    _point("overlap", "communication", 1e6, 0.0, alone_s=0.01, together_s=0.03),
    _point("update", "sgd of 4 gradients", 1000, 1e-3, workers=4),
    _point("update", "sgd of 4 gradients", 1e6, 2e-3, workers=4),
    _point("loading", "gpt, random", 8, 3e-3),
    *(_point("host_copy", what, size, size / rate) for what, rate in COPIED_Bps.items() for size in (2**28, 2**16)),
    _point("host_adam", "adam", 2e7, 5e-3, cores=16),
    *(
        _point("message", what, size, seconds)
        for size in (4, 2**20)
        for what, seconds in (("send", 1e-3), ("exchange", 1.5e-3))
    ),
    _point("message", "exchange", 2**24, 1.0),
    _point("collective", "alltoall", 2**20, 1e-3, nodes=1),
    _point("collective", "alltoall uneven", 2**20, 1.8e-3, nodes=1),
]


def test_each_probe_result_is_shown_in_its_unit() -> None:
    reported = remarks(POINTS)
    assert tuple(reported) == NAMES
    clocked = "sustained bf16 8x8x8 800 TFLOP/s, 80 % of the fastest sample (at 1410 MHz and 699 W and 63 °C)"
    unknown = "sustained fp32 8x8x8 100 TFLOP/s, 100 % of the fastest sample (nvidia-smi reports no clock)"
    assert reported["matmul"] == f"{clocked}, {unknown}"
    assert reported["message"] == "messages in both directions take 1.50 times as long (same node)"
    assert (
        reported["collective"] == "all-to-alls whose busiest rank receives twice the mean take 1.80 times as long (same node)"
    )
    products, sums = (
        "matrix products take 1.20 times as long while an all-reduce runs",
        "the all-reduce takes 3.00 times as long",
    )
    assert reported["overlap"] == f"{products}, {sums}"
    assert reported["update"] == "sgd of 4 gradients 2 ns per parameter"  # of the largest alone
    assert reported["loading"] == "8 samples (gpt, random) 3.00 ms"
    assert reported["host_copy"] == "host to device 20 GB/s, device to host 10 GB/s"  # not between devices
    kernel = "by torch's fused kernel over 20 M parameters in fp32"
    assert reported["host_adam"] == f"4 billion parameters/s on 16 cores, {kernel}"


def test_files_give_the_input_of_a_scenario() -> None:
    read = _point("loading", "files read", 3.2e6, 2e-3, file_bytes=100_000, readers=8)
    decoded = _point("loading", "files decoded", 32, 0.24)
    text = "input: {storage: {sample: 100000 B, bandwidth: 1.6 GB/s}%s} (a file a sample, 8 threads that read)"
    assert remarks([read, decoded])["loading"] == text % ", decode: 7.50 ms"
    assert remarks([read])["loading"] == text % ""
    (given,) = re.findall("{.*}", remarks([read, decoded])["loading"])
    assert Input.model_validate(yaml.safe_load(given)).decode_s == pytest.approx(7.5e-3)


def test_the_slowdown_of_products_is_compared_with_the_predicted_one() -> None:
    measured = remarks(POINTS, 16 / 128)["overlap"]
    assert measured.startswith("matrix products take 1.20 times as long while an all-reduce runs (1.14 times by the processors")


@pytest.mark.parametrize("name", NAMES)
def test_skipped_and_failed_probes_are_omitted(name: str) -> None:
    assert name not in remarks([point for point in POINTS if point.probe != name])
    assert name not in remarks([Point(name, "anything", "", (), "", 0, "", (), "failed: it timed out")])


def test_skipped_and_failed_points_are_noted() -> None:
    skipped = Point("matmul", "products in fp8", "rank 0", (0,), "", 0.0, "", (), "skipped: needs a newer GPU")
    broken = Point("overlap", "overlap", "", (), "", 0.0, "", (), "failed: no")
    assert failed([*POINTS, skipped, broken]) == ["products in fp8 skipped: needs a newer GPU", "overlap failed: no"]


def test_a_sum_whose_size_does_not_count_has_no_bandwidth() -> None:
    sums = [{"ranks": 2, "latency": "5 us", "bandwidth": rate} for rate in ("1e+06 GB/s", "2 GB/s")]
    lines = table({"node": {}, "device": {"peak": {}}, "collectives": {"measured": sums}}).splitlines()
    assert lines[-2:] == ["  all_reduce over 2 ranks: 5 us for any size", "  all_reduce over 2 ranks: 5 us + size / 2 GB/s"]
