"""The command compare: compare two scenarios and the effects of their differences."""

from __future__ import annotations

import argparse
from typing import Any

from scaleproof.commands.arguments import NAME, Command
from scaleproof.commands.output import print_result


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    compare = Command(commands, "compare", _compare, "compare two scenarios and the effects of their differences")
    for side in "AB":
        compare.add(side, NAME)
        compare.add_overrides(f"a field of {side} only", f"--set-{side.lower()}")
    compare.add_overrides("a field of both")
    compare.add("--json", "print the comparison as JSON, in SI units")


def _compare(options: argparse.Namespace) -> int:
    from scaleproof.commands.text.compare import describe
    from scaleproof.simulator.analysis.compare import compare
    from scaleproof.simulator.scenario.load import load

    a = load(options.a, [*options.overrides, *options.set_a])
    b = load(options.b, [*options.overrides, *options.set_b])
    comparison = compare(a, b)
    return print_result(options, comparison.plain, lambda: describe(comparison))
