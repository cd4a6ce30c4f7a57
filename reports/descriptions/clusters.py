"""The difference of two clusters as a section: the values of each quantity, and whether they differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from scaleproof.reports.sections import Column, Section, Table
from scaleproof.simulator.analysis.cluster_diff import ClusterDiff, QuantityRow
from scaleproof.simulator.common.units import format_Bps, format_count, format_time_s

# text of a value by its unit
_FORMS: Final[Mapping[str, Callable[[float], str]]] = {
    "cores": "{:.2f}".format,
    "FLOP/s": lambda rate: f"{format_count(rate)}FLOP/s",
    "B/s": format_Bps,
    "s": format_time_s,
}


def describe(found: ClusterDiff) -> Section:
    """The values of both clusters, and the number of quantities that differ."""
    rows = found.rows
    columns = [
        Column("quantity", [row.what for row in rows], is_text=True),
        Column(Path(found.a).stem, [_text(row, row.a) for row in rows]),
        Column(Path(found.b).stem, [_text(row, row.b) for row in rows]),
        Column("ratio", ["" if row.ratio is None else f"{row.ratio:.3f}" for row in rows]),
        Column("", [row.verdict for row in rows], is_text=True),
    ]
    differ = [row for row in rows if row.verdict == "differs"]
    both = f"of {sum(row.a is not None and row.b is not None for row in rows)} that both have differ by more than noise"
    most = max(differ, key=lambda row: row.factor, default=None)
    verdict = f"{len(differ)} {both}, most of all {most.what}" if most else f"none {both}"
    return Section("Clusters", "How the clusters differ", tables=[Table(columns)], notes=[verdict])


def _text(row: QuantityRow, value: float | None) -> str:
    if value is None:
        return "–"
    # memories are rated in bytes, links in bits
    return f"{format_count(value)}B/s" if row.what == "device.memory_bandwidth" else _FORMS[row.unit](value)
