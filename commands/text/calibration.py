"""The table that calibrate prints: quantities with nominal value and interval, then compute, collectives and provenance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from scaleproof.validator.calibration.cluster_file import asides

_INDENT: Final = "  "
_SUM: Final = "all_reduce"
# Minimum column widths, so that tables of one machine have the same layout.
_WIDTHS: Final = (19, 10, 12, 28, 6)


def table(cluster: Mapping[str, Any]) -> str:
    """Console text of a calibrated cluster."""
    return "\n".join(_INDENT + line for line in (*_quantities(cluster), *_other_lines(cluster)))


def _quantities(cluster: Mapping[str, Any]) -> Iterator[str]:
    intervals: Mapping[str, Mapping[str, Any]] = cluster.get("uncertainty", {})
    if not intervals:
        return
    nominal = any(interval.get("nominal") for interval in intervals.values())
    rows = [("quantity", "nominal", "measured", "90 % interval", "times")]
    for name, interval in intervals.items():
        measured = str(_at(cluster, name)) if "." in name else "100 %"
        ends = f"{interval['low']} to {interval['high']}"
        rows.append((name, interval.get("nominal") or "–", measured, ends, str(interval.get("measurements", 0))))
    widths = [max(least, *(len(row[column]) for row in rows)) for column, least in enumerate(_WIDTHS)]
    for row in rows:
        cells = [f"{cell:<{width}}" if column == 0 else f"{cell:>{width}}" for column, (cell, width) in
                 enumerate(zip(row, widths, strict=True)) if nominal or column != 1]  # fmt: skip
        yield "  ".join(cells)


def _other_lines(cluster: Mapping[str, Any]) -> Iterator[str]:
    cores, peaks = cluster["node"].get("cores"), cluster["device"]["peak"]
    effective = f"{cores:.2f} effective cores when all are busy; " if cores is not None else ""
    yield f"compute: {effective}{', '.join(f'{rate} in {name}' for name, rate in peaks.items())} at most"
    collectives = cluster.get("collectives", {}).get("measured", [])
    sums = [one for one in collectives if one.get("op", _SUM) == _SUM]
    for one in sums:
        where = f"{one['ranks']} ranks" + (f" on {one['nodes']} nodes" if one.get("nodes", 1) > 1 else "")
        larger = f" from {one['from']} on" if "from" in one else ""
        yield f"{_SUM} over {where}{larger}: {one['latency']} + size / {one['bandwidth']}"
    if others := len(collectives) - len(sums):
        yield f"and {others} other collective{'s' if others > 1 else ''}; see the file"
    provenance = cluster.get("provenance", {})
    yield from (f"{name}: {provenance[name]}" for name in asides.NAMES if name in provenance)


def _at(cluster: Mapping[str, Any], path: str) -> Any:
    """The value of a field by its dotted path."""
    value: Any = cluster
    for name in path.split("."):
        value = value[name]
    return value
