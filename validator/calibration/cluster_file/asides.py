"""Measurements that no prediction uses, in words, for readers of a cluster file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from scaleproof.simulator.common.units import format_time_s
from scaleproof.validator.calibration.cluster_file.section import timed
from scaleproof.validator.probe.points import Point

NAMES: Final = ("overlap", "update", "loading")


def asides(points: Sequence[Point]) -> dict[str, str]:
    """Text by the probe's name; nothing for a probe that did not run."""
    parts_of = {"overlap": _overlap(points), "update": _update(points), "loading": _loading(points)}
    return {name: ", ".join(lines) for name, parts in parts_of.items() if (lines := list(parts))}


def _overlap(points: Sequence[Point]) -> Iterator[str]:
    slower = {point.what: point.numbers["together_s"] / point.numbers["alone_s"] for point in timed(points, "overlap")}
    if slower.keys() >= {"compute", "communication"}:
        yield f"matrix products take {slower['compute']:.2f} times as long while an all-reduce runs"
        yield f"the all-reduce takes {slower['communication']:.2f} times as long"


def _update(points: Sequence[Point]) -> Iterator[str]:
    """Update times at the largest size that all variants have, where time per parameter dominates; sorted by variant."""
    by_what: dict[str, dict[float, Point]] = defaultdict(dict)
    for point in timed(points, "update"):
        by_what[point.what][point.size] = point
    most = max(set.intersection(*map(set, by_what.values())), default=0) if by_what else 0
    if most:
        times = (f"{what} {1e9 * by_what[what][most].median_s / most:.3g} ns" for what in sorted(by_what))
        yield f"{', '.join(times)} per parameter"


def _loading(points: Sequence[Point]) -> Iterator[str]:
    for point in timed(points, "loading"):
        yield f"{point.size:g} samples ({point.what}) {format_time_s(point.median_s)}"
