"""What probes tell that no prediction is made from: for whoever reads a cluster file, and to hold against predictions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from scaleproof.simulator.common.units import format_time_s
from scaleproof.validator.calibration.cluster_file.section import timed
from scaleproof.validator.probe.points import Point

NAMES: Final = ("overlap", "update", "loading")


def asides(points: Sequence[Point]) -> dict[str, str]:
    """By the probe's name, in words; nothing for a probe that did not run."""
    found = {"overlap": _overlap(points), "update": _update(points), "loading": _loading(points)}
    return {name: ", ".join(lines) for name, parts in found.items() if (lines := list(parts))}


def _overlap(points: Sequence[Point]) -> Iterator[str]:
    slower = {point.what: point.numbers["together_s"] / point.numbers["alone_s"] for point in timed(points, "overlap")}
    if slower.keys() >= {"compute", "communication"}:
        yield f"matrix products take {slower['compute']:.2f} times as long beside an all_reduce"
        yield f"which takes {slower['communication']:.2f} times as long beside them"


def _update(points: Sequence[Point]) -> Iterator[str]:
    """Of as many parameters as were measured of all at most, where what each takes counts; in an order that does not follow
    from which was measured first."""
    by_what: dict[str, dict[float, Point]] = defaultdict(dict)
    for point in timed(points, "update"):
        by_what[point.what][point.size] = point
    most = max(set.intersection(*map(set, by_what.values())), default=0) if by_what else 0
    if most:
        each = (f"{what} {1e9 * by_what[what][most].median_s / most:.3g} ns" for what in sorted(by_what))
        yield f"a parameter by {', by '.join(each)}"


def _loading(points: Sequence[Point]) -> Iterator[str]:
    for point in timed(points, "loading"):
        yield f"{point.size:g} samples ({point.what}) {format_time_s(point.median_s)}"
