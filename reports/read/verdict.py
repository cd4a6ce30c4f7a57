"""Grades of predictions by their error against the measurement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from scaleproof.reports.read.results import Case
from scaleproof.reports.text import percent

CLOSE: Final = 0.10
FAIR: Final = 0.25


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
    if case.disturbed:
        return Verdict("missing", "○", "disturbed, not counted")
    error = abs(case.error)
    if max_error is not None and error > max_error:
        return Verdict("off", "■", f"over the {percent(max_error)} allowed")
    if error <= CLOSE:
        return Verdict("close", "●", f"within {percent(CLOSE)}")
    if error <= FAIR:
        return Verdict("fair", "▲", f"within {percent(FAIR)}")
    return Verdict("off", "■", f"beyond {percent(FAIR)}")
