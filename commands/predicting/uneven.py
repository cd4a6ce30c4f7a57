"""The command uneven: the cost of stragglers and noise under each consistency model."""

from __future__ import annotations

import argparse
from typing import Any

from scaleproof.commands.arguments import add_overrides
from scaleproof.commands.output import print_result


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    uneven = commands.add_parser(
        "uneven",
        help="cost of slow ranks and noise, by consistency model",
        description="Predict each perturbation of a scenario for synchronous, stale synchronous and asynchronous workers.",
    )
    help_text = "a YAML file, or a name from 'scaleproof list', with the field `unevenness` and parameter servers"
    uneven.add_argument("scenario", metavar="SCENARIO", help=help_text)
    add_overrides(uneven)
    uneven.add_argument(
        "--backups", type=int, metavar="N", help="number of backup workers, whose pushes are not waited for (1 per 24 workers)"
    )
    uneven.add_argument(
        "--bound", type=int, default=3, metavar="N", help="staleness bound: steps by which the slowest worker may lag (3)"
    )
    uneven.add_argument("--json", action="store_true", help="print the table as JSON")
    uneven.set_defaults(command=_uneven)


def _uneven(options: argparse.Namespace) -> int:
    from scaleproof.commands.text.stragglers import describe
    from scaleproof.simulator.analysis.stragglers import uneven
    from scaleproof.simulator.scenario.load import load

    result = uneven(load(options.scenario, options.overrides), options.backups, options.bound)
    return print_result(options, result.plain, lambda: describe(result))
