"""The command faults. Imports wait until it runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    faults = commands.add_parser(
        "faults",
        help="kill a rank, a host and a server, slow a link, and hold what that costs against what was predicted",
        description="Train for real on hosts of a network laid inside this machine, break something in the middle, and hold "
        "detection, restart and lost work against what was predicted from runs in which nothing breaks.",
    )
    faults.add_argument("--on", choices=["netlab"], default="netlab", help="where: hosts of a network laid inside this machine")
    kinds = "rank: killed, and started again by torchrun; node: a host is gone, the others go on without it; server: a "
    kinds += "parameter server is killed and restored; link: a link becomes slow; all of them, if not given"
    faults.add_argument("--only", action="append", choices=["rank", "node", "server", "link"], metavar="KIND", help=kinds)
    faults.add_argument("--json", action="store_true", help="print what came of it as JSON")
    faults.add_argument("--out", type=Path, metavar="DIR", help="keep what came of it in DIR, with what processes noted")
    faults.set_defaults(command=_faults)


def _faults(options: argparse.Namespace) -> int:
    import json

    from scaleproof.commands.measuring.session import telling
    from scaleproof.simulator.run.run import write_aside
    from scaleproof.validator import results
    from scaleproof.validator.experiments.elastic.faults import KINDS, find_out
    from scaleproof.validator.experiments.elastic.outcome import text
    from scaleproof.validator.launch import fork_server
    from scaleproof.validator.launch.launch import job_folder, require_torch
    from scaleproof.validator.netlab.lab import require
    from scaleproof.validator.record.provenance import cpu_model, of_process

    require_torch()
    require()
    if options.out is not None:
        results.prepare(options.out)
    with telling("getting ready") as tell, job_folder() as job:
        # it loads torch meanwhile, which nothing is to be measured beside
        fork_server.shared().wait_until_ready()
        outcomes = find_out(options.only or KINDS, job.path, tell)
        told = {"faults": [outcome.plain() for outcome in outcomes], "provenance": of_process() | {"cpu": cpu_model()}}
        if options.out is not None:
            for notes in job.path.glob("*/*.jsonl"):
                write_aside(options.out / notes.relative_to(job.path), notes.read_bytes())
            write_aside(options.out / "faults.json", (json.dumps(told, indent=2) + "\n").encode())
    print(json.dumps(told, indent=2) if options.json else text(outcomes))
    for outcome in outcomes:
        if outcome.warning:
            print(f"warning: {outcome.name}: {outcome.warning}", file=sys.stderr)
    return 0 if all(outcome.right for outcome in outcomes) else 1
