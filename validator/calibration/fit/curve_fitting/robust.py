"""Least squares of logarithms with a loss that limits the influence of outliers, for positive coefficients.

Errors are relative (logarithms of fitted over measured), so that microseconds and seconds count equally. An error beyond SCALE
counts by its size instead of its square (scipy's soft_l1). The search is over the logarithm of each coefficient within bounds,
so no latency and no rate is ever negative.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

# Coefficients (..., p) → fitted seconds (..., n), and each coefficient's share of them (..., n, p), which is the derivative of
# the logarithm of the seconds by the logarithm of the coefficient.
Curve = Callable[[Array], tuple[Array, Array]]

# Repetitions on a quiet machine agree to a few percent; larger deviations are not such noise.
SCALE: Final = 0.05
# Standard deviation of normal noise, over the median of its absolute values.
DEVIATION_OF_MEDIAN: Final = 1.4826
# Bound of the logarithm of a coefficient over its start: a millionth of the start is as good as zero.
_REACH: Final = 14.0
_LARGEST_STEP: Final = 1.0
_RIDGE: Final = 1e-7


def losses(errors: Array) -> Array:
    """Loss of each relative error: half its square in units of SCALE if small, proportional to its size if large."""
    return np.asarray(np.sqrt(1 + (errors / SCALE) ** 2) - 1)


def solve(curve: Curve, seconds: Array, start: Array) -> Array:
    """Coefficients, shape (p,), that bring `curve` closest to the measured seconds, searched from `start`."""
    from scipy.optimize import least_squares

    measured = np.log(seconds)

    def errors(powers: Array) -> Array:
        return np.asarray(np.log(curve(start * np.exp(powers))[0]) - measured)

    def shares(powers: Array) -> Array:
        return curve(start * np.exp(powers))[1]

    bounds = (-_REACH, _REACH)
    fit = least_squares(errors, np.zeros_like(start), shares, bounds, loss="soft_l1", f_scale=SCALE, xtol=1e-10, ftol=1e-10)
    return np.asarray(start * np.exp(fit.x))


def carry(curve: Curve, seconds: Array, weights: Array, start: Array, steps: int) -> Array:
    """Coefficients, shape (rows, p), for each row of `weights`, starting from a solution of nearly the same problem.

    All rows take the same few Gauss-Newton steps with the same loss. A bootstrap or a cross-validation cannot afford more and
    does not need it: a few steps from the full solution are as accurate as a full search (Davidson & MacKinnon, "Bootstrap
    testing in nonlinear models", International Economic Review 40, 1999). seconds: (n,) or one row per row of weights.
    """
    measured = np.log(seconds)
    coefficients = np.tile(start, (len(weights), 1))
    for _ in range(steps):
        fitted, shares = curve(coefficients)
        errors = np.log(fitted) - measured
        pulls = weights / np.sqrt(1 + (errors / SCALE) ** 2)
        weighted = np.swapaxes(shares * pulls[..., None], 1, 2)
        curvature = weighted @ shares + _RIDGE * np.eye(len(start))
        step = np.linalg.solve(curvature, weighted @ errors[..., None])[..., 0]
        coefficients = coefficients * np.exp(-np.clip(step, -_LARGEST_STEP, _LARGEST_STEP))
    return coefficients
