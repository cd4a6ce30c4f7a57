"""Codes: which rows of some columns are alike, so that what follows from those columns is worked out once for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
_T = TypeVar("_T", bound=np.generic)


def taken(values: NDArray[_T], rows: Numbers, axis: int = 0) -> NDArray[_T]:
    """Those at some rows of an axis, all of which are there: that numpy looks first takes as long again."""
    return values.take(rows, axis=axis, mode="clip")


class Distinct(NamedTuple):
    """code: of each row, from 0 on. first: a row that has each code."""

    code: Numbers
    first: Numbers

    def __len__(self) -> int:
        return len(self.first)

    def over(self, other: Distinct) -> Distinct:
        """The codes of all rows, where those of one row each of `other`'s codes are known."""
        return Distinct(taken(self.code, other.code), taken(other.first, self.first))


def distinct(*columns: Numbers) -> Distinct:
    """The codes of rows of columns that hold whole numbers from 0 on and have one length."""
    key = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        key = key * (int(column.max(initial=0)) + 1) + column
    code, values = pd.factorize(key)
    first = np.empty(len(values), dtype=np.int64)
    # the last of alike rows that is written stays
    first[code] = np.arange(len(code))
    return Distinct(code.astype(np.int64, copy=False), first)


def combined(halves: Sequence[tuple[Numbers, Numbers]]) -> Distinct:
    """The codes of rows that are combinations of halves: of each half its own codes, and the place in it that each row has."""
    code, count = np.zeros(len(halves[0][1]), dtype=np.int64), 1
    for codes, places in reversed(halves):
        each = int(codes.max(initial=0)) + 1
        if each > 1:
            code += taken(codes * count, places)
        count *= each
    # of alike rows the last that is written stays
    row = np.full(count, -1)
    row[code] = np.arange(len(code))
    there = row >= 0
    return Distinct(taken(np.cumsum(there) - 1, code), row[there])
