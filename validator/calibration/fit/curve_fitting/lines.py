"""Straight lines through measured times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

# Smallest seconds per byte: less is lost in the noise of the latency.
FASTEST_S: Final = 1e-15


def line(
    x: Sequence[float], seconds: Sequence[float], weights: Sequence[float] | None = None, least_slope: float = 0.0
) -> tuple[float, float]:
    """(base, slope) of seconds = base + slope · x with base ≥ 0 and the least sum of squared relative errors.

    weights: of each squared error, equal if None. least_slope: lower bound of the slope.
    """
    xs, ys = np.asarray(x, dtype=float), np.asarray(seconds, dtype=float)
    roots = np.ones_like(ys) if weights is None else np.sqrt(np.asarray(weights, dtype=float))
    design = np.stack([np.ones_like(xs), xs], axis=1) * (roots / ys)[:, None]
    base, slope = np.linalg.lstsq(design, roots, rcond=None)[0]
    if slope < least_slope:
        slope = least_slope
        base = _coefficient(design[:, 0], roots - slope * design[:, 1])
    if base < 0:
        return 0.0, max(least_slope, _coefficient(design[:, 1], roots))
    return float(base), float(slope)


def _coefficient(column: np.ndarray, wanted: np.ndarray) -> float:
    """The coefficient for which `column` · coefficient is closest to `wanted` in the sense of least squares."""
    return float(column @ wanted / (column @ column))
