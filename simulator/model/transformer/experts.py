"""Mixtures of experts: their description, how tokens are distributed over experts, and one rank's share of a layer."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Discriminator, Field, Tag, model_validator

from scaleproof.simulator.common.spec import Count, Spec, Width
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import Exchange, Matmul, MemoryBound, Operator, Routed, SavedActivation
from scaleproof.simulator.model.transformer.layer_parts import (
    Activation,
    ActivationStream,
    activation_function,
    activation_inputs,
)

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


# What keeps the loads of experts similar in training: an auxiliary loss, or biases of the router (DeepSeek-V3).
Balancing = Literal["auxiliary_loss", "bias"]


def _kind(value: Any) -> Any:
    if isinstance(value, str) and value in get_args(Balancing):
        return "balancing"
    return value.get("kind") if isinstance(value, dict) else getattr(value, "kind", "number")


Distribution = Zipf | Dirichlet | Multinomial
# The fullest of 64 experts has 1.52 times the mean load with an auxiliary loss (arXiv 2408.15664, table 2, MaxVio of the larger
# model, recalled), as with a concentration of 26. With biases it has 1.04 times over all tokens; a microbatch varies more, as
# 1.12 times with a concentration of 400, an assumption.
_BALANCED: Final[dict[str, Dirichlet]] = {
    "auxiliary_loss": Dirichlet(concentration=26),
    "bias": Dirichlet(concentration=400),
}
Imbalance = Annotated[
    Annotated[float, Field(ge=1, le=1e3), Tag("number")]
    | Annotated[Balancing, Tag("balancing")]
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


class Experts(Spec):
    """A mixture of experts in place of a layer's MLP."""

    count: Count
    active: Width = Field(description="number of experts that each token is sent to")
    groups: Count = Field(1, description="equal groups of experts")
    active_groups: Count = Field(1, description="number of groups that have all experts of a token (DeepSeek-V3)")
    feedforward: Width = Field(description="width of one expert")
    shared: int = Field(0, ge=0, le=1_000_000, description="number of additional experts that every token passes")
    dense_layers: int = Field(0, ge=0, le=100_000, description="number of first layers, which have an MLP and no experts")
    biases: bool = Field(False, description="whether the router and the experts have biases (gpt-oss)")
    capacity: float | None = Field(
        None, gt=0, le=1e3, description="capacity of an expert over its even share; buffers are padded, excess tokens dropped"
    )
    imbalance: Imbalance = Field(
        1.0,
        description="tokens of the most loaded rank over the mean, without dropping, or a distribution of tokens, or what "
        "balances them in training (auxiliary_loss, bias)",
    )

    @model_validator(mode="after")
    def _enough(self) -> Self:
        if self.active > self.count:
            raise ValueError(f"active: {self.active} is more than count {self.count}; a token goes to an expert once")
        if self.count % self.groups:
            raise ValueError(f"groups: {self.groups} do not divide count {self.count}; give a divisor")
        if self.active * self.groups > self.count * self.active_groups:
            raise ValueError(f"active_groups: {self.active_groups} have fewer experts than active {self.active}; give more")
        if self.active_groups > self.groups:
            raise ValueError(f"active_groups: {self.active_groups} is more than groups {self.groups}; give at most that")
        if self.capacity is not None and self.imbalance != 1 and not isinstance(self.imbalance, str):
            raise ValueError("imbalance: with a capacity every rank has the same load; leave one of them out")
        return self

    def routed(self, combines: bool) -> Routed:
        """What an all-to-all sends to the experts or, if it `combines`, back."""
        return Routed(self.count, self.active, combines, self.groups, self.active_groups)

    def loads(self, ranks: int) -> tuple[float, ...]:
        """Tokens of each expert of the most loaded of `ranks` ranks over the mean of all experts; empty if all are equal."""
        if isinstance(self.imbalance, float) or self.capacity is not None:
            return ()
        distribution = _BALANCED[self.imbalance] if isinstance(self.imbalance, str) else self.imbalance
        return fullest_loads(distribution, self.count, self.active, ranks)

    def load_factor(self, ranks: int) -> float:
        """Load of the most loaded of `ranks` ranks, which the others wait for, over an even share."""
        if self.capacity is not None:
            return self.capacity
        if isinstance(self.imbalance, float):
            return self.imbalance
        loads = self.loads(ranks)
        # the mean of equal loads is 1 up to rounding errors
        return round(sum(loads) / len(loads), 6)

    @property
    def filled(self) -> Experts:
        """The experts without imbalance and padding: even shares, and a capacity of at most 1, beyond which tokens are
        dropped."""
        capacity = None if self.capacity is None else min(1.0, self.capacity)
        return self.model_copy(update={"imbalance": 1.0, "capacity": capacity})


