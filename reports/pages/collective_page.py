"""The page of collectives: measured times over predicted curves, and errors by system, operation and group."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from pydantic import TypeAdapter, ValidationError

from scaleproof.reports.charts.collective import collective_chart
from scaleproof.reports.pages.sections import Page, Picture, Section, Sources, slug
from scaleproof.reports.read import csv_tables, origins
from scaleproof.reports.text import percent
from scaleproof.simulator.analysis.collective.curves import CollectiveCurve
from scaleproof.simulator.common.errors import InputError, one_line

COLLECTIVES_FILE: Final = "collectives.json"
_COLUMNS: Final = ("system", "op", "group", "size_bytes", "predicted_s", "low_s", "high_s", "measured_s", "error")


def page(folder: Path) -> Page:
    """The page of what `collective --out` wrote. Raises InputError if it cannot be read."""
    curves = _read(folder / COLLECTIVES_FILE)
    systems: dict[str, list[CollectiveCurve]] = {}
    for curve in curves:
        systems.setdefault(curve.system, []).append(curve)
    sections = [_section(name, mine) for name, mine in systems.items()]
    sources = Sources([origins.made_with()])
    sheets = {"collectives.csv": csv_tables.rows_csv(_COLUMNS, _rows(curves))}
    return Page("scaleproof · collectives", _headline(systems), "", [], (), sections, sheets, sources, is_empty=not curves)


def _headline(systems: Mapping[str, Sequence[CollectiveCurve]]) -> str:
    found = [one for curves in systems.values() for curve in curves for one in curve.measured]
    names = next(iter(systems)) if len(systems) == 1 else f"{len(systems)} systems"
    if not found:
        return f"Collectives on {names}."
    median = percent(float(np.median([abs(one.error) for one in found])))
    inside = percent(sum(one.is_inside for one in found) / len(found))
    return f"Collectives on {names}: {len(found)} times, {median} off at the median, {inside} in the {percent(0.9)} interval."


def _section(system: str, curves: Sequence[CollectiveCurve]) -> Section:
    by_op: dict[str, list[CollectiveCurve]] = {}
    for curve in curves:
        by_op.setdefault(curve.op, []).append(curve)
    # a single size makes no curve
    drawn = {op: [curve for curve in mine if len(curve.points) > 1] for op, mine in by_op.items()}
    pictures = [Picture.of(collective_chart(f"{slug(system)}-{slug(op)}", mine)) for op, mine in drawn.items() if mine]
    found = [one for curve in curves for one in curve.measured]
    result = f"{len(found)} times, {percent(float(np.median([abs(one.error) for one in found])))} off" if found else ""
    data = {"curves": [_cells(curve) for curve in curves if curve.measured]}
    return Section(slug(system), system, system, pictures=pictures, before="collectives.html", data=data, result=result)


def _cells(curve: CollectiveCurve) -> tuple[str, ...]:
    """Cells of a row of the table of errors."""
    errors = curve.errors
    shares = (float(np.median(errors)), float(np.percentile(errors, 95)), max(errors))
    inside = sum(one.is_inside for one in curve.measured)
    return (curve.op, curve.group, str(len(errors)), *map(percent, shares), f"{inside} of {len(errors)}")


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
