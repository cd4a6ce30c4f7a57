"""The command goodput: predict the throughput that remains under failures. Imports are deferred until it runs."""

from __future__ import annotations

import argparse
from typing import Any

from scaleproof.commands.arguments import Command, duration, number, positive
from scaleproof.commands.output import print_result

_days = duration("days", 86400.0)
_seed = number(int, lambda seed: seed >= 0, "a whole number of at least 0")


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    goodput = Command(commands, "goodput", _goodput)
    goodput.parser.description = (
        "Predict the effective training time ratio under failures, with the lost time by cause: over days of random failures, "
        "or along the events of hosts that the scenario lists."
    )
    goodput.add("SCENARIO", "a YAML file, or a name from 'scaleproof list'")
    goodput.add_overrides("a field, such as reliability.spares=8, or reliability=llama-3-h100 for failures that ship")
    goodput.add("--days N", "duration of the job (30)", type=_days, default=30.0)
    goodput.add("--samples N", "number of Monte Carlo samples (1000)", type=positive, default=1000)
    goodput.add("--seed N", "random seed (0)", type=_seed, default=0)
    goodput.add("--json", "print the result as JSON, in SI units")


def _goodput(options: argparse.Namespace) -> int:
    from scaleproof.commands.text.sections import described
    from scaleproof.reports.descriptions import elastic as elastic_descriptions
    from scaleproof.reports.descriptions.goodput import describe
    from scaleproof.simulator.analysis.elastic import elastic
    from scaleproof.simulator.analysis.goodput import goodput
    from scaleproof.simulator.scenario.load import load

    scenario = load(options.scenario, options.overrides)
    if scenario.reliability is not None and scenario.reliability.events:
        timeline, assumed_s = elastic(scenario), scenario.reliability.assumed_s
        return print_result(options, timeline.to_dict, lambda: described(elastic_descriptions.describe(timeline, assumed_s)))
    result = goodput(scenario, options.days, options.samples, options.seed)
    return print_result(options, result.to_dict, lambda: described(describe(result)))
