"""Kernels that a calibration timed become rows of a table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scaleproof.validator.calibration.calibrate import kernels_of
from scaleproof.validator.calibration.cluster_file.from_points import CalibrationFacts
from scaleproof.validator.kernels.from_points import kernels_path, rows
from scaleproof.validator.kernels.table import check, read, write
from scaleproof.validator.probe.points import Point
from tests.validator.calibration.made import times


def point(probe: str, what: str, seconds: float, **numbers: float) -> Point:
    return Point(probe, what, "rank 0", (0,), "", 1e9, "flops", times(seconds), "narrow", 1.0, numbers)


POINTS = [
    point("matmul", "bf16 512x1024x256", 20e-6, m=512, n=1024, k=256),
    point("attention", "bf16 4x1024 32/8x128", 90e-6, batch=4, seq=1024, heads=32, kv_heads=8, head_dim=128),
    point("attention", "bf16 4x1024 32/8x128 backward", 250e-6, batch=4, seq=1024, heads=32, kv_heads=8, head_dim=128),
    replace(point("matmul", "sustained bf16 8192x8192x8192", 2e-3, m=8192, n=8192, k=8192), group="sustained"),
    point("memory", "copy", 1e-3),
    Point("matmul", "bf16 8x8x8", "", (), "", 0.0, "", (), "failed: no memory"),
]


def test_products_and_attention_are_rows_with_their_median_time(tmp_path: Path) -> None:
    found = rows(POINTS, "my-gpu", "scaleproof calibrate")
    path = kernels_path(tmp_path / "cluster.yaml")
    assert path.name == "cluster.kernels.csv"
    write(found, path)
    table = read(path)
    check(table)
    assert table.gpus == ["my-gpu"]
    assert table.shape_texts() == ["m=512 n=1024 k=256", *2 * ["batch=4 seq=1024 heads=32 kv_heads=8 head_dim=128"]]
    assert table.direction.tolist() == ["", "forward", "backward"]
    assert table.measured_s == pytest.approx([20e-6, 90e-6, 250e-6], rel=0.02)
    assert table.merged()[1] == 0


def test_only_kernels_of_gpus_are_kept() -> None:
    cluster = {"device": {"name": "my-gpu"}}
    facts = CalibrationFacts("local", (0,), "fp32", None, {"date": "2026-01-01", "torch": "2.13"})
    assert kernels_of(cluster, POINTS, facts) == ()
    on_gpus = CalibrationFacts("local", (0,), "fp32", None, facts.provenance, on_gpus=True)
    assert [row["source"] for row in kernels_of(cluster, POINTS, on_gpus)] == [
        "scaleproof calibrate, 2026-01-01, torch 2.13"
    ] * 3


@pytest.mark.parametrize(("backend", "name"), [(0, "math"), (1, "flash-2"), (2, "efficient"), (3, "cudnn")])
def test_attention_has_the_name_of_the_kernel_that_ran(backend: int, name: str) -> None:
    one = point(
        "attention", "bf16 4x1024 32/8x128", 90e-6, batch=4, seq=1024, heads=32, kv_heads=8, head_dim=128, backend=backend
    )
    (row,) = rows([one], "mine", "here")
    assert row["implementation"] == name
