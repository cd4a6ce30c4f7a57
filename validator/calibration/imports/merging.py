"""Measurements of the same collective in several logs: merged if they agree, else refused, unless the user keeps the median.

Two runs of one size on one cluster differ by noise of some percent. Times that differ by more than CONTRADICTION come from
different machines, settings or versions, and no average of them is a time that was measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.units import format_bytes, format_time_s
from scaleproof.validator.calibration.imports.reading import ImportNotes
from scaleproof.validator.probe.points import Point

# Ratio of the longest to the shortest time of one size from which on measurements contradict one another.
CONTRADICTION: Final = 1.5
_KIND: Final = "sizes with contradictory times"


@dataclass(frozen=True)
class SourcedPoint:
    """A point with the file and line that it was read from, such as 'a.log:12'."""

    point: Point
    source: str


def joined(points: Iterable[Point]) -> list[Point]:
    """Merges points of the same kind, group and size."""
    groups: dict[tuple[object, ...], list[Point]] = {}
    for point in points:
        groups.setdefault(_key(point), []).append(point)
    return [replace(group[-1], seconds=tuple(time_s for one in group for time_s in one.seconds)) for group in groups.values()]


def merged(points: Sequence[SourcedPoint], notes: ImportNotes, keep_median: bool = False) -> list[Point]:
    """Merges points of the same kind, group and size whose times agree.

    keep_median: keeps the median of contradictory times, and notes each size. Without it, contradictory times raise InputError,
    which names both with their lines.
    """
    groups: dict[tuple[object, ...], list[SourcedPoint]] = {}
    for one in points:
        groups.setdefault(_key(one.point), []).append(one)
    pairs = [pair for group in groups.values() if (pair := _contradiction(group)) is not None]
    if pairs and not keep_median:
        further = f"; so do {len(pairs) - 1} more sizes" if len(pairs) > 1 else ""
        what = "leave one of the logs out, or keep the median of all with --median"
        raise InputError(f"{_text(*pairs[0])}: they contradict one another{further}; {what}")
    for pair in pairs:
        notes.add(f"{_text(*pair)}: they contradict one another; the median is used, as --median says", _KIND)
    return joined(one.point for one in points)


def _key(point: Point) -> tuple[object, ...]:
    return point.probe, point.what, point.group, point.size, point.ranks


def _contradiction(group: Sequence[SourcedPoint]) -> tuple[SourcedPoint, SourcedPoint] | None:
    """The shortest and the longest of a group's times if they contradict one another."""
    low, high = (choose(group, key=lambda one: one.point.median_s) for choose in (min, max))
    return (low, high) if high.point.median_s > CONTRADICTION * low.point.median_s else None


def _text(one: SourcedPoint, other: SourcedPoint) -> str:
    """'a.log:12 and b.log:12: all_reduce, 8 ranks on 1 nodes, 1.00 MiB: 30.0 us and 300 us'."""
    times = (format_time_s(statistics.median(each.point.seconds)) for each in (one, other))
    where = f"{one.point.what}, {one.point.group}, {format_bytes(one.point.size)}"
    return f"{one.source} and {other.source}: {where}: {' and '.join(times)}"
