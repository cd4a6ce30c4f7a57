"""The command that serves the explorer. Imports wait until it runs."""

from __future__ import annotations

import argparse
from typing import Any


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    explore = commands.add_parser(
        "explore",
        help="change a scenario by hand in a browser while its forecast follows",
        description="Serve a page on this machine on which a scenario is changed by hand while its forecast follows.",
    )
    explore.add_argument("scenario", nargs="?", metavar="SCENARIO", help="a YAML file, or a name from 'scaleproof list'")
    explore.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", dest="overrides", help="such as strategy.workers=8"
    )
    explore.add_argument("--port", type=int, default=8471, metavar="N", help="0 takes any that is free (8471)")
    explore.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="reached by others too (127.0.0.1)")
    explore.add_argument("--no-browser", action="store_true", help="print the address, and open nothing")
    explore.set_defaults(command=_explore)


def _explore(options: argparse.Namespace) -> int:
    from scaleproof.reports.explorer.question import Shelf
    from scaleproof.reports.explorer.serving import serve

    shelf = Shelf(options.scenario, tuple(options.overrides))
    serve(shelf, options.host, options.port, opens=not options.no_browser, say=lambda line: print(line, flush=True))
    return 0
