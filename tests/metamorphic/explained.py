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


EXPLAINED: Final = (
    Explained(
        "more of a resource",
        _is_asynchronous,
        0.01,
        "the step time of asynchronous workers is a mean over phases, of which some are drawn",
    ),
)


def bound(relation: str, fields: Fields, usual: float) -> float:
    """The largest relative violation of a relation that is accepted for a scenario; `usual` where nothing explains more."""
    return max((one.bound for one in EXPLAINED if one.relation == relation and one.concerns(fields)), default=usual)
