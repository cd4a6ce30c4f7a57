"""The command report: write a results folder as one page."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    report = commands.add_parser(
        "report",
        help="write a results folder as one page with figures and tables",
        description="Write a results folder as one HTML page with figures and tables.",
    )
    report.add_argument(
        "folder", type=Path, metavar="DIR", help="folder that sweep, predict, measure or reconcile wrote with --out"
    )
    report.set_defaults(command=_report)


def _report(options: argparse.Namespace) -> int:
    from scaleproof.reports.pages.page import build

    built = build(options.folder)
    print(built.path)
    return 1 if built.is_empty else 0
