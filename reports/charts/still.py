"""Still pictures: the first view of a chart as PNG and SVG, for paper and for browsers without scripts."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from scaleproof.reports.charts.chart import Band, Boxes, Chart, ChartAxis, Line, Mark
from scaleproof.reports.charts.style import INK, Drawn, figure_of, label, render_both

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PX_PER_INCH: Final = 105
_SHAPES: Final = {
    "circle": "o", "square": "s", "triangle-up": "^", "diamond": "D", "x": "X", "star": "*", "cross": "P",
}  # fmt: skip
_LONGEST: Final = 46
# of a title: letters in a line, letters in total, and height of a line
_LETTERS: Final = 100
_MOST_LETTERS: Final = 300
_LINE_IN: Final = 0.17


def still(chart: Chart) -> Drawn:
    """The first view of a chart as PNG and SVG."""
    return render_both(_height_in(chart), lambda figure: _draw(figure, chart))


def still_figure(chart: Chart) -> Figure:
    """The first view of a chart as a matplotlib figure."""
    return figure_of(_height_in(chart), lambda figure: _draw(figure, chart))


def _height_in(chart: Chart) -> float:
    names = len({mark.name for mark in chart.views[0].marks if mark.name})
    extra_in = 0.2 * (names // 4) + _LINE_IN * max(0, len(_titles(chart)) - 1)
    return chart.height_px / _PX_PER_INCH + extra_in


def _titles(chart: Chart) -> list[str]:
    """The wrapped finding of the first view, and its choices."""
    view = chart.views[0]
    chosen = [f"{name} {words}" for (name, _), words in zip(chart.choosers, view.choices, strict=False)]
    texts = (label(words, _MOST_LETTERS) for words in (view.finding, ", ".join(chosen)))
    return [line for words in texts for line in textwrap.wrap(words, _LETTERS)]


def _draw(figure: Figure, chart: Chart) -> None:
    from matplotlib import rcParams

    view, axes = chart.views[0], figure.subplots()
    handles: dict[str, Any] = {}
    for mark in view.marks:
        drawn = _mark(axes, mark)
        # those of one name stand in the legend once, by what has a symbol where something has
        if mark.name and (mark.name not in handles or (isinstance(mark, Line) and mark.symbol)):
            handles[mark.name] = drawn
    _axis(axes, view.x, "x")
    _axis(axes, view.y, "y")
    if handles:
        # to matplotlib those are no names that are empty, or begin with a line
        names = [f" {label(name, _LONGEST)}" for name in handles]
        figure.legend(list(handles.values()), names, loc="outside lower center", ncols=3 if len(names) > 4 else len(names))
    if chart.square:
        axes.set_aspect("equal", anchor="W")
    if titles := _titles(chart):
        # from the figure's edge on, where there is the most room
        look: dict[str, Any] = {"fontsize": rcParams["axes.titlesize"], "fontweight": rcParams["axes.titleweight"]}
        figure.suptitle("\n".join(titles), x=0.01, ha="left", **look)


def _axis(axes: Axes, axis: ChartAxis, which: str) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter

    mine = getattr(axes, f"{which}axis")
    mine.set_label_text(label(axis.title, 90))
    if axis.log:
        getattr(axes, f"set_{which}scale")("log")
        mine.set_major_locator(LogLocator(subs=(1, 2, 5)))
        mine.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        mine.set_minor_formatter(NullFormatter())
    if axis.ticks:
        mine.set_ticks([place for place, _ in axis.ticks], [label(words, 40) for _, words in axis.ticks], minor=False)
        mine.set_minor_formatter(NullFormatter())
    if axis.percent:
        mine.set_major_formatter(PercentFormatter(1.0, decimals=0))
    if axis.limits:
        getattr(axes, f"set_{which}lim")(*axis.limits)
    elif axis.zero and not axis.log:
        low, high = getattr(axes, f"get_{which}lim")()
        getattr(axes, f"set_{which}lim")(min(0.0, low), max(0.0, high))


def _mark(axes: Axes, mark: Mark) -> Any:
    """Draws it; what stands for it in a legend."""
    if isinstance(mark, Band):
        alpha = 1.0 if mark.solid else 0.18
        return axes.fill_between(mark.x, mark.low, mark.high, color=mark.colour, alpha=alpha, linewidth=0)
    if isinstance(mark, Boxes):
        return _boxes(axes, mark)
    look: dict[str, Any] = {"color": mark.colour, "linestyle": "-" if mark.joined else "none", "linewidth": 1.6}
    if mark.dashed:
        look |= {"linestyle": (0, (4, 3)), "linewidth": 1.1}
    if mark.symbol:
        look |= {"marker": _SHAPES[mark.symbol], "markersize": 8 if mark.hollow else 6, "markeredgewidth": 1.2}
        look |= {"markerfacecolor": "white"} if mark.hollow else {"markeredgecolor": "white", "markeredgewidth": 0.7}
    return axes.plot(mark.x, mark.y, **look)[0]


def _boxes(axes: Axes, mark: Boxes) -> Any:
    look: dict[str, Any] = {"color": mark.colour, "edgecolor": "white", "linewidth": 0.5}
    bars = axes.barh(np.asarray(mark.middle), mark.width, np.asarray(mark.height), left=mark.left, **look)
    for words, bar in zip(mark.labels, bars, strict=False):
        centre = bar.get_x() + bar.get_width() / 2, bar.get_y() + bar.get_height() / 2
        axes.text(*centre, label(words, 24), ha="center", va="center", fontsize=7.5, color=INK, clip_on=True)
    return bars
