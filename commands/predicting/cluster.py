"""The command cluster: compare two cluster descriptions. Imports are deferred until it runs."""

from __future__ import annotations

import argparse
from typing import Any

from scaleproof.commands.arguments import NAME, Command
from scaleproof.commands.output import print_result


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    actions = Command(commands, "cluster", None).parser.add_subparsers(metavar="ACTION", required=True)
    diff = Command(actions, "diff", _diff, "compare the values of two clusters")
    diff.add("A", NAME)
    diff.add("B", NAME)
    diff.add("--json", "print the rows as JSON, in SI units")


def _diff(options: argparse.Namespace) -> int:
    from scaleproof.commands.text.sections import section_lines
    from scaleproof.reports.descriptions.clusters import describe
    from scaleproof.simulator.analysis.cluster_diff import compare
    from scaleproof.simulator.scenario.read import load_cluster

    found = compare(load_cluster(options.a), load_cluster(options.b), (options.a, options.b))
    return print_result(options, found.to_dict, lambda: "\n".join(section_lines(describe(found), "")))
