"""The command history: list reconciled runs over time and detect drift. Imports are deferred until it runs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pandas as pd

    from scaleproof.reports.read.history import Drift, History

# Number of rows printed for all scenarios together. With --scenario, all rows are printed.
_MOST_ROWS: Final = 30


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    history = commands.add_parser(
        "history",
        help="list reconciled runs over time, and detect drift of the cluster",
        description="List reconciled runs over time, and detect drift of the cluster.",
    )
    history.add_argument(
        "place", type=Path, metavar="DIR|FILE", help="folder that reconcile wrote with --out, or its history.sqlite"
    )
    history.add_argument("--scenario", metavar="NAME", help="list all runs of this scenario only")
    history.add_argument("--plot", type=Path, metavar="FILE", help="draw the history against time, to an .svg or .png file")
    history.add_argument("--json", action="store_true", help="print the history as JSON")
    history.set_defaults(command=_history)


def _history(options: argparse.Namespace) -> int:
    import json

    from scaleproof.reports.read.history import History, drifts, read
    from scaleproof.simulator.common.errors import InputError
    from scaleproof.simulator.run.files import write_atomically

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
    print(json.dumps(_plain(history, drifting), indent=2) if options.json else _text(history, drifting, bool(options.scenario)))
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
    lines = [f"{'when (UTC)':<16}  {'scenario':<24} {'predicted':>10} {'measured':>10} {'error':>7}  cluster"]
    if len(shown) < len(runs):
        lines.append(f"… {len(runs) - len(shown)} earlier")
    lines += [_run_line(run) for run in _rows(shown)]
    if drifting:
        lines += ["", f"{'latest against the median of earlier runs':<41} {'earlier':>10} {'latest':>10} {'change':>7}"]
        lines += [_drift_line(one, several_hosts=runs["host"].nunique() > 1) for one in drifting]
    if len(history.calibrated):
        lines += ["", f"{'calibrated':<41} {'low':>14} {'value':>14} {'high':>14}", *_quantity_lines(history.calibrated)]
    return "\n".join(lines)


def _run_line(run: dict[str, Any]) -> str:
    from scaleproof.simulator.common.units import format_time_s

    times = f"{format_time_s(run['predicted_s']):>10} {format_time_s(run['measured_s']):>10} {run['error']:>+7.1%}"
    low_s, high_s = run["predicted_low_s"], run["predicted_high_s"]
    outside = low_s is not None and high_s is not None and not low_s <= run["measured_s"] <= high_s
    note = "  outside the 90 % interval" if outside else ""
    when = run["at"][:16].replace("T", " ")
    return f"{when:<16}  {run['scenario']:<24} {times}  {run['cluster']} {run['cluster_digest'][:6]}{note}"


def _drift_line(one: Drift, several_hosts: bool) -> str:
    from scaleproof.simulator.common.units import format_time_s

    name = f"{one.scenario} on {one.host}" if several_hosts else one.scenario
    runs = f"{one.runs - 1} earlier run{'s' if one.runs > 2 else ''}"
    why = f"{runs}, too few to judge" if one.verdict == "too few" else f"{one.verdict}: noise reaches ±{one.reach:.1%}, {runs}"
    return f"{name:<41} {format_time_s(one.earlier_s):>10} {format_time_s(one.latest_s):>10} {one.change:>+7.1%}  {why}"


def _quantity_lines(calibrated: pd.DataFrame) -> list[str]:
    """Table rows of the latest value of each quantity of each cluster."""
    from scaleproof.simulator.cluster.quantities import QUANTITIES

    latest = calibrated.drop_duplicates(["cluster", "host", "quantity"], keep="last")
    lines = []
    for row in _rows(latest):
        known = QUANTITIES.get(row["quantity"])
        shown = [known.format(row[name]) if known else f"{row[name]:.4g}" for name in ("low", "value", "high")]
        name = f"{row['cluster']}: {row['quantity']}" if row["cluster"] else row["quantity"]
        lines.append(f"{name:<41} " + " ".join(f"{text:>14}" for text in shown) + f"  {row['at'][:16].replace('T', ' ')}")
    return lines
