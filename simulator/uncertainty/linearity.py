"""Straight: where convex functions are linear, so that few values of them tell all.

The longest of several paths is a convex function of how long its parts take.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

# By so small a share, which is the rounding of long sums, a middle may be below the mean of its corners.
_ROUNDING: Final = 1e-12


class LinearBox(NamedTuple):
    """Functions that are linear between low and high, which have an entry for each axis: values in the middle, shape
    (functions,), and slopes along the axes, shape (functions, axes)."""

    low: Values
    high: Values
    values: Values
    slopes: Values

    def at(self, places: Values) -> Values:
        """Their values, shape (functions, places); at places of shape (axes, places)."""
        from_middle = places - (self.low + self.high)[:, None] / 2
        return np.asarray(self.values[:, None] + self.slopes @ from_middle)

    def outside(self, places: Values) -> NDArray[np.bool_]:
        """Which places the values do not hold for, shape (places,)."""
        inside = np.minimum(places.T - self.low, self.high - places.T)
        return np.asarray((inside < 0).any(axis=1))


def straight(function: Callable[[Values], Values], low: Values, high: Values) -> LinearBox | None:
    """What convex functions are in a box where all of them are linear; None where one is not. function: their values, shape
    (functions, places), at places of shape (axes, places); asked for the box's corners and its middle.

    In the middle some linear function touches a convex one, and is nowhere above it. Where the mean of the corners is what the
    middle has, it touches at all corners, and so in all of the box.
    """
    sides = np.array(list(itertools.product((-0.5, 0.5), repeat=len(low)))).T
    extent = (high - low)[:, None]
    found = function((low + high)[:, None] / 2 + extent * np.hstack([np.zeros((len(low), 1)), sides]))
    middle, corners = found[:, 0], found[:, 1:]
    values = corners.mean(axis=1)
    if (np.abs(values - middle) > _ROUNDING * np.abs(middle)).any():
        return None
    return LinearBox(low, high, values, 4 * (corners @ (sides / extent).T) / corners.shape[1])
