"""Collectives as sections: measured times over predicted curves, and errors by system, operation and group."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

import numpy as np

from scaleproof.reports.charts.chart import Chart
from scaleproof.reports.charts.collective import collective_chart
from scaleproof.reports.sections import Column, Description, Section, Table, slug
from scaleproof.simulator.analysis.collective.curves import CollectiveCurve, Collectives
from scaleproof.simulator.common.units import format_change, format_percent

_US: Final = 1e6


def describe(found: Collectives) -> Description:
    """The description of curves, with a section for each system; of a single curve, with its sizes."""
    systems: dict[str, list[CollectiveCurve]] = {}
    for curve in found.curves:
        systems.setdefault(curve.system, []).append(curve)
    names = next(iter(systems)) if len(systems) == 1 else f"{len(systems)} systems"
    sections = [_section(*one, is_single=len(found.curves) == 1) for one in systems.items()]
    return Description(f"collectives on {names}", _finding(names, found), sections=sections)


def _finding(names: str, found: Collectives) -> str:
    sizes = [one for curve in found.curves for one in curve.measured]
    if not sizes:
        return f"Collectives on {names}"
    off = format_percent(median(abs(one.error) for one in sizes))
    inside = format_percent(sum(one.is_inside for one in sizes) / len(sizes))
    return f"Collectives on {names}: {len(sizes)} times, {off} off at the median, {inside} in the 90 % interval"


def _section(system: str, curves: Sequence[CollectiveCurve], is_single: bool) -> Section:
    measured = [curve for curve in curves if curve.measured]
    errors = [error for curve in curves for error in curve.errors]
    tables = [_sizes(measured[0]) if is_single else _errors(measured)] if measured else []
    return Section(
        system,
        f"{curves[0].op} on {curves[0].group}" if is_single else system,
        tables=tables,
        charts=lambda: _charts(system, curves),
        result=f"{len(errors)} times, {format_percent(median(errors))} off" if errors else "",
        is_headed=True,
    )


def _charts(system: str, curves: Sequence[CollectiveCurve]) -> list[Chart]:
    """A chart of each operation; a single size makes no curve."""
    by_op: dict[str, list[CollectiveCurve]] = {}
    for curve in curves:
        if len(curve.points) > 1:
            by_op.setdefault(curve.op, []).append(curve)
    return [collective_chart(f"{slug(system)}-{slug(op)}", mine) for op, mine in by_op.items()]


def _sizes(curve: CollectiveCurve) -> Table:
    """Measured and predicted times of each size."""
    points = [one.predicted for one in curve.measured]
    return Table(
        [
            Column("size (B)", [f"{point.size_bytes:.0f}" for point in points]),
            Column("measured (us)", [f"{one.measured_s * _US:.2f}" for one in curve.measured]),
            Column("predicted (us)", [f"{point.seconds * _US:.2f}" for point in points]),
            Column("90 % interval (us)", [f"{point.low_s * _US:.2f} to {point.high_s * _US:.2f}" for point in points]),
            Column("error", [format_change(one.error) for one in curve.measured]),
        ],
        below=[curve.finding],
    )


def _errors(curves: Sequence[CollectiveCurve]) -> Table:
    """Errors of the measured times of each curve."""
    return Table(
        [
            Column("operation", [curve.op for curve in curves], is_text=True),
            Column("group", [curve.group for curve in curves], is_text=True),
            Column("sizes", [str(len(curve.errors)) for curve in curves]),
            Column("median error", [format_percent(median(curve.errors)) for curve in curves]),
            Column("95 %", [format_percent(float(np.percentile(curve.errors, 95))) for curve in curves], is_detail=True),
            Column("largest", [format_percent(max(curve.errors)) for curve in curves]),
            Column("in 90 %", [str(sum(one.is_inside for one in curve.measured)) for curve in curves]),
        ]
    )
