"""The command goodput: predict the throughput that remains under failures. Imports are deferred until it runs."""

from __future__ import annotations

import argparse
import math
from typing import Any

from scaleproof.commands.arguments import add_overrides, positive
from scaleproof.commands.output import print_result


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    goodput = commands.add_parser(
        "goodput",
        help="predict the throughput that remains under failures",
        description="Predict the effective training time ratio under failures, with the lost time by cause.",
    )
    goodput.add_argument(
        "scenario", metavar="SCENARIO", help="a YAML file with `reliability`, or a name from 'scaleproof list'"
    )
    add_overrides(goodput, "reliability.spares=8")
    goodput.add_argument("--days", type=_days, default=30.0, metavar="N", help="duration of the job (30)")
    goodput.add_argument("--samples", type=positive, default=1000, metavar="N", help="number of Monte Carlo samples (1000)")
    goodput.add_argument("--seed", type=_seed, default=0, metavar="N", help="random seed (0)")
    goodput.add_argument("--json", action="store_true", help="print the result as JSON, in SI units")
    goodput.set_defaults(command=_goodput)


def _days(text: str) -> float:
    """Parses a positive number of days. Raises ArgumentTypeError."""
    try:
        days = float(text)
    except ValueError:
        days = math.nan
    if not 0 < days < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number of days above 0, got {text!r}")
    return days


def _seed(text: str) -> int:
    """Parses a whole number of at least 0. Raises ArgumentTypeError."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 0, got {text!r}")
    return int(text)


def _goodput(options: argparse.Namespace) -> int:
    from scaleproof.commands.text.goodput import describe
    from scaleproof.simulator.analysis.goodput import goodput
    from scaleproof.simulator.scenario.load import load

    result = goodput(load(options.scenario, options.overrides), options.days, options.samples, options.seed)
    return print_result(options, result.plain, lambda: describe(result))
