"""Unevenness: ranks that are slower or later than the rest, and times that vary. Slow links are the cluster's `unlike`."""

from __future__ import annotations

import functools
from typing import Annotated, Final

from pydantic import BeforeValidator, Field

from simulator.spec import Spec
from simulator.units import Seconds


def _listed(ranks: object) -> object:
    return (ranks,) if isinstance(ranks, int) else ranks


Ranks = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1, max_length=100_000), BeforeValidator(_listed)]
Jitter = Annotated[float, Field(ge=0, le=10)]


class Straggler(Spec):
    """Ranks whose work takes `slowdown` times as long."""

    ranks: Ranks
    slowdown: float = Field(gt=0, le=1e6)


class LateStart(Spec):
    """Ranks that begin their first step after `delay`."""

    ranks: Ranks
    delay_s: Seconds = Field(alias="delay")


class Unevenness(Spec):
    """Ranks are numbered through: worker by worker, in each its stages; servers come last.

    compute_jitter, message_jitter: relative standard deviation of every pass, and of every message or collective, drawn
    independently (lognormal) from `seed`.
    """

    stragglers: tuple[Straggler, ...] = ()
    late: tuple[LateStart, ...] = ()
    compute_jitter: Jitter = 0.0
    message_jitter: Jitter = 0.0
    seed: int = Field(0, ge=0, lt=2**31)

    @property
    def is_random(self) -> bool:
        return self.compute_jitter > 0 or self.message_jitter > 0

    def named_by_field(self) -> list[tuple[tuple[str | int, ...], tuple[int, ...]]]:
        """The ranks that are told apart from the rest, by the field that does."""
        slow = [(("stragglers", i, "ranks"), straggler.ranks) for i, straggler in enumerate(self.stragglers)]
        return [*slow, *((("late", i, "ranks"), late.ranks) for i, late in enumerate(self.late))]

    @property
    def named(self) -> set[int]:
        """Ranks that are told apart from the rest."""
        return {rank for _, ranks in self.named_by_field() for rank in ranks}

    def slowdown(self, rank: int) -> float:
        """How many times as long the work of a rank takes; what is said several times multiplies."""
        return self._slowdowns.get(rank, 1.0)

    def late_s(self, rank: int) -> float:
        """When a rank begins."""
        return self._delays_s.get(rank, 0.0)

    @functools.cached_property
    def _slowdowns(self) -> dict[int, float]:
        found: dict[int, float] = {}
        for straggler in self.stragglers:
            for rank in set(straggler.ranks):
                found[rank] = found.get(rank, 1.0) * straggler.slowdown
        return found

    @functools.cached_property
    def _delays_s(self) -> dict[int, float]:
        found: dict[int, float] = {}
        for late in self.late:
            for rank in set(late.ranks):
                found[rank] = found.get(rank, 0.0) + late.delay_s
        return found


EVEN: Final = Unevenness()
