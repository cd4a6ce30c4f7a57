"""Draws docs/images/accuracy.png, predicted against measured step times of published runs: the first picture of README.md.

Run: python docs/scripts/accuracy_picture.py
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scaleproof.reports.charts.style import BLUE, FAINT, INK, VERMILLION, render, title
from scaleproof.simulator.analysis.evidence import Evidence, PublishedRun, published_runs
from scaleproof.simulator.common.units import format_percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PICTURE: Final = Path(__file__).parents[1] / "images" / "accuracy.png"
HEIGHT_IN: Final = 5.2
ENDS_S: Final = (0.04, 700.0)
NEAR: Final = 0.25
# rows of a published sweep that includes configurations which nobody would train with
SWEEP: Final = "ultrascale"


def picture() -> bytes:
    """The picture as PNG."""
    return render(HEIGHT_IN, _draw)


def _draw(figure: Figure) -> None:
    from matplotlib.ticker import FuncFormatter

    axes = figure.subplots()
    runs = published_runs()
    axes.set_xscale("log")
    axes.set_yscale("log")
    low_s, high_s = ([factor * end for end in ENDS_S] for factor in (1 - NEAR, 1 + NEAR))
    axes.fill_between(ENDS_S, low_s, high_s, color=FAINT, alpha=0.5, linewidth=0, label=f"within ±{format_percent(NEAR, 0)}")
    axes.plot(ENDS_S, ENDS_S, color=INK, linewidth=1, linestyle=(0, (4, 3)), label="predicted = measured")
    sweep = [run for run in runs if run.id.startswith(SWEEP)]
    others = [run for run in runs if not run.id.startswith(SWEEP)]
    _points(axes, sweep, "of one sweep (nanotron)", VERMILLION)
    tables = {run.id.rpartition("-")[0] for run in others}
    _points(axes, others, f"of {len(tables)} other tables", BLUE)
    axes.set_xlim(*ENDS_S)
    axes.set_ylim(*ENDS_S)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("measured step time, s")
    axes.set_ylabel("predicted step time, s")
    axes.legend(loc="upper left")
    title(axes, finding(runs))


def _points(axes: Axes, runs: Sequence[PublishedRun], words: str, colour: str) -> None:
    """Draws runs with their prediction intervals."""
    found = Evidence(runs=tuple(runs))
    error, coverage = format_percent(found.median_error or 0.0), format_percent(found.coverage or 0.0, 0)
    words = f"{len(runs)} {words}: median error {error}, {coverage} in the interval"
    measured_s = [run.measured_s for run in runs]
    axes.vlines(measured_s, [run.low_s for run in runs], [run.high_s for run in runs], color=colour, linewidth=0.6, alpha=0.5)
    look: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 2.8, "markeredgewidth": 0, "alpha": 0.7}
    axes.plot(measured_s, [run.predicted_s for run in runs], color=colour, label=words, **look)


def finding(runs: Sequence[PublishedRun]) -> str:
    """The title, from the data."""
    found = Evidence(runs=tuple(runs))
    error, coverage = format_percent(found.median_error or 0.0), format_percent(found.coverage or 0.0, 0)
    sizes = sorted(run.gpus for run in runs)
    return (
        f"Predicted against measured: {len(runs):,} published training runs on {sizes[0]} to {sizes[-1]:,} GPUs\n"
        f"median error {error}; {coverage} of the measured times in the 90 % prediction interval"
    )


if __name__ == "__main__":
    PICTURE.write_bytes(picture())
    print(PICTURE)
