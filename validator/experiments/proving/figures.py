"""Figures: how far predictions were from what was measured, how many intervals held, and whether the best was the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from scaleproof.validator.experiments.proving.cases import Compute
from scaleproof.validator.record.provenance import NOTICED_LOAD

# A predicted best that is so little slower than the measured best is as good.
_AS_GOOD: Final = 0.03
# A run is disturbed when this machine's host gave more than this share of the time in which there was work to others, or when
# other work took more of the cores than runs are trusted with.
DISTURBED: Final = 0.05


@dataclass(frozen=True)
class CaseOutcome:
    """One case as it came out. low_s, high_s: the 90 % interval of the prediction. taken: share of the working cores' time
    that the machine's host took while it ran. foreign: share of the cores that other work of this machine took. measured_s:
    None where measuring failed; failure then says why."""

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

    @property
    def error(self) -> float | None:
        """(predicted − measured) / measured step time."""
        return None if self.measured_s is None else (self.predicted_s - self.measured_s) / self.measured_s

    @property
    def disturbance(self) -> float:
        """What others took, in units of what a run bears."""
        return max(self.taken / DISTURBED, self.foreign / NOTICED_LOAD)

    @property
    def is_disturbed(self) -> bool:
        return self.measured_s is not None and self.disturbance > 1

    @property
    def inside(self) -> bool | None:
        return None if self.measured_s is None else self.low_s <= self.measured_s <= self.high_s


def figures(outcomes: Sequence[CaseOutcome]) -> dict[str, Any]:
    """Of paced and real cases apart, and of the groups: as plain data for JSON. undisturbed: of those cases alone whose runs
    others did not disturb."""
    quiet = [one for one in outcomes if not one.is_disturbed]
    return _by_compute(outcomes) | {"ranking": ranking(outcomes), "undisturbed": _by_compute(quiet)}


def _by_compute(outcomes: Sequence[CaseOutcome]) -> dict[str, Any]:
    kinds: tuple[Compute, ...] = ("paced", "real")
    return {kind: _errors([one for one in outcomes if one.compute == kind]) for kind in kinds}


def _errors(outcomes: Sequence[CaseOutcome]) -> dict[str, Any]:
    """cases: that could be measured. median, p90: of absolute relative errors. coverage90: share of measured step times inside
    their 90 % intervals. None without cases."""
    errors = [abs(one.error) for one in outcomes if one.error is not None]
    inside = [one.inside for one in outcomes if one.inside is not None]
    if not errors:
        return {"cases": 0, "median": None, "p90": None, "coverage90": None}
    return {
        "cases": len(errors),
        "median": float(np.median(errors)),
        "p90": float(np.quantile(errors, 0.9)),
        "coverage90": float(np.mean(inside)),
    }


def ranking(outcomes: Sequence[CaseOutcome]) -> dict[str, int]:
    """groups: of which at least two cases could be measured. best_right_or_within_3pct: those whose predicted best is the
    measured best, or at most 3 % slower."""
    groups: dict[str, list[CaseOutcome]] = {}
    for one in outcomes:
        if one.measured_s is not None:
            groups.setdefault(one.group, []).append(one)
    told = [group for group in groups.values() if len(group) > 1]
    return {"groups": len(told), "best_right_or_within_3pct": sum(map(_is_right, told))}


def _is_right(group: Sequence[CaseOutcome]) -> bool:
    chosen = min(group, key=lambda one: one.predicted_s)
    best_s = min(one.measured_s for one in group if one.measured_s is not None)
    assert chosen.measured_s is not None
    return chosen.measured_s <= best_s * (1 + _AS_GOOD)


def by_family(outcomes: Sequence[CaseOutcome]) -> Mapping[str, tuple[int, float, float]]:
    """Cases, median error with its sign and largest error of each family, the worst median first."""
    found: dict[str, list[float]] = {}
    for one in outcomes:
        if one.error is not None:
            found.setdefault(one.family, []).append(one.error)
    rows = {name: (len(errors), float(np.median(errors)), max(errors, key=abs)) for name, errors in found.items()}
    return dict(sorted(rows.items(), key=lambda item: -abs(item[1][1])))
