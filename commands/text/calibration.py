"""The table that calibrate prints: quantities with their intervals beside what was nominal, then the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from scaleproof.validator.calibration.cluster_file import asides

_INDENT: Final = "  "
_SUM: Final = "all_reduce"
# Of columns, so that tables of one machine look alike.
_WIDTHS: Final = (19, 10, 12, 28, 6)


def table(cluster: Mapping[str, Any]) -> str:
    """What a calibrated cluster says, in lines for people."""
    return "\n".join(_INDENT + line for line in (*_quantities(cluster), *_rest(cluster)))


def _quantities(cluster: Mapping[str, Any]) -> Iterator[str]:
    intervals: Mapping[str, Mapping[str, Any]] = cluster.get("uncertainty", {})
    if not intervals:
        return
    nominal = any(found.get("nominal") for found in intervals.values())
    rows = [("quantity", "nominal", "measured", "90 % interval", "times")]
    for name, found in intervals.items():
        measured = str(_at(cluster, name)) if "." in name else "100 %"
        ends = f"{found['low']} to {found['high']}"
        rows.append((name, found.get("nominal") or "–", measured, ends, str(found.get("measurements", 0))))
    widths = [max(least, *(len(row[column]) for row in rows)) for column, least in enumerate(_WIDTHS)]
    for row in rows:
        cells = [f"{cell:<{width}}" if column == 0 else f"{cell:>{width}}" for column, (cell, width) in
                 enumerate(zip(row, widths, strict=True)) if nominal or column != 1]  # fmt: skip
        yield "  ".join(cells)


def _rest(cluster: Mapping[str, Any]) -> Iterator[str]:
    cores, peaks = cluster["node"].get("cores"), cluster["device"]["peak"]
    worth = f"{cores:.2f} cores' worth when all work; " if cores is not None else ""
    yield f"compute: {worth}{', '.join(f'{rate} in {name}' for name, rate in peaks.items())} at most"
    collectives = cluster.get("collectives", {}).get("measured", [])
    sums = [one for one in collectives if one.get("op", _SUM) == _SUM]
    for one in sums:
        where = f"{one['ranks']} ranks" + (f" on {one['nodes']} nodes" if one.get("nodes", 1) > 1 else "")
        larger = f" from {one['from']} on" if "from" in one else ""
        yield f"{_SUM} over {where}{larger}: {one['latency']} + size / {one['bandwidth']}"
    if others := len(collectives) - len(sums):
        yield f"and {others} other collective{'s' if others > 1 else ''}, which the file has"
    told = cluster.get("provenance", {})
    yield from (f"{name}: {told[name]}" for name in asides.NAMES if name in told)


def _at(cluster: Mapping[str, Any], path: str) -> Any:
    """The field that a quantity is named after."""
    found: Any = cluster
    for name in path.split("."):
        found = found[name]
    return found
