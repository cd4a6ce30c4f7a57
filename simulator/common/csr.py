"""Lists of different lengths in two arrays (compressed sparse rows, CSR)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class CsrLists:
    """Lists of different lengths: list i is `values[offsets[i]:offsets[i + 1]]`. offsets: shape (lists + 1,)."""

    offsets: NDArray[np.int64]
    values: NDArray[np.int64]

    @classmethod
    def from_lists(cls, lists: Sequence[Sequence[int]]) -> CsrLists:
        """CSR arrays of Python lists."""
        offsets = np.zeros(len(lists) + 1, dtype=np.int64)
        np.cumsum(np.fromiter(map(len, lists), dtype=np.int64, count=len(lists)), out=offsets[1:])
        return cls(offsets, np.fromiter(itertools.chain.from_iterable(lists), dtype=np.int64, count=int(offsets[-1])))

    @classmethod
    def grouped(cls, keys: NDArray[np.int64], values: NDArray[np.int64], lists: int) -> CsrLists:
        """Groups values by key into `lists` lists, in their order. keys, values: shape (values,); keys from 0 to lists − 1."""
        offsets = np.zeros(lists + 1, dtype=np.int64)
        np.cumsum(np.bincount(keys, minlength=lists), out=offsets[1:])
        return cls(offsets, values[in_order(keys)])

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def counts(self) -> NDArray[np.int64]:
        """Length of each list, shape (lists,)."""
        return np.diff(self.offsets)

    def keys(self) -> NDArray[np.int64]:
        """Index of the list that each value is in, shape (values,)."""
        return np.repeat(np.arange(len(self)), self.counts)

    @classmethod
    def slices(cls, values: NDArray[np.int64], begins: NDArray[np.integer], stops: NDArray[np.integer]) -> CsrLists:
        """The slices values[begins[i]:stops[i]] as lists; a slice whose stop is not after its begin is empty."""
        counts = np.maximum(0, stops - begins)
        offsets = np.zeros(len(begins) + 1, dtype=np.int64)
        np.cumsum(counts, out=offsets[1:])
        shift = np.repeat(begins - offsets[:-1], counts)
        return cls(offsets, values[np.arange(len(shift)) + shift])

    def take(self, indices: NDArray[np.integer]) -> CsrLists:
        """The lists with these indices, in this order."""
        return CsrLists.slices(self.values, self.offsets[indices], self.offsets[1:][indices])

    def extended(self, values: NDArray[np.int64]) -> CsrLists:
        """Appends values[i] to list i where it is not negative. values: shape (lists,)."""
        appended = values >= 0
        offsets = self.offsets.copy()
        offsets[1:] += np.cumsum(appended)
        return CsrLists(offsets, np.insert(self.values, self.offsets[1:][appended], values[appended]))

    def lists(self) -> list[list[int]]:
        """All lists as Python lists."""
        offsets, values = self.offsets.tolist(), self.values.tolist()
        return [values[a:b] for a, b in itertools.pairwise(offsets)]


def in_order(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Indices of a stable sort of keys, none of which is negative."""
    # numpy sorts integers of 16 bits or fewer in linear time
    return np.argsort(keys.astype(np.min_scalar_type(keys.max(initial=0))), kind="stable")
