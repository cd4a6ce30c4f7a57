"""Figures of the proof: errors of predictions, coverage of intervals, and whether the predicted best strategy was the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from scaleproof.proof.proving.models import Compute
from scaleproof.validator.record.provenance import NOTICED_LOAD

# Part of a case by which errors are listed: its strategy, model or network.
Part = Literal["family", "model", "network"]
# A predicted best counts as right if it is slower than the measured best by at most this share.
_AS_GOOD: Final = 0.03
# A run is disturbed if the virtual machine's host took more than this share of its busy time, or if other work used more of the
# cores than NOTICED_LOAD.
DISTURBED: Final = 0.05


@dataclass(frozen=True)
class CaseOutcome:
    """Outcome of a case. low_s, high_s: 90 % prediction interval. taken: share of the busy cores' time that the machine's host
    took during the run. foreign: share of the cores used by other work. measured_s: None if measuring failed; failure then
    gives the reason. trained_wrongly: whether parameters differ from those of one process by more than rounding explains.
    model, network: families of both."""

    name: str
    group: str
    family: str
    compute: Compute
    hosts: int
    predicted_s: float
    low_s: float
    high_s: float
    measured_s: float | None
    taken: float = 0.0
    foreign: float = 0.0
    failure: str = ""
    trained_wrongly: bool = False
    model: str = ""
    network: str = ""

    @property
    def error(self) -> float | None:
        """(predicted − measured) / measured step time."""
        return None if self.measured_s is None else (self.predicted_s - self.measured_s) / self.measured_s

    @property
    def disturbance(self) -> float:
        """What others took, relative to what a run tolerates."""
        return max(self.taken / DISTURBED, self.foreign / NOTICED_LOAD)

    @property
    def is_disturbed(self) -> bool:
        """Whether other work on the machine disturbed the measurement."""
        return self.measured_s is not None and self.disturbance > 1

    @property
    def inside(self) -> bool | None:
        """Whether the measurement is inside the prediction interval; None without a measurement."""
        return None if self.measured_s is None else self.low_s <= self.measured_s <= self.high_s


def figures(outcomes: Sequence[CaseOutcome]) -> dict[str, Any]:
    """Figures as data for JSON, separately for emulated and real compute, and for groups. undisturbed: only of undisturbed
    runs."""
    quiet = [outcome for outcome in outcomes if not outcome.is_disturbed]
    return _by_compute(outcomes) | {"ranking": ranking(outcomes), "undisturbed": _by_compute(quiet)}


def _by_compute(outcomes: Sequence[CaseOutcome]) -> dict[str, Any]:
    kinds: tuple[Compute, ...] = ("paced", "real")
    return {kind: _errors([outcome for outcome in outcomes if outcome.compute == kind]) for kind in kinds}


def _errors(outcomes: Sequence[CaseOutcome]) -> dict[str, Any]:
    """Errors of the measured cases. median, p90: of absolute relative errors. coverage90: share of measured step times in their
    90 % intervals. None without cases."""
    errors = [abs(outcome.error) for outcome in outcomes if outcome.error is not None]
    inside = [outcome.inside for outcome in outcomes if outcome.inside is not None]
    if not errors:
        return {"cases": 0, "median": None, "p90": None, "coverage90": None}
    return {
        "cases": len(errors),
        "median": float(np.median(errors)),
        "p90": float(np.quantile(errors, 0.9)),
        "coverage90": float(np.mean(inside)),
    }


def ranking(outcomes: Sequence[CaseOutcome]) -> dict[str, int]:
    """groups: number with at least two measured cases. best_right_or_within_3pct: number whose predicted best is the measured
    best, or at most 3 % slower."""
    groups: dict[str, list[CaseOutcome]] = {}
    for outcome in outcomes:
        if outcome.measured_s is not None:
            groups.setdefault(outcome.group, []).append(outcome)
    ranked = [group for group in groups.values() if len(group) > 1]
    return {"groups": len(ranked), "best_right_or_within_3pct": sum(map(_is_right, ranked))}


def _is_right(group: Sequence[CaseOutcome]) -> bool:
    chosen = min(group, key=lambda outcome: outcome.predicted_s)
    best_s = min(outcome.measured_s for outcome in group if outcome.measured_s is not None)
    assert chosen.measured_s is not None
    # not a bool of numpy, of which a sum is no number for JSON
    return bool(chosen.measured_s <= best_s * (1 + _AS_GOOD))


def by_part(outcomes: Sequence[CaseOutcome], part: Part = "family") -> Mapping[str, tuple[int, float, float]]:
    """Number of cases, signed median error and largest error of each family of strategies, models or networks, largest median
    first."""
    errors_of: dict[str, list[float]] = {}
    for outcome in outcomes:
        if outcome.error is not None:
            errors_of.setdefault(getattr(outcome, part), []).append(outcome.error)
    rows = {name: (len(errors), float(np.median(errors)), max(errors, key=abs)) for name, errors in errors_of.items()}
    return dict(sorted(rows.items(), key=lambda item: -abs(item[1][1])))
