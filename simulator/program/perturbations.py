"""Unevenness: ranks that are slower or later than the rest, times that vary, and tenants who take a part of links.

What is constant about a link is the cluster's to say (`unlike`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Annotated, Final, Literal, Self

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from scaleproof.simulator.common.spec import Spec
from scaleproof.simulator.common.units import Seconds
from scaleproof.simulator.program.speed_profile import Cycle, Pace


def _listed(ranks: object) -> object:
    return (ranks,) if isinstance(ranks, int) else ranks


Ranks = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1, max_length=100_000), BeforeValidator(_listed)]
Jitter = Annotated[float, Field(ge=0, le=10)]
Place = tuple[str | int, ...]


class Straggler(Spec):
    """Ranks whose work takes `slowdown` times as long."""

    ranks: Ranks
    slowdown: float = Field(gt=0, le=1e6)


class LateStart(Spec):
    """Ranks that begin their first step after `delay`."""

    ranks: Ranks
    delay_s: Seconds = Field(alias="delay")


class Spells(Spec):
    """When something is so: from `after` on, for as long as `lasts` (for ever, if absent), again every `period` (once).

    phase: of what recurs; aligned, all whom it concerns have it at the same time; random, each at a time of its own.
    """

    after_s: Seconds = Field(0.0, alias="after")
    lasts_s: Seconds | None = Field(None, alias="lasts", gt=0)
    period_s: Seconds | None = Field(None, alias="period", gt=0)
    phase: Literal["aligned", "random"] = "aligned"

    @model_validator(mode="after")
    def _times_fit(self) -> Self:
        if self.period_s is not None and self.lasts_s is None:
            raise ValueError("period: goes with lasts; give for how much of each period it is so")
        if self.period_s is not None and self.lasts_s is not None and self.lasts_s >= self.period_s:
            raise ValueError("lasts: all of the period, or more; give less, or leave period out")
        if self.phase == "random" and self.period_s is None:
            raise ValueError("phase: only what recurs has a random one; give period and lasts, or leave phase out")
        return self

    def cycle(self, speed: float, phase: float) -> Cycle:
        """phase: the share of a period by which a random one is shifted."""
        shift_s = phase * (self.period_s or 0.0) if self.phase == "random" else 0.0
        return Cycle(self.period_s or math.inf, self.lasts_s or math.inf, self.after_s + shift_s, speed)


class SpellsOfRanks(Spells):
    """ranks: all, if absent."""

    ranks: Ranks | None = None


class Noise(SpellsOfRanks):
    """Every `period` ranks get nothing done for as long as `lasts`: what runs beside them on their cores takes it. phase:
    random, if absent."""

    lasts_s: Seconds = Field(alias="lasts", gt=0)
    period_s: Seconds = Field(alias="period", gt=0)
    phase: Literal["aligned", "random"] = "random"


class Throttled(SpellsOfRanks):
    """Ranks that grow hot: their work takes `slowdown` times as long in the spells in which they are."""

    slowdown: float = Field(ge=1, le=1e6)


class Tail(Spec):
    """A few times are much longer than the rest: of all steps of a rank (or passes, as `each` says) this `share`.

    They take a multiple of their time that is drawn from a Pareto distribution: at least `slowdown`, and more than x with a
    probability of (slowdown / x) ^ shape. The smaller the shape, the heavier the tail; from 1 down it has no mean.
    """

    share: float = Field(gt=0, le=1)
    slowdown: float = Field(ge=1, le=1e6)
    shape: float = Field(2.5, gt=1, le=100)
    each: Literal["step", "pass"] = "step"

    @property
    def mean(self) -> float:
        """How many times as long a time is on average."""
        return 1 + self.share * (self.slowdown * self.shape / (self.shape - 1) - 1)


class Tenant(Spells):
    """Somebody else's traffic on the links of nodes to the network, both ways: it takes this `share` of what they carry, or
    has as many `flows` there, each of which gets as much as a message of ours. nodes: all, if absent."""

    nodes: Ranks | None = None
    share: float | None = Field(None, gt=0, lt=1)
    flows: int | None = Field(None, gt=0, le=10_000)

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.share is None) == (self.flows is None):
            raise ValueError("give share or flows" + ("" if self.share is None else ", not both"))
        return self


class Perturbations(Spec):
    """Ranks are numbered through: worker by worker, in each its stages; servers come last.

    compute_jitter, message_jitter: relative standard deviation of every pass, and of every message or collective, drawn
    independently (lognormal) from `seed`. tail: of training ranks. Times of noise, throttled and tenants count from the
    beginning of the run; of several that a rank has each counts its own in what those named before leave, noise last.
    """

    stragglers: tuple[Straggler, ...] = ()
    late: tuple[LateStart, ...] = ()
    compute_jitter: Jitter = 0.0
    message_jitter: Jitter = 0.0
    noise: tuple[Noise, ...] = ()
    throttled: tuple[Throttled, ...] = ()
    tail: Tail | None = None
    tenants: tuple[Tenant, ...] = ()
    seed: int = Field(0, ge=0, lt=2**31)

    @property
    def is_random(self) -> bool:
        """Whether times are drawn anew for every step."""
        return self.compute_jitter > 0 or self.message_jitter > 0 or self.tail is not None

    @property
    def changes(self) -> bool:
        """Whether times follow from the clock."""
        return bool(self.spells())

    @property
    def wants_mean(self) -> bool:
        """Whether few steps may be much longer than the rest, so that only their mean tells how long a run takes."""
        return self.tail is not None or self.changes

    @property
    def parts_all(self) -> bool:
        """Whether no rank is like another."""
        paced: tuple[SpellsOfRanks, ...] = (*self.noise, *self.throttled)
        of_all = [one for one in paced if one.ranks is None]
        one_by_one = any(one.phase == "random" for one in (*of_all, *self.tenants))
        return self.is_random or one_by_one or any(tenant.nodes is not None for tenant in self.tenants)

    @property
    def constant(self) -> Perturbations:
        """What of it is the same at all times."""
        none = {"compute_jitter": 0.0, "message_jitter": 0.0, "noise": (), "throttled": (), "tail": None, "tenants": ()}
        return self.model_copy(update=none)

    def spells(self) -> list[tuple[Place, Spells]]:
        """What begins and ends by the clock, each with its field."""
        kinds = {"noise": self.noise, "throttled": self.throttled, "tenants": self.tenants}
        return [((name, i), one) for name, every in kinds.items() for i, one in enumerate(every)]

    def named_by_field(self) -> list[tuple[Place, tuple[int, ...]]]:
        """The ranks that are told apart from the rest, by the field that does."""
        kinds: dict[str, Sequence[Straggler | LateStart | SpellsOfRanks]] = {
            "stragglers": self.stragglers, "late": self.late, "noise": self.noise, "throttled": self.throttled,
        }  # fmt: skip
        told = [((name, i, "ranks"), one.ranks) for name, every in kinds.items() for i, one in enumerate(every)]
        return [(field, ranks) for field, ranks in told if ranks is not None]

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

    def pace(self, rank: int) -> Pace:
        """How fast a rank is as time passes."""
        cycles = []
        for kind, every in enumerate(self._paced):
            for i, one in enumerate(every):
                if one.ranks is None or rank in self._members[kind, i]:
                    speed = 1 / one.slowdown if isinstance(one, Throttled) else 0.0
                    cycles.append(one.cycle(speed, self.drawn_phase(kind, i, rank)))
        return tuple(cycles)

    def drawn_phase(self, *which: int) -> float:
        """Between 0 and 1; the same whenever it is asked for."""
        return float(np.random.default_rng([self.seed, *which]).random())

    @functools.cached_property
    def _members(self) -> dict[tuple[int, int], frozenset[int]]:
        return {(kind, i): frozenset(one.ranks or ()) for kind, every in enumerate(self._paced) for i, one in enumerate(every)}

    @property
    def _paced(self) -> tuple[Sequence[SpellsOfRanks], ...]:
        return self.throttled, self.noise

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


EVEN: Final = Perturbations()
