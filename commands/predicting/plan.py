"""The command plan: the best way to train a model on so many devices. Imports wait until it runs."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from scaleproof.commands.arguments import listed, positive
from scaleproof.simulator.analysis.planner.objectives import OBJECTIVES


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    parser = commands.add_parser(
        "plan",
        help="the best of all ways to train a model on so many devices",
        description="Estimate every way to train a scenario's model, and prove the best by replay.",
    )
    parser.add_argument("scenario", metavar="SCENARIO", help="a YAML file, or a name from 'scaleproof list'")
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", dest="overrides", help="such as batch=1536"
    )
    parser.add_argument("--gpus", type=positive, metavar="N", help="devices to train on (as many as the scenario has ranks)")
    parser.add_argument(
        "--servers", type=positive, metavar="N", help="plan parameter servers too, up to so many (with their machines)"
    )
    parser.add_argument(
        "--strategies", type=listed, metavar="KINDS", help="hybrid,parameter_server or either (hybrid, and the scenario's)"
    )
    parser.add_argument(
        "--schedules",
        type=listed,
        metavar="NAMES",
        help="of pipelines beside 1f1b, or all (1f1b,interleaved_1f1b,gpipe)",
    )
    parser.add_argument(
        "--frameworks", type=listed, metavar="NAMES", help="to choose from, such as megatron-core-0.12,torchtitan (usual ones)"
    )
    parser.add_argument("--objective", choices=OBJECTIVES, default="time", help="what shall be least, or most (time)")
    parser.add_argument(
        "--memory", metavar="SIZE", help="that a rank may hold, such as 70GiB (what its device has, less headroom)"
    )
    parser.add_argument(
        "--headroom", type=float, default=0.04, metavar="SHARE", help="of a device's memory that stays free (0.04)"
    )
    parser.add_argument("--top", type=positive, default=10, metavar="N", help="how many of the best to tell (10)")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON, in SI units")
    parser.set_defaults(command=_plan)


def _plan(options: argparse.Namespace) -> int:
    import json

    from scaleproof.commands.text.plan import describe, plain
    from scaleproof.simulator.analysis.planner.intervals import doubt
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
    which = options.servers, options.strategies, options.schedules, frameworks, options.headroom
    planned = plan(scenario, options.gpus, options.objective, memory_bytes, options.top, _tell, *which)
    doubts = doubt(planned.configurations.take([choice.row for choice in planned.best]))
    print(json.dumps(plain(planned, doubts), indent=2) if options.json else describe(planned, doubts))
    return 0


def _tell(what: str) -> None:
    """What is being done, where somebody watches."""
    if sys.stderr.isatty():
        print(f"\r\033[K{what}"[:120], end="" if what else "\r\033[K", file=sys.stderr, flush=True)
