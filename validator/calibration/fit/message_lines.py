"""Lines: latency + size / bandwidth through the times of many pairs or of a group, with intervals."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from scaleproof.validator.calibration.fit.curve_fitting.choice import PIECEWISE
from scaleproof.validator.calibration.fit.curve_fitting.curves import Bounds, Fitted, fit_curve
from scaleproof.validator.calibration.fit.curve_fitting.samples import bimodal
from scaleproof.validator.probe.points import Point

_LARGE_BYTES: Final = 2**20
# Many messages of so many bytes in a row show what a link carries in the long run.
_LONG_BYTES: Final = 2**16
_PERCENTILES: Final = (5, 95)
_SMALL_BYTES: Final = 2**10
_VAGUE: Final = 1.25
# No rate is known better than that.
_LEAST: Final = 0.01
# An overhead whose interval is wider is none.
_TOLD_APART: Final = 4.0
_NAMED: Final = 3
# Of what the largest message takes, at least so much is its bytes'.
_LEAST_SHARE: Final = 0.1


@dataclass(frozen=True)
class Line:
    """What fits the times best, with 90 % intervals.

    latency_s: of small messages. bandwidth_Bps: of large ones, in a row where they were sent so. overhead_s: zero where the
    times do not tell one. cores_busy: by large messages.
    """

    fitted: Fitted
    latency_s: float
    latency_interval_s: Bounds
    bandwidth_Bps: float
    bandwidth_interval_Bps: Bounds
    overhead_s: float
    cores_busy: float

    @property
    def is_vague(self) -> bool:
        """Whether the rate is known to no better than a quarter on either side."""
        low, high = self.bandwidth_interval_Bps
        return high > _VAGUE**2 * low


def line(points: Sequence[Point], models: Iterable[str], what: str, streams: Sequence[Point] = ()) -> Line:
    """Through all points, those of one size together. Raises InputError for too few sizes.

    streams: times from one message to the next, in which an overhead shows; and what a link carries in the long run, where the
    first bytes of a message that comes alone are let through faster.
    """
    by_size, gaps = _by_size(points), _by_size(streams)
    sizes = sorted(by_size)
    fitted = fit_curve(
        sizes, [by_size[size] for size in sizes], models, gaps=[gaps.get(size, []) for size in sizes] if gaps else (), what=what
    )
    large = [point for point in points if point.size >= min(_LARGE_BYTES, sizes[-1])]
    low, high = fitted.overhead_interval_s
    overhead_s = fitted.overhead_s if high <= _TOLD_APART * low else 0.0
    # what is not told apart stays a part of the latency
    latency_s = fitted.latency_s + fitted.overhead_s - overhead_s
    fast, slow = _spread(points, lambda size: size <= max(_SMALL_BYTES, sizes[0]))
    return Line(
        fitted,
        latency_s,
        (latency_s * fast, latency_s * slow),
        *(_in_a_row(streams) or _bandwidths(fitted, points)),
        overhead_s,
        statistics.median(point.cores_busy for point in large),
    )


def told(found: Line, what: str) -> list[str]:
    """What a line does not show of the times it goes through."""
    fitted = found.fitted
    lines = [f"{what}: the rate is known to no better than a quarter; give a larger --budget"] if found.is_vague else []
    if fitted.model == PIECEWISE:
        starts = ", ".join(f"{segment.from_bytes:.0f} B" for segment in fitted.segments[1:])
        lines.append(f"{what}: another protocol from {starts} on; the file gives the latency of small, the bandwidth of large")
    if fitted.outliers:
        number = f"{len(fitted.outliers)} size{'s' if len(fitted.outliers) > 1 else ''}"
        lines.append(f"{what}: {number} left out of the fit: {fitted.outliers[0].why}")
    return lines


def crowds(points: Sequence[Point]) -> list[str]:
    """A line for what takes either of two times, as a link with a second way or a rank that is put off does."""
    found = [
        f"{point.what} {point.where}, {point.size:.0f} B: {modes}" for point in points if (modes := bimodal(point.seconds))
    ]
    return found[:_NAMED] + ([f"{len(found) - _NAMED} more with two modes"] if len(found) > _NAMED else [])


def _by_size(points: Iterable[Point]) -> dict[float, list[float]]:
    found: defaultdict[float, list[float]] = defaultdict(list)
    for point in points:
        found[point.size] += point.seconds
    return dict(found)


def _in_a_row(streams: Sequence[Point]) -> tuple[float, Bounds] | None:
    """What the largest messages of streams get, and its interval; None where there are no large ones."""
    size = max((point.size for point in streams), default=0.0)
    if size < _LONG_BYTES:
        return None
    rates_Bps = np.array([size / seconds for point in streams if point.size == size for seconds in point.seconds])
    low, middle, high = np.percentile(rates_Bps, (_PERCENTILES[0], 50, _PERCENTILES[1])).tolist()
    return middle, (min(low, middle * (1 - _LEAST)), max(high, middle * (1 + _LEAST)))


def _bandwidths(fitted: Fitted, points: Sequence[Point]) -> tuple[float, Bounds]:
    """The rate, and the 90 % interval of what one pair has: how sure the fit is, and how pairs differ at the largest size."""
    largest = max(point.size for point in points)
    fast, slow = _spread(points, lambda size: size == largest)
    # where latency hides what bytes take, some of the largest message's time is still theirs
    least_s = _LEAST_SHARE * statistics.median(point.median_s for point in points if point.size == largest) / largest
    high, middle, low = (
        1 / max(seconds, least_s)
        for seconds in (fitted.seconds_per_byte_interval[0], fitted.seconds_per_byte, fitted.seconds_per_byte_interval[1])
    )
    return middle, (min(low, middle / slow), max(high, middle / fast))


def _spread(points: Sequence[Point], wanted: Callable[[float], bool]) -> Bounds:
    """Between which shares of the median the medians of points of such sizes lie, but for a tenth of them."""
    medians_s = np.array([point.median_s for point in points if wanted(point.size)])
    fast, slow = np.percentile(medians_s / np.median(medians_s), _PERCENTILES).tolist()
    return fast, slow
