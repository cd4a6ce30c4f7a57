"""Collectives as sections: measured times over predicted curves, and errors by system, operation and group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np

from scaleproof.reports.charts.chart import Chart
from scaleproof.reports.charts.collective import collective_chart
from scaleproof.reports.sections import Column, Description, Section, Table, slug
from scaleproof.simulator.analysis.collective.curves import CollectiveCurve
from scaleproof.simulator.common.units import format_percent


def describe(curves: Sequence[CollectiveCurve]) -> Description:
    """The description of curves, with a section for each system."""
    systems: dict[str, list[CollectiveCurve]] = {}
    for curve in curves:
        systems.setdefault(curve.system, []).append(curve)
    return Description("collectives", _finding(systems), sections=[_section(*one) for one in systems.items()])


def _finding(systems: Mapping[str, Sequence[CollectiveCurve]]) -> str:
    found = [one for curves in systems.values() for curve in curves for one in curve.measured]
    names = next(iter(systems)) if len(systems) == 1 else f"{len(systems)} systems"
    if not found:
        return f"Collectives on {names}"
    off = format_percent(median(abs(one.error) for one in found))
    inside = format_percent(sum(one.is_inside for one in found) / len(found))
    return f"Collectives on {names}: {len(found)} times, {off} off at the median, {inside} in the 90 % interval"


def _section(system: str, curves: Sequence[CollectiveCurve]) -> Section:
    measured = [curve for curve in curves if curve.measured]
    errors = [error for curve in curves for error in curve.errors]
    return Section(
        system,
        system,
        tables=[_errors(measured)] if measured else [],
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
