"""The command crossover: a map of which strategy is the fastest where. Imports wait until it runs."""

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
        "crossover", help="which strategy is the fastest where", description="Map which strategy is the fastest where."
    )
    add_scenario_arguments(crossover)
    crossover.add_argument(
        "--x", default="", metavar="FIELD[=FROM..TO]",
        help="across (the bandwidth between nodes, or inside the only one, a tenth to ten times what the scenario says)",
    )  # fmt: skip
    crossover.add_argument(
        "--y", default="workers", metavar="FIELD[=FROM..TO]",
        help="upward, also FIELD=ONE,TWO,... (workers, by powers of two to as many as there are devices)",
    )  # fmt: skip
    crossover.add_argument(
        "--strategies", default="", metavar="NAMES", help="such as ring,tree,ps-1,ps-half,ps-all,scenario; a choice if absent"
    )
    crossover.add_argument("--points", type=int, default=9, metavar="N", help="along x (9); borders are found between them")
    crossover.add_argument("--json", action="store_true", help="print the map as JSON, in SI units")
    crossover.add_argument("--out", type=Path, metavar="DIR", help="write points.csv, borders.csv and crossover.png into DIR")
    crossover.set_defaults(command=_crossover)


def _crossover(options: argparse.Namespace) -> int:
    import json

    from rich.console import Console

    from scaleproof.commands.text.crossover import describe
    from scaleproof.simulator.analysis.crossover.crossover import crossover

    names = [name.strip() for name in options.strategies.split(",") if name.strip()]
    with Console(stderr=True).status("predicting all strategies, and bisecting borders"):
        found = crossover(options.scenario, options.x, options.y, names, options.points, options.overrides)
    if options.out:
        _write(found, options.out)
    print(json.dumps(found.plain(), indent=2) if options.json else describe(found))
    return 0


def _write(found: Crossover, folder: Path) -> None:
    """What was found as tables and as a picture."""
    from scaleproof.reports.charts.crossover import picture
    from scaleproof.simulator.common.file_lock import PATIENCE_S, locked_folder
    from scaleproof.simulator.run.run import write_aside

    with locked_folder(folder, "crossover", PATIENCE_S):
        write_aside(folder / "points.csv", found.table().to_csv(index=False).encode())
        write_aside(folder / "borders.csv", found.border_table().to_csv(index=False).encode())
        write_aside(folder / "crossover.png", picture(found, "png"))
