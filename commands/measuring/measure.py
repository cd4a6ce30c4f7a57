"""The commands measure and runs. Imports are deferred until a command runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scaleproof.commands.arguments import add_scenario_arguments
from scaleproof.commands.output import print_json

if TYPE_CHECKING:
    from scaleproof.commands.measuring.session import Session
    from scaleproof.simulator.common.errors import ScaleproofError
    from scaleproof.simulator.run.run import Run
    from scaleproof.simulator.scenario.schema import Scenario

_INTERRUPTED: Final = 130


def mount(commands: Any) -> None:
    """Adds the commands to argparse's subparsers."""
    measure = commands.add_parser(
        "measure", help="train scenarios and record their runs", description="Train scenarios and record their runs."
    )
    add_scenario_arguments(measure, several=True)
    add_place_arguments(measure)
    measure.add_argument(
        "--verify", action="store_true", help="train again in one process by the same update rule, and compare parameters"
    )
    measure.add_argument("--profile", action="store_true", help="train a few more steps under torch's profiler")
    measure.add_argument("--json", action="store_true", help="print the runs as JSON")
    measure.add_argument("--out", type=Path, metavar="DIR", help="write each run and its spans to DIR/SCENARIO/measured")
    measure.set_defaults(command=_measure)

    runs = commands.add_parser("runs", help="list measured runs", description="List the measured runs in a folder.")
    runs.add_argument(
        "folder",
        type=Path,
        metavar="DIR",
        help="folder that measure or reconcile wrote with --out, or a parent of such folders",
    )
    runs.add_argument("--json", action="store_true", help="print the list as JSON")
    runs.set_defaults(command=_runs)


def add_place_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say where to measure and how to resume."""
    where = "processes on this machine (local), hosts of an emulated network inside it (netlab), or ranks that torchrun "
    where += "or srun started (cluster)"
    parser.add_argument("--on", choices=["local", "netlab", "cluster"], help=f"where to train: {where}")
    parser.add_argument("--interface", metavar="NAME", help="network interface that ranks use")
    parser.add_argument(
        "--timeout",
        type=positive,
        default=60.0,
        metavar="SECONDS",
        help="time without progress after which a rank counts as hung (60)",
    )
    parser.add_argument("--resume", action="store_true", help="skip scenarios whose runs are complete in --out")


def positive(text: str) -> float:
    """Parses a positive number of seconds. Raises ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")
    return value


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
            output.skipped(scenario, completed[scenario.name])
            continue
        try:
            can_continue = _measure_one(scenario, session, folder_of(options.out, scenario) if options.out else None, output)
        except KeyboardInterrupt:
            if options.out is None or not session.prints:
                raise
            print(f"interrupted while measuring {scenario.name}; continue with --out {options.out} --resume", file=sys.stderr)
            return _INTERRUPTED
        if not can_continue:
            output.left_out(scenarios[number + 1 :])
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
            output.not_kept(error)
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
        from scaleproof.validator.results import is_right

        self._plain.append(run.summary())
        if self._prints and not self._json:
            if self._is_single:
                self._print_summary(run)
            else:
                self._print_row(run, note)
        if is_right(run) is False:
            self._fail(f"{scenario.name} was trained incorrectly: parameters are {_deviation(run)}")

    def _print_summary(self, run: Run) -> None:
        from scaleproof.commands.text.run import describe

        verdict = f"\n  {'verified':<13}  parameters are {_deviation(run)}" if run.verified else ""
        print(f"{describe(run)}{verdict}", flush=True)

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

    def skipped(self, scenario: Scenario, run: Run | None) -> None:
        """Reports a run that is complete already. run: None on ranks that do not print."""
        if run is not None:
            self.done(scenario, run, "measured before")

    def failed(self, scenario: Scenario, error: ScaleproofError) -> None:
        """Reports a failure. Raises the error itself if there is no other scenario."""
        if self._is_single:
            raise error
        self._plain.append({"scenario": scenario.name, "failure": str(error)})
        self._fail(f"{scenario.name} could not be measured: {error}")

    def not_kept(self, error: ScaleproofError) -> None:
        """Reports a run that was measured but could not be written."""
        self._fail(str(error))

    def left_out(self, scenarios: Sequence[Scenario]) -> None:
        """Reports scenarios that are not measured because the group of ranks is lost."""
        if scenarios:
            self._fail(f"not measured: {', '.join(scenario.name for scenario in scenarios)}")

    def end(self) -> int:
        """Prints the JSON, if any, and returns the exit code: 1 if a scenario failed."""
        if self._json and self._prints:
            print_json(self._plain[0] if self._is_single else self._plain)
        return self._exit_code

    def _fail(self, text: str) -> None:
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
