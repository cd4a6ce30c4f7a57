"""The command timeline: draw a predicted step."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from scaleproof.commands.arguments import Command


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    timeline = Command(commands, "timeline", _timeline)
    timeline.add_scenario()
    timeline.add("--out FILE", "file to write, an .svg or .png", type=Path, required=True)


def _timeline(options: argparse.Namespace) -> int:
    from scaleproof.reports.timeline.timeline import picture
    from scaleproof.simulator.common.atomic_file import write_atomically
    from scaleproof.simulator.common.errors import InputError
    from scaleproof.simulator.scenario.load import load

    form = options.out.suffix.removeprefix(".")
    if form not in ("svg", "png"):
        raise InputError(f"--out {options.out}: give a file name that ends in .svg or .png")
    write_atomically(options.out, picture(load(options.scenario, options.overrides), form))
    print(options.out)
    return 0
