"""The page of collectives, with a table of all sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from scaleproof.reports.descriptions import collectives
from scaleproof.reports.pages import described
from scaleproof.reports.pages.sections import Page, Sources
from scaleproof.reports.read import csv_tables, origins
from scaleproof.simulator.analysis.collective.curves import Collectives

COLLECTIVES_FILE: Final = "collectives.json"
_COLUMNS: Final = ("system", "op", "group", "size_bytes", "predicted_s", "low_s", "high_s", "measured_s", "error")


def page(folder: Path) -> Page:
    """The page of what `collective --out` wrote. Raises InputError if it cannot be read."""
    found = Collectives.read(folder / COLLECTIVES_FILE, f"--out {folder}")
    sheets = {"collectives.csv": csv_tables.rows_csv(_COLUMNS, _rows(found))}
    return described.page(collectives.describe(found), sheets, Sources([origins.made_with()]), is_empty=not found.curves)


def _rows(found: Collectives) -> list[list[str | float | int | None]]:
    rows: list[list[str | float | int | None]] = []
    for curve in found.curves:
        measured = {one.predicted.size_bytes: one for one in curve.measured}
        for point in curve.points:
            one = measured.get(point.size_bytes)
            own: list[float | None] = [one.measured_s, one.error] if one else [None, None]
            group = [curve.system, curve.op, curve.group]
            rows.append([*group, point.size_bytes, point.seconds, point.low_s, point.high_s, *own])
    return rows
