"""Codes of rows that are equal in some columns, so that what depends on these columns is computed once for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
# Up to this many possible keys per row a table of all keys is faster than sorting the rows.
_DENSE: Final = 64
_T = TypeVar("_T", bound=np.generic)


def taken(values: NDArray[_T], rows: Numbers, axis: int = 0) -> NDArray[_T]:
    """Values at some rows of an axis, all of which must exist: numpy's check of the indices would double the time."""
    return values.take(rows, axis=axis, mode="clip")


class Distinct(NamedTuple):
    """code: code of each row, from 0 on. first: a row with each code."""

    code: Numbers
    first: Numbers

    def __len__(self) -> int:
        return len(self.first)

    def over(self, other: Distinct) -> Distinct:
        """Codes of all rows, if `self` has the codes of one row for each code of `other`."""
        return Distinct(taken(self.code, other.code), taken(other.first, self.first))


def distinct(*columns: Numbers) -> Distinct:
    """Codes of rows, from columns of one length that contain whole numbers from 0 on."""
    key, count = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in columns:
        size = int(column.max(initial=0)) + 1
        key = key * size + column
        count *= size
    if count > _DENSE * len(key):
        _, first, code = np.unique(key, return_index=True, return_inverse=True)
        return Distinct(code, first)
    return _addressed(key, count)


def combined(halves: Sequence[tuple[Numbers, Numbers]]) -> Distinct:
    """Codes of rows that are combinations of halves, each given as its own codes and the index in it of each row."""
    code, count = np.zeros(len(halves[0][1]), dtype=np.int64), 1
    for codes, places in reversed(halves):
        count_of_half = int(codes.max(initial=0)) + 1
        if count_of_half > 1:
            code += taken(codes * count, places)
        count *= count_of_half
    return _addressed(code, count)


def _addressed(key: Numbers, count: int) -> Distinct:
    """Codes of keys below `count`, by a table of all keys."""
    row = np.full(count, -1)
    # numpy keeps the last row that is written for each key
    row[key] = np.arange(len(key))
    occurs = row >= 0
    return Distinct(taken(np.cumsum(occurs) - 1, key), row[occurs])
