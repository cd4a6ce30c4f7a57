"""Times in a wrong unit are recognised by the rates that they imply."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.kernels.devices import device_of, precision_of
from scaleproof.validator.kernels.plausibility import check_rates, check_units, flops
from scaleproof.validator.kernels.table import KernelTable, read
from tests.validator.kernels.made import ATTENTION, GEMM, MIXTURE, all_shipped, sampled, written

GPU = "H100-80GB-SXM"


def checked(table: KernelTable) -> None:
    devices = {gpu: device for gpu in table.gpus if (device := device_of(gpu))}
    check_rates(table, devices)


def test_flops_count_the_scores_that_the_mask_leaves_and_three_matrices_of_each_expert(tmp_path: Path) -> None:
    found = read(written(tmp_path / "t.csv", GEMM, ATTENTION, MIXTURE, ATTENTION | {"direction": "backward"}))
    forward = 2 * 4 * 32 * 4096**2 * 128
    # the backward pass computes the scores again: five products in place of two
    assert flops(found) == pytest.approx([2 * 4096**3, forward, 6 * 4096 * 2 * 4096 * 14336, 2.5 * forward])


def test_measured_kernels_are_plausible() -> None:
    checked(all_shipped())


@pytest.mark.parametrize(("factor", "remedy"), [(1e-3, "multiply those in milliseconds"), (1e-6, "in seconds by 1,000,000")])
def test_times_in_a_larger_unit_are_refused_with_the_line(tmp_path: Path, factor: float, remedy: str) -> None:
    path = sampled(tmp_path / "t.csv", GPU, 12, factor)
    with pytest.raises(InputError) as caught:
        checked(read(path))
    first, line, _ = str(caught.value).split(":", 2)
    assert (first, line.isdecimal()) == (str(path), True)
    assert "FLOP/s, but the peak of H100-80GB-SXM is 989 TFLOP/s; times must be in microseconds" in str(caught.value)
    assert remedy in str(caught.value)


def test_times_in_nanoseconds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="divide those in nanoseconds by 1,000"):
        checked(read(sampled(tmp_path / "t.csv", GPU, 12, 1e3)))


def test_one_kind_in_another_unit_is_found_among_others(tmp_path: Path) -> None:
    rows = [ATTENTION | {"seq": seq, "latency_us": time} for seq, time in (("2048", "0.4"), ("4096", "1.3"), ("8192", "4.9"))]
    with pytest.raises(InputError, match=r"t.csv:5: attention_forward batch=4 seq=8192"):
        checked(read(written(tmp_path / "t.csv", GEMM, *rows)))


def test_a_single_impossible_time_is_refused_but_leaves_the_unit_clear(tmp_path: Path) -> None:
    rows = [GEMM | {"m": m} for m in ("512", "1024", "2048")]
    found = read(written(tmp_path / "t.csv", *rows, GEMM | {"latency_us": "100"}))
    device = device_of(GPU)
    assert device is not None
    check_units(found, {GPU: device})
    with pytest.raises(InputError, match=r"t.csv:5: .* correct the time or the shape, or remove the row"):
        check_rates(found, {GPU: device})


def test_slow_kernels_of_small_shapes_are_plausible(tmp_path: Path) -> None:
    """A product of one row is bound by memory, far below the peak."""
    checked(read(written(tmp_path / "t.csv", *[GEMM | {"m": "1", "latency_us": time} for time in ("14", "15", "16")])))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("H100-80GB-SXM", "H100-80GB-SXM"), ("NVIDIA H100 80GB HBM3", "H100-80GB-SXM"), ("h100-80gb-sxm", "H100-80GB-SXM"),
        ("B200-SXM", "B200-180GB-SXM"), ("H200-SXM5", "H200-141GB-SXM"), ("GB200", "GB200-186GB"), ("B900", None), ("", None),
        ("GB200-NVL72", "GB200-186GB"), ("H100-NVL", "H100-94GB-NVL"), ("RTX-4090", "RTX-4090-24GB"), ("CPU", None),
        ("80GB-SXM", None),
    ],
)  # fmt: skip
def test_gpus_are_found_by_their_names(name: str, expected: str | None) -> None:
    device = device_of(name)
    assert (device and device.name) == expected


def test_precisions_stand_for_others_with_the_same_peak() -> None:
    device = device_of(GPU)
    assert device is not None
    assert [precision_of(device, name) for name in ("bf16", "fp16", "mxfp8", "nvfp4")] == ["bf16", "fp16", "fp8", None]
    assert np.isfinite(device.peak_flops["fp8"])
