"""The command crossover: map which strategy is fastest over two fields. Imports are deferred until it runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scaleproof.commands.arguments import add_scenario_arguments

if TYPE_CHECKING:
    from scaleproof.simulator.analysis.crossover.crossover import Crossover


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    crossover = commands.add_parser(
        "crossover",
        help="map which strategy is fastest over two fields",
        description="Map which strategy is fastest over two fields.",
    )
    add_scenario_arguments(crossover)
    crossover.add_argument(
        "--x", default="", metavar="FIELD[=FROM..TO]",
        help="horizontal axis (bandwidth between nodes, or inside a single node, from 0.1 to 10 times the scenario's)",
    )  # fmt: skip
    crossover.add_argument(
        "--y", default="workers", metavar="FIELD[=FROM..TO]",
        help="vertical axis, also FIELD=ONE,TWO,... (powers of two of workers, up to the number of devices)",
    )  # fmt: skip
    crossover.add_argument(
        "--strategies",
        default="",
        metavar="NAMES",
        help="strategies to compare, such as ring,tree,ps-1,ps-half,ps-all,scenario (those that suit the scenario)",
    )
    crossover.add_argument(
        "--points", type=int, default=9, metavar="N", help="points along x; borders are located between them (9)"
    )
    crossover.add_argument("--json", action="store_true", help="print the map as JSON, in SI units")
    crossover.add_argument("--out", type=Path, metavar="DIR", help="write points.csv, borders.csv and crossover.png to DIR")
    crossover.set_defaults(command=_crossover)


def _crossover(options: argparse.Namespace) -> int:
    import json

    from rich.console import Console

    from scaleproof.commands.text.crossover import describe
    from scaleproof.simulator.analysis.crossover.crossover import crossover

    names = [name.strip() for name in options.strategies.split(",") if name.strip()]
    with Console(stderr=True).status("predicting all strategies, and locating borders"):
        result = crossover(options.scenario, options.x, options.y, names, options.points, options.overrides)
    if options.out:
        _write(result, options.out)
    print(json.dumps(result.plain(), indent=2) if options.json else describe(result))
    return 0


def _write(result: Crossover, folder: Path) -> None:
    """Writes the map as tables and as a picture."""
    from scaleproof.reports.charts.crossover import picture
    from scaleproof.simulator.common.file_lock import PATIENCE_S, locked_folder
    from scaleproof.simulator.run.files import write_atomically

    with locked_folder(folder, "crossover", PATIENCE_S):
        write_atomically(folder / "points.csv", result.table().to_csv(index=False).encode())
        write_atomically(folder / "borders.csv", result.border_table().to_csv(index=False).encode())
        write_atomically(folder / "crossover.png", picture(result, "png"))
