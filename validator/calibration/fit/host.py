"""Fit of a node's host to times of copies between it and a device, and of Adam's step on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from scaleproof.validator.calibration.cluster_file.section import Section, interval, rate_text
from scaleproof.validator.probe.points import Point, timed

# Directions of copies; a device's link has the rate of the slower one.
_DIRECTIONS: Final = ("host to device", "device to host")


def section(points: Sequence[Point]) -> Section:
    """Section `node.host`, without what was not probed. Intervals are those of single repetitions, whose rates vary with what
    else uses the memory."""
    found = Section()
    both = [max(timed(points, "host_copy", what), key=_size, default=None) for what in _DIRECTIONS]
    if measured := [point for point in both if point is not None]:
        _add(found, "link", min(measured, key=lambda one: one.size / one.median_s), rate_text)
    if adam := timed(points, "host_adam"):
        largest = max(adam, key=_size)
        _add(found, "adam_rate", largest, "{:.4g}".format)
        found.fields["adam_rate"] = round(float(found.fields["adam_rate"]))
    return found


def _size(point: Point) -> float:
    return point.size


def _add(section: Section, name: str, point: Point, text: Callable[[float], str]) -> None:
    """Adds the rate of a point, in its unit per second, and its interval."""
    slow, fast = point.size / np.quantile(point.seconds, [0.95, 0.05])
    section.fields[name] = text(point.size / point.median_s)
    section.intervals[f"node.host.{name}"] = interval((text(float(slow)), text(float(fast))), len(point.seconds))
