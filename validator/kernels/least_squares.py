"""Least squares of a few parameters, with numpy alone, since users fit devices where scipy may be missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_STEP: Final = 1e-3
_MOST_STEPS: Final = 60
_CONVERGED: Final = 1e-6
_MOST_DAMPING: Final = 1e8


def minimum(residuals: Callable[[Floats], Floats], start: Floats) -> Floats:
    """Parameters with the least sum of squared residuals near `start`, by Levenberg and Marquardt's method."""
    values, found, damping = start, residuals(start), 1e-2
    for _ in range(_MOST_STEPS):
        slopes = np.stack([(residuals(values + step) - found) / _STEP for step in np.eye(len(values)) * _STEP], axis=1)
        normal, gradient = slopes.T @ slopes, slopes.T @ found
        gained = 0.0
        while gained <= 0 and damping < _MOST_DAMPING:
            tried = values - np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-12), gradient)
            then = residuals(tried)
            gained = float(found @ found - then @ then)
            damping *= 0.3 if gained > 0 else 4
        if gained <= 0:
            break
        values, previous, found = tried, found, then
        if gained < _CONVERGED * float(previous @ previous):
            break
    return values
