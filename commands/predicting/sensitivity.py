"""The command sensitivity: how throughput depends on each number of the cluster, the batch and the servers."""

from __future__ import annotations

import argparse
from typing import Any

from scaleproof.commands.arguments import add_scenario_arguments


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    sensitivity = commands.add_parser(
        "sensitivity",
        help="which parameters throughput depends on",
        description="By how much the throughput changes with each number of the cluster, the batch and the servers.",
    )
    add_scenario_arguments(sensitivity)
    sensitivity.add_argument("--json", action="store_true", help="print the elasticities as JSON")
    sensitivity.set_defaults(command=_sensitivity)


def _sensitivity(options: argparse.Namespace) -> int:
    import json

    from scaleproof.commands.text.sensitivity import describe
    from scaleproof.simulator.analysis.sensitivity.sensitivity import sensitivity
    from scaleproof.simulator.scenario.load import load

    found = sensitivity(load(options.scenario, options.overrides))
    print(json.dumps(found.plain(), indent=2) if options.json else describe(found))
    return 0
