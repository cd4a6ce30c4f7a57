"""Probes of a GPU run to their ends on one that does not exist; their times mean nothing."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.probe import adaptive, compute, overlap, products
from scaleproof.validator.probe import points as tables
from scaleproof.validator.probe.peers import GroupPeers
from scaleproof.validator.probe.points import Point
from tests.validator.gpus.player import Job, joined, servers


def test_kernels_of_a_gpu_are_probed(tmp_path: Path, small: Callable[..., Scenario]) -> None:
    job = Job(small("strategy={kind: data_parallel, workers: 1}", "batch=8"))
    process = servers.Process(target=probe_to_the_end, args=(job, tmp_path), daemon=True)
    process.start()
    process.join(120.0)
    assert process.exitcode == 0
    found = {point.what: point for point in tables.read(tmp_path / "points.parquet")}
    assert all(point.seconds for point in found.values())
    products = [f"{precision} 64x64x64" for precision in ("tf32", "bf16", "fp8")]
    assert list(found) == [
        *products, "sustained fp8 64x64x64", "bf16 1x64 4/2x64", "bf16 1x64 4/2x64 backward", "compute", "communication",
    ]  # fmt: skip
    assert found["bf16 1x64 4/2x64"].numbers["backend"] == 1, "flash attention"


def probe_to_the_end(job: Job, folder: Path) -> None:
    """Probes as the only rank of a job, and writes the points."""
    joined(job, 0, folder)
    with pytest.MonkeyPatch.context() as patch:
        # events of this GPU have no times: each interval is longer than those before it
        times = itertools.count(1)
        patch.setattr(adaptive.DeviceTimer, "seconds", lambda *_: next(times) * 1e-6)
        for module in (compute, products):
            patch.setattr(module, "collected", lambda points: [point.plain() for point in points])
        plain = [
            *products.products([(64, 64, 64)], ["tf32", "bf16", "fp8"], 0.1),
            *products.sustained(64, ["fp8"], 0.1),
            *compute.attentions([(1, 64, 4, 2, 64)], "bf16", 0.1),
        ]
        overlapped = overlap._Probe(GroupPeers((0,)), 2**12, 64, "bf16", 0.1).points()
    tables.write([*map(Point.of, plain), *overlapped], folder / "points.parquet")
    # threads that wait for messages do not end
    os._exit(0)
