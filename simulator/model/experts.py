"""Mixtures of experts: what users describe, and what one of the ranks that share a layer has of its router and experts."""

from __future__ import annotations

import math
from typing import Self

from pydantic import Field, model_validator

from simulator.model.operators import Exchange, Kept, Matmul, Memory, Routed
from simulator.model.parts import Activation, Part, Stream, activated, fan
from simulator.spec import Count, Spec, Width


class Experts(Spec):
    """A mixture of experts in place of a layer's MLP."""

    count: Count
    active: Width = Field(description="experts that each token is sent to")
    feedforward: Width = Field(description="width of one expert")
    shared: int = Field(0, ge=0, le=1_000_000, description="experts that all tokens pass, beside those that they are sent to")
    dense_layers: int = Field(0, ge=0, le=100_000, description="first layers, which have an MLP and no experts")
    capacity: float | None = Field(
        None, gt=0, le=1e3, description="room of an expert over its even share, filled or not; more tokens are dropped"
    )
    imbalance: float = Field(1.0, ge=1, le=1e3, description="tokens of the busiest rank over the mean, with nothing dropped")

    @model_validator(mode="after")
    def _enough(self) -> Self:
        if self.active > self.count:
            raise ValueError(f"active: {self.active} is more than count {self.count}; a token goes to an expert once")
        if self.capacity is not None and self.imbalance > 1:
            raise ValueError("imbalance: beside a capacity, to which every rank's room is the same; leave one of them out")
        return self

    @property
    def room(self) -> float:
        """What the rank that others wait for computes and sends, over an even share."""
        return self.imbalance if self.capacity is None else self.capacity

    @property
    def filled(self) -> Experts:
        """The same with even shares and no room beyond them; less room is full, and tokens are dropped."""
        capacity = None if self.capacity is None else min(1.0, self.capacity)
        return self.model_copy(update={"imbalance": 1.0, "capacity": capacity})


def mixture(stream: Stream, experts: Experts, activation: Activation) -> Part:
    """Router and experts of a rank. Each expert gets active / count of the tokens, rounded up, times the room for them.

    Ranks that share the experts send each other their tokens, and get them back, in both passes: with sequence parallelism
    those that each of them has.
    """
    tokens, hidden, shard = stream.tokens, stream.hidden, stream.shard
    here = experts.count // shard.expert
    feedforward = experts.feedforward // shard.tensor
    sent = math.ceil(tokens * experts.active * experts.room)
    each = -(-sent * shard.expert // experts.count)
    wide = feedforward * fan(activation)
    routing = (
        Matmul("router", tokens, experts.count, hidden),
        Memory("permute", stream.whole, sent * hidden, sent * hidden, stream.whole),
    )
    kept = (
        Kept("router", tokens * experts.count, 4),
        Kept("expert inputs", sent * hidden),
        Kept("expert outputs", sent * hidden),
    )
    part = Part(routing, (hidden * experts.count,), kept)
    part += Part((Matmul("expert up", each, wide, hidden, here),)) + activated(sent * feedforward, activation)
    weights = (hidden * wide, hidden * feedforward) * here
    part += Part((Matmul("expert down", each, hidden, feedforward, here),), weights, expert_parameters=sum(weights))
    part += Part((Memory("unpermute", sent * hidden, stream.whole, stream.whole + sent * hidden, sent * hidden),))
    if shard.expert > 1:
        elements = sent * hidden // (shard.tensor if shard.sequence else 1)
        # the backward pass sends gradients of outputs to the experts, and combines those of inputs
        both = [Routed(experts.count, experts.active, combines) for combines in (False, True)]
        ways = [(backward, routed) for backward in (False, True) for routed in both]
        part += Part(
            exchanges=tuple(Exchange("alltoall", elements, backward, axis="expert", routed=routed) for backward, routed in ways)
        )
    return part
