"""A curve as the line segments of a cluster file, each for sizes from a start on, none with a negative latency."""

from __future__ import annotations

from collections.abc import Sequence

from scaleproof.validator.calibration.fit.curve_fitting.curves import Fitted
from scaleproof.validator.calibration.fit.curve_fitting.lines import line
from scaleproof.validator.calibration.fit.curve_fitting.shapes import Segment


def pieces(fitted: Fitted, sizes: Sequence[float], least_slope: float = 0.0) -> tuple[Segment, ...]:
    """Line of each protocol, the first from 0 bytes on, the others from the smallest of their `sizes` on.

    sizes: to which the curve was fitted. If messages are faster below a break than above it, the line above would have a
    negative latency; it is replaced by the closest line to the curve at its sizes that has not. least_slope: lower bound for
    the last line.
    """
    starts = [segment.from_bytes for segment in fitted.segments]
    segments: list[Segment] = []
    for start, end in zip(starts, [*starts[1:], max(sizes)], strict=True):
        own = sorted({size for size in sizes if start < size <= end})
        least = least_slope if start == starts[-1] else 0.0
        latency_s, per_byte_s = line(own, [fitted.at(size) for size in own], least_slope=least)
        segments.append(Segment(own[0] if segments else 0.0, latency_s, per_byte_s))
    return tuple(segments)


def piece_at(segments: Sequence[Segment], size_bytes: float) -> Segment:
    """The segment of `pieces` for a size: the last that starts at or below it."""
    return next(piece for piece in reversed(segments) if piece.from_bytes <= size_bytes)
