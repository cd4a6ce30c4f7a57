"""Tables of kernels from the points of a calibration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from scaleproof.simulator.cluster.device.kernels.attention_rates import USUAL
from scaleproof.validator.calibration.cluster_file.section import timed
from scaleproof.validator.kernels.table import ATTENTION, PRODUCT, SHAPES, TIME
from scaleproof.validator.probe.points import Point

# Probes of kernels, by the kind of their rows.
_PROBES: Final = {PRODUCT: "matmul", ATTENTION: "attention"}


def kernels_path(cluster_file: Path) -> Path:
    """Path of the table of kernels of a cluster file."""
    return cluster_file.with_suffix(".kernels.csv")


def rows(points: Sequence[Point], gpu: str, source: str) -> list[dict[str, str | float]]:
    """Rows of a table of kernels: the matrix products and attentions among the points, each with its median time."""
    return [
        {
            "gpu": gpu,
            "kind": kind,
            "precision": point.what.split()[0],
            **{name: int(point.numbers[name]) for name in SHAPES[kind]},
            # torch.nn.functional.scaled_dot_product_attention runs version 2
            **({"implementation": USUAL} if kind == ATTENTION else {}),
            TIME: float(f"{point.median_s * 1e6:.6g}"),
            "source": source,
        }
        for kind, probe in _PROBES.items()
        for point in timed(points, probe)
    ]
