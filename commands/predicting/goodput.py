"""The command goodput: what failures leave of a throughput. Imports wait until it runs."""

from __future__ import annotations

import argparse
import math
from typing import Any

from scaleproof.commands.arguments import positive


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    goodput = commands.add_parser(
        "goodput",
        help="what failures leave of the throughput: effective training time, by part",
        description="The share of the time in which training gets on, though things fail, by what the rest is lost to.",
    )
    goodput.add_argument(
        "scenario", metavar="SCENARIO", help="a YAML file with `reliability`, or a name from 'scaleproof list'"
    )
    goodput.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", dest="overrides", help="such as reliability.spares=8"
    )
    goodput.add_argument("--days", type=_days, default=30.0, metavar="N", help="how long the job runs (30)")
    goodput.add_argument("--samples", type=positive, default=1000, metavar="N", help="of what may happen (1000)")
    goodput.add_argument("--seed", type=_seed, default=0, metavar="N", help="of chance (0)")
    goodput.add_argument("--json", action="store_true", help="print it as JSON, in SI units")
    goodput.set_defaults(command=_goodput)


def _days(text: str) -> float:
    """More than none. Raises ArgumentTypeError."""
    try:
        days = float(text)
    except ValueError:
        days = math.nan
    if not 0 < days < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number of days above 0, got {text!r}")
    return days


def _seed(text: str) -> int:
    """A whole number. Raises ArgumentTypeError."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 0, got {text!r}")
    return int(text)


def _goodput(options: argparse.Namespace) -> int:
    import json

    from scaleproof.commands.text.goodput import describe
    from scaleproof.simulator.analysis.goodput import goodput
    from scaleproof.simulator.scenario.load import load

    found = goodput(load(options.scenario, options.overrides), options.days, options.samples, options.seed)
    print(json.dumps(found.plain(), indent=2) if options.json else describe(found))
    return 0
