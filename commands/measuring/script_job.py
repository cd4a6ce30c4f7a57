"""Reconciliation of a training script as it is: captured, run for real, predicted. Imports are deferred until it runs."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from scaleproof.commands.output import print_json, working

if TYPE_CHECKING:
    from scaleproof.validator.reconciliation.reconcile import ReconciledCase


def reconcile_script_job(options: argparse.Namespace) -> list[ReconciledCase]:
    """Reconciles the script that the words after -- start, writes the case with --out, and prints it."""
    from scaleproof.commands.measuring.real_job import describe, plain
    from scaleproof.commands.text.tables import wrapped
    from scaleproof.simulator.common.errors import InputError
    from scaleproof.simulator.common.units import counted
    from scaleproof.validator import results
    from scaleproof.validator.launch.launch import require_torch
    from scaleproof.validator.reconciliation.reconcile import keep, write

    require_torch()
    from scaleproof.validator.capture.command.command_line import parse
    from scaleproof.validator.script_runs.reconcile import ScriptFiles, ScriptOptions, reconcile_script

    if options.on == "cluster":
        raise InputError("--script starts its ranks itself, on this machine; use --on local or --on netlab")
    if options.update is not None:
        raise InputError("--update needs scenarios; leave it out with --script")
    started = parse(options.scenarios)
    settings = ScriptOptions(
        options.on or "local", options.cluster, options.ranks, options.script_steps, options.timeout, options.interface
    )
    name = Path(started.script.target).stem
    if options.out is not None:
        results.prepare(options.out)
    with tempfile.TemporaryDirectory() as folder:
        with working(f"reconciling {started.script.target}") as report:
            at = options.out or Path(folder)
            case = reconcile_script(started, settings, ScriptFiles(at / f"{name}.zip", at / f"{name}-cluster.yaml"), report)
        if options.out is not None:
            keep(case, options.out)
            write([case], options.out, options.max_error)
        if options.json:
            print_json(plain(case))
        else:
            assert case.measured is not None
            steps = counted(len(case.measured.step_times_s), "step")
            print(describe(case, options.steps, f"on {settings.on}, {steps}"))
            print("\n".join(wrapped(f"replaced in the real run: {case.measured.provenance['replaced']}")))
    return [case]
