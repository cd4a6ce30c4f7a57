"""Mixtures of experts: their description, and one rank's share of a layer's router and experts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Self

from pydantic import Field, model_validator

from scaleproof.simulator.common.spec import Count, Spec, Width
from scaleproof.simulator.model.operators import Exchange, Matmul, MemoryBound, Operator, Routed, SavedActivation
from scaleproof.simulator.model.transformer.expert_imbalance import Imbalance, fullest_loads
from scaleproof.simulator.model.transformer.layer_parts import (
    Activation,
    ActivationStream,
    LayerPart,
    activation_function,
    activation_inputs,
)


class Experts(Spec):
    """A mixture of experts in place of a layer's MLP."""

    count: Count
    active: Width = Field(description="number of experts that each token is sent to")
    feedforward: Width = Field(description="width of one expert")
    shared: int = Field(0, ge=0, le=1_000_000, description="number of additional experts that every token passes")
    dense_layers: int = Field(0, ge=0, le=100_000, description="number of first layers, which have an MLP and no experts")
    capacity: float | None = Field(
        None, gt=0, le=1e3, description="capacity of an expert over its even share; buffers are padded, excess tokens dropped"
    )
    imbalance: Imbalance = Field(
        1.0, description="tokens of the most loaded rank over the mean, without dropping, or a distribution of tokens"
    )

    @model_validator(mode="after")
    def _enough(self) -> Self:
        if self.active > self.count:
            raise ValueError(f"active: {self.active} is more than count {self.count}; a token goes to an expert once")
        if self.capacity is not None and self.imbalance != 1:
            raise ValueError("imbalance: with a capacity every rank has the same load; leave one of them out")
        return self

    def loads(self, ranks: int) -> tuple[float, ...]:
        """Tokens of each expert of the most loaded of `ranks` ranks over the mean of all experts; empty if all are equal."""
        if isinstance(self.imbalance, float):
            return ()
        return fullest_loads(self.imbalance, self.count, self.active, ranks)

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


def mixture(stream: ActivationStream, experts: Experts, activation: Activation) -> LayerPart:
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
    part = LayerPart(tuple(_dispatch(stream, experts, sent)), (hidden * experts.count,), kept)
    between = activation_function(sent * feedforward, activation)
    between = between.module("moe_act", None, {"activation"}) if between.modules else between
    part += LayerPart((Matmul("expert up", rows, up_columns, hidden, local_experts, loads=loads),)) + between
    weights = (hidden * up_columns, hidden * feedforward) * local_experts
    down = Matmul("expert down", rows, hidden, feedforward, local_experts, loads=loads)
    part += LayerPart((down,), weights, expert_parameters=sum(weights))
    part += LayerPart(tuple(_combine(stream, experts, sent)))
    if shard.expert > 1:
        elements = sent * hidden // (shard.tensor if shard.sequence else 1)
        # the backward pass dispatches gradients of outputs to the experts, and combines those of inputs
        routes = [Routed(experts.count, experts.active, combines) for combines in (False, True)]
        part += LayerPart(
            exchanges=tuple(
                Exchange("alltoall", elements, backward, axis="expert", routed=routed)
                for backward in (False, True)
                for routed in routes
            )
        )
    return part


def _dispatch(stream: ActivationStream, experts: Experts, sent: int) -> Iterator[Operator]:
    """Operators from tokens to the experts' inputs: scores of all experts, top-k, sorting the copies of tokens by expert, and
    permuting them, once more if they come from several ranks for several experts (Megatron-Core's
    MoEAlltoAllTokenDispatcher)."""
    scores, chosen, moved = stream.tokens * experts.count, stream.tokens * experts.active, sent * stream.hidden
    yield Matmul("router", stream.tokens, experts.count, stream.hidden)
    yield MemoryBound("router scores", scores, scores, 2 * scores, scores)
    yield MemoryBound("top-k", scores, 2 * chosen, chosen, scores)
    yield MemoryBound("route weights", chosen, chosen, 2 * chosen, chosen)
    # the order is an index, which has no gradient
    yield MemoryBound("sort by expert", chosen, 2 * chosen, 0, 0)
    yield MemoryBound("permute", stream.full_elements, moved, moved, stream.full_elements)
    if 1 < stream.shard.expert < experts.count:
        yield MemoryBound("sort chunks", moved, moved, moved, moved)


def _combine(stream: ActivationStream, experts: Experts, sent: int) -> Iterator[Operator]:
    """Operators from the experts' outputs back to tokens: the weighted sum of each token's copies."""
    moved = sent * stream.hidden
    if 1 < stream.shard.expert < experts.count:
        yield MemoryBound("unsort chunks", moved, moved, moved, moved)
    yield MemoryBound("unpermute", moved, stream.full_elements, stream.full_elements + moved, moved)
