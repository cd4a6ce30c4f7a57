"""Section of a cluster file with its intervals and notes, and the text of numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Section:
    """fields: data of the YAML file. intervals: by the names of `simulator.cluster.quantities`, in the form of `uncertainty`.
    notes: on outliers and on what was left out, a line each."""

    fields: dict[str, Any] = field(default_factory=dict)
    intervals: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def interval(ends: Iterable[str], measurements: int) -> dict[str, Any]:
    """An interval in the form of `uncertainty`."""
    low, high = ends
    return {"low": low, "high": high, "measurements": measurements}


def seconds_text(seconds: float) -> str:
    """Seconds as text with four digits: '38.09 us'."""
    size, unit = next(((size, unit) for size, unit in ((1.0, "s"), (1e-3, "ms")) if seconds >= 10 * size), (1e-6, "us"))
    return f"{seconds / size:.4g} {unit}"


def rate_text(rate_Bps: float, bits: bool = False) -> str:
    """Rate as text: in bits, as for networks ('478.3 Mbit/s'), or in bytes, as inside a node ('5.21 GB/s')."""
    name, rate = ("bit/s", 8 * rate_Bps) if bits else ("B/s", rate_Bps)
    return f"{rate / 1e9:.4g} G{name}" if rate >= 1e10 or (not bits and rate >= 1e8) else f"{rate / 1e6:.4g} M{name}"
