"""The command faults: inject faults and compare their cost with the prediction. Imports are deferred until it runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    faults = commands.add_parser(
        "faults",
        help="inject faults (a killed rank, host or server, a slow link) and compare their cost with the prediction",
        description="Train on hosts of an emulated network inside this machine, inject a fault, and compare the times of "
        "detection and restart and the lost work with predictions from runs without faults.",
    )
    faults.add_argument(
        "--on", choices=["netlab"], default="netlab", help="where to train: hosts of an emulated network inside this machine"
    )
    kinds = "inject only this fault (all): rank: torchrun restarts a killed rank; node: training continues without a "
    kinds += "lost host; server: a killed parameter server is restored; link: a link becomes slow; may be repeated"
    faults.add_argument("--only", action="append", choices=["rank", "node", "server", "link"], metavar="KIND", help=kinds)
    faults.add_argument("--json", action="store_true", help="print the outcomes as JSON")
    faults.add_argument("--out", type=Path, metavar="DIR", help="write the outcomes and the logs of all processes to DIR")
    faults.set_defaults(command=_faults)


def _faults(options: argparse.Namespace) -> int:
    import json

    from scaleproof.commands.measuring.session import progress
    from scaleproof.simulator.run.files import write_atomically
    from scaleproof.validator import results
    from scaleproof.validator.experiments.elastic.faults import KINDS, inject_faults
    from scaleproof.validator.experiments.elastic.outcome import text
    from scaleproof.validator.launch import fork_server
    from scaleproof.validator.launch.launch import job_folder, require_torch
    from scaleproof.validator.netlab.lab import require
    from scaleproof.validator.record.provenance import cpu_model, of_process

    require_torch()
    require()
    if options.out is not None:
        results.prepare(options.out)
    with progress("starting") as report, job_folder() as job:
        # wait until the fork server has loaded torch, which would disturb a measurement
        fork_server.shared().wait_until_ready()
        outcomes = inject_faults(options.only or KINDS, job.path, report)
        data = {"faults": [outcome.plain() for outcome in outcomes], "provenance": of_process() | {"cpu": cpu_model()}}
        if options.out is not None:
            for notes in job.path.glob("*/*.jsonl"):
                write_atomically(options.out / notes.relative_to(job.path), notes.read_bytes())
            write_atomically(options.out / "faults.json", (json.dumps(data, indent=2) + "\n").encode())
    print(json.dumps(data, indent=2) if options.json else text(outcomes))
    for outcome in outcomes:
        if outcome.warning:
            print(f"warning: {outcome.name}: {outcome.warning}", file=sys.stderr)
    return 0 if all(outcome.right for outcome in outcomes) else 1
