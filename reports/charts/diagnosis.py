"""Charts of a diagnosis: ranks by phases, and step times over iterations."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from scaleproof.reports.charts.chart import Boxes, Chart, ChartAxis, Line, Mark, View
from scaleproof.reports.charts.style import BLUE, FAINT, INK, SKY, VERMILLION, YELLOW
from scaleproof.reports.text import milliseconds, time_unit
from scaleproof.simulator.analysis.diagnosis import Diagnosis, Iterations
from scaleproof.simulator.common.units import format_change, format_time_s

# Phases of the heat map by field, and those of many ranks that are drawn.
_PHASES: Final = {
    "compute_s": "compute", "transfer_s": "exposed", "waiting_s": "waits", "input_s": "start", "gap_s": "idle",
}  # fmt: skip
_MOST_RANKS: Final = 40
# Difference to the median rank as a share of the step, by colour.
_CLASSES: Final = (
    ("much more than the median rank", VERMILLION, 0.05),
    ("more", YELLOW, 0.015),
    ("as the median rank", FAINT, -0.015),
    ("less", SKY, -np.inf),
)
_ROW_PX: Final = 22


def heat_map(found: Diagnosis) -> Chart | None:
    """Ranks against phases, coloured by the difference to the median rank; None without traces of several ranks."""
    ranks = found.notable_ranks(_MOST_RANKS)
    if len(ranks) < 2:
        return None
    step_s = float(np.median([one.step_s for one in found.ranks]))
    cells: dict[str, list[tuple[float, float, str, str]]] = {}
    for column, (field, phase) in enumerate(_PHASES.items()):
        middle_s = float(np.median([getattr(one, field) for one in found.ranks]))
        for row, one in enumerate(ranks):
            seconds = getattr(one, field)
            share = (seconds - middle_s) / step_s
            name = next(name for name, _, least in _CLASSES if share >= least)
            change = f"{format_change(share)} of a step against the median rank"
            text = f"rank {one.rank}{f', {one.host}' if one.host else ''}: {phase}\n{format_time_s(seconds)}, {change}"
            cells.setdefault(name, []).append((column, row, text, milliseconds(seconds)))
    marks: list[Mark] = []
    for name, colour, _ in _CLASSES:
        if name in cells:
            columns, rows, texts, labels = zip(*cells[name], strict=True)
            left, size = [column - 0.48 for column in columns], len(columns)
            marks.append(Boxes(name, colour, left, [0.96] * size, list(rows), [0.9] * size, texts, labels))
    x = ChartAxis("ms of each step", ticks=tuple(enumerate(_PHASES.values())), limits=(-0.5, len(_PHASES) - 0.5))
    ticks = tuple((float(row), f"rank {one.rank}") for row, one in enumerate(ranks))
    y = ChartAxis("", ticks=ticks, limits=(len(ranks) - 0.4, -0.6))
    caption = "Colour: more or less than the median rank, as a share of the step. Who waits little is who others wait for. "
    caption += "Exposed: communication in which nothing is computed; start: before the first kernel."
    height = 120 + _ROW_PX * len(ranks)
    return Chart("ranks", "Where each rank spends its steps", (View(x, y, tuple(marks)),), caption, height_px=height)


def _iterations(number: int, series: Iterations) -> Chart:
    """Step times of a log, with the level of each regime. number: of the log."""
    values = series.seconds
    unit, per_s = time_unit(float(np.median(values))) if series.unit == "s" else ("relative", 1 / float(np.median(values)))
    numbers, scaled = list(map(float, series.numbers)), [value * per_s for value in values]
    texts = [
        f"iteration {number}{f', {series.times[place]}' if series.times else ''}: {scaled[place]:.4g} {unit}"
        for place, number in enumerate(series.numbers)
    ]
    marks: list[Mark] = [Line("steps", BLUE, numbers, scaled, texts, "circle", joined=False)]
    edges = [0, *series.starts, len(values)]
    for first, end in pairwise(edges):
        level = float(np.median(scaled[first:end]))
        colour = VERMILLION if first and level > float(np.median(scaled[: edges[1]])) else INK
        name = "slower" if colour == VERMILLION else "usual"
        marks.append(Line(name, colour, [numbers[first], numbers[end - 1]], [level, level]))
    x, y = ChartAxis("iteration", zero=False), ChartAxis(f"step time, {unit}")
    caption = "Points: steps. Lines: the median of each stretch between changes."
    return Chart(f"iterations-{number}", series.name, (View(x, y, tuple(marks)),), caption, height_px=320)


def all_iterations(series: Sequence[Iterations]) -> list[Chart]:
    """A chart of each log."""
    return [_iterations(number, one) for number, one in enumerate(series, start=1) if len(one.seconds) > 1]
