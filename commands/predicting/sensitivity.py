"""The command sensitivity: print the elasticity of throughput to each parameter of a scenario."""

from __future__ import annotations

import argparse
from typing import Any

from scaleproof.commands.arguments import add_scenario_arguments
from scaleproof.commands.output import print_result


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    sensitivity = commands.add_parser(
        "sensitivity",
        help="print which parameters throughput depends on",
        description="Print the elasticity of throughput to each parameter of the cluster, batch and servers: its relative "
        "change per relative change of the parameter.",
    )
    add_scenario_arguments(sensitivity)
    sensitivity.add_argument("--json", action="store_true", help="print the elasticities as JSON")
    sensitivity.set_defaults(command=_sensitivity)


def _sensitivity(options: argparse.Namespace) -> int:
    from scaleproof.commands.text.sensitivity import describe
    from scaleproof.simulator.analysis.sensitivity.sensitivity import sensitivity
    from scaleproof.simulator.scenario.load import load

    result = sensitivity(load(options.scenario, options.overrides))
    return print_result(options, result.plain, lambda: describe(result))
