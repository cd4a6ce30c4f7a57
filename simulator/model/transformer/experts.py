"""Mixtures of experts: what users describe, and what one of the ranks that share a layer has of its router and experts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Self

from pydantic import Field, model_validator

from scaleproof.simulator.common.spec import Count, Spec, Width
from scaleproof.simulator.model.operators import Exchange, Matmul, MemoryBound, Operator, Routed, SavedActivation
from scaleproof.simulator.model.transformer.expert_imbalance import Imbalance, fullest_loads
from scaleproof.simulator.model.transformer.layer_parts import Activation, ActivationStream, LayerPart, activated, fan


class Experts(Spec):
    """A mixture of experts in place of a layer's MLP."""

    count: Count
    active: Width = Field(description="experts that each token is sent to")
    feedforward: Width = Field(description="width of one expert")
    shared: int = Field(0, ge=0, le=1_000_000, description="experts that every token passes, in addition to the chosen ones")
    dense_layers: int = Field(0, ge=0, le=100_000, description="first layers, which have an MLP and no experts")
    capacity: float | None = Field(
        None, gt=0, le=1e3, description="room of an expert over its even share, filled or not; more tokens are dropped"
    )
    imbalance: Imbalance = Field(
        1.0, description="tokens of the fullest rank over the mean, with nothing dropped, or how tokens are distributed"
    )

    @model_validator(mode="after")
    def _enough(self) -> Self:
        if self.active > self.count:
            raise ValueError(f"active: {self.active} is more than count {self.count}; a token goes to an expert once")
        if self.capacity is not None and self.imbalance != 1:
            raise ValueError("imbalance: beside a capacity, to which every rank's room is the same; leave one of them out")
        return self

    def loads(self, ranks: int) -> tuple[float, ...]:
        """Tokens of each expert of the fullest of `ranks` ranks over the mean of all experts; none where they are all equal."""
        if isinstance(self.imbalance, float):
            return ()
        return fullest_loads(self.imbalance, self.count, self.active, ranks)

    def room(self, ranks: int) -> float:
        """What the fullest of `ranks` ranks, for which others wait, computes and sends over an even share."""
        if self.capacity is not None:
            return self.capacity
        if isinstance(self.imbalance, float):
            return self.imbalance
        loads = self.loads(ranks)
        # means of draws that add up to one are that up to rounding
        return round(sum(loads) / len(loads), 6)

    @property
    def filled(self) -> Experts:
        """The same with even shares and no room beyond them; less room is full, and tokens are dropped."""
        capacity = None if self.capacity is None else min(1.0, self.capacity)
        return self.model_copy(update={"imbalance": 1.0, "capacity": capacity})


def mixture(stream: ActivationStream, experts: Experts, activation: Activation) -> LayerPart:
    """Router and experts of a rank. Each expert gets active / count of the tokens, rounded up, times the room for them; of a
    distribution of tokens those of the fullest rank's experts, each its own.

    Ranks that share the experts send each other their tokens, and get them back, in both passes: with sequence parallelism
    those that each of them has. A layer has a mixture if it has an operator named "router".
    """
    tokens, hidden, shard = stream.tokens, stream.hidden, stream.shard
    here = experts.count // shard.expert
    feedforward = experts.feedforward // shard.tensor
    room = experts.room(shard.expert)
    sent = math.ceil(tokens * experts.active * room)
    each = -(-sent * shard.expert // experts.count)
    loads = tuple(load / room for load in experts.loads(shard.expert))
    wide = feedforward * fan(activation)
    kept = (
        SavedActivation("router", tokens * experts.count, 4),
        SavedActivation("expert inputs", sent * hidden),
        SavedActivation("expert outputs", sent * hidden),
    )
    part = LayerPart(tuple(_routing(stream, experts, sent)), (hidden * experts.count,), kept)
    between = activated(sent * feedforward, activation)
    between = between.module("moe_act", None, {"activation"}) if between.modules else between
    part += LayerPart((Matmul("expert up", each, wide, hidden, here, loads=loads),)) + between
    weights = (hidden * wide, hidden * feedforward) * here
    part += LayerPart(
        (Matmul("expert down", each, hidden, feedforward, here, loads=loads),), weights, expert_parameters=sum(weights)
    )
    part += LayerPart(tuple(_returning(stream, experts, sent)))
    if shard.expert > 1:
        elements = sent * hidden // (shard.tensor if shard.sequence else 1)
        # the backward pass sends gradients of outputs to the experts, and combines those of inputs
        both = [Routed(experts.count, experts.active, combines) for combines in (False, True)]
        ways = [(backward, routed) for backward in (False, True) for routed in both]
        part += LayerPart(
            exchanges=tuple(Exchange("alltoall", elements, backward, axis="expert", routed=routed) for backward, routed in ways)
        )
    return part


def _routing(stream: ActivationStream, experts: Experts, sent: int) -> Iterator[Operator]:
    """From tokens to the rows of experts: scores of all experts, the largest of these, the order of the copies by expert, and
    the copies in that order, which are moved once more where they come from several ranks for several experts
    (Megatron-Core's MoEAlltoAllTokenDispatcher)."""
    scores, chosen, moved = stream.tokens * experts.count, stream.tokens * experts.active, sent * stream.hidden
    yield Matmul("router", stream.tokens, experts.count, stream.hidden)
    yield MemoryBound("router scores", scores, scores, 2 * scores, scores)
    yield MemoryBound("top-k", scores, 2 * chosen, chosen, scores)
    yield MemoryBound("route weights", chosen, chosen, 2 * chosen, chosen)
    # which copies go where is an index, of which there are no gradients
    yield MemoryBound("sort by expert", chosen, 2 * chosen, 0, 0)
    yield MemoryBound("permute", stream.whole, moved, moved, stream.whole)
    if 1 < stream.shard.expert < experts.count:
        yield MemoryBound("sort chunks", moved, moved, moved, moved)


def _returning(stream: ActivationStream, experts: Experts, sent: int) -> Iterator[Operator]:
    """Back to the tokens, as many copies of which are added up as there are experts, each times its weight."""
    moved = sent * stream.hidden
    if 1 < stream.shard.expert < experts.count:
        yield MemoryBound("unsort chunks", moved, moved, moved, moved)
    yield MemoryBound("unpermute", moved, stream.whole, stream.whole + moved, moved)
