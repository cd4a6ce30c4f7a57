"""Lists of different lengths as two arrays."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Ragged:
    """Lists of different lengths: list i is `values[offsets[i]:offsets[i + 1]]`."""

    offsets: NDArray[np.int64]
    values: NDArray[np.int64]

    @classmethod
    def of(cls, lists: Sequence[Sequence[int]]) -> Ragged:
        offsets = np.zeros(len(lists) + 1, dtype=np.int64)
        np.cumsum([len(one) for one in lists], out=offsets[1:])
        return cls(offsets, np.fromiter(itertools.chain.from_iterable(lists), dtype=np.int64, count=int(offsets[-1])))

    @classmethod
    def grouped(cls, keys: NDArray[np.int64], values: NDArray[np.int64], lists: int) -> Ragged:
        """`lists` lists: each value is put at the end of the list that its key says."""
        offsets = np.zeros(lists + 1, dtype=np.int64)
        np.cumsum(np.bincount(keys, minlength=lists), out=offsets[1:])
        return cls(offsets, values[in_order(keys)])

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def counts(self) -> NDArray[np.int64]:
        """How long each list is."""
        return np.diff(self.offsets)

    def keys(self) -> NDArray[np.int64]:
        """The number of the list that each value is in."""
        return np.repeat(np.arange(len(self)), self.counts)

    @classmethod
    def slices(cls, values: NDArray[np.int64], begins: NDArray[np.integer], stops: NDArray[np.integer]) -> Ragged:
        """Lists that are parts of `values`: from each of `begins` to before each of `stops`, where that is behind it."""
        counts = np.maximum(0, stops - begins)
        offsets = np.zeros(len(begins) + 1, dtype=np.int64)
        np.cumsum(counts, out=offsets[1:])
        moved = np.repeat(begins - offsets[:-1], counts)
        return cls(offsets, values[np.arange(len(moved)) + moved])

    def take(self, which: NDArray[np.integer]) -> Ragged:
        """The lists of these numbers, in this order."""
        return Ragged.slices(self.values, self.offsets[which], self.offsets[1:][which])

    def extended(self, values: NDArray[np.int64]) -> Ragged:
        """With one value more at the end of every list for which `values` has none below zero."""
        more = values >= 0
        offsets = self.offsets.copy()
        offsets[1:] += np.cumsum(more)
        return Ragged(offsets, np.insert(self.values, self.offsets[1:][more], values[more]))

    def lists(self) -> list[list[int]]:
        """All lists, as plain numbers."""
        offsets, values = self.offsets.tolist(), self.values.tolist()
        return [values[a:b] for a, b in itertools.pairwise(offsets)]


def in_order(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Indices that sort keys (zero or more each) and leave equal ones in their order."""
    # numpy sorts numbers of 16 bits and fewer in linear time
    return np.argsort(keys.astype(np.min_scalar_type(keys.max(initial=0))), kind="stable")
