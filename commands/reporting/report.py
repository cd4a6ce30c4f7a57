"""The command report: write a results folder as one page."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from scaleproof.commands.arguments import Command


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    report = Command(commands, "report", _report, "write a results folder as one HTML page with figures and tables")
    where = "folder that plan, sweep, predict, measure, reconcile, crossover, claims or faults wrote with --out"
    report.add("DIR", where, dest="folder", type=Path)


def _report(options: argparse.Namespace) -> int:
    from scaleproof.reports.pages.page import build

    built = build(options.folder)
    print(built.path)
    if built.is_empty:
        print(f"{options.folder}: no complete results, so the page has no figures; it says what is missing", file=sys.stderr)
    return 1 if built.is_empty else 0
