"""The command explore: serve the explorer. Imports are deferred until it runs."""

from __future__ import annotations

import argparse
from typing import Any

from scaleproof.commands.arguments import add_overrides


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    explore = commands.add_parser(
        "explore",
        help="change a scenario in a browser and watch its prediction",
        description="Serve a page on which the fields of a scenario are changed while its prediction is updated.",
    )
    explore.add_argument("scenario", nargs="?", metavar="SCENARIO", help="a YAML file, or a name from 'scaleproof list'")
    add_overrides(explore)
    explore.add_argument("--port", type=int, default=8471, metavar="N", help="port to listen on; 0 chooses a free one (8471)")
    explore.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="address to listen on; other than the default, it is open to other machines (127.0.0.1)",
    )
    explore.add_argument("--no-browser", action="store_true", help="print the address without opening a browser")
    explore.set_defaults(command=_explore)


def _explore(options: argparse.Namespace) -> int:
    from scaleproof.reports.explorer.question import Shelf
    from scaleproof.reports.explorer.serving import serve

    shelf = Shelf(options.scenario, tuple(options.overrides))
    serve(shelf, options.host, options.port, opens=not options.no_browser, say=lambda line: print(line, flush=True))
    return 0
