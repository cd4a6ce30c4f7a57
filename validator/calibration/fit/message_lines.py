"""Fit of latency, bandwidth and overhead to the message times of many pairs or of a group, with intervals."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from scaleproof.validator.calibration.fit.choice import PIECEWISE
from scaleproof.validator.calibration.fit.curves import Bounds, FittedCurve, fit_curve
from scaleproof.validator.estimation.modes import bimodal
from scaleproof.validator.probe.points import Point

_LARGE_BYTES: Final = 2**20
# From this size on, a stream of messages shows the sustained rate of a link.
_LONG_BYTES: Final = 2**16
_PERCENTILES: Final = (5, 95)
_SMALL_BYTES: Final = 2**10
_VAGUE: Final = 1.25
# Smallest relative half width of a rate's interval.
_LEAST: Final = 0.01
# An overhead whose interval has a larger ratio of its ends counts as zero.
_MOST_UNCERTAIN: Final = 4.0
_NAMED: Final = 3
# Smallest share of the largest message's time that its bytes take.
_LEAST_SHARE: Final = 0.1


@dataclass(frozen=True)
class Line:
    """The best fit to the times, with 90 % intervals.

    latency_s: of small messages. bandwidth_Bps: of large ones, in a stream if streams were measured. overhead_s: zero if the
    times do not show one. cores_busy: by large messages.
    """

    fitted: FittedCurve
    latency_s: float
    latency_interval_s: Bounds
    bandwidth_Bps: float
    bandwidth_interval_Bps: Bounds
    overhead_s: float
    cores_busy: float

    @property
    def is_vague(self) -> bool:
        """Whether the rate is uncertain by more than a quarter in either direction."""
        low, high = self.bandwidth_interval_Bps
        return high > _VAGUE**2 * low


def line(points: Sequence[Point], models: Iterable[str], what: str, streams: Sequence[Point] = ()) -> Line:
    """The line through all points, points of the same size together. Raises InputError for too few sizes.

    streams: seconds from one message to the next in a stream. They show the overhead and the sustained rate of links that pass
    the first bytes of a single message faster.
    """
    by_size, gaps = _by_size(points), _by_size(streams)
    sizes = sorted(by_size)
    fitted = fit_curve(
        sizes, [by_size[size] for size in sizes], models, gaps=[gaps.get(size, []) for size in sizes] if gaps else (), what=what
    )
    large = [point for point in points if point.size >= min(_LARGE_BYTES, sizes[-1])]
    low, high = fitted.overhead_interval_s
    overhead_s = fitted.overhead_s if high <= _MOST_UNCERTAIN * low else 0.0
    # an overhead that cannot be distinguished stays a part of the latency
    latency_s = fitted.latency_s + fitted.overhead_s - overhead_s
    fast, slow = _pair_range(points, lambda size: size <= max(_SMALL_BYTES, sizes[0]))
    return Line(
        fitted,
        latency_s,
        (latency_s * fast, latency_s * slow),
        *(_stream_rate(streams) or _bandwidths(fitted, points)),
        overhead_s,
        statistics.median(point.cores_busy for point in large),
    )


def fit_notes(fit: Line, what: str) -> list[str]:
    """Notes on what the line omits: an uncertain rate, a change of protocol, outliers."""
    fitted = fit.fitted
    lines = [f"{what}: the rate is uncertain by more than a quarter; give a larger --budget"] if fit.is_vague else []
    if fitted.model == PIECEWISE:
        starts = ", ".join(f"{segment.from_bytes:.0f} B" for segment in fitted.segments[1:])
        lines.append(
            f"{what}: the protocol changes at {starts}; the file has the latency of small and the bandwidth of large messages"
        )
    if fitted.outliers:
        number = f"{len(fitted.outliers)} size{'s' if len(fitted.outliers) > 1 else ''}"
        lines.append(f"{what}: {number} left out of the fit: {fitted.outliers[0].why}")
    return lines


def bimodal_notes(points: Sequence[Point]) -> list[str]:
    """Notes on points with two modes, as caused by a link with a second route or by a rank that is preempted."""
    notes = [
        f"{point.what} {point.where}, {point.size:.0f} B: {modes}" for point in points if (modes := bimodal(point.seconds))
    ]
    return notes[:_NAMED] + ([f"{len(notes) - _NAMED} more with two modes"] if len(notes) > _NAMED else [])


def _by_size(points: Iterable[Point]) -> dict[float, list[float]]:
    seconds: defaultdict[float, list[float]] = defaultdict(list)
    for point in points:
        seconds[point.size] += point.seconds
    return dict(seconds)


def _stream_rate(streams: Sequence[Point]) -> tuple[float, Bounds] | None:
    """Rate in bytes/s of the largest messages in streams, and its interval; None if there are no large ones."""
    size = max((point.size for point in streams), default=0.0)
    if size < _LONG_BYTES:
        return None
    rates_Bps = np.array([size / seconds for point in streams if point.size == size for seconds in point.seconds])
    low, middle, high = np.percentile(rates_Bps, (_PERCENTILES[0], 50, _PERCENTILES[1])).tolist()
    return middle, (min(low, middle * (1 - _LEAST)), max(high, middle * (1 + _LEAST)))


def _bandwidths(fitted: FittedCurve, points: Sequence[Point]) -> tuple[float, Bounds]:
    """Rate in bytes/s and its 90 % interval for one pair: the uncertainty of the fit times the differences between pairs."""
    largest = max(point.size for point in points)
    fast, slow = _pair_range(points, lambda size: size == largest)
    # if latency hides the transfer time, some of the largest message's time still belongs to its bytes
    least_s = _LEAST_SHARE * statistics.median(point.median_s for point in points if point.size == largest) / largest
    high, middle, low = (
        1 / max(seconds, least_s)
        for seconds in (fitted.seconds_per_byte_interval[0], fitted.seconds_per_byte, fitted.seconds_per_byte_interval[1])
    )
    return middle, (min(low, middle / slow), max(high, middle / fast))


def _pair_range(points: Sequence[Point], wanted: Callable[[float], bool]) -> Bounds:
    """5th and 95th percentile of the medians of points of the wanted sizes, relative to their median."""
    medians_s = np.array([point.median_s for point in points if wanted(point.size)])
    fast, slow = np.percentile(medians_s / np.median(medians_s), _PERCENTILES).tolist()
    return fast, slow
