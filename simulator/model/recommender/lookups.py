"""Lookups in embedding tables: how often rows are looked up, how many different ones a batch touches, and the bytes that move.

Rows are looked up with a probability that falls with their rank as a power (Zipf), or in shares that are given. A row that a
batch looks up several times is read from memory once: later lookups find it in the cache, and its gradients are added before
its one update (FBGEMM's split table batched embeddings; TorchRec, arXiv 2111.09886 and doi 10.1145/3523227.3547387).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.model.operators import MemoryBound

# Bytes of the index of a row, as torch's embeddings read them.
INDEX_BYTES: Final = 8
RowOptimizer = Literal["sgd", "rowwise_adagrad", "adagrad", "adam"]
# Ranks that are counted one by one; those above are counted in this number of intervals of equal ratio.
_EXACT: Final = 1024
_INTERVALS: Final = 512
# Bytes that sorting the indices of a backward pass moves for each: four passes of a radix sort over pairs of 8 bytes, which
# each reads and writes.
_SORTED_BYTES: Final = 4 * 2 * 16
# 32-bit optimizer states of a row: for each of its elements, and for the row as a whole.
_STATES: Final[dict[RowOptimizer, tuple[int, int]]] = {
    "sgd": (0, 0), "rowwise_adagrad": (0, 1), "adagrad": (1, 0), "adam": (2, 0),
}  # fmt: skip
_STATE_BYTES: Final = 4


class LookupDistribution(NamedTuple):
    """How the lookups of a table are distributed over its rows: by Zipf's exponent, or by the shares of lookups of equal parts
    of the rows, most frequent first."""

    rows: int
    skew: float
    hot: tuple[float, ...] = ()

    def distinct(self, lookups: float) -> float:
        """Expected number of different rows among a number of lookups: the sum of 1 − (1 − p)ⁿ over rows."""
        return _distinct(self, float(lookups))

    def share_of(self, rows: float) -> float:
        """Share of lookups that the most frequent `rows` rows have."""
        count, probability = _probabilities(self)
        before = np.concatenate([[0.0], np.cumsum(count)])
        inside = np.clip(rows - before[:-1], 0.0, count)
        return min(1.0, float(inside @ probability))

    def drawn(self, shape: tuple[int, ...], generator: np.random.Generator) -> NDArray[np.int64]:
        """Random ranks of rows, from 0, most frequent first."""
        count, probability = _probabilities(self)
        share = count * probability
        group = generator.choice(len(count), shape, p=share / share.sum())
        ranks = (np.cumsum(count) - count)[group] + count[group] * generator.random(shape)
        return np.minimum(ranks.astype(np.int64), self.rows - 1)


@functools.lru_cache(maxsize=1024)
def _probabilities(lookups: LookupDistribution) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Numbers of rows with nearly the same probability of being looked up, and that probability, most frequent first."""
    if lookups.hot:
        share = np.array(lookups.hot)
        count = np.full(len(share), lookups.rows / len(share))
        return count, share / count
    exact = np.arange(1.0, min(lookups.rows, _EXACT) + 2)
    above = np.geomspace(exact[-1], lookups.rows + 1.0, _INTERVALS + 1) if lookups.rows > _EXACT else exact[-1:]
    bounds = np.concatenate([exact, above[1:]])
    count = np.diff(bounds)
    # the mean rank of an interval, whose exact sum differs by less than its width squared
    weight = ((bounds[:-1] + bounds[1:] - 1) / 2) ** -lookups.skew
    return count, weight / float(count @ weight)


@functools.lru_cache(maxsize=4096)
def _distinct(distribution: LookupDistribution, lookups: float) -> float:
    count, probability = _probabilities(distribution)
    return float(count @ -np.expm1(lookups * np.log1p(-np.minimum(probability, 1 - 1e-12))))


def state_bytes(optimizer: RowOptimizer, width: float) -> float:
    """Bytes of the optimizer states of one row."""
    each, whole = _STATES[optimizer]
    return _STATE_BYTES * (each * width + whole)


class Looked(NamedTuple):
    """A part of a table that one worker looks up: `width` elements of the rows that have `share` of all lookups.

    pooling: mean number of lookups of one sample in the whole table, which are summed to one output. pulled: number of rows
    that a worker has where it pulls those of a step from servers; None where it has the whole part.
    """

    distribution: LookupDistribution
    width: int
    pooling: float
    share: float = 1.0
    pulled: float | None = None

    @property
    def rows(self) -> float:
        """Number of rows that a worker has."""
        return self.distribution.rows * self.share if self.pulled is None else self.pulled


