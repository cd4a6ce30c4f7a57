"""The reports' commands: report, timeline, and those that have a module of their own. Imports wait until one runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from scaleproof.commands.predicting import crossover, explore
from scaleproof.commands.predicting.predict import add_scenario_arguments
from scaleproof.commands.reporting import history


def mount(commands: Any) -> None:
    """Adds the commands to argparse's subparsers."""
    report = commands.add_parser("report", help="write a results folder as one page with figures and tables")
    report.add_argument("folder", type=Path, metavar="DIR", help="what sweep, predict, measure or reconcile wrote with --out")
    report.set_defaults(command=_report)

    timeline = commands.add_parser(
        "timeline",
        help="draw a forecast step: ranks against time",
        description="Draw a step of a forecast: ranks against time.",
    )
    add_scenario_arguments(timeline)
    timeline.add_argument("--out", type=Path, metavar="FILE", required=True, help="an .svg or .png")
    timeline.set_defaults(command=_timeline)
    crossover.mount(commands)
    explore.mount(commands)
    history.mount(commands)


def _report(options: argparse.Namespace) -> int:
    from scaleproof.reports.pages.page import build

    built = build(options.folder)
    print(built.path)
    return 1 if built.is_empty else 0


def _timeline(options: argparse.Namespace) -> int:
    from scaleproof.reports.timeline.timeline import picture
    from scaleproof.simulator.common.errors import InputError
    from scaleproof.simulator.run.run import write_aside
    from scaleproof.simulator.scenario.load import load

    form = options.out.suffix.removeprefix(".")
    if form not in ("svg", "png"):
        raise InputError(f"--out {options.out}: a picture is an .svg or a .png; give such a name")
    write_aside(options.out, picture(load(options.scenario, options.overrides), form))
    print(options.out)
    return 0
