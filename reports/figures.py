"""Figures over all cases: scaling, accuracy, and where the time goes. Each returns PNG bytes, or None without data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from reports.results import Case
from reports.style import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, SKY, YELLOW, label, marker, render, title
from reports.text import CLOSE, FAIR, family_name, milliseconds, percent, spaced
from simulator.run import BREAKDOWN, Origin, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

# more cases than this cannot be read in one figure of bars; the tables have all
MOST_CASES: Final = 24
_CAUSE_COLOURS: Final = dict(zip(BREAKDOWN, (BLUE, ORANGE, PURPLE, YELLOW, SKY, GREEN, GREY), strict=True))


def scaling(cases: Sequence[Case]) -> bytes | None:
    """Samples/s against training ranks, one panel per family; None unless some family ran on several rank counts."""
    families = {
        case.family: [c for c in cases if c.family == case.family and c.runs] for case in cases if case.runs
    }  # in the order of the cases
    if not any(len({case.compute_ranks for case in members}) > 1 for members in families.values()):
        return None
    columns = min(2, len(families))
    rows = -(-len(families) // columns)

    def draw(figure: Figure) -> None:
        panels = figure.subplots(rows, columns, squeeze=False).ravel()
        for panel, (family, members) in zip(panels, families.items(), strict=False):
            _scaling_panel(panel, family, members)
        for unused in panels[len(families) :]:
            unused.set_visible(False)
        figure.legend(handles=_scaling_legend(), loc="outside lower center", ncols=3)

    return render(2.6 * rows + 0.45, draw)


def _scaling_panel(panel: Axes, family: str, cases: Sequence[Case]) -> None:
    colour, shape = marker(family)
    sides: dict[Origin, list[Run]] = {"predicted": [], "measured": []}
    for case in sorted(cases, key=lambda case: case.compute_ranks):
        for run in case.runs:
            sides[run.origin].append(run)
    predicted, measured = (_points(runs) for runs in sides.values())
    # several runs on as many ranks are several scenarios: no line joins those
    joined = len(set(predicted[0])) == len(predicted[0])
    style: dict[str, Any] = {"color": colour, "marker": shape}
    panel.plot(
        *predicted, linestyle="-" if joined else "none", markersize=9, markerfacecolor="white", markeredgewidth=1.4, **style
    )
    panel.plot(*measured, linestyle="none", markersize=5.5, **style)
    most = max(predicted[0] + measured[0])
    for per_rank in _ideal_rates([*sides["measured"], *sides["predicted"]]):
        panel.plot([0, most * 1.08], [0, most * 1.08 * per_rank], color=GREY, linestyle=(0, (4, 3)), linewidth=1, zorder=1)
    panel.set_xlim(0, most * 1.15)
    panel.set_ylim(0, None)
    panel.set_xticks(sorted(set(predicted[0] + measured[0])))
    panel.set_xlabel("training ranks")
    panel.set_ylabel("samples/s")
    title(panel, _scaling_finding(label(family_name(family)), sides["measured"] or sides["predicted"]))


def _points(runs: Sequence[Run]) -> tuple[list[int], list[float]]:
    return [run.compute_ranks for run in runs], [run.samples_per_s for run in runs]


def _ideal_rates(runs: Sequence[Run]) -> list[float]:
    """Samples/s and rank of the baseline, from the first run that is compared with one; empty without."""
    for run in runs:
        efficiency = run.efficiency or {}
        for kind in ("weak", "strong"):
            if kind in efficiency:
                return [run.samples_per_s_per_rank / efficiency[kind]]
    return []


def _scaling_finding(name: str, runs: Sequence[Run]) -> str:
    first, last = runs[0], runs[-1]
    if first.compute_ranks == last.compute_ranks:
        return name
    gain = last.samples_per_s / first.samples_per_s
    return f"{name}: {gain:.2g}× from {first.compute_ranks} to {last.compute_ranks} ranks"


def _scaling_legend() -> list[Line2D]:
    from matplotlib.lines import Line2D

    hollow: dict[str, Any] = {"marker": "o", "markersize": 9, "markerfacecolor": "white", "markeredgewidth": 1.4}
    return [
        Line2D([], [], color=INK, label="predicted", **hollow),
        Line2D([], [], color=INK, marker="o", markersize=5.5, linestyle="none", label="measured"),
        Line2D([], [], color=GREY, linestyle=(0, (4, 3)), label="linear from the baseline"),
    ]


def accuracy(cases: Sequence[Case]) -> bytes | None:
    """Predicted against measured step time on logarithmic axes; None unless something was compared."""
    compared = [case for case in cases if case.error is not None]
    if not compared:
        return None
    return render(4.6, lambda figure: _accuracy_axes(figure.subplots(), compared))


def _accuracy_axes(axes: Axes, cases: Sequence[Case]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    times_ms = np.array([[run.step_time_s * 1e3 for run in case.runs] for case in cases])
    lowest, highest = times_ms.min() / 1.35, times_ms.max() * 1.35
    diagonal = np.array([lowest, highest])
    for share, colour in ((FAIR, "#F1F2F4"), (CLOSE, "#DCE9F2")):
        low, high = diagonal * (1 - share), diagonal * (1 + share)
        axes.fill_between(diagonal, low, high, color=colour, linewidth=0, label=f"±{percent(share)}", zorder=0.5)
        for edge in (low, high):
            axes.plot(diagonal, edge, color=GREY, linewidth=0.4, zorder=0.6)
    axes.plot(diagonal, diagonal, color=INK, linewidth=1, label="equal", zorder=0.7)
    for family in dict.fromkeys(case.family for case in cases):
        colour, shape = marker(family)
        members = np.array([case.family == family for case in cases])
        predicted, measured = times_ms[members].T
        style: dict[str, Any] = {"s": 52, "color": colour, "marker": shape, "edgecolor": "white", "linewidth": 0.8, "zorder": 3}
        axes.scatter(measured, predicted, label=label(family_name(family)), **style)
    _name_worst(axes, cases)
    axes.set(xscale="log", yscale="log", aspect="equal", anchor="W")
    axes.set(xlim=(lowest, highest), ylim=(lowest, highest))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("measured step time, ms")
    axes.set_ylabel("predicted step time, ms")
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
    fair = sum(abs(case.error or 0) <= FAIR for case in cases)
    close = sum(abs(case.error or 0) <= CLOSE for case in cases)
    title(axes, f"{close} of {len(cases)} within ±{percent(CLOSE)}, {fair} within ±{percent(FAIR)}")


def _name_worst(axes: Axes, cases: Sequence[Case]) -> None:
    """Names the case with the largest error beside its point, away from the diagonal."""
    worst = max(cases, key=lambda case: abs(case.error or 0))
    predicted, measured = (run.step_time_s * 1e3 for run in worst.runs)
    above = predicted > measured
    axes.annotate(
        label(worst.scenario),
        (measured, predicted),
        xytext=(-8, 4) if above else (8, -4),
        textcoords="offset points",
        ha="right" if above else "left",
        va="bottom" if above else "top",
        fontsize=8,
    )


def breakdown(cases: Sequence[Case]) -> bytes | None:
    """Milliseconds per step by cause, predicted above measured for each of the first MOST_CASES cases."""
    bars = [(case, run) for case in cases[:MOST_CASES] for run in case.runs if run.breakdown_s]
    if not bars:
        return None
    return render(0.27 * len(bars) + 0.1 * len({case.scenario for case, _ in bars}) + 1.1, lambda f: _breakdown_axes(f, bars))


def _breakdown_axes(figure: Figure, bars: Sequence[tuple[Case, Run]]) -> None:
    axes = figure.subplots()
    heights = _rows(bars)
    left_ms = np.zeros(len(bars))
    for cause in BREAKDOWN:
        # what is left over may be a little below zero, which a stack cannot show
        part_ms = np.array([max(0.0, run.breakdown_s.get(cause, 0.0)) * 1e3 for _, run in bars])
        if part_ms.any():
            style: dict[str, Any] = {"color": _CAUSE_COLOURS[cause], "edgecolor": "white", "linewidth": 0.5}
            axes.barh(heights, part_ms, 0.82, left=left_ms, label=spaced(cause), **style)
        left_ms += part_ms
    for (_, run), height, end_ms in zip(bars, heights, left_ms, strict=True):
        axes.annotate(
            milliseconds(run.step_time_s), (end_ms, height), (4, 0), textcoords="offset points", va="center", fontsize=8
        )
    names = [
        run.origin if i and bars[i - 1][0] is case else f"{label(case.scenario)}   {run.origin}"
        for i, (case, run) in enumerate(bars)
    ]
    axes.set_yticks(heights, names)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(heights[-1] + 0.7, heights[0] - 0.7)
    axes.set_xlim(0, max(left_ms) * 1.1 or 1)
    axes.grid(False, axis="y")
    axes.set_xlabel("ms per step")
    figure.legend(loc="outside lower center", ncols=3)
    title(axes, _breakdown_finding([run for _, run in bars]))


def _rows(bars: Sequence[tuple[Case, Run]]) -> list[float]:
    """Vertical positions: the bars of a case close together, a gap between cases."""
    position, rows = 0.0, []
    for index, (case, _) in enumerate(bars):
        position += 1.0 if index and bars[index - 1][0] is case else 1.45
        rows.append(position)
    return rows


def _breakdown_finding(runs: Sequence[Run]) -> str:
    """The largest cause, over measured runs where there are any."""
    measured = [run for run in runs if run.origin == "measured"] or list(runs)
    total_s = sum(run.step_time_s for run in measured)
    parts_s = {cause: sum(run.breakdown_s.get(cause, 0.0) for run in measured) for cause in BREAKDOWN}
    first, second = sorted(parts_s, key=lambda cause: parts_s[cause], reverse=True)[:2]
    shares = [f"{spaced(cause)} takes {percent(parts_s[cause] / total_s)}" for cause in (first, second) if parts_s[cause] > 0]
    return f"Of {measured[0].origin} time, {' and '.join(shares)}"
