"""The chart of a strategy map: the fastest strategy by two fields, with borders and their intervals."""

from __future__ import annotations

import math
from typing import Final

from scaleproof.reports.charts.chart import CELL_COLOURS, Boxes, Chart, ChartAxis, Line, Mark, View
from scaleproof.reports.charts.style import FAINT, INK, paler
from scaleproof.simulator.analysis.crossover.crossover import Border, Crossover

_PALER: Final = 0.35
_BAR: Final = 0.86
_ROW_PX: Final = 44
# of x, in addition to that at its begin
_TICKS: Final = 4


def strategy_map(found: Crossover, finding: str) -> Chart:
    """The map: a bar for each value of y, with the fastest strategy along the logarithm of x. finding: its result in a line."""
    colours = {name: paler(CELL_COLOURS[i % len(CELL_COLOURS)], _PALER) for i, name in enumerate(found.strategies)}
    segments = [(row, *one) for row, y in enumerate(found.y.values) for one in _segments(found, y)]
    bands = [_bands(name, colour, segments) for name, colour in (colours | {"": FAINT}).items()]
    rows = {y: row for row, y in enumerate(found.y.values)}
    borders = [(rows[border.y], border) for border in found.borders]
    x = [place for _, border in borders for place in (math.log10(border.x), math.log10(border.x), math.nan)]
    y = [place for row, _ in borders for place in (row - _BAR / 2, row + _BAR / 2, math.nan)]
    between = [(row, *_ends(found, border)) for row, border in borders if border.low is not None]
    lines = (
        Line("border", INK, x, y),
        Line(
            "90 % interval",
            INK,
            [place for _, low, high in between for place in (low, high, math.nan)],
            [place for row, *_ in between for place in (row, row, math.nan)],
            dashed=True,
        ),
    )
    marks: list[Mark] = [*(one for one in bands if one.left), *(one for one in lines if one.x)]
    ends = math.log10(found.x.values[0]), math.log10(found.x.values[-1])
    ticks = [(ends[0] * (_TICKS - tick) + ends[1] * tick) / _TICKS for tick in range(_TICKS + 1)]
    across = ChartAxis(found.x.name, ticks=tuple((tick, found.x.rounded(10**tick)) for tick in ticks), limits=ends)
    upward = ChartAxis(
        found.y.name,
        ticks=tuple((float(row), found.y.text(value)) for row, value in enumerate(found.y.values)),
        limits=(-0.5, len(rows) - 0.5),
    )
    caption = "Colour: the fastest strategy. Lines: borders and their 90 % intervals."
    height = 150 + _ROW_PX * len(rows)
    return Chart(
        "map",
        f"By {found.x.name} and {found.y.name}",
        (View(across, upward, tuple(marks), finding),),
        caption,
        height_px=height,
    )


def _segments(found: Crossover, y: float) -> list[tuple[float, float, str]]:
    """Begin and end along x, in SI, and the winner of each segment of a row."""
    segments = found.segments(y)
    ends = [*(begin for begin, _ in segments[1:]), found.x.values[-1]]
    return [(begin, end, name) for (begin, name), end in zip(segments, ends, strict=True)]


def _bands(name: str, colour: str, segments: list[tuple[int, float, float, str]]) -> Boxes:
    """The segments that a strategy wins. name: "" for those where none can be trained."""
    mine = [(row, begin, end) for row, begin, end, winner in segments if winner == name]
    left = [math.log10(begin) for _, begin, _ in mine]
    width = [math.log10(end / begin) for _, begin, end in mine]
    return Boxes(name or "none fits", colour, left, width, [float(row) for row, *_ in mine], [_BAR] * len(mine))


def _ends(found: Crossover, border: Border) -> tuple[float, float]:
    """The logarithms of the ends of a border's interval on the map."""
    low, high = border.low or 0.0, math.inf if border.high is None else border.high
    return math.log10(max(low, found.x.values[0])), math.log10(min(high, found.x.values[-1]))