def _expert_tensors(experts: Experts, hidden: int, feedforward: int, activation: Activation) -> tuple[int, ...]:
    """Elements of an expert's tensors; feedforward: its width on a rank."""
    columns = feedforward * activation_inputs(activation)
    return (hidden * columns, hidden * feedforward, *((columns, hidden) if experts.biases else ()))


def expert_parameters(experts: Experts, hidden: int, activation: Activation) -> int:
    """Number of parameters of one expert."""
    return sum(_expert_tensors(experts, hidden, experts.feedforward, activation))


def mixture(stream: ActivationStream, experts: Experts, activation: Activation) -> Layer:
    """Router and experts of a rank. Each expert gets active / count of the tokens times the load factor, rounded up; with a
    distribution of tokens, the experts have the loads of the most loaded rank's experts.

    Ranks that share the experts dispatch tokens to each other and combine the results by all-to-alls in both passes; with
    sequence parallelism each rank sends its own part of the tokens. A layer has a mixture if it has an operator named "router".
    """
    tokens, hidden, shard = stream.tokens, stream.hidden, stream.shard
    local_experts = experts.count // shard.expert
    feedforward = experts.feedforward // shard.tensor
    load_factor = experts.load_factor(shard.expert)
    sent = math.ceil(tokens * experts.active * load_factor)
    rows = -(-sent * shard.expert // experts.count)
    loads = tuple(load / load_factor for load in experts.loads(shard.expert))
    up_columns = feedforward * activation_inputs(activation)
    kept = (
        SavedActivation("router", tokens * experts.count, 4),
        SavedActivation("expert inputs", sent * hidden),
        SavedActivation("expert outputs", sent * hidden),
    )
    router = (hidden * experts.count, *((experts.count,) if experts.biases else ()))
    part = Layer(operators=tuple(_dispatch(stream, experts, sent)), tensors=router, kept=kept)
    between = activation_function(sent * feedforward, activation)
    between = between.module("moe_act", None, {"activation"}) if between.modules else between
    part += Layer(operators=(Matmul("expert up", rows, up_columns, hidden, local_experts, loads=loads),)) + between
    weights = _expert_tensors(experts, hidden, feedforward, activation) * local_experts
    down = Matmul("expert down", rows, hidden, feedforward, local_experts, loads=loads)
    part += Layer(operators=(down,), tensors=weights, expert_parameters=sum(weights))
    part += Layer(operators=tuple(_combine(stream, experts, sent)))
    if shard.expert > 1:
        elements = sent * hidden // (shard.tensor if shard.sequence else 1)
        # the backward pass dispatches gradients of outputs to the experts, and combines those of inputs
        routes = [experts.routed(combines) for combines in (False, True)]
        part += Layer(
            exchanges=tuple(
                Exchange("alltoall", elements, backward, axis="expert", routed=routed)
                for backward in (False, True)
                for routed in routes
            )
        )
    return part


def _received(stream: ActivationStream, experts: Experts, sent: int) -> int:
    """Elements that become `sent` rows of expert inputs: tokens, or those that come to a rank once for all of its experts."""
    if not stream.shard.deduplicated:
        return stream.full_elements
    return math.ceil(sent * stream.hidden * experts.routed(False).visited(stream.shard.expert) / experts.active)


def _dispatch(stream: ActivationStream, experts: Experts, sent: int) -> Iterator[Operator]:
    """Operators from tokens to the experts' inputs: scores of all experts, top-k, sorting the copies of tokens by expert, and
    permuting them, once more if they come from several ranks for several experts (Megatron-Core's MoEAlltoAllTokenDispatcher).
    Tokens that are sent once to each rank are permuted there alone (its MoEFlexTokenDispatcher)."""
    scores, chosen, moved = stream.tokens * experts.count, stream.tokens * experts.active, sent * stream.hidden
    received = _received(stream, experts, sent)
    yield Matmul("router", stream.tokens, experts.count, stream.hidden)
    yield MemoryBound("router scores", scores, scores, 2 * scores, scores)
    yield MemoryBound("top-k", scores, 2 * chosen, chosen, scores)
    yield MemoryBound("route weights", chosen, chosen, 2 * chosen, chosen)
    # the order is an index, which has no gradient
    yield MemoryBound("sort by expert", chosen, 2 * chosen, 0, 0)
    yield MemoryBound("permute", received, moved, moved, received)
    if 1 < stream.shard.expert < experts.count and not stream.shard.deduplicated:
        yield MemoryBound("sort chunks", moved, moved, moved, moved)


def _combine(stream: ActivationStream, experts: Experts, sent: int) -> Iterator[Operator]:
    """Operators from the experts' outputs back to tokens: the weighted sum of each token's copies."""
    moved, received = sent * stream.hidden, _received(stream, experts, sent)
    if 1 < stream.shard.expert < experts.count and not stream.shard.deduplicated:
        yield MemoryBound("unsort chunks", moved, moved, moved, moved)
    yield MemoryBound("unpermute", moved, received, received + moved, moved)
