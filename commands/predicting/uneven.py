"""The command uneven: the cost of stragglers and noise under each consistency model."""

from __future__ import annotations

import argparse
from typing import Any

from scaleproof.commands.arguments import Command
from scaleproof.commands.output import print_result


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    uneven = Command(commands, "uneven", _uneven)
    uneven.parser.description = (
        "Predict each perturbation of a scenario for synchronous, stale synchronous and asynchronous workers."
    )
    help_text = "a YAML file, or a name from 'scaleproof list', with the field `unevenness` and parameter servers"
    uneven.add("SCENARIO", help_text)
    uneven.add_overrides()
    uneven.add("--backups N", "number of backup workers, whose pushes are not waited for (1 per 24 workers)", type=int)
    uneven.add("--bound N", "staleness bound: steps by which the slowest worker may lag (3)", type=int, default=3)
    uneven.add("--json", "print the table as JSON")


def _uneven(options: argparse.Namespace) -> int:
    from scaleproof.commands.text.sections import by_section
    from scaleproof.reports.descriptions.stragglers import describe
    from scaleproof.simulator.analysis.stragglers import uneven
    from scaleproof.simulator.scenario.load import load

    result = uneven(load(options.scenario, options.overrides), options.backups, options.bound)
    return print_result(options, result.to_dict, lambda: by_section(describe(result)))
