"""The commands compare, sensitivity and uneven: two scenarios side by side, what one follows from, and what unevenness costs.
Imports wait until one runs."""

from __future__ import annotations

import argparse
from typing import Any

_NAME = "a YAML file, or a name from 'scaleproof list'"


def mount(commands: Any) -> None:
    """Adds the commands to argparse's subparsers."""
    compare = commands.add_parser(
        "compare", help="what changed between two scenarios, and what it did", description="Compare two scenarios' forecasts."
    )
    for side in "AB":
        compare.add_argument(side.lower(), metavar=side, help=_NAME)
        compare.add_argument(
            f"--set-{side.lower()}", action="append", default=[], metavar="FIELD=VALUE", help=f"a field of {side} alone"
        )
    compare.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", dest="overrides", help="of both")
    compare.add_argument("--json", action="store_true", help="print the comparison as JSON, in SI units")
    compare.set_defaults(command=_compare)

    sensitivity = commands.add_parser(
        "sensitivity",
        help="which numbers the throughput follows from",
        description="By how much the throughput changes with each number of the cluster, the batch and the servers.",
    )
    sensitivity.add_argument("scenario", metavar="SCENARIO", help=_NAME)
    sensitivity.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", dest="overrides", help="such as strategy.workers=8"
    )
    sensitivity.add_argument("--json", action="store_true", help="print the elasticities as JSON")
    sensitivity.set_defaults(command=_sensitivity)

    uneven = commands.add_parser(
        "uneven",
        help="what slow ranks and noise cost, by how workers wait for one another",
        description="Forecast each kind of a scenario's unevenness for synchronous, stale and asynchronous workers.",
    )
    uneven.add_argument("scenario", metavar="SCENARIO", help=f"with unevenness and parameter servers: {_NAME}")
    uneven.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", dest="overrides", help="such as strategy.workers=8"
    )
    uneven.add_argument("--backups", type=int, metavar="N", help="pushes that backups spare (one of 24 workers)")
    uneven.add_argument("--bound", type=int, default=3, metavar="N", help="steps that the slowest may be behind (3)")
    uneven.add_argument("--json", action="store_true", help="print the table as JSON")
    uneven.set_defaults(command=_uneven)


def _compare(options: argparse.Namespace) -> int:
    import json

    from scaleproof.commands.text.compare import describe
    from scaleproof.simulator.analysis.compare import compare
    from scaleproof.simulator.scenario.load import load

    a = load(options.a, [*options.overrides, *options.set_a])
    b = load(options.b, [*options.overrides, *options.set_b])
    comparison = compare(a, b)
    print(json.dumps(comparison.plain(), indent=2) if options.json else describe(comparison))
    return 0


def _sensitivity(options: argparse.Namespace) -> int:
    import json

    from scaleproof.commands.text.sensitivity import describe
    from scaleproof.simulator.analysis.sensitivity.sensitivity import sensitivity
    from scaleproof.simulator.scenario.load import load

    found = sensitivity(load(options.scenario, options.overrides))
    print(json.dumps(found.plain(), indent=2) if options.json else describe(found))
    return 0


def _uneven(options: argparse.Namespace) -> int:
    import json

    from scaleproof.commands.text.stragglers import describe
    from scaleproof.simulator.analysis.stragglers import uneven
    from scaleproof.simulator.scenario.load import load

    found = uneven(load(options.scenario, options.overrides), options.backups, options.bound)
    print(json.dumps(found.plain(), indent=2) if options.json else describe(found))
    return 0
