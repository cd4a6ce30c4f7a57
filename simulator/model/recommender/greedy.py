"""Greedy balance of weights over equal bins, the longest first, and the bound that no assignment is below."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def assign(weights: Sequence[float], bins: int) -> list[int]:
    """The bin of each weight: each in turn, heaviest first, is put where the sum so far is smallest (Graham 1969: at most 4/3
    of the best heaviest bin)."""
    sums = [(0.0, bin_) for bin_ in range(bins)]
    result = [0] * len(weights)
    for number in sorted(range(len(weights)), key=lambda number: -weights[number]):
        total, bin_ = heapq.heappop(sums)
        result[number] = bin_
        heapq.heappush(sums, (total + weights[number], bin_))
    return result


def loads(weights: Sequence[float], owners: Sequence[int], bins: int) -> list[float]:
    """The sum of the weights in each bin."""
    result = [0.0] * bins
    for weight, owner in zip(weights, owners, strict=True):
        result[owner] += weight
    return result


def lower_bound(weights: Sequence[float], bins: int) -> float:
    """A bound on the heaviest bin of any assignment: the mean, the heaviest weight, and the two lightest of the bins + 1
    heaviest, which share a bin."""
    heaviest = sorted(weights, reverse=True)
    pair = sum(heaviest[bins - 1 : bins + 1]) if len(heaviest) > bins else 0.0
    return max(sum(weights) / bins, heaviest[0] if heaviest else 0.0, pair)
