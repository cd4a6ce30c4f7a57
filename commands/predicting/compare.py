"""The command compare: compare two scenarios and the effects of their differences."""

from __future__ import annotations

import argparse
from typing import Any

from scaleproof.commands.output import print_result

_NAME = "a YAML file, or a name from 'scaleproof list'"


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    compare = commands.add_parser(
        "compare",
        help="compare two scenarios and the effects of their differences",
        description="Compare the predictions of two scenarios.",
    )
    for side in "AB":
        compare.add_argument(side.lower(), metavar=side, help=_NAME)
        compare.add_argument(
            f"--set-{side.lower()}", action="append", default=[], metavar="FIELD=VALUE", help=f"override a field of {side} only"
        )
    compare.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", dest="overrides", help="override a field of both"
    )
    compare.add_argument("--json", action="store_true", help="print the comparison as JSON, in SI units")
    compare.set_defaults(command=_compare)


def _compare(options: argparse.Namespace) -> int:
    from scaleproof.commands.text.compare import describe
    from scaleproof.simulator.analysis.compare import compare
    from scaleproof.simulator.scenario.load import load

    a = load(options.a, [*options.overrides, *options.set_a])
    b = load(options.b, [*options.overrides, *options.set_b])
    comparison = compare(a, b)
    return print_result(options, comparison.plain, lambda: describe(comparison))
