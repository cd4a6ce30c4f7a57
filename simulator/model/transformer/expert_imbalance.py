"""Imbalance: how many tokens the experts of the fullest rank get, by the distribution of tokens over experts."""

from __future__ import annotations

import functools
from typing import Annotated, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Discriminator, Field, Tag

from scaleproof.simulator.common.spec import Spec

# Draws of which means are taken, from a fixed seed: the fullest rank's mean load comes out within about 1 %.
_DRAWS: Final = 2048
_SEED: Final = 20_241_227

Shares = NDArray[np.float64]


class Zipf(Spec):
    """The i-th most popular expert gets a share proportional to i^−exponent; experts lie on ranks in random order."""

    kind: Literal["zipf"] = "zipf"
    exponent: float = Field(ge=0, le=10)


class Dirichlet(Spec):
    """Shares are drawn from a symmetric Dirichlet distribution: the smaller the concentration, the more unequal."""

    kind: Literal["dirichlet"] = "dirichlet"
    concentration: float = Field(gt=0, le=1e6)


class Multinomial(Spec):
    """Every token goes to experts that are drawn evenly, so that loads differ by chance. tokens: of all ranks at a time."""

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
    """Expected loads of the experts of the rank with the most tokens, the fullest expert first: tokens over the mean of all
    `count` experts. Their mean is the rank's load over the mean rank's, E[max over ranks of Σ p_e] · ranks.

    Of each draw of shares p the rank with the largest sum is taken, and its experts sorted; loads are means over all draws.
    """
    shares = _shares(distribution, count, active).reshape(_DRAWS, ranks, count // ranks)
    fullest = shares.sum(axis=2).argmax(axis=1)
    own = np.sort(shares[np.arange(_DRAWS), fullest], axis=1)[:, ::-1]
    loads: list[float] = (count * own.mean(axis=0)).tolist()
    return tuple(loads)


@functools.lru_cache(maxsize=16)
def _shares(distribution: Distribution, count: int, active: int) -> Shares:
    """Shares of all tokens' choices that each expert gets, shape (draws, experts)."""
    random = np.random.default_rng(_SEED)
    if isinstance(distribution, Zipf):
        popularity = np.arange(1, count + 1, dtype=np.float64) ** -distribution.exponent
        shares = random.permuted(np.tile(popularity, (_DRAWS, 1)), axis=1)
    elif isinstance(distribution, Dirichlet):
        # independent gamma variates over their sum; what is too small to be told from zero gets next to nothing
        shares = np.maximum(random.standard_gamma(distribution.concentration, (_DRAWS, count)), np.finfo(np.float64).tiny)
    else:
        shares = random.multinomial(distribution.tokens * active, np.full(count, 1 / count), _DRAWS).astype(np.float64)
    return _limited(shares / shares.sum(axis=1, keepdims=True), active)


def _limited(shares: Shares, active: int) -> Shares:
    """The shares where no expert gets a token twice: at most 1 / `active` each, what is beyond going to the others."""
    most = 1 / active
    for _ in range(active):
        full = shares >= most
        rest = np.where(full, 0.0, shares).sum(axis=1, keepdims=True)
        left = 1 - most * full.sum(axis=1, keepdims=True)
        shares = np.where(full, most, shares * np.divide(left, rest, out=np.ones_like(rest), where=rest > 0))
    return np.minimum(shares, most)
