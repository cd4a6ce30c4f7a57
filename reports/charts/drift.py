"""A picture of step times, errors and calibrated quantities against time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from scaleproof.reports.charts.style import BLUE, FAINT, GREY, INK, ORANGE, VERMILLION, Format, label, paler, render, title
from scaleproof.reports.read.history import Drift, drifts
from scaleproof.simulator.cluster.quantities import QUANTITIES
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.units import format_change, format_percent

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from scaleproof.reports.read.history import History

# Maximum numbers of panels; `scaleproof history --json` has all data.
_MOST_SCENARIOS: Final = 8
_MOST_QUANTITIES: Final = 9
# Columns of the grid: a scenario's step times take four and its errors two, a quantity takes two.
_COLUMNS: Final = 6
_ACROSS: Final = 3
_ROW_IN: Final = 1.55
_SIZES: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_RATES: Final = ((1e9 / 8, "Gbit/s"), (1e6 / 8, "Mbit/s"), (1e3 / 8, "kbit/s"))
_DOT: Final[dict[str, Any]] = {"marker": "o", "markersize": 4.2, "linestyle": "none", "zorder": 3}
_DRIFTING: Final[dict[str, Any]] = _DOT | {"markersize": 6.5, "zorder": 4}


def drift(history: History, form: Format = "svg") -> bytes:
    """A row for each scenario, step times and errors, the latest reconciled first, and a panel for each calibrated quantity.

    Raises InputError if the history is empty.
    """
    runs, quantities = _series(history.reconciled, "scenario"), _series(history.calibrated, "quantity")
    if not runs and not quantities:
        raise InputError("--plot: the history is empty; reconcile something first")
    runs, quantities = runs[:_MOST_SCENARIOS], quantities[:_MOST_QUANTITIES]
    rows = len(runs) + -(-len(quantities) // _ACROSS)
    limits, hosts = _limits([*runs, *quantities]), history.reconciled["host"].nunique()

    def draw(figure: Figure) -> None:
        grid = figure.add_gridspec(rows, _COLUMNS)
        for row, one in enumerate(runs):
            last = row == len(runs) - 1
            times, errors = figure.add_subplot(grid[row, :4]), figure.add_subplot(grid[row, 4:])
            _draw_times(times, one, hosts > 1)
            _draw_errors(errors, one)
            for axes in (times, errors):
                _date(axes, limits, last)
        for number, one in enumerate(quantities):
            row, column = divmod(number, _ACROSS)
            axes = figure.add_subplot(grid[len(runs) + row, 2 * column : 2 * column + 2])
            _draw_quantity(axes, one)
            _date(axes, limits, True)
        figure.legend(handles=_legend(bool(runs), bool(quantities)), loc="outside lower center", ncols=5)

    return render(_ROW_IN * rows + 0.75, draw, form, "step times, errors and quantities of a cluster against time")


def _series(table: pd.DataFrame, name: str) -> list[pd.DataFrame]:
    """A table for each scenario or quantity of each host, the latest first."""
    parts = [part for _, part in table.groupby([name, "host"], sort=False)]
    return sorted(parts, key=lambda part: part["at"].iloc[-1], reverse=True)


def _limits(series: Sequence[pd.DataFrame]) -> tuple[datetime, datetime]:
    times = [time for one in series for time in _times(one)]
    room = max((max(times) - min(times)) * 0.03, timedelta(minutes=10))
    return min(times) - room, max(times) + room


def _times(table: pd.DataFrame) -> list[datetime]:
    return [time.to_pydatetime() for time in table["at"]]


def _date(axes: Axes, limits: tuple[datetime, datetime], is_last: bool) -> None:
    """Formats the time axis, with labels under the last row only."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(minticks=3, maxticks=6)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    axes.set_xlim(*limits)  # type: ignore[arg-type]  # matplotlib takes dates as it takes numbers
    axes.tick_params(axis="x", labelbottom=is_last)
    axes.xaxis.get_offset_text().set_visible(is_last)
    axes.tick_params(length=0)


