"""A picture of a strategy map: the fastest strategy by two fields, with borders and their intervals."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Final

from scaleproof.reports.charts import style
from scaleproof.reports.charts.style import Format, label, paler, render, title
from scaleproof.simulator.analysis.crossover.crossover import Crossover

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS: Final = (style.BLUE, style.VERMILLION, style.ORANGE, style.GREEN, style.PURPLE, style.SKY, style.YELLOW)
_PALER: Final = 0.35
_ROW_IN: Final = 0.42


def picture(found: Crossover, form: Format) -> bytes:
    """The map as PNG or SVG, with the borders as its description."""
    description = json.dumps({"scenario": found.scenario, "borders": found.plain()["borders"]}, separators=(",", ":"))
    return render(1.3 + _ROW_IN * len(found.y.values), lambda figure: _draw(figure, found), form, description)


def _draw(figure: Figure, found: Crossover) -> None:
    from matplotlib.patches import Patch

    axes = figure.subplots()
    colours = {name: paler(_COLOURS[i % len(_COLOURS)], _PALER) for i, name in enumerate(found.strategies)} | {"": style.FAINT}
    seen = {name: None for row in range(len(found.y.values)) for name in _draw_row(axes, found, row, colours)}
    axes.set_xscale("log")
    axes.set_xlim(found.x.values[0], found.x.values[-1])
    ends = [found.x.values[0] * (found.x.values[-1] / found.x.values[0]) ** share for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    axes.set_xticks(ends, [found.x.text(round(end) if found.x.is_whole else end) for end in ends])
    axes.minorticks_off()
    axes.grid(visible=False)
    axes.set_yticks(range(len(found.y.values)), [found.y.text(value) for value in found.y.values])
    axes.set_xlabel(found.x.name)
    axes.set_ylabel(found.y.name)
    title(axes, f"{label(found.scenario)}: {found.best}\nlines: borders and their 90 % intervals")
    names = [name for name in (*found.strategies, "") if name in seen]
    handles = [Patch(facecolor=colours[name], label=label(name or "none fits")) for name in names]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(7, len(handles)))


def _draw_row(axes: Axes, found: Crossover, row: int, colours: dict[str, str]) -> list[str]:
    """Draws the bands of a row and its borders. Returns the strategies that win in it."""
    y, last = found.y.values[row], found.x.values[-1]
    segments = found.segments(y)
    ends = [*(begin for begin, _ in segments[1:]), last]
    for (begin, name), end in zip(segments, ends, strict=True):
        axes.barh(row, end - begin, left=begin, height=0.86, color=colours[name])
    for border in (one for one in found.borders if one.y == y):
        axes.plot([border.x, border.x], [row - 0.43, row + 0.43], color=style.INK, linewidth=1.6)
        if border.low is not None and border.high is not None:
            low, high = max(border.low, found.x.values[0]), min(border.high, last) if math.isfinite(border.high) else last
            axes.plot([low, high], [row, row], color=style.INK, linewidth=0.9)
    return [name for _, name in segments]
