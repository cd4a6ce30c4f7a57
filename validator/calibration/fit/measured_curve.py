"""Curve through the measured times of a collective: few lines, near every measured size, and rising with the size.

Libraries change algorithm and protocol with the size, so that one latency and one bandwidth miss measured sizes by tens of
percent. Here each line covers as many sizes as it can within TOLERANCE, which needs the fewest lines. A line never falls below
the one before it, so a larger size never takes less time.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from scaleproof.validator.calibration.fit.shapes import Segment
from scaleproof.validator.estimation.lines import FASTEST_S

# Largest relative deviation of the curve from the times of a measured size, where times rise with the size.
TOLERANCE: Final = 0.05


class SizeTime(NamedTuple):
    """Median seconds of a size in bytes."""

    size_bytes: float
    seconds: float


def measured_curve(medians: Sequence[SizeTime]) -> tuple[Segment, ...]:
    """The curve through median times by size, which are sorted by size. Needs at least one size."""
    rising = _rising(medians)
    segments: list[Segment] = []
    first = 0
    while first < len(rising):
        found, last = _longest(rising, first, segments[-1] if segments else None)
        begin = _begin(segments[-1], found, rising[first - 1], rising[first]) if segments else 0.0
        segments.append(found._replace(from_bytes=begin))
        first = last + 1
    return tuple(segments)


def not_rising(medians: Sequence[SizeTime]) -> list[int]:
    """Indices of the sizes whose time differs from a rising curve by more than TOLERANCE."""
    pairs = zip(medians, _rising(medians), strict=True)
    return [i for i, (own, rising) in enumerate(pairs) if abs(own.seconds / rising.seconds - 1) > TOLERANCE]


def _rising(medians: Sequence[SizeTime]) -> list[SizeTime]:
    """The times made to rise with the size: neighbours that fall are replaced by their median (pooling of adjacent violators),
    so that a slow smallest size does not lift the others."""
    pools: list[list[float]] = []
    for median in medians:
        pools.append([median.seconds])
        while len(pools) > 1 and statistics.median_low(pools[-2]) > statistics.median_low(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    times_s = [statistics.median_low(pool) for pool in pools for _ in pool]
    return [SizeTime(median.size_bytes, time_s) for median, time_s in zip(medians, times_s, strict=True)]


def _longest(rising: Sequence[SizeTime], first: int, before: Segment | None) -> tuple[Segment, int]:
    """The line that covers the most sizes from `first` on within TOLERANCE, and the last of them."""
    found, reached = _single(rising, first, before), first
    for last in range(first + 1, len(rising)):
        line = _line(rising, first, last, before)
        if line is None:
            break
        found, reached = line, last
    return found, reached


def _single(rising: Sequence[SizeTime], first: int, before: Segment | None) -> Segment:
    """The line through one size: as steep as the next size allows, or, at the last size, as the whole curve is."""
    own = rising[first]
    seconds = max(own.seconds, before.latency_s + own.size_bytes * before.seconds_per_byte if before else 0.0)
    slope = seconds / own.size_bytes
    other = rising[first + 1 if first + 1 < len(rising) else 0]
    if other != own:
        slope = min(slope, max(0.0, (other.seconds - seconds) / (other.size_bytes - own.size_bytes)))
    slope = max(slope, FASTEST_S)
    return Segment(0.0, max(0.0, seconds - own.size_bytes * slope), slope)


def _line(rising: Sequence[SizeTime], first: int, last: int, before: Segment | None) -> Segment | None:
    """The line with the smallest largest relative error over the sizes from `first` to `last`; None if that exceeds TOLERANCE,
    or if the line would lie below the one before it at `first`, or above the next size."""
    from scipy.optimize import linprog

    own = rising[first : last + 1]
    sizes, seconds = np.array([one.size_bytes for one in own]), np.array([one.seconds for one in own])
    # in units of the last size and its time; variables: latency, transfer of the last size, largest relative error
    unit, time_s = sizes[-1], seconds[-1]
    rows = np.stack([time_s / seconds, sizes / unit * time_s / seconds, np.zeros_like(seconds)], axis=1)
    error = np.array([0.0, 0.0, 1.0])
    above, below = [*(rows - error)], [*(-rows - error)]
    limits = [1.0] * len(own) + [-1.0] * len(own)
    further = []
    if before is not None:
        begin = own[0].size_bytes
        further.append(([-1.0, -begin / unit, 0.0], -(before.latency_s + begin * before.seconds_per_byte) / time_s))
    if last + 1 < len(rising):
        after = rising[last + 1]
        further.append(([1.0, after.size_bytes / unit, 0.0], (1 + TOLERANCE) * after.seconds / time_s))
    matrix = np.array([*above, *below, *(row for row, _ in further)])
    bounds = [(0, None), (FASTEST_S * unit / time_s, None), (0, TOLERANCE)]
    found = linprog(error, matrix, [*limits, *(limit for _, limit in further)], bounds=bounds, method="highs")
    if not found.success or found.x is None:
        return None
    return Segment(0.0, float(found.x[0] * time_s), float(found.x[1] * time_s / unit))


def _begin(before: Segment, line: Segment, last: SizeTime, first: SizeTime) -> float:
    """Smallest size of a line: where it crosses the one before it, between that one's last size and its own first; else its own
    first size."""
    slopes = before.seconds_per_byte - line.seconds_per_byte
    crossing = (line.latency_s - before.latency_s) / slopes if slopes else math.inf
    return math.ceil(crossing) if last.size_bytes < crossing < first.size_bytes else first.size_bytes
