"""Batched numbers: one value per point of a study, so that a computation written for floats runs once for many points.

Arithmetic is elementwise over the points. A comparison returns what the first point decides and records which other points
decide differently; the result is invalid for those. For all other points it equals a computation of that point alone, bit by
bit.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


class PlainNumberNeededError(TypeError):
    """A computation needs a plain number; run it point by point instead."""


class BatchedPoints:
    """Points that share one computation. agrees: points that decided all comparisons as the first one did, shape (points,)."""

    def __init__(self, points: int) -> None:
        self.agrees = np.ones(points, dtype=np.bool_)

    def number(self, values: Values) -> BatchedNumber:
        """A batched number with these values, shape (points,)."""
        return BatchedNumber(self, values)

    def decide(self, outcomes: NDArray[np.bool_]) -> bool:
        """The first point's outcome; points with another outcome no longer agree. outcomes: shape (points,)."""
        self.agrees &= outcomes == outcomes[0]
        return bool(outcomes[0])


class BatchedNumber:
    """A number with one value for each point of a batch, shape (points,)."""

    __slots__ = ("batch", "values")

    def __init__(self, batch: BatchedPoints, values: Values) -> None:
        self.batch = batch
        self.values = values

    def _elementwise(self, other: Any, operation: Callable[[Any, Any], Any]) -> Any:
        if isinstance(other, np.ndarray):
            return NotImplemented
        return BatchedNumber(self.batch, operation(self.values, other.values if isinstance(other, BatchedNumber) else other))

    def _compare(self, other: Any, operation: Callable[[Any, Any], Any]) -> Any:
        if isinstance(other, np.ndarray):
            return NotImplemented
        outcomes = operation(self.values, other.values if isinstance(other, BatchedNumber) else other)
        return self.batch.decide(outcomes)

    def __add__(self, other: Any) -> Any:
        return self._elementwise(other, operator.add)

    def __radd__(self, other: Any) -> Any:
        return self._elementwise(other, lambda left, right: right + left)

    def __sub__(self, other: Any) -> Any:
        return self._elementwise(other, operator.sub)

    def __rsub__(self, other: Any) -> Any:
        return self._elementwise(other, lambda left, right: right - left)

    def __mul__(self, other: Any) -> Any:
        return self._elementwise(other, operator.mul)

    def __rmul__(self, other: Any) -> Any:
        return self._elementwise(other, lambda left, right: right * left)

    def __truediv__(self, other: Any) -> Any:
        return self._elementwise(other, operator.truediv)

    def __rtruediv__(self, other: Any) -> Any:
        return self._elementwise(other, lambda left, right: right / left)

    def __pow__(self, other: Any) -> Any:
        return self._elementwise(other, operator.pow)

    def __lt__(self, other: Any) -> Any:
        return self._compare(other, operator.lt)

    def __le__(self, other: Any) -> Any:
        return self._compare(other, operator.le)

    def __gt__(self, other: Any) -> Any:
        return self._compare(other, operator.gt)

    def __ge__(self, other: Any) -> Any:
        return self._compare(other, operator.ge)

    def __eq__(self, other: object) -> Any:
        return self is other or (isinstance(other, BatchedNumber | float | int) and self._compare(other, operator.eq))

    def __hash__(self) -> int:
        return id(self)

    def __bool__(self) -> bool:
        return self.batch.decide(self.values != 0)

    def __float__(self) -> float:
        raise PlainNumberNeededError("expected a plain number, got one that differs between points")


def numbers(values: Any, dtype: type) -> NDArray[Any]:
    """`values` as an array of `dtype`; if some of them are batched, the points are an additional last axis."""
    array = np.asarray(values)
    if array.dtype != object:
        return array.astype(dtype, copy=False)
    batch = next((value.batch for value in array.flat if isinstance(value, BatchedNumber)), None)
    if batch is None:
        return array.astype(dtype, copy=False)
    result = np.empty((*array.shape, len(batch.agrees)), dtype=dtype)
    for place, value in np.ndenumerate(array):
        result[place] = value.values if isinstance(value, BatchedNumber) else value
    return result


def put(column: NDArray[Any], rows: NDArray[np.int64], values: NDArray[Any]) -> NDArray[Any]:
    """Sets `column[rows]` and returns the column, which gets the points as a last axis if the values are batched.

    column: shape (rows,) or (rows, points); it is changed in place unless it has to grow.
    """
    array = numbers(values, column.dtype.type)
    if array.ndim > rows.ndim and column.ndim == 1:
        column = np.repeat(column[:, None], array.shape[-1], axis=1)
    column[rows] = array if array.ndim - rows.ndim == column.ndim - 1 else array[..., None]
    return column
