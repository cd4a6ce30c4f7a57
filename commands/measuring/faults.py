"""The command faults: make events of hosts happen and compare with the prediction. Imports are deferred until it runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scaleproof.commands.arguments import Command
from scaleproof.commands.output import print_result, progress

if TYPE_CHECKING:
    from scaleproof.simulator.analysis.elastic.outcome import ElasticRecord

# Scenarios with one event, for the kinds of --only.
_KINDS: Final = {
    "rank": "netlab-rank-killed",
    "node": "netlab-host-lost",
    "server": "netlab-server-killed",
    "link": "netlab-link-slowed",
}


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    faults = Command(commands, "faults", _faults)
    faults.parser.description = (
        "Train for real while hosts fail, are interrupted with notice, join or come back, processes crash or links change as a "
        "scenario's reliability.events say, and compare the timeline with its prediction. Without a scenario, kill a rank, a "
        "host and a server, and slow a link. Predictions are made from runs without faults."
    )
    named = "a YAML file with reliability.events, or a name such as netlab-host-returns"
    faults.add("SCENARIO", named, dest="scenarios", nargs="*")
    faults.add_overrides("a field of all scenarios, such as steps=60")
    places = "where to train: hosts of an emulated network inside this machine, or processes of this machine (netlab)"
    faults.add("--on", places, choices=["netlab", "local"], default="netlab")
    kinds = "without a scenario, inject only this fault (all): rank: torchrun restarts a killed rank; node: training continues "
    kinds += "without a lost host; server: a killed parameter server is restored; link: a link becomes slow"
    faults.add("--only KIND", kinds, repeated=True, choices=list(_KINDS))
    faults.add("--json", "print the outcomes as JSON")
    faults.add("--out DIR", "write the outcomes and the logs of all processes to DIR", type=Path)


def _faults(options: argparse.Namespace) -> int:
    from scaleproof.commands.text.sections import section_lines
    from scaleproof.proof.elastic.events.experiment import Experiment
    from scaleproof.reports.descriptions.elastic import describe_runs
    from scaleproof.simulator.analysis.elastic.outcome import ElasticRecord
    from scaleproof.simulator.common.errors import InputError
    from scaleproof.simulator.scenario.load import load
    from scaleproof.validator import results
    from scaleproof.validator.launch import fork_server
    from scaleproof.validator.launch.launch import require_torch, temporary_folder
    from scaleproof.validator.netlab import lab
    from scaleproof.validator.record.provenance import cpu_model, of_process

    require_torch()
    if options.scenarios and options.only:
        raise InputError("--only is for faults without a scenario; leave it or the scenario out")
    if not options.scenarios and (options.on == "local" or options.overrides):
        given = "--on local" if options.on == "local" else "--set"
        raise InputError(f"{given} needs a scenario with reliability.events, such as netlab-host-returns")
    references = options.scenarios or [_KINDS[kind] for kind in options.only or _KINDS]
    # all scenarios are checked before the first is run
    experiments = [Experiment(load(reference, options.overrides), options.on) for reference in references]
    if options.on == "netlab":
        lab.require()
    if options.out is not None:
        results.prepare(options.out)
    with progress("starting") as report, temporary_folder() as folder:
        # wait until the fork server has loaded torch, which would disturb a measurement
        fork_server.shared().wait_until_ready()
        outcomes = [one.run(folder / str(number), report) for number, one in enumerate(experiments)]
        record = ElasticRecord(events=tuple(outcomes), provenance=of_process() | {"cpu": cpu_model()})
        if options.out is not None:
            _write(record, folder, options.out)
    runs = describe_runs(record).sections
    print_result(options, record.to_dict, lambda: "\n\n".join("\n".join(section_lines(run)) for run in runs))
    for one in outcomes:
        if one.warning:
            print(f"warning: {one.predicted.scenario}: {one.warning}", file=sys.stderr)
    return 0 if all(one.state.right for one in outcomes) else 1


def _write(record: ElasticRecord, folder: Path, out: Path) -> None:
    """Writes the outcomes and the logs of all processes."""
    from scaleproof.simulator.analysis.elastic.outcome import FILE
    from scaleproof.simulator.common.atomic_file import write_atomically

    for notes in folder.glob("**/*.jsonl"):
        write_atomically(out / notes.relative_to(folder), notes.read_bytes())
    write_atomically(out / FILE, record.to_json().encode())
