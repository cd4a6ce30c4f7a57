"""Verdicts of claims, bounds and dates in words."""

from __future__ import annotations

from datetime import datetime

from scaleproof.reports.claims.claim import Bound, Experiment
from scaleproof.reports.claims.evaluate import ExperimentResult, listed
from scaleproof.reports.claims.quantities import KINDS, ratio


def verdict(found: ExperimentResult) -> str:
    """'holds when workers ≥ 8'."""
    condition = found.condition
    if len(found.telling) < len(found.points):
        scope = listed([found.experiment.axis.text(point.x) for point in found.telling])
        return f"{found.verdict} {condition}".strip() + f", tested at {found.experiment.axis.name} {scope}"
    return f"{found.verdict} {condition}".strip()


def day(date: str) -> str:
    """'22 November 2026'."""
    return f"{datetime.fromisoformat(date):%-d %B %Y}"


def bound(test: Bound, experiment: Experiment) -> str:
    """Text of a bound: 'ring at least 90 %'."""
    text = KINDS[experiment.quantity_of(test.of)].text if test.against is None else ratio
    limits = [f"at least {text(test.at_least)}" if test.at_least is not None else ""]
    limits.append(f"at most {text(test.at_most)}" if test.at_most is not None else "")
    return f"{test.of} {' and '.join(filter(None, limits))}" + (f" that of {test.against}" if test.against else "")
