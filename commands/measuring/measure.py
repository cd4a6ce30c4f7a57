"""The commands measure and runs. Imports are deferred until a command runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scaleproof.commands.arguments import Command
from scaleproof.commands.output import print_json

if TYPE_CHECKING:
    from scaleproof.commands.measuring.session import Session
    from scaleproof.simulator.common.errors import ScaleproofError
    from scaleproof.simulator.run.run import Run
    from scaleproof.simulator.scenario.schema import Scenario


def mount(commands: Any) -> None:
    """Adds the commands to argparse's subparsers."""
    measure = Command(commands, "measure", _measure)
    measure.add_scenario(several=True)
    add_place_arguments(measure)
    measure.add("--verify", "train again in one process by the same update rule, and compare parameters")
    measure.add("--profile", "train a few more steps under torch's profiler")
    measure.add("--json", "print the runs as JSON")
    measure.add("--out DIR", "write each run and its spans to DIR/SCENARIO/measured", type=Path)

    runs = Command(commands, "runs", _runs)
    runs.parser.description = "List the measured runs in a folder."
    runs.add("DIR", "folder that measure or reconcile wrote with --out, or a parent of such folders", dest="folder", type=Path)
    runs.add("--json", "print the list as JSON")


def add_place_arguments(command: Command) -> None:
    """Adds the options that say where to measure and how to resume."""
    command.add_place("train")
    command.add("--interface NAME", "network interface that ranks use")
    command.add_timeout("time without progress after which a rank counts as hung", 60.0)
    command.add("--resume", "skip scenarios whose runs are complete in --out")


def _measure(options: argparse.Namespace) -> int:
    from scaleproof.commands.measuring.session import Session
    from scaleproof.validator.measure import MeasureOptions

    watch = MeasureOptions(options.timeout, verify=options.verify, interface=options.interface, profile=options.profile)
    session = Session(options, watch)
    return session.report_once(partial(_measure_all, options, session))


def _measure_all(options: argparse.Namespace, session: Session) -> int:
    from scaleproof.validator.results import folder_of

    scenarios = session.scenarios()
    completed = session.completed(scenarios, partial(folder_of, options.out) if options.out else None)
    output = _Output(scenarios, session.prints, options.json, options.verify)
    for number, scenario in enumerate(scenarios):
        if scenario.name in completed:
            # on ranks that do not print, completed runs are None
            if (run := completed[scenario.name]) is not None:
                output.done(scenario, run, "measured before")
            continue
        try:
            can_continue = _measure_one(scenario, session, folder_of(options.out, scenario) if options.out else None, output)
        except KeyboardInterrupt as error:
            error.add_note(f"{scenario.name} was being measured")
            if options.out is not None:
                error.add_note(f"--out {options.out} --resume continues")
            raise
        if not can_continue:
            if missing := [scenario.name for scenario in scenarios[number + 1 :]]:
                output.fail(f"not measured: {', '.join(missing)}")
            break
    return output.end()


def _measure_one(scenario: Scenario, session: Session, folder: Path | None, output: _Output) -> bool:
    """Measures a scenario, prints and keeps its run. Returns whether further scenarios can be measured."""
    from scaleproof.simulator.common.errors import RunError, ScaleproofError
    from scaleproof.validator.launch.rank_environment import ContactLostError

    try:
        run = session.measure(scenario, folder)
    except ScaleproofError as error:
        output.failed(scenario, error)
        return not isinstance(error, ContactLostError)
    output.done(scenario, run)
    if folder is not None:
        try:
            session.keep(run, scenario, folder)
        except RunError as error:
            output.fail(str(error))
            return False
    return True


class _Output:
    """Prints the outcome of each scenario: the whole summary of a single one, a row for each of several.

    prints: False on all ranks but one. as_json: print the runs as JSON when all are done. verified: whether runs are compared
    with training in one process.
    """

    def __init__(self, scenarios: Sequence[Scenario], prints: bool, as_json: bool, verified: bool) -> None:
        from scaleproof.commands.text.runs import RunTable

        self._prints, self._json, self._is_single = prints, as_json, len(scenarios) == 1
        self._table = RunTable(scenarios, verified)
        self._has_head = False
        self._warned: set[str] = set()
        self._plain: list[dict[str, Any]] = []
        self._exit_code = 0

    def done(self, scenario: Scenario, run: Run, note: str = "") -> None:
        from scaleproof.commands.text.sections import described
        from scaleproof.reports.descriptions.runs import describe
        from scaleproof.validator.results import is_right

        self._plain.append(run.to_dict())
        if self._prints and not self._json:
            if self._is_single:
                verdict = f"\n  {'verified':<13}  parameters are {_deviation(run)}" if run.verified else ""
                print(f"{described(describe(run))}{verdict}", flush=True)
            else:
                self._print_row(run, note)
        if run.verified is not None and not run.verified.is_decided:
            amplified = f"training amplifies rounding, which alone changes parameters by {run.verified.amplified:.1g}"
            advice = "give a smaller learning rate, fewer steps, or for batch norms larger microbatches"
            self.fail(f"{scenario.name} could not be verified: {amplified}; {advice}")
        if is_right(run) is False:
            self.fail(f"{scenario.name} was trained incorrectly: parameters are {_deviation(run)}")

    def _print_row(self, run: Run, note: str) -> None:
        """Prints a row, and the run's warnings that no earlier row has printed."""
        if not self._has_head:
            print(self._table.head(run))
            self._has_head = True
        print(self._table.row(run, note), flush=True)
        for warning in run.warnings:
            if warning not in self._warned:
                self._warned.add(warning)
                print(f"warning: {run.scenario}: {warning}", file=sys.stderr, flush=True)

    def failed(self, scenario: Scenario, error: ScaleproofError) -> None:
        """Reports a failure. Raises the error itself if there is no other scenario."""
        if self._is_single:
            raise error
        self._plain.append({"scenario": scenario.name, "failure": str(error)})
        self.fail(f"{scenario.name} could not be measured: {error}")

    def end(self) -> int:
        """Prints the JSON, if any, and returns the exit code: 1 if a scenario failed."""
        if self._json and self._prints:
            print_json(self._plain[0] if self._is_single else self._plain)
        return self._exit_code

    def fail(self, text: str) -> None:
        """Prints a problem, with which the command fails."""
        self._exit_code = 1
        if self._prints:
            print(text, file=sys.stderr, flush=True)


def _runs(options: argparse.Namespace) -> int:
    from scaleproof.commands.text.runs import MARK, listing, plain
    from scaleproof.validator.results import listed

    kept = list(listed(options.folder))
    if options.json:
        print_json([plain(one) for one in kept])
    elif kept:
        print(listing(kept, options.folder), flush=True)
        if any(one.run and one.run.warnings for one in kept):
            print(f"{MARK} has warnings; --json prints them", file=sys.stderr)
    else:
        print(f"{options.folder}: no measured runs; scaleproof measure --out {options.folder} writes them")
    return 0


def _deviation(run: Run) -> str:
    from scaleproof.commands.text.runs import share

    off = f"off by {share(run, 'deviation')} of what training changed"
    return f"{off} from training in one process; rounding explains {share(run, 'tolerance')}"
