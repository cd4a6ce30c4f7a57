"""Boxes in which convex functions are linear within a tolerance, so that a few values determine all others.

The length of the longest of several paths is a convex function of the durations of their parts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


class LinearBox(NamedTuple):
    """Functions that are linear in a box from low to high, each of shape (axes,).

    values: in the middle, shape (functions,). slopes: along the axes, shape (functions, axes).
    """

    low: Values
    high: Values
    values: Values
    slopes: Values

    def at(self, places: Values) -> Values:
        """Values of the functions, shape (functions, places), at places of shape (axes, places)."""
        from_middle = places - (self.low + self.high)[:, None] / 2
        return np.asarray(self.values[:, None] + self.slopes @ from_middle)

    def outside(self, places: Values) -> NDArray[np.bool_]:
        """Whether each place is outside the box, shape (places,)."""
        inside = np.minimum(places.T - self.low, self.high - places.T)
        return np.asarray((inside < 0).any(axis=1))


def linear_box(function: Callable[[Values], Values], low: Values, high: Values, tolerance: float) -> LinearBox | None:
    """Convex functions as linear functions in the box from low to high; None if the error may be more than `tolerance`.

    function: their values, shape (functions, places), at places of shape (axes, places); called once, with the middle and the
    corners of the box. tolerance: largest error, relative to the value in the middle.

    A convex function has a tangent in the middle that is nowhere above it. Where the mean of the 2^n corners of n axes is above
    the middle by d, the function is nowhere more than 2^n d above the tangent. The mean of the corners differs from the tangent
    by d, and their slopes by n d at most.
    """
    sides = np.array(list(itertools.product((-0.5, 0.5), repeat=len(low)))).T
    extent = (high - low)[:, None]
    results = function((low + high)[:, None] / 2 + extent * np.hstack([np.zeros((len(low), 1)), sides]))
    middle, corners = results[:, 0], results[:, 1:]
    values = corners.mean(axis=1)
    error = (corners.shape[1] + len(low)) * np.abs(values - middle)
    if (error > tolerance * np.abs(middle)).any():
        return None
    return LinearBox(low, high, values, 4 * (corners @ (sides / extent).T) / corners.shape[1])
