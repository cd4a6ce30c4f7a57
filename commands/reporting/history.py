"""The command history: list reconciled runs over time and detect drift. Imports are deferred until it runs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scaleproof.commands.arguments import Command
from scaleproof.commands.output import print_result
from scaleproof.commands.text.tables import table
from scaleproof.simulator.common.units import format_change, format_percent

if TYPE_CHECKING:
    import pandas as pd

    from scaleproof.reports.read.history import Drift, History

# Number of rows printed for all scenarios together. With --scenario, all rows are printed.
_MOST_ROWS: Final = 30


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    history = Command(commands, "history", _history)
    history.add("DIR|FILE", "folder that reconcile wrote with --out, or its history.sqlite", dest="place", type=Path)
    history.add("--scenario NAME", "list all runs of this scenario only")
    history.add("--plot FILE", "draw the history against time, to an .svg or .png file", type=Path)
    history.add("--json", "print the history as JSON")


def _history(options: argparse.Namespace) -> int:
    from scaleproof.reports.read.history import History, drifts, read
    from scaleproof.simulator.common.atomic_file import write_atomically
    from scaleproof.simulator.common.errors import InputError

    if options.plot and options.plot.suffix not in (".svg", ".png"):
        raise InputError(f"--plot {options.plot}: give a file name that ends in .svg or .png")
    history = read(options.place)
    if options.scenario:
        chosen = history.reconciled[history.reconciled["scenario"] == options.scenario]
        if chosen.empty:
            known = ", ".join(dict.fromkeys(history.reconciled["scenario"])) or "no scenarios"
            raise InputError(f"--scenario {options.scenario}: not in this history; it has {known}")
        history = History(chosen, history.calibrated)
    drifting = drifts(history.reconciled)
    print_result(options, lambda: _plain(history, drifting), lambda: _text(history, drifting, bool(options.scenario)))
    if options.plot:
        from scaleproof.reports.charts.drift import drift

        write_atomically(options.plot, drift(history, "png" if options.plot.suffix == ".png" else "svg"))
        if not options.json:
            print(options.plot)
    return 0


def _plain(history: History, drifting: Sequence[Drift]) -> dict[str, Any]:
    """The history as plain data for JSON."""
    return {
        "reconciled": _rows(history.reconciled),
        "calibrated": _rows(history.calibrated),
        "drift": [one.plain() for one in drifting],
    }


def _rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table. Missing values are None, times are text."""
    plain = table.astype(object).where(table.notna(), None)
    plain["at"] = [time.isoformat() for time in table["at"]]
    return [{str(name): value for name, value in row.items()} for row in plain.to_dict("records")]


def _text(history: History, drifting: Sequence[Drift], is_one: bool) -> str:
    """Console text: runs (newest last), the drift of each scenario, and the latest quantities of each cluster."""
    runs = history.reconciled
    shown = runs if is_one else runs.tail(_MOST_ROWS)
    rows = [("when (UTC)", "scenario", "predicted", "measured", "error", "cluster")]
    rows += [(f"… {len(runs) - len(shown)} earlier", "", "", "", "", "")] if len(shown) < len(runs) else []
    lines = table([*rows, *map(_run_cells, _rows(shown))], "<<>>><", (16, 24))
    if drifting:
        several_hosts = runs["host"].nunique() > 1
        drift_rows = [("latest against the median of earlier runs", "earlier", "latest", "change", "")]
        lines += ["", *table([*drift_rows, *(_drift_cells(one, several_hosts) for one in drifting)], "<>>><")]
    if len(history.calibrated):
        quantities = _quantity_cells(history.calibrated)
        lines += ["", *table([("calibrated", "low", "value", "high", ""), *quantities], "<>>><", (42,))]
    return "\n".join(lines)


def _run_cells(run: dict[str, Any]) -> tuple[str, ...]:
    from scaleproof.simulator.common.units import format_time_s

    low_s, high_s = run["predicted_low_s"], run["predicted_high_s"]
    outside = low_s is not None and high_s is not None and not low_s <= run["measured_s"] <= high_s
    cluster = f"{run['cluster']} {run['cluster_digest'][:6]}{'  outside the 90 % interval' if outside else ''}"
    times = format_time_s(run["predicted_s"]), format_time_s(run["measured_s"]), format_change(run["error"])
    return _minute(run), run["scenario"], *times, cluster


def _drift_cells(one: Drift, several_hosts: bool) -> tuple[str, ...]:
    from scaleproof.simulator.common.units import counted, format_time_s

    name = f"{one.scenario} on {one.host}" if several_hosts else one.scenario
    runs = counted(one.runs - 1, "earlier run")
    why = (
        f"{runs}, too few to judge"
        if one.verdict == "too few"
        else f"{one.verdict}: noise reaches ±{format_percent(one.reach)}, {runs}"
    )
    return name, format_time_s(one.earlier_s), format_time_s(one.latest_s), format_change(one.change), why


def _quantity_cells(calibrated: pd.DataFrame) -> Iterator[tuple[str, ...]]:
    """Table rows of the latest value of each quantity of each cluster."""
    from scaleproof.simulator.cluster.quantities import QUANTITIES

    for row in _rows(calibrated.drop_duplicates(["cluster", "host", "quantity"], keep="last")):
        known = QUANTITIES.get(row["quantity"])
        values = (known.format(row[name]) if known else f"{row[name]:.4g}" for name in ("low", "value", "high"))
        yield f"{row['cluster']}: {row['quantity']}" if row["cluster"] else row["quantity"], *values, _minute(row)


def _minute(row: dict[str, Any]) -> str:
    """Time of a row to the minute."""
    return str(row["at"][:16].replace("T", " "))
