"""The command compare: compare two scenarios and the effects of their differences."""

from __future__ import annotations

import argparse
from typing import Any

from scaleproof.commands.arguments import NAME, Command
from scaleproof.commands.gpus import add_gpus, loaded
from scaleproof.commands.output import print_result


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    compare = Command(commands, "compare", _compare)
    for side in "AB":
        compare.add(side, NAME)
        compare.add_overrides(f"a field of {side} only", f"--set-{side.lower()}")
    compare.add_overrides("a field of both")
    add_gpus(compare, "compare both on N GPUs and the global batch of A: keeps their degrees, changes the workers")
    compare.add("--json", "print the comparison as JSON, in SI units")


def _compare(options: argparse.Namespace) -> int:
    from scaleproof.commands.text.sections import described
    from scaleproof.reports.descriptions.comparisons import describe
    from scaleproof.simulator.analysis.compare import compare

    a = loaded(options.a, [*options.overrides, *options.set_a], options.gpus, "A on ")
    batch = (f"batch.total={a.total_samples}",)
    b = loaded(options.b, [*options.overrides, *options.set_b], options.gpus, "B on ", batch)
    comparison = compare(a, b)
    return print_result(options, comparison.to_dict, lambda: described(describe(comparison)))
