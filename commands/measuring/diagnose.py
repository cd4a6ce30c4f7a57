"""The command diagnose: name what makes a job slow, from its files. Imports are deferred until it runs."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scaleproof.commands.arguments import SCENARIO, Command, share
from scaleproof.commands.output import print_result, working

if TYPE_CHECKING:
    from scaleproof.simulator.analysis.diagnosis import Diagnosis
    from scaleproof.validator.diagnosis.files import JobEvidence

_THRESHOLD: Final = 0.05


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    diagnose = Command(commands, "diagnose", _diagnose)
    files = (
        "any mix of traces (torch.profiler, Nsight Systems as SQLite, Chakra), logs of training software, logs of nccl-tests, "
        "samples of nvidia-smi or dcgmi, flight-recorder dumps, memory snapshots; or folders of them"
    )
    diagnose.add("FILES", files, type=Path, nargs="+")
    diagnose.add("--scenario SCENARIO", f"the job, to say whether its speed is normal and what would help: {SCENARIO}")
    diagnose.add_overrides()
    diagnose.add(
        "--threshold SHARE",
        f"exit with code 4 if a cause takes a larger share of a step ({_THRESHOLD:.0%}%)",
        type=share,
        default=_THRESHOLD,
    )
    diagnose.add("--json", "print the findings as JSON")
    diagnose.add("--out DIR", "write diagnosis.json and a page with figures to DIR", type=Path)


def _diagnose(options: argparse.Namespace) -> int:
    from scaleproof.commands.text.sections import described
    from scaleproof.commands.text.tables import wrapped
    from scaleproof.reports.descriptions.diagnosis import describe
    from scaleproof.simulator.common.errors import ExitCode, printable
    from scaleproof.validator.diagnosis.diagnose import diagnose

    with working("reading files") as report:
        found, evidence = diagnose(options.files, report)
        if options.scenario:
            report(f"predicting {options.scenario}")
            found = _compared(found, evidence, options)
    if options.out:
        _write(found, evidence, options.out)
    description = describe(found)
    # the answer comes first, then what it was found in
    text = replace(description, title="\n".join(wrapped(found.headline)), summary=[description.title])
    print_result(options, found.to_dict, lambda: printable(described(text)))
    return ExitCode.FOUND if found.worst_share() > options.threshold else ExitCode.DONE


def _compared(found: Diagnosis, evidence: JobEvidence, options: argparse.Namespace) -> Diagnosis:
    from scaleproof.simulator.scenario.load import load
    from scaleproof.validator.diagnosis.normal import compared

    return compared(found, evidence.logs, lambda more: load(options.scenario, [*options.overrides, *more]))


def _write(found: Diagnosis, evidence: JobEvidence, folder: Path) -> None:
    """Writes the record and its page."""
    from scaleproof.reports.pages.page import build
    from scaleproof.simulator.analysis.diagnosis import FILE, JOB_FOLDER
    from scaleproof.simulator.common.atomic_file import write_atomically
    from scaleproof.simulator.run.files import save
    from scaleproof.validator import results
    from scaleproof.validator.diagnosis.timeline_run import run_of

    results.prepare(folder)
    if evidence.ranks:
        save(run_of(evidence.ranks, found), folder / JOB_FOLDER)
    write_atomically(folder / FILE, found.to_json().encode())
    print(build(folder).path, file=sys.stderr)
