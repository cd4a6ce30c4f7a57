"""Console text of proofs: errors by kind of compute and by strategy, the worst cases, and errors before and after a fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from scaleproof.commands.text.sections import section_lines
from scaleproof.commands.text.tables import table, wrapped
from scaleproof.reports.descriptions import fit
from scaleproof.simulator.common.units import counted, format_change, format_interval_s, format_percent, format_time_s

if TYPE_CHECKING:
    from scaleproof.proof.proving.figures import CaseOutcome, Part
    from scaleproof.proof.proving.fit_proof import FitProof
    from scaleproof.simulator.analysis.fit_record import FitRecord

_WORST: Final = 5
# Parts by which errors are listed, with their titles.
_PARTS: Final[Mapping[Part, str]] = {"family": "strategy", "model": "model", "network": "network"}
_HEADS: Final = ("", "cases", "median", "p90", "inside 90 %")


def line(outcome: CaseOutcome) -> str:
    """One line about a case: its predicted and measured step time."""
    name = f"{outcome.name:<32} predicted {format_time_s(outcome.predicted_s):>8}"
    if outcome.measured_s is None or outcome.error is None:
        return f"{name}, failed: {outcome.failure}"
    where = "inside" if outcome.inside else "outside"
    interval = format_interval_s(outcome.low_s, outcome.high_s)
    return f"{name}, measured {format_time_s(outcome.measured_s):>8} ({format_change(outcome.error)}; {where} {interval})"


def describe(outcomes: Sequence[CaseOutcome]) -> str:
    """Console text of the errors by kind of compute, strategy, model and network, and of the worst cases."""
    parts = [line for part, name in _PARTS.items() for line in (*_by_part(outcomes, part, name), "")]
    return "\n".join((*_errors(outcomes), "", *parts, *_worst(outcomes), *_disturbed(outcomes)))


def describe_fit(proof: FitProof, record: FitRecord) -> str:
    """Console text of a fit to the given runs of a proof, and of the errors of the unseen runs before and after it."""
    hosts = max(outcome.hosts for outcome in proof.after)
    given = f"{counted(len(record.given), 'run')} on 2 to {_most(record)} hosts"
    head = f"{record.framework} on {record.cluster}, fitted to {given}"
    parts = [head, "", *section_lines(fit.constants(record)), "", *section_lines(fit.runs(record)), ""]
    parts += [f"{counted(len(proof.after), 'run')} on {hosts} hosts, not given", *_before_and_after(proof), ""]
    return "\n".join((*parts, *_fit_errors(proof), *_disturbed(proof.after)))


def _most(record: FitRecord) -> int:
    return max(run.gpus for run in record.given)


def _errors(outcomes: Sequence[CaseOutcome]) -> Iterator[str]:
    from scaleproof.proof.proving.figures import figures

    summary = figures(outcomes)
    rows = []
    for kind in ("paced", "real"):
        parts = {kind: summary[kind]}
        if any(outcome.is_disturbed for outcome in outcomes):
            parts[f"{kind}, undisturbed"] = summary["undisturbed"][kind]
        rows += [_row(name, part) for name, part in parts.items() if part["cases"]]
    yield from table([_HEADS, *rows])
    ranking = summary["ranking"]
    right = ranking["best_right_or_within_3pct"]
    yield f"ranking  the predicted best is the measured best, or within 3 %, in {right} of {ranking['groups']} groups"


def _row(name: str, errors: Mapping[str, Any]) -> tuple[str, ...]:
    """Cells of the errors of some cases."""
    shares = format_percent(errors["median"]), format_percent(errors["p90"]), format_percent(errors["coverage90"], 0)
    return name, str(errors["cases"]), *shares


def _by_part(outcomes: Sequence[CaseOutcome], part: Part, name: str) -> Iterator[str]:
    from scaleproof.proof.proving.figures import by_part

    found = by_part(outcomes, part).items()
    rows = [(one, str(count), format_change(median), format_change(worst)) for one, (count, median, worst) in found]
    yield from table([(name, "cases", "median", "worst"), *rows])


def _worst(outcomes: Sequence[CaseOutcome]) -> Iterator[str]:
    errors = [outcome for outcome in outcomes if outcome.error is not None]
    yield f"worst {_WORST}"
    for outcome in sorted(errors, key=lambda one: -abs(one.error or 0.0))[:_WORST]:
        yield f"  {line(outcome)}"


def _before_and_after(proof: FitProof) -> Iterator[str]:
    rows = [("run", "measured", "before", "after", "90 % interval after", "")]
    for before, after in zip(proof.before, proof.after, strict=True):
        if before.measured_s is None or before.error is None or after.error is None:
            rows.append((after.name, "failed", "", "", "", ""))
            continue
        ends = format_interval_s(after.low_s, after.high_s)
        errors = format_change(before.error), format_change(after.error)
        rows.append((after.name, format_time_s(before.measured_s), *errors, ends, "" if after.inside else "outside"))
    yield from table(rows, "<>>>><", indent="  ")


def _fit_errors(proof: FitProof) -> Iterator[str]:
    rows, right, found = [], [], proof.figures()
    for name in ("before", "after"):
        part = found[name]
        rows += [_row(name, part["real"])] if part["real"]["cases"] else []
        quiet = part["undisturbed"]["real"]
        if 0 < quiet["cases"] < part["real"]["cases"]:
            rows.append(_row(f"{name}, undisturbed", quiet))
        right.append(f"{part['ranking']['best_right_or_within_3pct']} {name}")
    groups = found["after"]["ranking"]["groups"]
    yield from table([_HEADS, *rows])
    best = f"ranking  the predicted best is the measured best, or within 3 %, of {counted(groups, 'group')}: {', '.join(right)}"
    yield from wrapped(best)


def _disturbed(outcomes: Sequence[CaseOutcome]) -> Iterator[str]:
    from scaleproof.proof.proving.figures import DISTURBED
    from scaleproof.validator.record.provenance import NOTICED_LOAD

    disturbed = [outcome for outcome in outcomes if outcome.is_disturbed]
    if not disturbed:
        return
    taken, foreign = (max(getattr(outcome, name) for outcome in disturbed) for name in ("taken", "foreign"))
    yield ""
    yield (
        f"{len(disturbed)} of {len(outcomes)} runs were disturbed: this machine's host took more than "
        f"{format_percent(DISTURBED, 0)} of the time in which they had work ({format_percent(taken, 0)} at most), or other "
        f"work took more than {format_percent(NOTICED_LOAD, 0)} of the cores ({format_percent(foreign, 0)} at most)"
    )
