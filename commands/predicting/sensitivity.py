"""The command sensitivity: print the elasticity of throughput to each parameter of a scenario."""

from __future__ import annotations

import argparse
from typing import Any

from scaleproof.commands.arguments import Command
from scaleproof.commands.output import print_result


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    sensitivity = Command(commands, "sensitivity", _sensitivity)
    sensitivity.parser.description = (
        "Print the elasticity of throughput to each parameter of the cluster, batch and servers: its relative "
        "change per relative change of the parameter."
    )
    sensitivity.add_scenario()
    sensitivity.add("--json", "print the elasticities as JSON")


def _sensitivity(options: argparse.Namespace) -> int:
    from scaleproof.commands.text.sections import described
    from scaleproof.reports.descriptions.sensitivity import describe
    from scaleproof.simulator.analysis.sensitivity.sensitivity import sensitivity
    from scaleproof.simulator.scenario.load import load

    result = sensitivity(load(options.scenario, options.overrides))
    return print_result(options, result.to_dict, lambda: described(describe(result)))
