"""The command report: write a results folder as one page."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from scaleproof.commands.arguments import Command


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    report = Command(commands, "report", _report)
    where = "folder that plan, sweep, predict, measure, reconcile, crossover, claims or faults wrote with --out; or a scenario "
    where += "or a capture, by file or name, which is predicted first"
    report.add("WHERE", where, type=Path)
    report.add_overrides()
    report.add("--out DIR", "folder of the page of a scenario or capture (its name with -report)", type=Path)


def _report(options: argparse.Namespace) -> int:
    from scaleproof.reports.pages.page import build

    folder = _predicted(options) if _is_scenario(options.where) else options.where
    if folder is options.where and (options.overrides or options.out):
        from scaleproof.simulator.common.errors import InputError

        option = "--set" if options.overrides else "--out"
        raise InputError(f"{option} is for scenarios and captures, and {folder} is neither; give only the folder")
    built = build(folder)
    print(built.path)
    if built.is_empty:
        print(f"{folder}: no complete results, so the page has no figures; it says what is missing", file=sys.stderr)
    return 1 if built.is_empty else 0


def _is_scenario(where: Path) -> bool:
    """Whether a path is a file, or the name of what ships as a scenario or a model, and no folder."""
    from scaleproof.simulator.common import catalog
    from scaleproof.simulator.common.errors import NotFoundError

    if where.exists():
        return where.is_file()
    try:
        return catalog.is_model(str(where)) or catalog.find_scenario(str(where)).is_file()
    except NotFoundError:
        return False


def _predicted(options: argparse.Namespace) -> Path:
    """Predicts a scenario or a capture. Returns the folder of the results."""
    from scaleproof.commands.predicting.predict import write
    from scaleproof.simulator.predict import predict
    from scaleproof.simulator.scenario.load import load

    folder: Path = options.out or Path(f"{options.where.stem}-report")
    scenario = load(str(options.where), options.overrides)
    write(scenario, predict(scenario), folder)
    return folder
