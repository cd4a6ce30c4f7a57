"""The command timeline: draw a predicted step."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from scaleproof.commands.arguments import add_scenario_arguments


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    timeline = commands.add_parser(
        "timeline",
        help="draw a predicted step: ranks against time",
        description="Draw a predicted step: ranks against time.",
    )
    add_scenario_arguments(timeline)
    timeline.add_argument("--out", type=Path, metavar="FILE", required=True, help="file to write, an .svg or .png")
    timeline.set_defaults(command=_timeline)


def _timeline(options: argparse.Namespace) -> int:
    from scaleproof.reports.timeline.timeline import picture
    from scaleproof.simulator.common.errors import InputError
    from scaleproof.simulator.run.files import write_atomically
    from scaleproof.simulator.scenario.load import load

    form = options.out.suffix.removeprefix(".")
    if form not in ("svg", "png"):
        raise InputError(f"--out {options.out}: give a file name that ends in .svg or .png")
    write_atomically(options.out, picture(load(options.scenario, options.overrides), form))
    print(options.out)
    return 0
