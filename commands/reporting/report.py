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
    where += "file or a capture, which is predicted first"
    report.add("WHERE", where, type=Path)
    report.add_overrides()
    report.add("--out DIR", "folder of the page of a file (the file's name with -report)", type=Path)


def _report(options: argparse.Namespace) -> int:
    from scaleproof.reports.pages.page import build

    folder = _predicted(options) if options.where.is_file() else options.where
    if folder is options.where and (options.overrides or options.out):
        from scaleproof.simulator.common.errors import InputError

        option = "--set" if options.overrides else "--out"
        raise InputError(f"{option} is for scenario files and captures, and {folder} is no file; give only the folder")
    built = build(folder)
    print(built.path)
    if built.is_empty:
        print(f"{folder}: no complete results, so the page has no figures; it says what is missing", file=sys.stderr)
    return 1 if built.is_empty else 0


def _predicted(options: argparse.Namespace) -> Path:
    """Predicts a scenario file or a capture. Returns the folder of the results."""
    from scaleproof.commands.predicting.predict import write
    from scaleproof.simulator.predict import predict
    from scaleproof.simulator.scenario.load import load

    folder: Path = options.out or Path(f"{options.where.stem}-report")
    scenario = load(str(options.where), options.overrides)
    write(scenario, predict(scenario), folder)
    return folder
