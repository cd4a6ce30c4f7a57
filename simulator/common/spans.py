"""Stretches of time, many at once: what they cover together."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.csr import in_order


class Stretches(NamedTuple):
    """From start to end, each of somebody's: `owner` is a number, zero or more. Arrays of one length."""

    owner: NDArray[np.int64]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]

    def union(self) -> Stretches:
        """What each owner's stretches cover, as stretches that do not touch, by owner and start. Empty ones cover nothing."""
        keep = self.end_s > self.start_s
        owner = np.concatenate([self.owner[keep]] * 2)
        time_s = np.concatenate([self.start_s[keep], self.end_s[keep]])
        change = np.repeat([1, -1], len(owner) // 2)
        # where one ends as another starts, the start stays first, so that they are one stretch
        order = np.argsort(time_s, kind="stable")
        order = order[in_order(owner[order])]
        owner, time_s, change = owner[order], time_s[order], change[order]
        # every owner's changes add up to zero, so a sum that runs over all of them starts each at zero
        open_ones = np.cumsum(change)
        begins, ends = (change > 0) & (open_ones == 1), open_ones == 0
        return Stretches(owner[begins], time_s[begins], time_s[ends])
