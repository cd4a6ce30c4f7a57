"""Unions of time intervals, for many owners at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.csr import in_order


class TimeIntervals(NamedTuple):
    """Time intervals from start to end, each of one owner (a number, zero or more). All arrays have shape (intervals,)."""

    owner: NDArray[np.int64]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]

    def union(self) -> TimeIntervals:
        """The union of each owner's intervals: disjoint intervals that do not touch, sorted by owner and start."""
        keep = self.end_s > self.start_s
        owner = np.concatenate([self.owner[keep]] * 2)
        time_s = np.concatenate([self.start_s[keep], self.end_s[keep]])
        change = np.repeat([1, -1], len(owner) // 2)
        # stable: where one interval ends as another starts, the start stays first, so that they merge
        order = np.argsort(time_s, kind="stable")
        order = order[in_order(owner[order])]
        owner, time_s, change = owner[order], time_s[order], change[order]
        # the changes of each owner add up to zero, so the running sum starts at zero for every owner
        depth = np.cumsum(change)
        begins, ends = (change > 0) & (depth == 1), depth == 0
        return TimeIntervals(owner[begins], time_s[begins], time_s[ends])
