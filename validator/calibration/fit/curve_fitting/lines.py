"""Straight lines through measured times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

# A byte that takes less is hidden by the noise of its latency.
FASTEST_S: Final = 1e-15


def line(
    x: Sequence[float], seconds: Sequence[float], weights: Sequence[float] | None = None, least_slope: float = 0.0
) -> tuple[float, float]:
    """(base, slope) of seconds = base + slope · x, base zero or more, with the least squared relative error.

    weights: what each squared error counts, the same if absent. least_slope: the slope is no smaller.
    """
    xs, ys = np.asarray(x, dtype=float), np.asarray(seconds, dtype=float)
    roots = np.ones_like(ys) if weights is None else np.sqrt(np.asarray(weights, dtype=float))
    design = np.stack([np.ones_like(xs), xs], axis=1) * (roots / ys)[:, None]
    base, slope = np.linalg.lstsq(design, roots, rcond=None)[0]
    if slope < least_slope:
        slope = least_slope
        base = _only(design[:, 0], roots - slope * design[:, 1])
    if base < 0:
        return 0.0, max(least_slope, _only(design[:, 1], roots))
    return float(base), float(slope)


def _only(column: np.ndarray, wanted: np.ndarray) -> float:
    """The one coefficient that brings `column` · coefficient closest to what is wanted."""
    return float(column @ wanted / (column @ column))
