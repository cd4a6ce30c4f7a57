"""Nodes in repair, for many samples at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Repairs:
    """Repairs of each sample: when they end, infinite in free places, and their nodes; both of shape (places, samples)."""

    def __init__(self, samples: int) -> None:
        self._end_s = np.full((1, samples), np.inf)
        self._nodes = np.zeros((1, samples), dtype=np.int64)

    def send(self, at: Ints, end_s: Floats, nodes: Ints) -> None:
        """Adds `nodes` nodes, which return at `end_s`, to each sample in `at`."""
        some = nodes > 0
        at, end_s, nodes = at[some], end_s[some], nodes[some]
        if np.isfinite(self._end_s[:, at]).all(axis=0).any():
            self._end_s = np.concatenate([self._end_s, np.full_like(self._end_s, np.inf)])
            self._nodes = np.concatenate([self._nodes, np.zeros_like(self._nodes)])
        free = np.isinf(self._end_s[:, at]).argmax(axis=0)
        self._end_s[free, at], self._nodes[free, at] = end_s, nodes

    def next_s(self, at: Ints) -> Floats:
        """Time of the next return in each sample; infinite where no node is in repair."""
        soonest_s: Floats = self._end_s[:, at].min(axis=0)
        return soonest_s

    def returned(self, at: Ints, now_s: Floats) -> Ints:
        """Removes the nodes of each sample that have returned by now, and returns their number."""
        ended = self._end_s[:, at] <= now_s
        nodes: Ints = np.where(ended, self._nodes[:, at], 0).sum(axis=0)
        self._end_s[:, at] = np.where(ended, np.inf, self._end_s[:, at])
        return nodes
