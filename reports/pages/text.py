"""Numbers and findings in words, as the page and the figures print them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Final

from scaleproof.reports.read.results import Case, Results

CLOSE: Final = 0.10
FAIR: Final = 0.25
NOTHING: Final = "–"
# entries of a breakdown whose names do not explain themselves
_CAUSES: Final = {"slowest_rank": "waiting for the slowest device"}
# time from which axes are in seconds
_LONG_S: Final = 10.0
_SPACE: Final = "\N{NARROW NO-BREAK SPACE}"


@dataclass(frozen=True)
class Verdict:
    """The grade of a case. grade: close, fair, off, failed or missing, which determines colour and symbol."""

    grade: str
    symbol: str
    words: str


def verdict(case: Case, max_error: float | None) -> Verdict:
    """The grade of a case by its error; "off" if it exceeds `max_error`."""
    if case.error is None:
        if case.failure is not None:
            return Verdict("failed", "✕", "failed")
        return Verdict("missing", "○", "not measured" if case.measured is None else "not predicted")
    error = abs(case.error)
    if max_error is not None and error > max_error:
        return Verdict("off", "■", f"over the {percent(max_error)} allowed")
    if error <= CLOSE:
        return Verdict("close", "●", f"within {percent(CLOSE)}")
    if error <= FAIR:
        return Verdict("fair", "▲", f"within {percent(FAIR)}")
    return Verdict("off", "■", f"beyond {percent(FAIR)}")


def headline(results: Results) -> str:
    """The result in one sentence: how predicted and measured compare, or what else the folder has."""
    compared = results.compared
    if len(compared) > 1:
        errors = [abs(_error(case)) for case in compared]
        worst = compared[errors.index(max(errors))]
        return (
            f"Predicted and measured agree within {percent(median(errors))} at the median over {len(compared)} runs; "
            f"the worst, {worst.scenario}, is off by {percent(max(errors))}"
        )
    if compared:
        case = compared[0]
        side = "above" if _error(case) >= 0 else "below"
        return f"The predicted step time of {case.scenario} is {percent(abs(_error(case)))} {side} the measured one"
    runs = [(case, run) for case in results.cases for run in case.runs]
    if len(runs) == 1:
        case, run = runs[0]
        verb = "is predicted to train" if run.origin == "predicted" else "trained"
        speed = f"{rate(run.samples_per_s)} samples/s, {milliseconds(run.step_time_s)}{_SPACE}ms per step"
        return f"{case.scenario} {verb} at {speed}"
    if runs:
        return "Nothing to compare yet: no scenario here was both predicted and measured"
    return "Nothing to show: no run in this folder could be read"


def _error(case: Case) -> float:
    """The error of a case that was compared."""
    assert case.error is not None
    return case.error


def facts(results: Results) -> list[tuple[str, str]]:
    """The key figures below the headline, as (number, description); empty if nothing was compared."""
    compared = results.compared
    if not compared:
        return []
    errors = [_error(case) for case in compared]
    limit = FAIR if results.max_error is None else results.max_error
    failed = sum(case.failure is not None for case in results.cases)
    inside = sum(abs(error) <= limit for error in errors)
    inside_intervals = [case.inside for case in compared if case.inside is not None]
    intervals = (
        [(f"{sum(inside_intervals)} of {len(inside_intervals)}", "measured inside the prediction's 90 % interval")]
        if inside_intervals
        else []
    )
    return [
        (f"{len(compared)} of {len(results.cases)}", "scenarios compared" + (f", {failed} failed" if failed else "")),
        (percent(median(map(abs, errors))), "error at the median, in either direction"),
        (signed_percent(median(errors)), "error at the median with its sign; + predicts too slow"),
        (f"{inside} of {len(compared)}", f"within {percent(limit)}" + (", the allowed error" if results.max_error else "")),
        *intervals,
    ]


def family_name(family: str) -> str:
    """'data parallel' from 'data_parallel'."""
    return spaced(family) or "unnamed family"


def spaced(name: str) -> str:
    """'exposed communication' from 'exposed_communication'."""
    return name.replace("_", " ")


def cause_words(cause: str) -> str:
    """'waiting for the slowest device' from the entry `slowest_rank` of a breakdown."""
    return _CAUSES.get(cause, spaced(cause))


def ranks_text(case: Case) -> str:
    """'4', or '4 + 2 servers' where some ranks do not train."""
    servers = case.ranks - case.compute_ranks
    if servers <= 0:
        return str(case.ranks or NOTHING)
    return f"{case.compute_ranks} + {servers} server{'s' if servers > 1 else ''}"


def when(created: str) -> str:
    """'2026-01-31 12:00 UTC' from an ISO date and time; other text as it is."""
    try:
        moment = datetime.fromisoformat(created)
    except ValueError:
        return created
    return f"{moment:%Y-%m-%d %H:%M} {moment:%Z}".strip()


def signed_milliseconds(seconds: float | None) -> str:
    """Milliseconds with a plus sign above zero."""
    return ("+" if seconds is not None and seconds > 0 else "") + milliseconds(seconds)


def milliseconds(seconds: float | None) -> str:
    """Three significant digits from 1 ms on, without the unit: '123', '45.6', '7.89', '0.123'."""
    if seconds is None:
        return NOTHING
    value = seconds * 1e3
    size = abs(value)
    digits = 0 if size >= 99.95 else 1 if size >= 9.995 else 2 if size >= 0.9995 or size < 0.0005 else 3
    return f"{value:,.{digits}f}".replace("-", "−")


def time_unit(longest_s: float) -> tuple[str, float]:
    """The unit of an axis that ends at some time, and the number of units in a second: milliseconds up to ten seconds."""
    return ("ms", 1e3) if longest_s < _LONG_S else ("s", 1.0)


def rate(per_second: float | None) -> str:
    """Three significant digits or all before the point: '1,234', '56.7'."""
    if per_second is None:
        return NOTHING
    digits = 0 if per_second >= 99.95 else 1 if per_second >= 9.995 else 2
    return f"{per_second:,.{digits}f}"


def compact(amount: float) -> str:
    """Three significant digits: '308k' from 308,351, '1.13M'; as `rate` below ten thousand."""
    for size, prefix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if amount >= size * (1 - 5e-4):
            scaled = amount / (size if prefix != "k" else 1e3)
            digits = 0 if scaled >= 99.95 else 1 if scaled >= 9.995 else 2
            return f"{scaled:,.{digits}f}{prefix}"
    return rate(amount)


def compact_range(low: float, high: float) -> str:
    """'261–364k': a common prefix is written once."""
    first, last = compact(low), compact(high)
    return f"{first[:-1] if first[-1].isalpha() and first[-1] == last[-1] else first}–{last}"


def ratio(value: float) -> str:
    """'3.99x'."""
    return f"{value:.3g}x"


def percent(share: float) -> str:
    """'6.2 %' below ten, '14 %' from there; whole numbers without decimals."""
    value = share * 100
    text = f"{value:.1f}" if abs(value) < 9.95 else f"{value:.0f}"
    return f"{text.removesuffix('.0')}{_SPACE}%".replace("-", "−")


def percent_range(low: float, high: float) -> str:
    """'10–39 %'."""
    first, last = percent(low), percent(high)
    return last if first == last else f"{first.removesuffix(f'{_SPACE}%')}–{last}"


def signed_percent(share: float | None) -> str:
    """The same with its sign: '+4.1 %', '−14 %'; a dash for none."""
    if share is None:
        return NOTHING
    return ("+" if share > 0 else "") + percent(share)
