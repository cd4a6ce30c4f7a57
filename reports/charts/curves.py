"""Curves of predicted and measured throughput by number of workers, for several strategies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from scaleproof.reports.charts.style import BLUE, GREEN, INK, ORANGE, VERMILLION, render, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKS: Final = ((VERMILLION, "s"), (ORANGE, "D"), (BLUE, "o"), (GREEN, "^"))


class ThroughputPoint(NamedTuple):
    """Predicted and measured samples per second of a number of workers."""

    workers: int
    predicted: float
    measured: float


def curves(families: Mapping[str, Sequence[ThroughputPoint]], finding: str) -> bytes:
    """A PNG picture with a curve for each of at most four families. finding: the title."""

    def draw(figure: Figure) -> None:
        panel = figure.subplots()
        most = max(point.workers for points in families.values() for point in points)
        for (name, points), mark in zip(families.items(), _MARKS, strict=False):
            _curve(panel, name, points, *mark)
        panel.set_xlim(0, most * 1.15)
        panel.set_ylim(0, None)
        panel.set_xticks(sorted({point.workers for points in families.values() for point in points}))
        panel.set_xlabel("workers")
        panel.set_ylabel("samples/s")
        panel.legend(handles=_legend(), loc="upper left")
        title(panel, finding)

    return render(3.4, draw)


def _curve(panel: Axes, name: str, points: Sequence[ThroughputPoint], colour: str, shape: str) -> None:
    workers = [point.workers for point in points]
    panel.plot(workers, [point.predicted for point in points], color=colour, linewidth=1.4)
    panel.plot(workers, [point.measured for point in points], color=colour, marker=shape, linestyle="none", markersize=5.5)
    panel.annotate(f" {name}", (workers[-1], points[-1].predicted), color=colour, va="center", fontsize=8.5)


def _legend() -> list[object]:
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], color=INK, linewidth=1.4, label="predicted"),
        Line2D([], [], color=INK, marker="o", linestyle="none", markersize=5.5, label="measured"),
    ]
