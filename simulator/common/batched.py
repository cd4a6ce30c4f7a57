"""Varying: a number that differs from point to point, so that what is computed once holds for many points.

Arithmetic is done for all points at once. A comparison is decided as the first point decides it, and the crowd notes which
points would have decided otherwise: for those the result does not hold. For all others it is what each alone would have come
to, to the last bit.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


class NotVaryingError(TypeError):
    """A computation wants a plain number; it has to be done point by point."""


class BatchedPoints:
    """Points that go through a computation together. agrees: which have decided all comparisons as the first has, (points,)."""

    def __init__(self, points: int) -> None:
        self.agrees = np.ones(points, dtype=np.bool_)

    def number(self, values: Values) -> Varying:
        """A number of these values, by point."""
        return Varying(self, values)

    def decide(self, outcomes: NDArray[np.bool_]) -> bool:
        """What the first point says."""
        self.agrees &= outcomes == outcomes[0]
        return bool(outcomes[0])


class Varying:
    """A number with a value for each point of a crowd, shape (points,)."""

    __slots__ = ("crowd", "values")

    def __init__(self, crowd: BatchedPoints, values: Values) -> None:
        self.crowd = crowd
        self.values = values

    def _with(self, other: Any, operation: Callable[[Any, Any], Any]) -> Any:
        if isinstance(other, np.ndarray):
            return NotImplemented
        return Varying(self.crowd, operation(self.values, other.values if isinstance(other, Varying) else other))

    def _decided(self, other: Any, operation: Callable[[Any, Any], Any]) -> Any:
        if isinstance(other, np.ndarray):
            return NotImplemented
        outcomes = operation(self.values, other.values if isinstance(other, Varying) else other)
        return self.crowd.decide(outcomes)

    def __add__(self, other: Any) -> Any:
        return self._with(other, operator.add)

    def __radd__(self, other: Any) -> Any:
        return self._with(other, lambda mine, its: its + mine)

    def __sub__(self, other: Any) -> Any:
        return self._with(other, operator.sub)

    def __rsub__(self, other: Any) -> Any:
        return self._with(other, lambda mine, its: its - mine)

    def __mul__(self, other: Any) -> Any:
        return self._with(other, operator.mul)

    def __rmul__(self, other: Any) -> Any:
        return self._with(other, lambda mine, its: its * mine)

    def __truediv__(self, other: Any) -> Any:
        return self._with(other, operator.truediv)

    def __rtruediv__(self, other: Any) -> Any:
        return self._with(other, lambda mine, its: its / mine)

    def __pow__(self, other: Any) -> Any:
        return self._with(other, operator.pow)

    def __lt__(self, other: Any) -> Any:
        return self._decided(other, operator.lt)

    def __le__(self, other: Any) -> Any:
        return self._decided(other, operator.le)

    def __gt__(self, other: Any) -> Any:
        return self._decided(other, operator.gt)

    def __ge__(self, other: Any) -> Any:
        return self._decided(other, operator.ge)

    def __eq__(self, other: object) -> Any:
        return self is other or (isinstance(other, Varying | float | int) and self._decided(other, operator.eq))

    def __hash__(self) -> int:
        return id(self)

    def __bool__(self) -> bool:
        return self.crowd.decide(self.values != 0)

    def __float__(self) -> float:
        raise NotVaryingError("a plain number is wanted, and this one differs from point to point")


def numbers(values: Any, dtype: type) -> NDArray[Any]:
    """An array of numbers in the shape that they have; with the points as a last axis where some of them vary."""
    array = np.asarray(values)
    if array.dtype != object:
        return array.astype(dtype, copy=False)
    crowd = next((value.crowd for value in array.flat if isinstance(value, Varying)), None)
    if crowd is None:
        return array.astype(dtype, copy=False)
    result = np.empty((*array.shape, len(crowd.agrees)), dtype=dtype)
    for place, value in np.ndenumerate(array):
        result[place] = value.values if isinstance(value, Varying) else value
    return result


def put(column: NDArray[Any], rows: NDArray[np.int64], values: NDArray[Any]) -> NDArray[Any]:
    """A column with some of its rows set; it gets the points as a last axis where these vary, and it does not yet."""
    settled = numbers(values, column.dtype.type)
    if settled.ndim > rows.ndim and column.ndim == 1:
        column = np.repeat(column[:, None], settled.shape[-1], axis=1)
    column[rows] = settled if settled.ndim - rows.ndim == column.ndim - 1 else settled[..., None]
    return column
