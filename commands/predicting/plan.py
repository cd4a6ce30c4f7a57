"""The command plan: search for the best way to train a model on N devices. Imports are deferred until it runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from scaleproof.commands.arguments import Command, listed, positive, share, size
from scaleproof.commands.config_files import reference
from scaleproof.commands.gpus import say_precision
from scaleproof.commands.output import print_result, working
from scaleproof.simulator.analysis.planner.objectives import OBJECTIVES


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    parser = Command(commands, "plan", _plan)
    parser.parser.description = "Estimate every configuration for a scenario's model, and prove the best one by prediction."
    parser.add_scenario_or_files()
    parser.add_overrides("a field, such as batch=1536")
    parser.add("--gpus N", "number of GPUs to train on, or several: 64,128,256 (the scenario's number of ranks)", type=_counts)
    parser.add("--out DIR", "write the best scenario of each size, all results and a page; finished sizes are kept", type=Path)
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
    parser.add(
        "--dispatchers NAMES",
        "what sends tokens to experts: alltoall,deepep,hybridep (those of the framework that run on the cluster)",
        type=listed,
    )
    parser.add(
        "--adapters METHODS", "methods of fine-tuning to compare: none,lora,dora,qlora (the scenario's training)", type=listed
    )
    parser.add("--objective", "objective to optimise (time)", choices=OBJECTIVES, default="time")
    parser.add("--fits SHARE", "probability with which a plan fits into the device's memory (0.9)", type=share, default=0.9)
    parser.add("--memory SIZE", "limit of the predicted memory per rank, such as 70GiB (as --fits needs)", type=size)
    parser.add("--top N", "number of configurations to print (10)", type=positive, default=10)
    parser.add_tokens()
    parser.add("--json", "print the plan as JSON, in SI units")


def _counts(text: str) -> tuple[int, ...]:
    """Parses numbers of GPUs separated by commas, and sorts them."""
    return tuple(sorted({positive(word) for word in listed(text)} or {positive(text)}))


def _plan(options: argparse.Namespace) -> int:
    from scaleproof.commands.text.sections import described
    from scaleproof.reports.descriptions.plans import describe
    from scaleproof.simulator.analysis.planner.sizes import plan_sizes
    from scaleproof.simulator.frameworks import shipped
    from scaleproof.simulator.scenario.load import load

    scenario = load(*reference(options))
    say_precision(scenario)
    search = {
        "objective": options.objective,
        "memory": options.memory,
        "top": options.top,
        "servers": options.servers,
        "strategies": options.strategies,
        "schedules": options.schedules,
        "frameworks": [shipped(name) for name in options.frameworks] if options.frameworks else None,
        "fits": options.fits,
        "dispatchers": options.dispatchers,
        "adapters": options.adapters,
    }
    sizes = options.gpus or (scenario.strategy.training_ranks,)
    try:
        with working("estimating all configurations") as update:
            plans = plan_sizes(scenario, sizes, search, options.out, update, options.tokens)
    except KeyboardInterrupt as error:
        if options.out:
            error.add_note(f"finished sizes are in {options.out}; the same command continues")
        raise
    page = _page(options.out) if options.out else ""
    found = describe(plans)
    answer = [found.finding] if len(plans) > 1 else []
    return print_result(options, lambda: {"plans": [plan.to_dict() for plan in plans]}, lambda: described(found, answer) + page)


def _page(folder: Path) -> str:
    """Writes the page of a folder of plans; lines that say what is where."""
    from scaleproof.reports.pages.page import build

    built = build(folder)
    return f"\n\n{built.path}\n{folder}/best-*.yaml: scenarios for predict"
