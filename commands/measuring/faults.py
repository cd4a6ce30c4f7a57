"""The command faults: inject faults and compare their cost with the prediction. Imports are deferred until it runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from scaleproof.commands.arguments import Command
from scaleproof.commands.output import print_result, progress

if TYPE_CHECKING:
    from scaleproof.proof.elastic.outcome import FaultOutcome

Report = Callable[[str], None]


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    faults = Command(commands, "faults", _faults)
    faults.parser.description = (
        "Train for real while hosts fail, are interrupted with notice, join or come back as a scenario's reliability.events "
        "say, and compare the timeline with its prediction. Without a scenario, kill a rank, a host and a server, and slow a "
        "link. Predictions are made from runs without faults."
    )
    named = "a YAML file with reliability.events, or a name such as netlab-host-returns"
    faults.add("SCENARIO", named, dest="scenarios", nargs="*")
    faults.add_overrides("a field of all scenarios, such as steps=60")
    places = "where to train: hosts of an emulated network inside this machine, or processes of this machine (netlab)"
    faults.add("--on", places, choices=["netlab", "local"], default="netlab")
    kinds = "without a scenario, inject only this fault (all): rank: torchrun restarts a killed rank; node: training continues "
    kinds += "without a lost host; server: a killed parameter server is restored; link: a link becomes slow"
    faults.add("--only KIND", kinds, repeated=True, choices=["rank", "node", "server", "link"])
    faults.add("--json", "print the outcomes as JSON")
    faults.add("--out DIR", "write the outcomes and the logs of all processes to DIR", type=Path)


def _faults(options: argparse.Namespace) -> int:
    from scaleproof.simulator.common.errors import InputError
    from scaleproof.validator import results
    from scaleproof.validator.launch import fork_server
    from scaleproof.validator.launch.launch import require_torch, temporary_folder

    require_torch()
    if options.scenarios and options.only:
        raise InputError("--only is for faults without a scenario; leave it or the scenario out")
    if not options.scenarios and (options.on == "local" or options.overrides):
        given = "--on local" if options.on == "local" else "--set"
        raise InputError(f"{given} needs a scenario with reliability.events, such as netlab-host-returns")
    work = _along_events(options) if options.scenarios else _faults_of_kinds(options)
    if options.on == "netlab":
        from scaleproof.validator.netlab.lab import require

        require()
    if options.out is not None:
        results.prepare(options.out)
    with progress("starting") as report, temporary_folder() as folder:
        # wait until the fork server has loaded torch, which would disturb a measurement
        fork_server.shared().wait_until_ready()
        done = work(folder, report)
        if options.out is not None:
            _write(done, folder, options.out)
    print_result(options, lambda: done.data, lambda: done.text)
    for warning in done.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return 0 if done.right else 1


class _Done(NamedTuple):
    """What was measured: for JSON and --out, by file name; as text; warnings; and whether all states are right."""

    data: dict[str, Any]
    file: str
    text: str
    warnings: Sequence[str]
    right: bool


def _faults_of_kinds(options: argparse.Namespace) -> Callable[[Path, Report], _Done]:
    from scaleproof.proof.elastic.faults import KINDS, inject_faults
    from scaleproof.validator.record.provenance import cpu_model, of_process

    def work(folder: Path, report: Report) -> _Done:
        outcomes = inject_faults(options.only or KINDS, folder, report)
        data = {"faults": [outcome.plain() for outcome in outcomes], "provenance": of_process() | {"cpu": cpu_model()}}
        warnings = [f"{outcome.name}: {outcome.warning}" for outcome in outcomes if outcome.warning]
        return _Done(data, "faults.json", describe(outcomes), warnings, all(outcome.right for outcome in outcomes))

    return work


def _along_events(options: argparse.Namespace) -> Callable[[Path, Report], _Done]:
    """Checks all scenarios before the first is run."""
    from scaleproof.commands.text.elastic import describe_outcome
    from scaleproof.proof.elastic.events.experiment import Experiment
    from scaleproof.simulator.scenario.load import load
    from scaleproof.validator.record.provenance import cpu_model, of_process

    experiments = [Experiment(load(reference, options.overrides), options.on) for reference in options.scenarios]

    def work(folder: Path, report: Report) -> _Done:
        outcomes = [one.run(folder / str(number), report) for number, one in enumerate(experiments)]
        data = {"events": [outcome.plain() for outcome in outcomes], "provenance": of_process() | {"cpu": cpu_model()}}
        warnings = [f"{one.predicted.scenario}: {one.warning}" for one in outcomes if one.warning]
        text = "\n\n".join(map(describe_outcome, outcomes))
        return _Done(data, "events.json", text, warnings, all(one.state.is_right for one in outcomes))

    return work


def _write(done: _Done, folder: Path, out: Path) -> None:
    """Writes the outcomes and the logs of all processes."""
    import json

    from scaleproof.simulator.common.atomic_file import write_atomically

    for notes in folder.glob("**/*.jsonl"):
        write_atomically(out / notes.relative_to(folder), notes.read_bytes())
    write_atomically(out / done.file, (json.dumps(done.data, indent=2) + "\n").encode())


def describe(outcomes: Sequence[FaultOutcome]) -> str:
    """Tables of the outcomes as text."""
    return "\n\n".join("\n".join(_lines(outcome)) for outcome in outcomes)


def _lines(outcome: FaultOutcome) -> Iterator[str]:
    from scaleproof.commands.text.elastic import comparison_table

    yield outcome.name
    yield f"  {outcome.description}"
    yield from comparison_table(outcome.rows)
    yield f"  parameters: {outcome.state}"
