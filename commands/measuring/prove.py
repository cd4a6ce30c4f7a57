"""The command prove: test predictions in a calibrated lab. Imports are deferred until it runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scaleproof.commands.arguments import Command
from scaleproof.commands.output import print_json, progress
from scaleproof.commands.text.tables import table
from scaleproof.simulator.common.units import format_change, format_percent

if TYPE_CHECKING:
    from scaleproof.validator.experiments.proving.cases import Compute
    from scaleproof.validator.experiments.proving.figures import CaseOutcome


class _Size(NamedTuple):
    """The size of a test.

    groups: number of groups of four cases by kind of compute. budget_s: calibration time. patience_s: time for repeating
    disturbed runs.
    """

    groups: Mapping[Compute, int]
    budget_s: float
    patience_s: float
    longest_step_s: float


_FULL: Final = _Size({"paced": 20, "real": 6}, budget_s=120.0, patience_s=1800.0, longest_step_s=2.0)
_SHORT: Final = _Size({"paced": 3, "real": 1}, budget_s=30.0, patience_s=40.0, longest_step_s=1.3)
_WORST: Final = 5


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    words = "calibrate a lab, then compare predictions with runs that calibration did not use"
    prove = Command(commands, "prove", _prove, words)
    prove.parser.description = (
        "Calibrate a lab with probes, then predict and measure random scenarios that differ in strategy, model, link rate and "
        "number of hosts, and print the prediction errors."
    )
    prove.add("--on", "where to train: hosts of an emulated network inside this machine", choices=["netlab"], default="netlab")
    prove.add("--hosts N", "maximum number of hosts of a case (8)", type=int, default=8)
    prove.add("--short", "run 16 cases instead of 104")
    prove.add("--seed N", "random seed of the cases (1)", type=int, default=1)
    prove.add("--out DIR", "write the calibration and the outcome of each case to DIR", type=Path)
    prove.add("--resume", "continue with the cases in --out")
    prove.add("--json", "print the figures as JSON")


def _prove(options: argparse.Namespace) -> int:
    from scaleproof.simulator.common.errors import InputError
    from scaleproof.simulator.common.file_lock import locked_folder
    from scaleproof.validator.experiments.proving import prove
    from scaleproof.validator.experiments.proving.cases import FAMILIES_A_GROUP, Draw
    from scaleproof.validator.experiments.proving.faults import find_faults
    from scaleproof.validator.experiments.proving.figures import figures
    from scaleproof.validator.experiments.proving.lab import calibrated
    from scaleproof.validator.netlab.lab import require

    if options.hosts < 3:
        raise InputError(f"--hosts {options.hosts}: the maximum number of hosts must be 3 or more")
    if options.resume and options.out is None:
        raise InputError("--resume continues an earlier run; name its folder with --out DIR")
    require()
    size = _SHORT if options.short else _FULL
    total = FAMILIES_A_GROUP * sum(size.groups.values())
    lock = locked_folder(options.out, "prove") if options.out else nullcontext()
    with lock, progress("calibrating") as report:
        lab = calibrated(options.out, options.resume, size.budget_s, report)
        outcome_by_name = prove.read(options.out) if options.resume else {}

        def record(outcome: CaseOutcome) -> None:
            outcome_by_name[outcome.name] = outcome
            report(f"{len(outcome_by_name)} of {total}: {_line(outcome)}")
            if options.out is not None:
                prove.write(list(outcome_by_name.values()), options.out)

        drawn = Draw(options.seed, size.groups, options.hosts, size.longest_step_s, lab.at)
        outcomes = prove.prove(drawn.cases(), outcome_by_name, prove.measured_in_lab, record, size.patience_s)
        planted = [] if options.short else find_faults(report)
    if options.json:
        data = figures(outcomes) | ({"faults": {one.name: one.named for one in planted}} if planted else {})
        print_json(data)
    else:
        _print(outcomes)
        for one in planted:
            print(f"planted: {one.name}; found: {one.named or 'not found'}")
    return 1 if any(outcome.measured_s is None for outcome in outcomes) else 0


def _line(outcome: CaseOutcome) -> str:
    from scaleproof.simulator.common.units import format_time_s

    name = f"{outcome.name:<24} predicted {format_time_s(outcome.predicted_s):>8}"
    if outcome.measured_s is None or outcome.error is None:
        return f"{name}, failed: {outcome.failure}"
    where = "inside" if outcome.inside else "outside"
    interval = f"{format_time_s(outcome.low_s)} to {format_time_s(outcome.high_s)}"
    return f"{name}, measured {format_time_s(outcome.measured_s):>8} ({format_change(outcome.error)}; {where} {interval})"


def _print(outcomes: Sequence[CaseOutcome]) -> None:
    """Prints the errors by kind of compute and by strategy family, and the worst cases."""
    from scaleproof.validator.experiments.proving.figures import DISTURBED, by_family, figures
    from scaleproof.validator.record.provenance import NOTICED_LOAD

    summary = figures(outcomes)
    disturbed = [outcome for outcome in outcomes if outcome.is_disturbed]
    rows = [("", "cases", "median", "p90", "inside 90 %")]
    for kind in ("paced", "real"):
        undisturbed = {f"{kind}, undisturbed": summary["undisturbed"][kind]} if disturbed else {}
        for name, row in ({kind: summary[kind]} | undisturbed).items():
            if row["cases"]:
                shares = (
                    format_percent(row["median"]),
                    format_percent(row["p90"]),
                    format_percent(row["coverage90"], 0),
                )
                rows.append((name, str(row["cases"]), *shares))
    print("\n".join(table(rows)))
    ranking = summary["ranking"]
    right = ranking["best_right_or_within_3pct"]
    print(f"ranking  the predicted best is the measured best, or within 3 %, in {right} of {ranking['groups']} groups")
    families = by_family(outcomes).items()
    errors_of = (
        (family, str(count), format_change(median), format_change(worst)) for family, (count, median, worst) in families
    )
    print("\n".join(["", *table([("strategy", "cases", "median", "worst"), *errors_of])]))
    errors = [outcome for outcome in outcomes if outcome.error is not None]
    print(f"\nworst {_WORST}")
    for outcome in sorted(errors, key=lambda one: -abs(one.error or 0.0))[:_WORST]:
        print(f"  {_line(outcome)}")
    if disturbed:
        taken, foreign = (max(getattr(outcome, name) for outcome in disturbed) for name in ("taken", "foreign"))
        print(
            f"\n{len(disturbed)} of {len(outcomes)} runs were disturbed: this machine's host took more than "
            f"{format_percent(DISTURBED, 0)} of the time in which they had work ({format_percent(taken, 0)} at most), or other "
            f"work took more than {format_percent(NOTICED_LOAD, 0)} of the cores ({format_percent(foreign, 0)} at most)"
        )
    for outcome in outcomes:
        if outcome.measured_s is None:
            print(f"{outcome.name} could not be measured: {outcome.failure}", file=sys.stderr)
