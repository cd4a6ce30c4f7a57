"""The result of a claim: prediction and measurement, with its verdict, bounds and dates in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from scaleproof.proof.claims.claim import Bound, Claim, ClaimExperiment, Test
from scaleproof.proof.claims.evaluate import AxisPoint, ExperimentResult, evaluate, listed
from scaleproof.proof.claims.measured import ClaimRecord, read_all
from scaleproof.proof.claims.quantities import KINDS, ratio
from scaleproof.reports.text import verdict_words


@dataclass(frozen=True)
class Result:
    """A claim with its prediction and the record of its measurement, if any."""

    claim: Claim
    predicted: ExperimentResult
    record: ClaimRecord | None

    def __repr__(self) -> str:
        return f"{self.claim.claim}\n  {verdict(self.predicted)}"

    @cached_property
    def measured(self) -> ExperimentResult | None:
        """The measured result; None without a record, or if the claim has changed since."""
        return self.record.found(self.claim) if self.record else None

    @cached_property
    def foretold(self) -> ExperimentResult | None:
        """The prediction of the measured experiment."""
        return evaluate(self.claim, self.claim.netlab) if self.claim.netlab else None

    def plain(self) -> dict[str, Any]:
        """The result as data for JSON."""
        measured = None
        if self.record and self.measured and self.foretold:
            data = {"on": "netlab", "date": self.record.date, "machine": dict(self.record.machine)}
            measured = (
                data | _plain(self.measured) | {"predicted": _plain(self.foretold), "warnings": list(self.record.warnings)}
            )
        return {
            "name": self.claim.name,
            "claim": self.claim.claim,
            "because": self.claim.because.strip(),
            "source": self.claim.source,
            "predicted": _plain(self.predicted),
            "measured": measured,
        }


def results_of(claims: Sequence[Claim]) -> list[Result]:
    """Predictions of claims, with the records of their measurements next to the claims' files."""
    records = {folder: read_all(folder) for folder in {claim.path.parent for claim in claims}}
    return [Result(claim, evaluate(claim), records[claim.path.parent].get(claim.name)) for claim in claims]


def _plain(found: ExperimentResult) -> dict[str, Any]:
    experiment = found.experiment
    return {
        "verdict": found.verdict,
        "condition": found.condition,
        "quantity": {name: experiment.quantity_of(name) for name in experiment.lines},
        "frameworks": dict(found.frameworks),
        "axis": {"name": experiment.axis.name, "unit": experiment.axis.unit},
        "test": experiment.test.model_dump(exclude_none=True),
        "points": [_plain_point(point, experiment.test) for point in found.points],
        "borders": None if found.borders is None else list(found.borders),
    }


def _plain_point(point: AxisPoint, test: Test) -> dict[str, Any]:
    value = test.value(point.values)
    # JSON has no infinity
    return {
        "x": point.x,
        "values": dict(point.values),
        "tested": value if abs(value) < float("inf") else None,
        "says": point.says,
        "holds": point.holds,
    }


def verdict(found: ExperimentResult) -> str:
    """'Depends: true only for workers ≥ 8'."""
    words = verdict_words(found.verdict, found.condition)
    if len(found.telling) < len(found.points):
        scope = listed([found.experiment.axis.text(point.x) for point in found.telling])
        return f"{words}, tested at {found.experiment.axis.name} {scope}"
    return words


def day(date: str) -> str:
    """'22 November 2026'."""
    return f"{datetime.fromisoformat(date):%-d %B %Y}"


def bound(test: Bound, experiment: ClaimExperiment) -> str:
    """Text of a bound: 'ring at least 90 %'."""
    text = KINDS[experiment.quantity_of(test.of)].text if test.against is None else ratio
    limits = [f"at least {text(test.at_least)}" if test.at_least is not None else ""]
    limits.append(f"at most {text(test.at_most)}" if test.at_most is not None else "")
    return f"{test.of} {' and '.join(filter(None, limits))}" + (f" that of {test.against}" if test.against else "")
