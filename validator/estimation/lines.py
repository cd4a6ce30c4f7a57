"""Straight lines through measured times, and the prediction interval of times that a line has not seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.units import format_percent
from scaleproof.validator.estimation.posterior import Array, student_reach

# Smallest seconds per byte: less is lost in the noise of the latency.
FASTEST_S: Final = 1e-15
_FEWEST: Final = 3


def straight_line(
    x: Sequence[float], seconds: Sequence[float], weights: Sequence[float] | None = None, least_slope: float = 0.0
) -> tuple[float, float]:
    """(base, slope) of seconds = base + slope · x with base ≥ 0 and the least sum of squared relative errors.

    A single x gives a slope alone. weights: of each squared error, equal if None. least_slope: lower bound of the slope.
    """
    xs, ys = np.asarray(x, dtype=float), np.asarray(seconds, dtype=float)
    roots = np.ones_like(ys) if weights is None else np.sqrt(np.asarray(weights, dtype=float))
    # of equally good columns, nnls takes the first
    design = np.stack([xs, np.ones_like(xs)], axis=1) * (roots / ys)[:, None]
    further, base = nonnegative(design, roots - least_slope * design[:, 0])
    return float(base), least_slope + float(further)


def nonnegative(design: Array, wanted: Array) -> Array:
    """Coefficients of columns of a design, none negative, with the least sum of squared differences from the wanted values."""
    from scipy.optimize import nnls

    largest = design.max(0)
    return np.asarray(nnls(design / largest, wanted)[0] / largest)


def held_out_shares(measured: Sequence[float], predicted: Sequence[float]) -> tuple[float, float]:
    """90 % prediction interval of measured over predicted for one more case.

    From Student's distribution of the logarithms, which allows for the number of cases. Raises InputError for fewer than three.
    """
    if len(measured) < _FEWEST:
        raise InputError(f"{len(measured)} held-out cases are too few for an interval; give at least {_FEWEST}")
    errors = np.log(np.asarray(measured, dtype=float) / np.asarray(predicted, dtype=float))
    count = len(errors)
    reach = student_reach(count - 1) * float(errors.std(ddof=1)) * math.sqrt(1 + 1 / count)
    return math.exp(float(errors.mean()) - reach), math.exp(float(errors.mean()) + reach)


def held_out_interval(measured: Sequence[float], predicted: Sequence[float]) -> tuple[str, str]:
    """The ends of that interval as in a cluster file, such as "96 %" and "104 %" of the times that the file gives."""
    low, high = held_out_shares(measured, predicted)
    return format_percent(low), format_percent(high)
