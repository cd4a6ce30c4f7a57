"""Expert imbalance: tokens of the experts of the most loaded rank, by the distribution of tokens over experts."""

from __future__ import annotations

import functools
from typing import Annotated, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Discriminator, Field, Tag

from scaleproof.simulator.common.spec import Spec

# Number of draws from a fixed seed; the mean load of the most loaded rank is accurate to about 1 %.
_DRAWS: Final = 2048
_SEED: Final = 20_241_227

Shares = NDArray[np.float64]


class Zipf(Spec):
    """The i-th most popular expert gets a share proportional to i^−exponent; experts are placed on ranks in random order."""

    kind: Literal["zipf"] = "zipf"
    exponent: float = Field(ge=0, le=10)


class Dirichlet(Spec):
    """Shares are drawn from a symmetric Dirichlet distribution: the smaller the concentration, the more unequal."""

    kind: Literal["dirichlet"] = "dirichlet"
    concentration: float = Field(gt=0, le=1e6)


class Multinomial(Spec):
    """Every token goes to uniformly drawn experts, so that loads differ by chance. tokens: of all ranks in a microbatch."""

    kind: Literal["multinomial"] = "multinomial"
    tokens: int = Field(ge=1, le=10**9)


def _kind(value: Any) -> Any:
    return value.get("kind") if isinstance(value, dict) else getattr(value, "kind", "number")


Distribution = Zipf | Dirichlet | Multinomial
Imbalance = Annotated[
    Annotated[float, Field(ge=1, le=1e3), Tag("number")]
    | Annotated[Zipf, Tag("zipf")]
    | Annotated[Dirichlet, Tag("dirichlet")]
    | Annotated[Multinomial, Tag("multinomial")],
    Discriminator(_kind),
]


@functools.lru_cache(maxsize=1024)
def fullest_loads(distribution: Distribution, count: int, active: int, ranks: int) -> tuple[float, ...]:
    """Expected loads of the experts of the most loaded rank, the most loaded expert first. A load is an expert's tokens over
    the mean of all `count` experts; their mean is the rank's load over the mean rank's, E[max over ranks of Σ p_e] · ranks.

    In each draw of shares p, the rank with the largest sum is selected and its experts are sorted; loads are means over all
    draws.
    """
    shares = _shares(distribution, count, active).reshape(_DRAWS, ranks, count // ranks)
    fullest = shares.sum(axis=2).argmax(axis=1)
    own = np.sort(shares[np.arange(_DRAWS), fullest], axis=1)[:, ::-1]
    loads: list[float] = (count * own.mean(axis=0)).tolist()
    return tuple(loads)


@functools.lru_cache(maxsize=16)
def _shares(distribution: Distribution, count: int, active: int) -> Shares:
    """Each expert's share of all (token, expert) assignments, shape (draws, experts)."""
    random = np.random.default_rng(_SEED)
    if isinstance(distribution, Zipf):
        popularity = np.arange(1, count + 1, dtype=np.float64) ** -distribution.exponent
        shares = random.permuted(np.tile(popularity, (_DRAWS, 1)), axis=1)
    elif isinstance(distribution, Dirichlet):
        # independent gamma variates over their sum; variates that underflow to zero get a negligible share
        shares = np.maximum(random.standard_gamma(distribution.concentration, (_DRAWS, count)), np.finfo(np.float64).tiny)
    else:
        shares = random.multinomial(distribution.tokens * active, np.full(count, 1 / count), _DRAWS).astype(np.float64)
    return _limited(shares / shares.sum(axis=1, keepdims=True), active)


def _limited(shares: Shares, active: int) -> Shares:
    """The shares with at most 1 / `active` per expert, since a token goes to an expert once; the excess goes to the others."""
    limit = 1 / active
    for _ in range(active):
        full = shares >= limit
        rest = np.where(full, 0.0, shares).sum(axis=1, keepdims=True)
        left = 1 - limit * full.sum(axis=1, keepdims=True)
        shares = np.where(full, limit, shares * np.divide(left, rest, out=np.ones_like(rest), where=rest > 0))
    return np.minimum(shares, limit)
