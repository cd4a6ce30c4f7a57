"""The page of collectives, with a table of all sizes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from scaleproof.reports.descriptions import collectives
from scaleproof.reports.pages import described
from scaleproof.reports.pages.sections import Page, Sources
from scaleproof.reports.read import csv_tables, origins
from scaleproof.simulator.analysis.collective.curves import CollectiveCurve
from scaleproof.simulator.common.errors import InputError, one_line

COLLECTIVES_FILE: Final = "collectives.json"
_COLUMNS: Final = ("system", "op", "group", "size_bytes", "predicted_s", "low_s", "high_s", "measured_s", "error")


def page(folder: Path) -> Page:
    """The page of what `collective --out` wrote. Raises InputError if it cannot be read."""
    curves = _read(folder / COLLECTIVES_FILE)
    sheets = {"collectives.csv": csv_tables.rows_csv(_COLUMNS, _rows(curves))}
    return described.page(collectives.describe(curves), sheets, Sources([origins.made_with()]), is_empty=not curves)


def _rows(curves: Sequence[CollectiveCurve]) -> list[list[str | float | int | None]]:
    rows: list[list[str | float | int | None]] = []
    for curve in curves:
        measured = {one.predicted.size_bytes: one for one in curve.measured}
        for point in curve.points:
            one = measured.get(point.size_bytes)
            own: list[float | None] = [one.measured_s, one.error] if one else [None, None]
            group = [curve.system, curve.op, curve.group]
            rows.append([*group, point.size_bytes, point.seconds, point.low_s, point.high_s, *own])
    return rows


def _read(path: Path) -> list[CollectiveCurve]:
    try:
        return TypeAdapter(list[CollectiveCurve]).validate_python(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValidationError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read ({one_line(error)}); write it again with --out {path.parent}") from None
