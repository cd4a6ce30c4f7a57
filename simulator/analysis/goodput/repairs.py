"""Repairs: nodes on their way back, for many samples at once. All take equally long, so that they come back in their order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Repairs:
    """A queue for each sample: rows are places, used in turn."""

    def __init__(self, samples: int) -> None:
        self._back_s = np.full((4, samples), np.inf)
        self._nodes = np.zeros((4, samples), dtype=np.int64)
        self._head, self._tail = np.zeros((2, samples), dtype=np.int64)

    def send(self, at: Ints, back_s: Floats, nodes: Ints) -> None:
        """So many nodes of each sample, which are back then; none earlier than those that were sent before."""
        some = nodes > 0
        at, back_s, nodes = at[some], back_s[some], nodes[some]
        if at.size and (self._tail - self._head)[at].max() == len(self._back_s):
            self._grow()
        place = self._tail[at] % len(self._back_s)
        self._back_s[place, at], self._nodes[place, at] = back_s, nodes
        self._tail[at] += 1

    def next_s(self, at: Ints) -> Floats:
        """When the next are back; infinite where none are away."""
        soonest_s = self._back_s[self._head[at] % len(self._back_s), at]
        return np.where(self._head[at] < self._tail[at], soonest_s, np.inf)

    def returned(self, at: Ints, now_s: Floats) -> Ints:
        """How many nodes of each sample have come back by now; they are told once."""
        total = np.zeros(len(at), dtype=np.int64)
        while (back := self.next_s(at) <= now_s).any():
            there = at[back]
            total[back] += self._nodes[self._head[there] % len(self._back_s), there]
            self._head[there] += 1
        return total

    def _grow(self) -> None:
        """Twice as many places, those in use first."""
        places = (self._head + np.arange(len(self._back_s))[:, None]) % len(self._back_s)
        samples = np.arange(self._back_s.shape[1])
        back_s, nodes = self._back_s[places, samples], self._nodes[places, samples]
        self._back_s = np.concatenate([back_s, np.full_like(back_s, np.inf)])
        self._nodes = np.concatenate([nodes, np.zeros_like(nodes)])
        self._tail -= self._head
        self._head[:] = 0
