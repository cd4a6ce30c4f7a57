"""Findings of reconciled, predicted and measured runs in words: headline and key figures."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from scaleproof.reports.descriptions.runs import figures, finding, speed
from scaleproof.reports.read.results import Case, Results
from scaleproof.reports.read.verdict import FAIR
from scaleproof.reports.text import NOTHING, percent, signed_percent
from scaleproof.simulator.common.units import counted
from scaleproof.simulator.run.run import Run


def headline(results: Results) -> str:
    """The result in one sentence: how predicted and measured compare, or what else the folder has."""
    compared = results.counted
    if results.disturbed and not compared:
        measured = counted(len(results.disturbed), "measured run")
        what = measured if all(case.measured and case.measured.disturbed for case in results.disturbed) else "the calibration"
        return f"Other work disturbed {what}, so that nothing follows about predictions; measure again on a quiet machine"
    left_out = f"; left out: {counted(len(results.disturbed), 'run')} that other work disturbed" if results.disturbed else ""
    if len(compared) > 1:
        errors = [abs(_error(case)) for case in compared]
        worst = compared[errors.index(max(errors))]
        return (
            f"Predictions of {len(compared)} runs are off by {percent(median(errors))} at the median; "
            f"the worst, {worst.scenario}, by {percent(max(errors))}{left_out}"
        )
    if compared:
        case = compared[0]
        side = "above" if _error(case) >= 0 else "below"
        return f"The predicted step time of {case.scenario} is {percent(abs(_error(case)))} {side} the measured one{left_out}"
    runs = [run for case in results.cases for run in case.runs]
    if len(runs) == 1:
        return finding(runs[0])
    if runs:
        fastest = max(runs, key=lambda run: run.samples_per_s)
        count = counted(len(runs), f"{_origins(runs)} run".strip())
        return f"{count}, none of them both predicted and measured; the fastest is {speed(fastest)}"
    return "Nothing to show: no run in this folder could be read"


def _origins(runs: Sequence[Run]) -> str:
    return runs[0].origin if len({run.origin for run in runs}) == 1 else ""


def _error(case: Case) -> float:
    """The error of a case that was compared."""
    assert case.error is not None
    return case.error


def facts(results: Results) -> list[tuple[str, str]]:
    """The key figures below the headline, as (number, description); empty if there are several runs and none was compared."""
    compared = results.counted
    if results.disturbed and not compared:
        return [(f"0 of {len(results.cases)}", "scenarios compared, since other work disturbed all measurements")]
    if not compared:
        runs = [run for case in results.cases for run in case.runs]
        return list(figures(runs[0])) if len(runs) == 1 else []
    errors = [_error(case) for case in compared]
    limit = FAIR if results.max_error is None else results.max_error
    failed = sum(case.failure is not None for case in results.cases)
    disturbed = f", {len(results.disturbed)} disturbed by other work" if results.disturbed else ""
    inside = sum(abs(error) <= limit for error in errors)
    inside_intervals = [case.inside for case in compared if case.inside is not None]
    intervals = [(f"{sum(inside_intervals)} of {len(inside_intervals)}", "in the 90 % interval")] if inside_intervals else []
    return [
        (
            f"{len(compared)} of {len(results.cases)}",
            "scenarios compared" + (f", {failed} failed" if failed else "") + disturbed,
        ),
        (percent(median(map(abs, errors))), "median error"),
        (signed_percent(median(errors)), "signed median error; +: predicted too slow"),
        (f"{inside} of {len(compared)}", f"within {percent(limit)}" + (", the allowed error" if results.max_error else "")),
        *intervals,
    ]


def ranks_text(case: Case) -> str:
    """'4', or '4 + 2 servers' where some ranks do not train."""
    servers = case.ranks - case.compute_ranks
    if servers <= 0:
        return str(case.ranks or NOTHING)
    return f"{case.compute_ranks} + {servers} server{'s' if servers > 1 else ''}"
