"""The command cluster: compare two cluster descriptions. Imports are deferred until it runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scaleproof.simulator.cluster import Cluster


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    cluster = commands.add_parser("cluster", help="compare cluster files", description="Compare cluster files.")
    actions = cluster.add_subparsers(metavar="ACTION", required=True)
    diff = actions.add_parser(
        "diff", help="compare the values of two clusters", description="Compare the values of two clusters."
    )
    name = "a YAML file, or a name from 'scaleproof list'"
    diff.add_argument("a", metavar="A", help=name)
    diff.add_argument("b", metavar="B", help=name)
    diff.add_argument("--json", action="store_true", help="print the rows as JSON, in SI units")
    diff.set_defaults(command=_diff)


def _diff(options: argparse.Namespace) -> int:
    import json

    from scaleproof.simulator.analysis.cluster_diff import compare, describe

    rows = compare(_cluster(options.a), _cluster(options.b))
    if options.json:
        print(json.dumps({"a": options.a, "b": options.b, "rows": [row.plain() for row in rows]}, indent=2))
    else:
        print(describe(rows, (Path(options.a).stem, Path(options.b).stem)))
    return 0


def _cluster(reference: str) -> Cluster:
    from scaleproof.simulator.common import catalog
    from scaleproof.simulator.scenario.read import load_cluster

    return load_cluster(catalog.find_part("cluster", reference, Path()))
