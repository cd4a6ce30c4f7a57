"""A study's folder as sweep leaves it: two strategies on up to eight GPUs, by two networks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from scaleproof.reports.charts.style import Drawn
from scaleproof.reports.pages import result_page, sections, study_page
from scaleproof.simulator.analysis.study.sweep import sweep

SCENARIO: Final[Mapping[str, Any]] = {
    "name": "small",
    "model": {"kind": "mlp", "name": "three-layers", "layers": 3, "inputs": 1024, "hidden": 2048, "outputs": 256},
    "cluster": {
        "name": "eight",
        "source": "made up for tests",
        "nodes": 12,
        "node": {"devices": 1, "price": "3 USD/h"},
        "network": {"bandwidth": "10 Gbit/s", "latency": "20 us"},
        "device": {"name": "d", "peak": {"fp32": "1 TFLOP/s"}, "memory": "8 GiB", "memory_bandwidth": "100 GB/s"},
    },
    "strategy": "data_parallel",
    "batch": {"per_worker": 16},
}
STUDY: Final[Mapping[str, Any]] = {
    "scenario": SCENARIO,
    "axes": {
        "strategy": {"ring": {"kind": "data_parallel"}, "servers": {"kind": "parameter_server", "servers": 2}},
        "strategy.workers": [2, 4, 8],
        "cluster.network.bandwidth": ["10 Gbit/s", "40 Gbit/s"],
    },
}


def write_study(folder: Path, study: Mapping[str, Any] = STUDY, intervals: bool = True) -> Path:
    """A folder of `study`, all of its points forecast."""
    sweep(study, folder, intervals=intervals)
    return folder


def without_pictures(patch: pytest.MonkeyPatch, size_bytes: int = 10) -> None:
    """Pictures are not drawn, which saves most of a page's time."""
    for module in (sections, result_page, study_page):
        for name in ("still", "side_by_side"):
            patch.setattr(module, name, lambda *_: Drawn(b"x" * size_bytes, b"<svg/>"), raising=False)
