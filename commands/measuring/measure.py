"""The commands measure and runs. Imports wait until a command runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scaleproof.commands.arguments import add_scenario_arguments

if TYPE_CHECKING:
    from scaleproof.commands.measuring.session import Session
    from scaleproof.simulator.common.errors import ScaleproofError
    from scaleproof.simulator.run.run import Run
    from scaleproof.simulator.scenario.schema import Scenario

_INTERRUPTED: Final = 130


def mount(commands: Any) -> None:
    """Adds the commands to argparse's subparsers."""
    measure = commands.add_parser("measure", help="run scenarios for real", description="Run scenarios for real.")
    add_scenario_arguments(measure, several=True)
    add_place_arguments(measure)
    measure.add_argument("--verify", action="store_true", help="let one process follow the same rule, and compare parameters")
    measure.add_argument("--profile", action="store_true", help="train a few steps more under torch's profiler")
    measure.add_argument("--json", action="store_true", help="print runs as JSON")
    measure.add_argument("--out", type=Path, metavar="DIR", help="write each run and its spans to DIR/SCENARIO/measured")
    measure.set_defaults(command=_measure)

    runs = commands.add_parser("runs", help="list what was measured", description="List the measured runs in a folder.")
    runs.add_argument("folder", type=Path, metavar="DIR", help="what measure or reconcile wrote with --out, or a folder above")
    runs.add_argument("--json", action="store_true", help="print the list as JSON")
    runs.set_defaults(command=_runs)


def add_place_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to measure, and how to go on."""
    where = "processes on this machine, on hosts of a network laid inside it, or those that torchrun or srun started"
    parser.add_argument("--on", choices=["local", "netlab", "cluster"], help=f"where: {where}")
    parser.add_argument("--interface", metavar="NAME", help="the network interface on which ranks talk")
    parser.add_argument(
        "--timeout", type=positive, default=60.0, metavar="SECONDS", help="without progress, a rank counts as hung (60)"
    )
    parser.add_argument("--resume", action="store_true", help="do not measure again what is complete in --out")


def positive(text: str) -> float:
    """Seconds, for argparse."""
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
    return session.told_once(partial(_measure_all, options, session))


def _measure_all(options: argparse.Namespace, session: Session) -> int:
    from scaleproof.validator.results import folder_of

    scenarios = session.scenarios()
    found = session.found(scenarios, partial(folder_of, options.out) if options.out else None)
    tell = _Teller(scenarios, session.speaks, options.json, options.verify)
    for number, scenario in enumerate(scenarios):
        if scenario.name in found:
            tell.there(scenario, found[scenario.name])
            continue
        try:
            going_on = _measure_one(scenario, session, folder_of(options.out, scenario) if options.out else None, tell)
        except KeyboardInterrupt:
            if options.out is None or not session.speaks:
                raise
            print(f"interrupted while measuring {scenario.name}; go on with --out {options.out} --resume", file=sys.stderr)
            return _INTERRUPTED
        if not going_on:
            tell.left_out(scenarios[number + 1 :])
            break
    return tell.end()


def _measure_one(scenario: Scenario, session: Session, folder: Path | None, tell: _Teller) -> bool:
    """Measures, tells and keeps. Whether others can be measured after it."""
    from scaleproof.simulator.common.errors import RunError, ScaleproofError
    from scaleproof.validator.launch.rank_environment import PartedError

    try:
        run = session.measure(scenario, folder)
    except ScaleproofError as error:
        tell.failed(scenario, error)
        return not isinstance(error, PartedError)
    tell.done(scenario, run)
    if folder is not None:
        try:
            session.keep(run, scenario, folder)
        except RunError as error:
            tell.not_kept(error)
            return False
    return True


class _Teller:
    """Prints what becomes of each scenario: the whole summary of one, a line for each of several.

    speaks: whether anything is printed at all. as_json: prints runs as JSON, a list of several when all are done. verified:
    whether runs are compared with one process.
    """

    def __init__(self, scenarios: Sequence[Scenario], speaks: bool, as_json: bool, verified: bool) -> None:
        from scaleproof.commands.text.runs import Table

        self._speaks, self._json, self._alone = speaks, as_json, len(scenarios) == 1
        self._table = Table(scenarios, verified)
        self._has_head = False
        self._warned: set[str] = set()
        self._plain: list[dict[str, Any]] = []
        self._exit_code = 0

    def done(self, scenario: Scenario, run: Run, note: str = "") -> None:
        from scaleproof.validator.results import is_right

        self._plain.append(run.summary())
        if self._speaks and not self._json:
            if self._alone:
                self._print_whole(run)
            else:
                self._print_row(run, note)
        if is_right(run) is False:
            self._fail(f"{scenario.name} was trained wrongly: parameters are {_deviation(run)}")

    def _print_whole(self, run: Run) -> None:
        from scaleproof.commands.text.run import describe

        verdict = f"\n  {'verified':<13}  parameters are {_deviation(run)}" if run.verified else ""
        print(f"{describe(run)}{verdict}", flush=True)

    def _print_row(self, run: Run, note: str) -> None:
        """With what is to be known before it is trusted, where no row before has told that."""
        if not self._has_head:
            print(self._table.head(run))
            self._has_head = True
        print(self._table.row(run, note), flush=True)
        for warning in run.warnings:
            if warning not in self._warned:
                self._warned.add(warning)
                print(f"warning: {run.scenario}: {warning}", file=sys.stderr, flush=True)

    def there(self, scenario: Scenario, run: Run | None) -> None:
        """What need not be measured again. run: None on ranks that do not speak."""
        if run is not None:
            self.done(scenario, run, "there already")

    def failed(self, scenario: Scenario, error: ScaleproofError) -> None:
        """Raises the error itself where there is no other scenario."""
        if self._alone:
            raise error
        self._plain.append({"scenario": scenario.name, "failure": str(error)})
        self._fail(f"{scenario.name} could not be measured: {error}")

    def not_kept(self, error: ScaleproofError) -> None:
        """What was measured, and told, but could not be written."""
        self._fail(str(error))

    def left_out(self, scenarios: Sequence[Scenario]) -> None:
        """What is not measured since nothing can be any more."""
        if scenarios:
            self._fail(f"not measured: {', '.join(scenario.name for scenario in scenarios)}")

    def end(self) -> int:
        """The exit code: 1 where a scenario failed."""
        if self._json and self._speaks:
            _print_json(self._plain[0] if self._alone else self._plain)
        return self._exit_code

    def _fail(self, text: str) -> None:
        self._exit_code = 1
        if self._speaks:
            print(text, file=sys.stderr, flush=True)


def _runs(options: argparse.Namespace) -> int:
    from scaleproof.commands.text.runs import MARK, listing, plain
    from scaleproof.validator.results import listed

    kept = list(listed(options.folder))
    if options.json:
        _print_json([plain(one) for one in kept])
    elif kept:
        print(listing(kept, options.folder), flush=True)
        if any(one.run and one.run.warnings for one in kept):
            print(f"{MARK} has warnings, which --json tells", file=sys.stderr)
    else:
        print(f"{options.folder}: no measured runs; scaleproof measure --out {options.folder} leaves some")
    return 0


def _print_json(plain: Any) -> None:
    import json

    print(json.dumps(plain, indent=2))


def _deviation(run: Run) -> str:
    from scaleproof.commands.text.runs import share

    off = f"off by {share(run, 'deviation')} of what training changed"
    return f"{off} from one process that follows the same rule; rounding explains {share(run, 'tolerance')}"
