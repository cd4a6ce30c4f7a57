"""Tables of kernels from the points of a calibration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from scaleproof.simulator.cluster.device.kernels.attention import USUAL_ATTENTION
from scaleproof.validator.kernels.table import ATTENTION, BACKWARD, FORWARD, PRODUCT, SHAPES, TIME
from scaleproof.validator.probe.points import SUSTAINED, Point, timed

# Probes of kernels, by the kind of their rows.
_PROBES: Final = {PRODUCT: "matmul", ATTENTION: "attention"}

# Implementations by their numbers in torch.nn.attention.SDPBackend. Points of earlier versions do not say which one ran.
_FLASH: Final = 1
_IMPLEMENTATIONS: Final = {_FLASH: USUAL_ATTENTION, 2: "efficient", 3: "cudnn"}


def kernels_path(cluster_file: Path) -> Path:
    """Path of the table of kernels of a cluster file."""
    return cluster_file.with_suffix(".kernels.csv")


def _pass(point: Point) -> dict[str, str | float]:
    """The implementation of attention that a point timed, and the direction. Torch's own flash attention is version 2."""
    implementation = _IMPLEMENTATIONS.get(int(point.numbers.get("backend", _FLASH)), "math")
    return {"implementation": implementation, "direction": BACKWARD if point.what.endswith(f" {BACKWARD}") else FORWARD}


def rows(points: Sequence[Point], gpu: str, source: str) -> list[dict[str, str | float]]:
    """Rows of a table of kernels: the matrix products in short bursts and attentions among the points, each with its median
    time."""
    return [
        {
            "gpu": gpu,
            "kind": kind,
            "precision": point.what.split()[0],
            **{name: int(point.numbers[name]) for name in SHAPES[kind]},
            **(_pass(point) if kind == ATTENTION else {}),
            TIME: float(f"{point.median_s * 1e6:.6g}"),
            "source": source,
        }
        for kind, probe in _PROBES.items()
        for point in timed(points, probe)
        if point.group != SUSTAINED
    ]
