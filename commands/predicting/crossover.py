"""The command crossover: map which strategy is fastest over two fields. Imports are deferred until it runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scaleproof.commands.arguments import Command, listed
from scaleproof.commands.gpus import add_gpu_counts, say_added
from scaleproof.commands.output import print_result, working

if TYPE_CHECKING:
    from scaleproof.simulator.analysis.crossover.crossover import Crossover


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    crossover = Command(commands, "crossover", _crossover)
    crossover.add_scenario()
    across = "horizontal axis (bandwidth between nodes, or inside a single node, from 0.1 to 10 times the scenario's)"
    crossover.add("--x FIELD[=FROM..TO]", across, default="")
    upward = "vertical axis, also FIELD=ONE,TWO,... (powers of two of workers, up to the number of devices)"
    crossover.add("--y FIELD[=FROM..TO]", upward)
    add_gpu_counts(crossover, "the same as --y gpus=N,...: all strategies on N GPUs")
    crossover.add(
        "--strategies NAMES",
        "strategies to compare, such as ring,tree,ps-1,ps-half,ps-all,scenario (those that suit the scenario)",
        type=listed,
        default=(),
    )
    crossover.add("--points N", "points along x; borders are located between them (9)", type=int, default=9)
    crossover.add("--json", "print the map as JSON, in SI units")
    crossover.add("--out DIR", "write crossover.json, points.csv, borders.csv and crossover.png to DIR", type=Path)


def _crossover(options: argparse.Namespace) -> int:
    from scaleproof.commands.text.sections import by_section
    from scaleproof.reports.descriptions.crossover import describe
    from scaleproof.simulator.analysis.crossover.crossover import crossover
    from scaleproof.simulator.common.errors import InputError
    from scaleproof.simulator.scenario.load import load

    if options.gpus and options.y:
        raise InputError("--gpus: is the vertical axis, and so is --y; give one of them")
    y = f"gpus={','.join(map(str, options.gpus))}" if options.gpus else options.y or "workers"
    with working("predicting all strategies, and locating borders"):
        result = crossover(options.scenario, options.x, y, options.strategies, options.points, options.overrides)
    if options.gpus:
        say_added(load(options.scenario, options.overrides).cluster, options.gpus)
    if options.out:
        _write(result, options.out)
    return print_result(options, result.to_dict, lambda: by_section(describe(result)))


def _write(result: Crossover, folder: Path) -> None:
    """Writes the map as tables and as a picture."""
    from scaleproof.reports.charts.still import still
    from scaleproof.reports.descriptions.crossover import picture
    from scaleproof.simulator.analysis.crossover.crossover import FILE
    from scaleproof.simulator.common.atomic_file import write_atomically
    from scaleproof.simulator.common.file_lock import PATIENCE_S, locked_folder

    with locked_folder(folder, "crossover", PATIENCE_S):
        write_atomically(folder / FILE, result.to_json().encode())
        write_atomically(folder / "points.csv", result.to_frame().to_csv(index=False).encode())
        write_atomically(folder / "borders.csv", result.borders_to_frame().to_csv(index=False).encode())
        write_atomically(folder / "crossover.png", still(picture(result)).png)
