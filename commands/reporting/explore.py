"""The command explore: serve the explorer. Imports are deferred until it runs."""

from __future__ import annotations

import argparse
from typing import Any

from scaleproof.commands.arguments import NAME, Command
from scaleproof.commands.gpus import add_gpus


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    explore = Command(commands, "explore", _explore)
    explore.parser.description = "Serve a page on which the fields of a scenario are changed while its prediction is updated."
    explore.add("SCENARIO", NAME, nargs="?")
    explore.add_overrides()
    add_gpus(explore, "begin with N GPUs")
    explore.add("--port N", "port to listen on; 0 chooses a free one (8471)", type=int, default=8471)
    explore.add(
        "--host ADDRESS",
        "address to listen on; other than the default, it is open to other machines (127.0.0.1)",
        default="127.0.0.1",
    )
    explore.add("--no-browser", "print the address without opening a browser")


def _explore(options: argparse.Namespace) -> int:
    from scaleproof.reports.explorer.question import Shelf
    from scaleproof.reports.explorer.serving import serve

    gpus = () if options.gpus is None else (f"gpus={options.gpus}",)
    shelf = Shelf(options.scenario, (*options.overrides, *gpus))
    serve(shelf, options.host, options.port, opens=not options.no_browser, say=lambda line: print(line, flush=True))
    return 0
