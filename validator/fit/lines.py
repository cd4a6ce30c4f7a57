"""Straight lines through measured times."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def line(x: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """(base, slope) of seconds = base + slope · x, both zero or more, with the least squared relative error."""
    xs, ys = np.asarray(x, dtype=float), np.asarray(seconds, dtype=float)
    design = np.stack([np.ones_like(xs), xs], axis=1) / ys[:, None]
    base, slope = np.linalg.lstsq(design, np.ones_like(ys), rcond=None)[0]
    if base < 0:
        return 0.0, float(_only(xs / ys))
    if slope < 0:
        return float(_only(1 / ys)), 0.0
    return float(base), float(slope)


def _only(relative: np.ndarray) -> float:
    """The one coefficient that brings `relative` · coefficient closest to one."""
    return float(relative.sum() / (relative**2).sum())
