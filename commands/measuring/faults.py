"""The command faults: inject faults and compare their cost with the prediction. Imports are deferred until it runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scaleproof.commands.arguments import Command
from scaleproof.commands.output import print_result, progress
from scaleproof.commands.text.tables import table
from scaleproof.simulator.common.units import format_change

if TYPE_CHECKING:
    from scaleproof.validator.experiments.elastic.outcome import FaultOutcome


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    words = "inject faults (a killed rank, host or server, a slow link) and compare their cost with the prediction"
    faults = Command(commands, "faults", _faults, words)
    faults.parser.description = (
        "Train on hosts of an emulated network inside this machine, inject a fault, and compare the times of detection and "
        "restart and the lost work with predictions from runs without faults."
    )
    faults.add("--on", "where to train: hosts of an emulated network inside this machine", choices=["netlab"], default="netlab")
    kinds = "inject only this fault (all): rank: torchrun restarts a killed rank; node: training continues without a "
    kinds += "lost host; server: a killed parameter server is restored; link: a link becomes slow"
    faults.add("--only KIND", kinds, repeated=True, choices=["rank", "node", "server", "link"])
    faults.add("--json", "print the outcomes as JSON")
    faults.add("--out DIR", "write the outcomes and the logs of all processes to DIR", type=Path)


def _faults(options: argparse.Namespace) -> int:
    import json

    from scaleproof.simulator.common.atomic_file import write_atomically
    from scaleproof.validator import results
    from scaleproof.validator.experiments.elastic.faults import KINDS, inject_faults
    from scaleproof.validator.launch import fork_server
    from scaleproof.validator.launch.launch import require_torch, temporary_folder
    from scaleproof.validator.netlab.lab import require
    from scaleproof.validator.record.provenance import cpu_model, of_process

    require_torch()
    require()
    if options.out is not None:
        results.prepare(options.out)
    with progress("starting") as report, temporary_folder() as folder:
        # wait until the fork server has loaded torch, which would disturb a measurement
        fork_server.shared().wait_until_ready()
        outcomes = inject_faults(options.only or KINDS, folder, report)
        data = {"faults": [outcome.plain() for outcome in outcomes], "provenance": of_process() | {"cpu": cpu_model()}}
        if options.out is not None:
            for notes in folder.glob("*/*.jsonl"):
                write_atomically(options.out / notes.relative_to(folder), notes.read_bytes())
            write_atomically(options.out / "faults.json", (json.dumps(data, indent=2) + "\n").encode())
    print_result(options, lambda: data, lambda: describe(outcomes))
    for outcome in outcomes:
        if outcome.warning:
            print(f"warning: {outcome.name}: {outcome.warning}", file=sys.stderr)
    return 0 if all(outcome.right for outcome in outcomes) else 1


def describe(outcomes: Sequence[FaultOutcome]) -> str:
    """Tables of the outcomes as text."""
    return "\n\n".join("\n".join(_lines(outcome)) for outcome in outcomes)


def _lines(outcome: FaultOutcome) -> Iterator[str]:
    from scaleproof.simulator.common.units import format_time_s

    rows = [("", "predicted", "90 % between", "measured", "error")]
    for row in outcome.rows:
        between = ""
        if row.low_s is not None and row.high_s is not None:
            between = f"{format_time_s(row.low_s)} to {format_time_s(row.high_s)}"
        rows.append(
            (row.name, format_time_s(row.predicted_s), between, format_time_s(row.measured_s), format_change(row.error))
        )
    yield outcome.name
    yield f"  {outcome.description}"
    yield from table(rows, widths=(15, 9, 20, 9, 7), indent="  ")
    yield f"  parameters: {outcome.state}"
