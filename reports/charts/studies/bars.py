"""Bars of a study: the throughput and the cost of each alternative, next to each other. Each is None without data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from scaleproof.reports.charts.chart import Boxes, Chart, ChartAxis, Line, Mark, View, looks
from scaleproof.reports.charts.studies.curves import EQUAL, size_of
from scaleproof.reports.charts.style import INK
from scaleproof.reports.read.ranking import alternatives
from scaleproof.reports.read.study import StudyTable
from scaleproof.simulator.common.units import format_short, format_short_range, format_USD

_BAR: Final = 0.66
_BAR_PX: Final = 34
_INTERVAL: Final = "90 % prediction interval"


def throughput(study: StudyTable) -> Chart | None:
    """Throughput of each alternative at the size of the best point, per GPU where sizes differ; None with less than two."""
    return _bars(study, "rate", "alternatives", "Throughput of each alternative")


def cost(study: StudyTable) -> Chart | None:
    """USD per million samples or tokens of each alternative; None with less than two."""
    return _bars(study, "cost_USD", "cost", "Cost of each alternative")


def _bars(study: StudyTable, column: str, name: str, heading: str) -> Chart | None:
    """A view for each combination of circumstances."""
    best = study.best
    if best is None:
        return None
    views = []
    for choices in study.choices:
        rows = alternatives(study, choices, best["x"])
        there = rows[rows[column].notna()]
        known = [there.loc[line] for line in study.lines if line in there.index]
        if len(known) > 1:
            views.append(_view(study, column, known, choices))
    if not views or views[0].choices != best["choices"]:
        return None
    choosers = tuple((one.name, one.words) for one in study.circumstances)
    most = max(len(view.y.ticks) for view in views)
    return Chart(name, heading, tuple(views), choosers=choosers, height_px=110 + _BAR_PX * most)


def _view(study: StudyTable, column: str, rows: Sequence[Any], choices: tuple[str, ...]) -> View:
    """A bar for each alternative, the best at the top."""
    is_cost = column == "cost_USD"
    per_gpu = not is_cost and len({row["gpus"] for row in rows}) > 1
    unit = f"USD per million {study.unit}" if is_cost else f"{study.unit}/s{' per GPU' if per_gpu else ''}"
    colours = {line: colour for line, (colour, _) in zip(study.lines, looks(len(study.lines)), strict=True)}

    def triple(row: Any) -> tuple[float, float, float]:
        """Value and interval. The cost of a sample is inversely proportional to the throughput."""
        if is_cost:
            return (row[column], row[column] * row["rate"] / row["rate_high"], row[column] * row["rate"] / row["rate_low"])
        gpus = row["gpus"] if per_gpu else 1
        return row["rate"] / gpus, row["rate_low"] / gpus, row["rate_high"] / gpus

    ordered = sorted(rows, key=lambda row: triple(row)[0], reverse=not is_cost)
    sizes = {size_of(study, row) for row in ordered}
    marks: list[Mark] = []
    most = 0.0
    for place, row in enumerate(ordered):
        value, low, high = triple(row)
        most = max(most, value, high if high == high else 0.0)
        amount = format_USD(value) if is_cost else format_short(value)
        between = ""
        if low == low:
            between = f" ({format_USD(low)} to {format_USD(high)})" if is_cost else f" ({format_short_range(low, high)})"
        text = f"{row['line']}, {size_of(study, row)}\n{amount}{'' if is_cost else f' {unit}'}{between}"
        marks.append(Boxes("", colours[row["line"]], [0.0], [value], [float(place)], [_BAR], [text]))
        if low == low:
            marks.append(Line(_INTERVAL, INK, [low, high], [place, place], [text] * 2))
    words = [row["line"] if len(sizes) == 1 else f"{row['line']} on {size_of(study, row)}" for row in ordered]
    ticks = tuple((float(place), text) for place, text in enumerate(words))
    x, y = ChartAxis(unit, limits=(0.0, most * 1.04)), ChartAxis("", ticks=ticks, limits=(len(ordered) - 0.4, -0.6))
    at = f"{next(iter(sizes))}: " if len(sizes) == 1 and study.points["x"].nunique() > 1 else ""
    finding = f"{at}{_finding([(row['line'], triple(row)[0]) for row in ordered[:2]], is_cost, unit)}"
    return View(x, y, tuple(marks), f"{finding[:1].upper() if at else finding[:1]}{finding[1:]}", choices)


def _finding(leading: Sequence[tuple[str, float]], is_cost: bool, unit: str) -> str:
    """'ring is fastest, 6,000 samples/s'; both values of two that are close, neither of which is called the best."""
    (first, best), (second, next_best) = leading
    amounts = [format_USD(value) if is_cost else format_short(value) for value in (best, next_best)]
    unit = unit.removeprefix("USD ")
    if abs(best / next_best - 1) < EQUAL:
        return f"{first} {amounts[0]}, {second} {amounts[1]} {unit}"
    return f"{first} {'costs least' if is_cost else 'is fastest'}, {amounts[0]} {unit}"
