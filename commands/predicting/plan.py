"""The command plan: search for the best way to train a model on N devices. Imports are deferred until it runs."""

from __future__ import annotations

import argparse
from typing import Any

from scaleproof.commands.arguments import NAME, Command, listed, positive
from scaleproof.commands.output import print_result, working
from scaleproof.simulator.analysis.planner.objectives import OBJECTIVES


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    parser = Command(commands, "plan", _plan, "search for the best way to train a model on N devices")
    parser.parser.description = "Estimate every configuration for a scenario's model, and prove the best one by replay."
    parser.add("SCENARIO", NAME)
    parser.add_overrides("a field, such as batch=1536")
    parser.add("--gpus N", "number of devices to train on (the scenario's number of ranks)", type=positive)
    parser.add("--servers N", "also plan up to N parameter servers, on machines of their own or shared ones", type=positive)
    parser.add(
        "--strategies KINDS",
        "hybrid, parameter_server, or both, separated by a comma (hybrid, and the scenario's)",
        type=listed,
    )
    parser.add("--schedules NAMES", "pipeline schedules in addition to 1f1b, or all (1f1b,interleaved_1f1b,gpipe)", type=listed)
    parser.add(
        "--frameworks NAMES", "frameworks to choose from, such as megatron-core-0.12,torchtitan (common ones)", type=listed
    )
    parser.add("--objective", "objective to optimise (time)", choices=OBJECTIVES, default="time")
    parser.add("--memory SIZE", "memory per rank, such as 70GiB (the device's memory minus the headroom)")
    parser.add("--headroom SHARE", "share of the device's memory that stays free (0.04)", type=float, default=0.04)
    parser.add("--top N", "number of configurations to print (10)", type=positive, default=10)
    parser.add("--json", "print the plan as JSON, in SI units")


def _plan(options: argparse.Namespace) -> int:
    from scaleproof.commands.text.plan import describe, plain
    from scaleproof.simulator.analysis.planner.search import plan
    from scaleproof.simulator.common.units import parse_bytes
    from scaleproof.simulator.frameworks import shipped
    from scaleproof.simulator.scenario.load import load

    scenario = load(options.scenario, options.overrides)
    ranks = options.gpus or scenario.strategy.training_ranks
    nodes = -(-ranks // scenario.cluster.node.devices) + (options.servers or 0)
    if nodes > scenario.cluster.nodes:
        scenario = load(options.scenario, [*options.overrides, f"cluster.nodes={nodes}"])
    memory_bytes = parse_bytes(options.memory) if options.memory else None
    frameworks = [shipped(name) for name in options.frameworks] if options.frameworks else None
    space = options.servers, options.strategies, options.schedules, frameworks, options.headroom
    with working("estimating all configurations") as update:
        planned = plan(
            scenario,
            options.gpus,
            options.objective,
            memory_bytes,
            options.top,
            update,
            *space,
        )
    intervals = planned.configurations.take([choice.row for choice in planned.best]).response()
    return print_result(options, lambda: plain(planned, intervals), lambda: describe(planned, intervals))
