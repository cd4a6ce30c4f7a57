"""Charts as plain data for plotly.js. Colours that depend on the page's theme are CSS variables."""

from __future__ import annotations

import html
import json
import math
import statistics
from collections.abc import Sequence
from typing import Any, Final

from scaleproof.reports.charts.chart import Band, Boxes, Chart, ChartAxis, Line, Mark, View
from scaleproof.reports.charts.style import BLUE, FAINT, GREY, INK, UNMODELLED

# colours that are hard to see on a dark page, as variables that the page defines
_THEMED: Final = {
    INK: "var(--ink)", FAINT: "var(--faint)", BLUE: "var(--blue)", GREY: "var(--grey)", UNMODELLED: "var(--deep)",
}  # fmt: skip
_DIGITS: Final = 6
# entries of a trace that differ between views
_OWN: Final = ("x", "y", "base", "text", "customdata")
# width of boxes with an outline, as a share of the chart: three pixels of a wide one
_OUTLINED: Final = 1 / 400


def script_json(plain: Any) -> str:
    """JSON that is safe in a script element: nothing in it ends the element or begins a comment."""
    dumped = json.dumps(plain, separators=(",", ":"), allow_nan=False)
    return dumped.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def plain(chart: Chart) -> dict[str, Any]:
    """A chart as data for the page."""
    return {
        "choosers": chart.choosers,
        "along": chart.along,
        "views": [{"choices": view.choices, "finding": view.finding, **_drawn(view, chart)} for view in chart.views],
    }


def packed(chart: Chart) -> dict[str, Any]:
    """`plain` with each look of a trace and each layout once: views differ in their numbers and texts alone."""
    found = plain(chart)
    looks: dict[str, int] = {}
    layouts: dict[str, int] = {}

    def number(known: dict[str, int], value: Any) -> int:
        return known.setdefault(json.dumps(value), len(known))

    for view in found["views"]:
        view["data"] = [
            [number(looks, {name: value for name, value in trace.items() if name not in _OWN}),
             {name: value for name, value in trace.items() if name in _OWN}]
            for trace in view["data"]
        ]  # fmt: skip
        view["layout"] = number(layouts, view["layout"])
    return found | {"looks": [json.loads(one) for one in looks], "layouts": [json.loads(one) for one in layouts]}


def legend(chart: Chart) -> list[tuple[str, str, str]]:
    """Legend entries of a chart: name, colour and shape ("line", "dashed", "box" or a symbol), each name once."""
    found: dict[str, tuple[str, str]] = {}
    for mark in (mark for view in chart.views for mark in view.marks):
        # a mark with a symbol also represents the band and the dashed line of its name
        if mark.name and (mark.name not in found or (isinstance(mark, Line) and mark.symbol)):
            shape = "box"
            if isinstance(mark, Line):
                shape = mark.symbol or ("dashed" if mark.dashed else "line")
            found[mark.name] = _themed(mark.colour), shape
    return [(name, *look) for name, look in found.items()]


def _drawn(view: View, chart: Chart) -> dict[str, Any]:
    layout = {"xaxis": _axis(view.x), "yaxis": _axis(view.y)}
    if chart.along:
        layout["yaxis"]["fixedrange"] = True
    return {"data": [_trace(mark) for mark in view.marks], "layout": layout}


def _axis(axis: ChartAxis) -> dict[str, Any]:
    drawn: dict[str, Any] = {"title": {"text": _text(axis.title)}}
    if axis.log:
        drawn["type"] = "log"
    if axis.limits:
        drawn["range"] = [math.log10(end) if axis.log else end for end in axis.limits]
    else:
        drawn |= {"rangemode": "tozero"} if axis.zero and not axis.log else {}
    if axis.ticks:
        drawn |= {"tickvals": [place for place, _ in axis.ticks], "ticktext": [_text(words) for _, words in axis.ticks]}
    if axis.percent:
        drawn["tickformat"] = ".0%"
    return drawn


def _trace(mark: Mark) -> dict[str, Any]:
    common: dict[str, Any] = {"name": _text(mark.name), "meta": mark.name, "showlegend": False}
    if isinstance(mark, Band):
        edge = [*mark.x, *reversed(mark.x)], [*mark.high, *reversed(mark.low)]
        fill: dict[str, Any] = {"fill": "toself", "fillcolor": _themed(mark.colour), "opacity": 1.0 if mark.solid else 0.18}
        fill |= {"line": {"width": 0}, "hoverinfo": "skip"}
        return common | {"type": "scatter", "mode": "lines", "x": _numbers(edge[0]), "y": _numbers(edge[1]), **fill}
    hover = {"text": [_text(text) for text in mark.texts], "hovertemplate": "%{text}<extra></extra>"} if mark.texts else {}
    common |= hover or {"hoverinfo": "skip"}
    return common | (_line(mark) if isinstance(mark, Line) else _boxes(mark))


def _line(mark: Line) -> dict[str, Any]:
    modes = [*(["lines"] if mark.joined else []), *(["markers"] if mark.symbol else [])]
    drawn: dict[str, Any] = {"type": "scatter", "mode": "+".join(modes), "x": _numbers(mark.x), "y": _numbers(mark.y)}
    colour = _themed(mark.colour)
    if mark.joined:
        drawn["line"] = {"color": colour, "width": 1.4 if mark.dashed else 2.2, **({"dash": "dash"} if mark.dashed else {})}
    if mark.symbol:
        symbol = f"{mark.symbol}-open" if mark.hollow else mark.symbol
        drawn["marker"] = {
            "color": colour,
            "symbol": symbol,
            "size": 10 if mark.hollow else 8,
            "line": {"width": 1.8 if mark.hollow else 0.8},
        }
        drawn["marker"]["line"]["color"] = colour if mark.hollow else "var(--card)"
    return drawn


def _boxes(mark: Boxes) -> dict[str, Any]:
    drawn: dict[str, Any] = {"type": "bar", "orientation": "h", "base": _numbers(mark.left), "x": _numbers(mark.width)}
    drawn |= {"y": _numbers(mark.middle), "width": _numbers(mark.height)}
    # an outline would hide the fill of boxes that are not much wider than itself
    extent = max(left + width for left, width in zip(mark.left, mark.width, strict=True))
    outline_px = 0.5 if statistics.median(mark.width) > _OUTLINED * extent else 0
    drawn["marker"] = {"color": _themed(mark.colour), "line": {"width": outline_px, "color": "var(--card)"}}
    if mark.labels:
        # plotly has one text per box, used for labels here; hover texts go to customdata
        drawn["customdata"] = [_text(text) for text in mark.texts]
        drawn |= {"text": [_text(words) for words in mark.labels], "textposition": "inside", "insidetextanchor": "middle"}
        drawn |= {"textangle": 0, "hovertemplate": "%{customdata}<extra></extra>"}
    elif mark.texts:
        drawn["textposition"] = "none"
    return drawn


def _themed(colour: str) -> str:
    return _THEMED.get(colour, colour)


def _text(words: str) -> str:
    """Escapes markup for plotly.js, and writes line breaks as markup."""
    return html.escape(words, quote=False).replace("\n", "<br>")


def _numbers(values: Sequence[float]) -> list[float | None]:
    """Numbers rounded to the digits that a drawing shows; None if not finite."""
    return [float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None for value in values]
