"""Perturbations: ranks that are slower or later than others, random durations, and background traffic on links.

Permanent differences between links are fields of the cluster (link.exceptions).
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal, Self

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from scaleproof.simulator.common.spec import Spec
from scaleproof.simulator.common.speed_profile import Cycle, Pace
from scaleproof.simulator.common.units import Seconds


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
    """Ranks that start their first step after `delay`."""

    ranks: Ranks
    delay_s: Seconds = Field(alias="delay")


class Spells(Spec):
    """Intervals of time: from `after` on, each `lasts` long (unlimited if absent), repeated every `period` (once if absent).

    phase: of recurring intervals; aligned: the same for all ranks or nodes; random: drawn for each of them.
    """

    after_s: Seconds = Field(0.0, alias="after")
    lasts_s: Seconds | None = Field(None, alias="lasts", gt=0)
    period_s: Seconds | None = Field(None, alias="period", gt=0)
    phase: Literal["aligned", "random"] = "aligned"

    @model_validator(mode="after")
    def _times_fit(self) -> Self:
        if self.period_s is not None and self.lasts_s is None:
            raise ValueError("period: needs lasts; give lasts, the length of the interval in each period")
        if self.period_s is not None and self.lasts_s is not None and self.lasts_s >= self.period_s:
            raise ValueError("lasts: must be shorter than period; give a shorter time, or leave period out")
        if self.phase == "random" and self.period_s is None:
            raise ValueError("phase: random needs an interval that recurs; give period and lasts, or leave phase out")
        return self

    def cycle(self, speed: float, phase: float) -> Cycle:
        """The intervals as a Cycle with the given speed. phase: shift of a random phase, as a share of the period."""
        shift_s = phase * (self.period_s or 0.0) if self.phase == "random" else 0.0
        return Cycle(self.period_s or math.inf, self.lasts_s or math.inf, self.after_s + shift_s, speed)


class SpellsOfRanks(Spells):
    """Intervals that concern some ranks. ranks: all if absent."""

    ranks: Ranks | None = None

    @functools.cached_property
    def _members(self) -> frozenset[int]:
        return frozenset(self.ranks or ())

    def concerns(self, rank: int) -> bool:
        """Whether the intervals are those of a rank."""
        return self.ranks is None or rank in self._members


class Noise(SpellsOfRanks):
    """Ranks make no progress for `lasts` in every `period`, because other work runs on their cores. phase: random if absent."""

    lasts_s: Seconds = Field(alias="lasts", gt=0)
    period_s: Seconds = Field(alias="period", gt=0)
    phase: Literal["aligned", "random"] = "random"


class Throttled(SpellsOfRanks):
    """Thermal throttling: ranks whose work takes `slowdown` times as long during the intervals."""

    slowdown: float = Field(ge=1, le=1e6)


class Tail(Spec):
    """A heavy tail of durations: a `share` of all steps of a rank (or passes, see `each`) is much longer.

    Their time is multiplied by a factor from a Pareto distribution: at least `slowdown`, and more than x with probability
    (slowdown / x) ^ shape. A smaller shape has a heavier tail; at 1 and below the mean is infinite.
    """

    share: float = Field(gt=0, le=1)
    slowdown: float = Field(ge=1, le=1e6)
    shape: float = Field(2.5, gt=1, le=100)
    each: Literal["step", "pass"] = "step"

    @property
    def mean(self) -> float:
        """Mean factor on a duration."""
        return 1 + self.share * (self.slowdown * self.shape / (self.shape - 1) - 1)


class Tenant(Spells):
    """Background traffic on the links between nodes and the network, in both directions: it occupies a `share` of their
    capacity, or consists of `flows` flows, each with the same weight as one of our messages. nodes: all if absent."""

    nodes: Ranks | None = None
    share: float | None = Field(None, gt=0, lt=1)
    flows: int | None = Field(None, gt=0, le=10_000)

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.share is None) == (self.flows is None):
            raise ValueError("give share or flows" + ("" if self.share is None else ", not both"))
        return self


class Perturbations(Spec):
    """Stragglers, late starts, jitter, noise, throttling, tails and background traffic.

    Ranks are numbered worker by worker, and within a worker stage by stage; servers come last. compute_jitter, message_jitter:
    relative standard deviation of every pass, and of every message or collective; independent lognormal draws from `seed`.
    tail: of training ranks. Times of noise, throttling and background traffic count from the start of the run. Where several
    apply to a rank, the clock of each advances only with the work that those listed before it let through; noise comes last.
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
        """Whether durations are drawn anew in every step."""
        return self.compute_jitter > 0 or self.message_jitter > 0 or self.tail is not None

    @property
    def changes(self) -> bool:
        """Whether durations depend on the time of the run."""
        return bool(self.spells())

    @property
    def wants_mean(self) -> bool:
        """Whether a few steps may be much longer than others, so that only their mean predicts the duration of a run."""
        return self.tail is not None or self.changes

    @property
    def separates_all_ranks(self) -> bool:
        """Whether no two ranks are equivalent."""
        timed: tuple[SpellsOfRanks, ...] = (*self.noise, *self.throttled)
        of_all = [one for one in timed if one.ranks is None]
        one_by_one = any(one.phase == "random" for one in (*of_all, *self.tenants))
        return self.is_random or one_by_one or any(tenant.nodes is not None for tenant in self.tenants)

    @property
    def constant(self) -> Perturbations:
        """The perturbations that do not change with time."""
        none = {"compute_jitter": 0.0, "message_jitter": 0.0, "noise": (), "throttled": (), "tail": None, "tenants": ()}
        return self.model_copy(update=none)

    def spells(self) -> list[tuple[Place, Spells]]:
        """Fields that begin and end by the clock, each with its path in the scenario."""
        lists = {"noise": self.noise, "throttled": self.throttled, "tenants": self.tenants}
        return [((name, i), one) for name, rules in lists.items() for i, one in enumerate(rules)]

    def named_by_field(self) -> list[tuple[Place, tuple[int, ...]]]:
        """Ranks that are distinguished from others, with the path of the field that names them."""
        lists: dict[str, Sequence[Straggler | LateStart | SpellsOfRanks]] = {
            "stragglers": self.stragglers, "late": self.late, "noise": self.noise, "throttled": self.throttled,
        }  # fmt: skip
        by_field = [((name, i, "ranks"), one.ranks) for name, rules in lists.items() for i, one in enumerate(rules)]
        return [(field, ranks) for field, ranks in by_field if ranks is not None]

    @property
    def named(self) -> set[int]:
        """Ranks that are distinguished from others."""
        return {rank for _, ranks in self.named_by_field() for rank in ranks}

    def slowdown(self, rank: int) -> float:
        """Factor on the durations of a rank's work; several entries for one rank multiply."""
        return self._slowdowns.get(rank, 1.0)

    def late_s(self, rank: int) -> float:
        """Seconds after which a rank starts its first step."""
        return self._delays_s.get(rank, 0.0)

    def pace(self, rank: int) -> Pace:
        """Speed profile of a rank."""
        cycles = []
        for kind, rules in enumerate((self.throttled, self.noise)):
            for i, one in enumerate(rules):
                if one.concerns(rank):
                    speed = 1 / one.slowdown if isinstance(one, Throttled) else 0.0
                    cycles.append(one.cycle(speed, self.drawn_phase(kind, i, rank)))
        return tuple(cycles)

    def drawn_phase(self, *numbers: int) -> float:
        """A number between 0 and 1 that depends on the seed and `numbers` alone."""
        return float(np.random.default_rng([self.seed, *numbers]).random())

    @functools.cached_property
    def _slowdowns(self) -> Mapping[int, float]:
        slowdowns: defaultdict[int, float] = defaultdict(lambda: 1.0)
        for straggler in self.stragglers:
            for rank in set(straggler.ranks):
                slowdowns[rank] *= straggler.slowdown
        return slowdowns

    @functools.cached_property
    def _delays_s(self) -> Mapping[int, float]:
        delays_s: defaultdict[int, float] = defaultdict(float)
        for late in self.late:
            for rank in set(late.ranks):
                delays_s[rank] += late.delay_s
        return delays_s


EVEN: Final = Perturbations()
