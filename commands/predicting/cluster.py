"""The command cluster: compare two cluster descriptions. Imports are deferred until it runs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scaleproof.commands.arguments import NAME, Command
from scaleproof.commands.output import print_result
from scaleproof.commands.text.tables import table

if TYPE_CHECKING:
    from scaleproof.simulator.analysis.cluster_diff import QuantityRow
    from scaleproof.simulator.cluster import Cluster


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    actions = Command(commands, "cluster", None).parser.add_subparsers(metavar="ACTION", required=True)
    diff = Command(actions, "diff", _diff, "compare the values of two clusters")
    diff.add("A", NAME)
    diff.add("B", NAME)
    diff.add("--json", "print the rows as JSON, in SI units")


def _diff(options: argparse.Namespace) -> int:
    from scaleproof.simulator.analysis.cluster_diff import compare

    rows = compare(_cluster(options.a), _cluster(options.b))
    data = {"a": options.a, "b": options.b, "rows": [row.plain() for row in rows]}
    return print_result(options, lambda: data, lambda: describe(rows, (Path(options.a).stem, Path(options.b).stem)))


def describe(rows: Sequence[QuantityRow], names: tuple[str, str]) -> str:
    """Console text of the rows, and of the number of quantities that differ. names: of the two clusters."""
    lines = [["quantity", *names, "ratio", ""]]
    for row in rows:
        values = [side.show(side.value) if side else "–" for side in (row.a, row.b)]
        lines.append([row.what, *values, "" if row.ratio is None else f"{row.ratio:.3f}", row.verdict])
    differ = [row for row in rows if row.verdict == "differs"]
    both = f"of {sum(row.a is not None and row.b is not None for row in rows)} that both have differ by more than noise"
    most = max(differ, key=lambda row: row.factor, default=None)
    verdict = f"{len(differ)} {both}, most of all {most.what}" if most else f"none {both}"
    return "\n".join([*table(lines, "<>>><"), verdict])


def _cluster(reference: str) -> Cluster:
    from scaleproof.simulator.scenario.read import load_cluster

    return load_cluster(reference)
