"""Time intervals of owners, such as ranks: their union, and their division among labels."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.csr import in_order

Times = NDArray[np.float64]
Numbers = NDArray[np.int64]


class TimeIntervals(NamedTuple):
    """Time intervals from start to end, each of one owner (a number, zero or more). All arrays have shape (intervals,)."""

    owner: Numbers
    start_s: Times
    end_s: Times

    def union(self) -> TimeIntervals:
        """The union of each owner's intervals: disjoint intervals that do not touch, sorted by owner and start."""
        return self.divided(np.zeros(len(self.owner), dtype=np.int64))[0]

    def divided(self, label: Numbers) -> tuple[TimeIntervals, Numbers]:
        """The union of each owner's intervals, divided so that each instant has the label of the interval that started first.

        label: of each interval. Returns disjoint intervals, sorted by owner and start, and their labels; those that touch have
        different labels.
        """
        order = np.flatnonzero(self.end_s > self.start_s)
        order = order[np.argsort(self.start_s[order], kind="stable")]
        order = order[in_order(self.owner[order])]
        owner, start_s, end_s, label = self.owner[order], self.start_s[order], self.end_s[order], label[order]
        if not len(owner):
            return TimeIntervals(owner, start_s, end_s), label
        is_first = np.diff(owner, prepend=-1) > 0
        covered_s = _running_maximum(end_s, owner)
        begin_s = np.where(is_first, start_s, np.maximum(start_s, np.roll(covered_s, 1)))
        keep = end_s > begin_s
        owner, begin_s, end_s, label = owner[keep], begin_s[keep], end_s[keep], label[keep]
        joins = (owner[1:] == owner[:-1]) & (label[1:] == label[:-1]) & (begin_s[1:] == end_s[:-1])
        first, last = np.append(True, ~joins), np.append(~joins, True)
        return TimeIntervals(owner[first], begin_s[first], end_s[last]), label[first]


def _running_maximum(values: Times, owner: Numbers) -> Times:
    """The maximum of the values of an owner up to each. owner: in ascending order."""
    if owner[0] == owner[-1]:
        return np.maximum.accumulate(values)
    # as whole numbers, to which those of earlier owners are lower; of 64 bits, since their product may exceed 32
    owner = owner.astype(np.int64)
    order = np.argsort(values, kind="stable")
    rank = np.empty(len(values), dtype=np.int64)
    rank[order] = np.arange(len(values))
    highest = np.maximum.accumulate(rank + owner * len(values)) - owner * len(values)
    result: Times = values[order][highest]
    return result
