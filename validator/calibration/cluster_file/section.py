"""Section: a part of a cluster file with what is told of it, and how numbers are written there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from scaleproof.validator.probe.points import Point


@dataclass(frozen=True)
class Section:
    """fields: as the YAML file has them. intervals: by the names of `simulator.cluster.quantities`, as `uncertainty` has them.
    told: what is odd or was left out, a line each."""

    fields: dict[str, Any] = field(default_factory=dict)
    intervals: dict[str, dict[str, Any]] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)


def timed(points: Iterable[Point], probe: str, what: str | None = None) -> list[Point]:
    """The points of a probe that have times; of one thing, if it is named."""
    return [point for point in points if point.probe == probe and point.seconds and what in (None, point.what)]


def interval(ends: Iterable[str], measurements: int) -> dict[str, Any]:
    """As `uncertainty` has one."""
    low, high = ends
    return {"low": low, "high": high, "measurements": measurements}


def count(points: Sequence[Point]) -> int:
    """How many times were taken for them."""
    return sum(len(point.seconds) for point in points)


def seconds_text(seconds: float) -> str:
    """'38.09 us': four digits, which is more than is ever known."""
    size, unit = next(((size, unit) for size, unit in ((1.0, "s"), (1e-3, "ms")) if seconds >= 10 * size), (1e-6, "us"))
    return f"{seconds / size:.4g} {unit}"


def rate_text(rate_Bps: float, bits: bool = False) -> str:
    """'478.3 Mbit/s' as networks are sold, '5.21 GB/s' as what is inside a node is."""
    name, rate = ("bit/s", 8 * rate_Bps) if bits else ("B/s", rate_Bps)
    return f"{rate / 1e9:.4g} G{name}" if rate >= 1e10 or (not bits and rate >= 1e8) else f"{rate / 1e6:.4g} M{name}"