class RowTable(NamedTuple):
    """An embedding table, of which parameter servers can send rows. tensor: its number among the layer's tensors.

    name: in a user's module that marks it by `sparse=True`, so that its gradients have rows alone; empty for others.
    is_foreseen: whether the rows that samples look up depend on neither parameters nor random numbers.
    """

    tensor: int
    looked: Looked
    name: str = ""
    is_foreseen: bool = True

    @property
    def elements(self) -> int:
        """Number of its parameters."""
        return self.looked.distribution.rows * self.looked.width


@dataclass(frozen=True)
class Lookup(MemoryBound):
    """Lookups in parts of tables for the samples of `workers` workers, and their update in the backward pass.

    element_bytes: of tables. cached: share of rows in the device's memory; the others are on the host.
    """

    parts: tuple[Looked, ...] = ()
    workers: int = 1
    element_bytes: int = 4
    optimizer: RowOptimizer | None = None
    cached: float = 1.0

    @functools.cached_property
    def has_backward(self) -> bool:
        """Whether tables are trained, as all are."""
        return True

    def lookups(self, samples: float) -> float:
        """Expected number of looked-up rows."""
        return samples * self.workers * sum(part.pooling * part.share for part in self.parts)

    def looked_elements(self, samples: float) -> float:
        """Expected number of elements of all looked-up rows."""
        return samples * self.workers * sum(part.pooling * part.share * part.width for part in self.parts)

    def touched(self, part: Looked, samples: float) -> float:
        """Expected number of different rows of a part."""
        lookups = samples * self.workers * part.pooling
        return part.share * part.distribution.distinct(lookups) if part.pulled is None else min(part.pulled, lookups)

    def forward_bytes(self, samples: float, activation_bytes: int) -> float:
        """Bytes that the forward pass moves: indices, different rows, and pooled outputs."""
        rows_bytes = sum(self.touched(part, samples) * part.width for part in self.parts) * self.element_bytes
        return self.lookups(samples) * INDEX_BYTES + rows_bytes + samples * self.written * activation_bytes

    def backward_bytes(self, samples: float, activation_bytes: int) -> float:
        """Bytes that the backward pass moves: gradients of outputs, sorted indices, and rows and states that it reads and
        writes. Without an optimizer of their own, gradients have all rows that a worker has: it fills these with zeros, and
        adds."""
        gradients_bytes = samples * self.written * activation_bytes
        result = gradients_bytes + self.lookups(samples) * _SORTED_BYTES + self.dense_gradient_bytes
        for part in self.parts:
            states_bytes = 0.0 if self.optimizer is None else state_bytes(self.optimizer, part.width)
            result += 2 * self.touched(part, samples) * (part.width * self.element_bytes + states_bytes)
        return result

    @property
    def dense_gradient_bytes(self) -> float:
        """Bytes of the gradients of all rows that a worker has; 0 if an optimizer of their own updates rows alone."""
        elements = (part.rows * part.width for part in self.parts)
        return 0.0 if self.optimizer is not None else self.element_bytes * sum(elements)

    def repeated_bytes(self, samples: float) -> float:
        """Bytes that both passes would move in addition if they read and changed a row anew in each lookup."""
        rows = (
            (samples * self.workers * part.pooling * part.share - self.touched(part, samples)) * part.width
            for part in self.parts
        )
        return 3 * self.element_bytes * max(0.0, sum(rows))

    def missed_bytes(self, samples: float) -> float:
        """Bytes of the different rows that are looked up and not in the device's memory, with their states."""
        if self.cached >= 1.0:
            return 0.0
        result = 0.0
        for part in self.parts:
            known = part.distribution.rows * self.cached
            hit = part.distribution.share_of(known)
            lookups = samples * self.workers * part.pooling
            # the most frequent rows are those that stay
            inside = LookupDistribution(max(1, round(known)), part.distribution.skew).distinct(lookups * hit)
            missed = max(0.0, part.distribution.distinct(lookups) - inside) * part.share
            states = 0.0 if self.optimizer is None else state_bytes(self.optimizer, part.width)
            result += missed * (part.width * self.element_bytes + states)
        return result

    def moved_elements(self, samples: float) -> float:
        """Elements that the forward pass reads and writes, of the size of those of tables."""
        return self.forward_bytes(samples, self.element_bytes) / self.element_bytes
