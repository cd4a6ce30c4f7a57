"""Nodes in repair, for many samples at once. All repairs take equally long, so that nodes return in order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class RepairQueue:
    """A queue of repairs for each sample, as a ring buffer of shape (places, samples)."""

    def __init__(self, samples: int) -> None:
        self._back_s = np.full((4, samples), np.inf)
        self._nodes = np.zeros((4, samples), dtype=np.int64)
        self._head, self._tail = np.zeros((2, samples), dtype=np.int64)

    def send(self, at: Ints, back_s: Floats, nodes: Ints) -> None:
        """Adds `nodes` nodes, which return at `back_s`, to each sample in `at`; none earlier than those added before."""
        is_any = nodes > 0
        at, back_s, nodes = at[is_any], back_s[is_any], nodes[is_any]
        if at.size and (self._tail - self._head)[at].max() == len(self._back_s):
            self._grow()
        place = self._tail[at] % len(self._back_s)
        self._back_s[place, at], self._nodes[place, at] = back_s, nodes
        self._tail[at] += 1

    def next_s(self, at: Ints) -> Floats:
        """Time of the next return in each sample; infinite where no node is in repair."""
        soonest_s = self._back_s[self._head[at] % len(self._back_s), at]
        return np.where(self._head[at] < self._tail[at], soonest_s, np.inf)

    def returned(self, at: Ints, now_s: Floats) -> Ints:
        """Removes the nodes of each sample that have returned by now, and returns their number."""
        total = np.zeros(len(at), dtype=np.int64)
        while (back := self.next_s(at) <= now_s).any():
            samples = at[back]
            total[back] += self._nodes[self._head[samples] % len(self._back_s), samples]
            self._head[samples] += 1
        return total

    def _grow(self) -> None:
        """Doubles the number of places, those in use first."""
        places = (self._head + np.arange(len(self._back_s))[:, None]) % len(self._back_s)
        samples = np.arange(self._back_s.shape[1])
        back_s, nodes = self._back_s[places, samples], self._nodes[places, samples]
        self._back_s = np.concatenate([back_s, np.full_like(back_s, np.inf)])
        self._nodes = np.concatenate([nodes, np.zeros_like(nodes)])
        self._tail -= self._head
        self._head[:] = 0