def _draw_times(axes: Axes, runs: pd.DataFrame, names_host: bool) -> None:
    """Draws measured step times over predicted ones, both with intervals."""
    when, measured_s = _times(runs), runs["measured_s"]
    size, unit = _unit(float(measured_s.median()), _SIZES)
    low, high = (runs[f"predicted_{side}_s"] / size for side in ("low", "high"))
    axes.fill_between(when, low, high, color=paler(ORANGE, 0.78), linewidth=0, step="mid", zorder=1)  # type: ignore[arg-type]
    axes.step(when, runs["predicted_s"] / size, color=ORANGE, linewidth=1.4, where="mid", zorder=2)  # type: ignore[arg-type]
    axes.plot(when, measured_s / size, color=paler(BLUE, 0.55), linewidth=0.8, zorder=2)  # type: ignore[arg-type]
    _dots(axes, runs, "measured_s", ("measured_low_s", "measured_high_s"), size)
    axes.set_ylabel(unit)
    axes.margins(y=0.18)
    # the work of a scenario name may have changed: use the runs of the latest work
    found = drifts(runs[runs["workload"] == runs["workload"].iloc[-1]])
    if found and found[0].verdict == "drifts":
        axes.plot(when[-1:], measured_s.iloc[-1:] / size, color=VERMILLION, **_DRIFTING)  # type: ignore[arg-type]
    scenario, host = runs[["scenario", "host"]].iloc[-1]
    title(axes, _finding(label(f"{scenario} on {host}" if names_host else str(scenario)), found[0] if found else None))


def _finding(name: str, found: Drift | None) -> str:
    if found is None:
        return f"{name}: one run"
    if found.verdict == "too few":
        return f"{name}: {format_change(found.change)} against {found.runs - 1} before, too few to judge"
    verdict = "drifts" if found.verdict == "drifts" else "is steady"
    return f"{name} {verdict}: {format_change(found.change)}, noise ±{format_percent(found.reach)}"


def _draw_errors(axes: Axes, runs: pd.DataFrame) -> None:
    from matplotlib.ticker import PercentFormatter

    when = _times(runs)
    axes.axhline(0, color=GREY, linewidth=0.9, zorder=1)
    axes.plot(when, runs["error"], color=paler(INK, 0.55), linewidth=0.8, zorder=2)  # type: ignore[arg-type]
    axes.plot(when, runs["error"], color=INK, **_DOT)  # type: ignore[arg-type]
    furthest = max(0.05, float(runs["error"].abs().max())) * 1.25
    axes.set_ylim(-furthest, furthest)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    title(axes, f"error, now {format_change(runs['error'].iloc[-1])}")


def _draw_quantity(axes: Axes, values: pd.DataFrame) -> None:
    """Draws a calibrated quantity in a readable unit."""
    name = str(values["quantity"].iloc[-1])
    size, unit = _unit_of(name, float(values["value"].median()))
    axes.plot(_times(values), values["value"] / size, color=paler(BLUE, 0.55), linewidth=0.8, zorder=2)  # type: ignore[arg-type]
    _dots(axes, values, "value", ("low", "high"), size)
    axes.margins(y=0.25)
    axes.set_ylabel(unit)
    title(axes, label(name, 24))


def _dots(axes: Axes, table: pd.DataFrame, middle: str, edges: tuple[str, str], size: float) -> None:
    """Draws values with their intervals, if any."""
    values = table[middle]
    below, above = values - table[edges[0]], table[edges[1]] - values
    reach = [side.fillna(0).clip(lower=0) / size for side in (below, above)]
    bars: dict[str, Any] = {"color": BLUE, "ecolor": paler(BLUE, 0.3), "elinewidth": 1.3, "capsize": 0, **_DOT}
    axes.errorbar(_times(table), values / size, reach, **bars)  # type: ignore[arg-type]


def _unit_of(quantity: str, value: float) -> tuple[float, str]:
    """Size and name of the unit of a quantity."""
    if quantity not in QUANTITIES:
        return 1.0, ""
    if quantity.endswith(".bandwidth"):
        return _unit(value, _RATES)
    return _unit(value, _SIZES) if "." in quantity else (0.01, "%")


def _unit(value: float, units: Sequence[tuple[float, str]]) -> tuple[float, str]:
    """The largest unit that is not above the value."""
    return next((unit for unit in units if value >= unit[0]), units[-1])


def _legend(has_runs: bool, has_quantities: bool) -> list[object]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    measured = [Line2D([], [], color=BLUE, label="measured, with its interval", **_DOT)]
    if not has_runs:
        return [*measured] if has_quantities else []
    return [
        *measured,
        Line2D([], [], color=ORANGE, linewidth=1.4, label="predicted"),
        Patch(facecolor=paler(ORANGE, 0.78), edgecolor=FAINT, linewidth=0, label="its 90 % interval"),
        Line2D([], [], color=VERMILLION, label="drifts", **_DRIFTING),
    ]
