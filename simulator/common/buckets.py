"""Buckets of gradients that are summed or pushed together, predicted and real."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


def bucket_bounds(filled: Sequence[float], begin: int, end: int, first_limit: float, limit: float) -> list[int]:
    """Positions at which buckets of consecutive gradients begin, and at which the last one ends.

    A bucket closes once its size reaches its limit, as in DistributedDataParallel; the first has a limit of its own, so that
    communication starts early. filled: size of all gradients before each position. begin, end: positions of the gradients.
    """
    bounds = [begin]
    while filled[bounds[-1]] < filled[end]:
        reached = filled[bounds[-1]] + (first_limit if len(bounds) == 1 else limit)
        bounds.append(min(end, bisect_left(filled, reached, bounds[-1] + 1, end + 1)))
    return bounds
