"""Pieces: a curve as the straight lines that a cluster file states, each from a size on, none of which begins below zero."""

from __future__ import annotations

from collections.abc import Sequence

from scaleproof.validator.calibration.fit.curve_fitting.curves import Fitted
from scaleproof.validator.calibration.fit.curve_fitting.lines import line
from scaleproof.validator.calibration.fit.curve_fitting.shapes import Segment


def pieces(fitted: Fitted, sizes: Sequence[float], least_slope: float = 0.0) -> tuple[Segment, ...]:
    """The line of each protocol, the first from 0 bytes on, the others from the smallest of their `sizes` on.

    sizes: that the curve was fitted to. Where messages pass faster before a break than beyond it, the line beyond would begin
    below zero; the one that comes nearest to the curve at its sizes and does not takes its place. least_slope: of the last one.
    """
    starts = [segment.from_bytes for segment in fitted.segments]
    found: list[Segment] = []
    for start, end in zip(starts, [*starts[1:], max(sizes)], strict=True):
        own = sorted({size for size in sizes if start < size <= end})
        least = least_slope if start == starts[-1] else 0.0
        latency_s, per_byte_s = line(own, [fitted.at(size) for size in own], least_slope=least)
        found.append(Segment(own[0] if found else 0.0, latency_s, per_byte_s))
    return tuple(found)


def holding(found: Sequence[Segment], size_bytes: float) -> Segment:
    """The piece of `pieces` that holds at a size: the last that begins at most there."""
    return next(piece for piece in reversed(found) if piece.from_bytes <= size_bytes)
