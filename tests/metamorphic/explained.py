"""Relations that hold within a wider bound for some scenarios, each with the reason.

A scenario that violates a relation and is not of a kind listed here is a fault.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from tests.metamorphic.drawn import Fields


class Explained(NamedTuple):
    """A kind of scenario for which a relation holds within `bound`, and why."""

    relation: str
    concerns: Callable[[Fields], bool]
    bound: float
    reason: str


def _is_asynchronous(fields: Fields) -> bool:
    strategy = fields["strategy"]
    return strategy.get("mode") in ("asynchronous", "stale_synchronous") and strategy.get("bound") != 0


def _is_of_few_asynchronous(fields: Fields) -> bool:
    return _is_asynchronous(fields) and fields["strategy"].get("workers", 1) <= 4


EXPLAINED: Final = (
    Explained(
        "more of a resource",
        _is_asynchronous,
        0.01,
        "the step time of asynchronous workers is a mean over phases, of which some are drawn",
    ),
    Explained(
        "more of a resource",
        _is_of_few_asynchronous,
        0.025,
        "steps of few workers last up to half longer in some cycles than in others (pulls and pushes overlap or not), and one "
        "of the twenty phases that selects another cycle changes the mean by a twentieth of that",
    ),
)


def bound(relation: str, fields: Fields, usual: float) -> float:
    """The largest relative violation of a relation that is accepted for a scenario; `usual` where nothing explains more."""
    return max((one.bound for one in EXPLAINED if one.relation == relation and one.concerns(fields)), default=usual)
