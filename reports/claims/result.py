"""Result: a claim with what is predicted and what was measured of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from scaleproof.reports.claims.claim import Claim, Test
from scaleproof.reports.claims.evaluate import AxisPoint, ExperimentResult, evaluate
from scaleproof.reports.claims.measured import Record


@dataclass(frozen=True)
class Result:
    """predicted: of the claim itself. record: what was measured of it, if that was."""

    claim: Claim
    predicted: ExperimentResult
    record: Record | None

    @cached_property
    def measured(self) -> ExperimentResult | None:
        """What was measured comes to; None where nothing was, or of a claim that has changed since."""
        return self.record.found(self.claim) if self.record else None

    @cached_property
    def foretold(self) -> ExperimentResult | None:
        """What is predicted of what is measured."""
        return evaluate(self.claim, self.claim.netlab) if self.claim.netlab else None

    def plain(self) -> dict[str, Any]:
        """As data for JSON."""
        measured = None
        if self.record and self.measured and self.foretold:
            told = {"on": "netlab", "date": self.record.date, "machine": dict(self.record.machine)}
            measured = (
                told | _plain(self.measured) | {"predicted": _plain(self.foretold), "warnings": list(self.record.warnings)}
            )
        return {
            "name": self.claim.name,
            "claim": self.claim.claim,
            "because": self.claim.because.strip(),
            "predicted": _plain(self.predicted),
            "measured": measured,
        }


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
