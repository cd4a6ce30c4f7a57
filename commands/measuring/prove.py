"""The command prove: test predictions in a lab. Imports are deferred until it runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scaleproof.commands.arguments import Command
from scaleproof.commands.output import print_json, progress

if TYPE_CHECKING:
    from scaleproof.proof.proving.figures import CaseOutcome
    from scaleproof.proof.proving.models import Compute


class _Size(NamedTuple):
    """The size of a test.

    groups: number of groups of four cases by kind of compute. budget_s: calibration time. patience_s: time for repeating
    disturbed runs. longest_step_s, longest_fitted_step_s: of predictions without and with --fit.
    fitted_groups: number of groups that are predicted with --fit. seeds: number of faults of each kind.
    """

    groups: Mapping[Compute, int]
    budget_s: float
    patience_s: float
    longest_step_s: float
    longest_fitted_step_s: float
    fitted_groups: int
    seeds: int


_FULL: Final = _Size(
    {"paced": 20, "real": 6},
    budget_s=120.0,
    patience_s=300.0,
    longest_step_s=1.5,
    longest_fitted_step_s=2.0,
    fitted_groups=3,
    seeds=3,
)
_SHORT: Final = _Size(
    {"paced": 3, "real": 1},
    budget_s=30.0,
    patience_s=40.0,
    longest_step_s=1.2,
    longest_fitted_step_s=1.3,
    fitted_groups=1,
    seeds=1,
)
# Least of --hosts, without and with --fit.
_LEAST_HOSTS: Final = {False: 3, True: 5}
_USUAL_HOSTS: Final = {False: 16, True: 8}


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    prove = Command(commands, "prove", _prove)
    prove.parser.description = (
        "Calibrate a lab with probes, then predict, measure and verify random scenarios that differ in strategy, model, "
        "network and number of hosts, and print the prediction errors. With --fit, nothing is calibrated: three runs on 2 "
        "to 4 hosts are measured, constants are fitted to them as `fit` does, and twelve runs of other strategies and "
        "models on 8 hosts are predicted before and after the fit, and measured. With --faults, faults of eight kinds are "
        "planted in a lab, with three seeds each, to see whether `reconcile` names them, and whether it names any in the "
        "same runs without them."
    )
    prove.add("--on", "where to train: hosts of an emulated network inside this machine", choices=["netlab"], default="netlab")
    prove.add("--fit", "fit constants to three runs on 2 to 4 hosts, and predict twelve others on --hosts hosts")
    prove.add("--hosts N", "maximum number of hosts of a case (16); with --fit, of the predicted runs (8)", type=int)
    prove.add("--faults", "plant 24 faults, and test whether `reconcile` names them and accuses nothing else")
    prove.add("--short", "run 16 cases instead of 104; with --fit, predict 4 runs instead of 12; with --faults, plant 8 faults")
    prove.add("--seed N", "random seed of the cases (1)", type=int, default=1)
    prove.add("--out DIR", "write the calibration, or the runs and the fit, and the outcome of each case to DIR", type=Path)
    prove.add("--resume", "continue with the cases in --out")
    prove.add("--json", "print the figures as JSON")


def _prove(options: argparse.Namespace) -> int:
    from scaleproof.simulator.common.errors import InputError
    from scaleproof.simulator.common.file_lock import locked_folder
    from scaleproof.validator.netlab.lab import require

    if options.faults:
        return _prove_faults(options)
    least = _LEAST_HOSTS[options.fit]
    if options.hosts is None:
        options.hosts = _USUAL_HOSTS[options.fit]
    if options.hosts < least:
        raise InputError(f"--hosts {options.hosts}: the maximum number of hosts must be {least} or more")
    if options.resume and options.out is None:
        raise InputError("--resume continues an earlier run; name its folder with --out DIR")
    require()
    with locked_folder(options.out, "prove") if options.out else nullcontext():
        outcomes = _prove_fit(options) if options.fit else _prove_calibrated(options)
    for outcome in outcomes:
        if outcome.measured_s is None:
            print(f"{outcome.name} could not be measured: {outcome.failure}", file=sys.stderr)
        if outcome.trained_wrongly:
            print(f"{outcome.name} trained other parameters than one process", file=sys.stderr)
    return 1 if any(outcome.measured_s is None or outcome.trained_wrongly for outcome in outcomes) else 0


def _prove_calibrated(options: argparse.Namespace) -> Sequence[CaseOutcome]:
    """Outcomes of predictions in a lab that probes calibrated; prints their figures."""
    from scaleproof.commands.text.proving import describe
    from scaleproof.proof.proving import prove
    from scaleproof.proof.proving.cases import Draw
    from scaleproof.proof.proving.families import FAMILIES_A_GROUP
    from scaleproof.proof.proving.figures import figures
    from scaleproof.proof.proving.lab import calibrated

    size = _size(options)
    with progress("calibrating") as report:
        lab = calibrated(options.out, options.resume, size.budget_s, report)
        drawn = Draw(options.seed, size.groups, options.hosts, size.longest_step_s, lab.at)
        known, record = _recorded(options, FAMILIES_A_GROUP * sum(size.groups.values()), report)
        outcomes = prove.prove(drawn.cases(), known, prove.measured_in_lab, record, size.patience_s)
    if options.json:
        print_json(figures(outcomes))
    else:
        print(describe(outcomes))
    return outcomes


def _prove_faults(options: argparse.Namespace) -> int:
    """Plants faults and prints which `reconcile` names; 0."""
    from scaleproof.commands.text.planted import describe, line
    from scaleproof.proof.planted.detection import figures, find_faults
    from scaleproof.proof.planted.plant import measured
    from scaleproof.simulator.common.errors import InputError
    from scaleproof.validator.netlab.lab import require

    given = [name for name in ("fit", "resume", "out") if getattr(options, name)]
    if given:
        raise InputError(f"--faults has no cases to be fitted, resumed or written; leave out --{' and --'.join(given)}")
    require()
    seeds = range(options.seed, options.seed + _size(options).seeds)
    with progress("planting") as report:
        results = find_faults(seeds, measured, lambda one: report(line(one)))
    if options.json:
        print_json(figures(results))
    else:
        print(describe(results))
    return 0


def _prove_fit(options: argparse.Namespace) -> Sequence[CaseOutcome]:
    """Outcomes of predictions with constants that were fitted to a few runs; prints their figures."""
    from scaleproof.commands.text.proving import describe_fit
    from scaleproof.proof.proving import prove
    from scaleproof.proof.proving.families import FAMILIES_A_GROUP
    from scaleproof.proof.proving.fit_proof import prove_fit
    from scaleproof.proof.proving.small_to_large import GIVEN_HOSTS, SmallToLarge
    from scaleproof.validator.fitting import record as fit_record

    size = _size(options)
    draw = SmallToLarge(options.seed, "real", options.hosts, size.fitted_groups, size.longest_fitted_step_s)
    with progress("measuring") as report, _folder(options.out) as folder:
        total = len(GIVEN_HOSTS) + FAMILIES_A_GROUP * size.fitted_groups
        known, record = _recorded(options, total, report)
        proof = prove_fit(draw, folder, known, prove.measured_in_lab, record, size.patience_s)
    fitted = fit_record.of(proof.fit)
    if options.json:
        print_json({"fit": fitted.model_dump(), **proof.figures()})
    else:
        print(describe_fit(proof, fitted))
    return proof.after


def _size(options: argparse.Namespace) -> _Size:
    return _SHORT if options.short else _FULL


@contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    """The folder of --out; a temporary one without it."""
    if out is not None:
        yield out
        return
    with TemporaryDirectory(prefix="scaleproof-") as name:
        yield Path(name)


def _recorded(
    options: argparse.Namespace, total: int, report: Callable[[str], None]
) -> tuple[Mapping[str, CaseOutcome], Callable[[CaseOutcome], None]]:
    """Outcomes of an earlier run that is continued, and a function that reports an outcome and writes all to --out."""
    from scaleproof.commands.text.proving import line
    from scaleproof.proof.proving import prove

    outcome_by_name = prove.read(options.out) if options.resume else {}

    def record(outcome: CaseOutcome) -> None:
        outcome_by_name[outcome.name] = outcome
        report(f"{len(outcome_by_name)} of {total}: {line(outcome)}")
        if options.out is not None:
            prove.write(list(outcome_by_name.values()), options.out)

    return outcome_by_name, record
