"""The validator's commands: reconcile, score, and those of the other modules called so. Imports wait until a command runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from validator import commands_calibrate, commands_import, commands_measure, commands_prove, commands_reconcile


def mount(commands: Any) -> None:
    """Adds the commands to argparse's subparsers."""
    commands_measure.mount(commands)
    commands_calibrate.mount(commands)
    commands_reconcile.mount(commands)
    commands_prove.mount(commands)
    commands_import.mount(commands)

    score = commands.add_parser("score", help="predict a table of published measurements, and say how far off")
    score.add_argument("table", type=Path, metavar="FILE.csv", help="with the columns of a table in scenarios/published")
    score.add_argument("--calibrated", action="store_true", help="fit constants on the rows it names, and leave those out")
    score.add_argument("--json", action="store_true", help="print the score as JSON")
    score.set_defaults(command=_score)


def _score(options: argparse.Namespace) -> int:
    import json

    from validator.published import describe, score

    result = score(options.table, options.calibrated)
    print(json.dumps(result.plain(), indent=2) if options.json else describe(result))
    return 0
