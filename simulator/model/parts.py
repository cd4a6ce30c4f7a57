"""What transformer layers are made of, as one of the ranks that share a layer has it.

A part is operators, parameters, kept activations and collectives; adding parts makes a layer. Kept activations follow arXiv
2205.05198, section 4: those of matrix products, of softmax and activation functions and of dropout, but neither norms'
statistics nor biases, which are small; kernels are fused where training frameworks fuse them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from simulator.errors import FieldError
from simulator.model.layers import Shard
from simulator.model.operators import Attention, Exchange, Kept, Matmul, Memory, Module, Operator
from simulator.spec import Count, Spec, Width

Norm = Literal["layer", "rms"]
Activation = Literal["relu", "gelu", "swiglu", "geglu"]


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a layer; fields as in `Layer`."""

    operators: tuple[Operator, ...] = ()
    tensors: tuple[int, ...] = ()
    kept: tuple[Kept, ...] = ()
    exchanges: tuple[Exchange, ...] = ()
    expert_parameters: int = 0
    modules: tuple[Module, ...] = ()

    def __add__(self, other: Part) -> Part:
        before = len(self.operators), len(self.kept), len(self.exchanges)
        return Part(
            self.operators + other.operators,
            self.tensors + other.tensors,
            self.kept + other.kept,
            self.exchanges + other.exchanges,
            self.expert_parameters + other.expert_parameters,
            self.modules + tuple(module.shifted(*before) for module in other.modules),
        )

    def module(
        self, name: str, operators: Collection[str] | None = None, kept: Collection[str] | None = None, exchanges: bool = True
    ) -> Part:
        """The same part, marked as a module that can be recomputed alone.

        operators, kept: names of what is recomputed and of what need not be kept; everything if None. exchanges: whether the
        collectives of this part belong to the module.
        """
        found = Module(
            name,
            tuple(i for i, one in enumerate(self.operators) if operators is None or one.name in operators),
            tuple(i for i, one in enumerate(self.kept) if kept is None or one.name in kept),
            tuple(range(len(self.exchanges) if exchanges else 0)),
        )
        return replace(self, modules=(*self.modules, found))


class Stream(NamedTuple):
    """Activations between the parts: `tokens` × `hidden` elements a sample."""

    tokens: int
    hidden: int
    shard: Shard
    norm: Norm
    dropout: bool

    @classmethod
    def checked(
        cls, tokens: int, hidden: int, shard: Shard, norm: Norm, dropout: bool, experts: Experts | None = None
    ) -> Stream:
        """One that can be divided so. Raises FieldError where it cannot."""
        tokens = even_share("sequence", tokens, shard.context, "context")
        if shard.sequence:
            even_share("sequence", tokens, shard.tensor)
        if experts is not None:
            even_share("experts.count", experts.count, shard.expert, "expert")
        elif shard.expert > 1:
            raise FieldError(("strategy", "expert"), "there are no experts to divide; leave expert parallelism out")
        return cls(tokens, hidden, shard, norm, dropout)

    @property
    def whole(self) -> int:
        """Elements that matrix products read and write."""
        return self.tokens * self.hidden

    @property
    def here(self) -> int:
        """Elements that a rank has between them."""
        return self.whole // self.shard.tensor if self.shard.sequence else self.whole


class Heads(NamedTuple):
    """Attention heads of one rank; fields as in `Attention`. window: tokens that a query looks back on."""

    heads: int
    key_heads: int
    width: int
    value_width: int
    causal: bool
    flash: bool
    window: int | None = None


class Latent(Spec):
    """Attention with compressed keys and values (arXiv 2405.04434, section 2.1); of each head, widths."""

    query_rank: Width | None = Field(None, description="of the queries' latent; queries are not compressed if absent")
    key_rank: Width = Field(description="of the latent that keys and values share")
    width: Width = Field(description="of the part of queries and keys that does not turn with the position")
    rotary_width: Width = Field(description="of the part that does")
    value_width: Width


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


def linear(name: str, rows: int, columns: int, inner: int, bias: bool) -> Part:
    """A matrix product and its weights; `bias` elements for each of its columns."""
    return Part((Matmul(name, rows, columns, inner),), (inner * columns, *((columns,) if bias else ())))


def norm(stream: Stream) -> Part:
    """Layer norm has weights and biases, RMS norm weights alone. Every rank has all of them."""
    return Part((_norm("norm", stream.here),), _norm_tensors(stream.norm, stream.hidden))


def _norm(name: str, elements: int) -> Memory:
    """Backward reads what it read and the gradient of what it wrote."""
    return Memory(name, elements, elements, 2 * elements, elements)


def _norm_tensors(kind: Norm, width: int) -> tuple[int, ...]:
    return (width, width) if kind == "layer" else (width,)


def block(stream: Stream, branches: Sequence[Part], parallel: bool = False) -> Part:
    """Branches with norms and residual additions: one after the other, or all in parallel on the same input.

    Whether norms are before the branches or after the additions, as many activations are kept.
    """
    layer = Part(kept=(Kept("input", stream.here, group="input"),))
    norms, sums = Kept("norms", len(branches) * stream.here), Kept("sums", (len(branches) - 1) * stream.here)
    if parallel:
        inner = sum([norm(stream) for _ in branches] + list(branches), Part())
        layer += inner + joined(stream) + residual(stream, len(branches))
    else:
        for branch in branches:
            layer += norm(stream) + _joined(stream, branch) + residual(stream)
    layer += Part(kept=(norms,) if parallel or not sums.elements else (norms, sums))
    return layer.module("layernorm", {"norm"}, {"norms"}, exchanges=False)


def _joined(stream: Stream, branch: Part) -> Part:
    """A branch with the collectives around it, which are part of modules that are the whole branch."""
    whole = branch + joined(stream)
    around = tuple(range(len(branch.exchanges), len(whole.exchanges)))
    return replace(
        whole,
        modules=tuple(
            one._replace(exchanges=one.exchanges + around) if one.name in ("mlp", "moe") else one for one in whole.modules
        ),
    )


def joined(stream: Stream) -> Part:
    """The collectives around a branch whose matrices are shared: both its products' sums over ranks.

    With sequence parallelism the backward pass gathers the branch's input once more, during the product before the one that
    needs it (arXiv 2205.05198, section 4.2.2); hidden as it is, it is not counted.
    """
    return entered(stream) + left(stream)


def entered(stream: Stream) -> Part:
    """Where all ranks need all tokens."""
    if stream.shard.tensor == 1:
        return Part()
    if stream.shard.sequence:
        # the weights' gradients need all tokens again, which are gathered beside the input's gradient (arXiv 2205.05198, 4.2.2)
        again = Exchange("all_gather", stream.whole, True, hidden=True)
        passed = (Exchange("all_gather", stream.whole, False), Exchange("reduce_scatter", stream.whole, True))
        return Part(exchanges=(*passed, again))
    return Part(exchanges=(Exchange("all_reduce", stream.whole, True),))


def left(stream: Stream) -> Part:
    """Where each rank has a summand of all tokens."""
    if stream.shard.tensor == 1:
        return Part()
    if stream.shard.sequence:
        return Part(exchanges=(Exchange("reduce_scatter", stream.whole, False), Exchange("all_gather", stream.whole, True)))
    return Part(exchanges=(Exchange("all_reduce", stream.whole, False),))


def residual(stream: Stream, branches: int = 1) -> Part:
    """Dropout, if any, and addition in one kernel; its backward pass adds the gradients where trunk and branches part."""
    n = stream.here
    dropped = dropout(stream)
    # a dropout mask has one byte an element, half of a 16-bit one
    mask = n // 2 if stream.dropout else 0
    passed = n if stream.dropout else 0
    read = (1 + branches) * n
    return dropped + Part((Memory("residual", read, n + mask, read + passed + mask, n + passed),))


def dropout(stream: Stream) -> Part:
    """What dropout keeps: a mask of one byte an element."""
    return Part(kept=(Kept("dropout mask", stream.here, 1),)) if stream.dropout else Part()


def projected(stream: Stream, heads: Heads, bias: bool, rotary: bool, head_norms: bool = False) -> Part:
    """Queries, keys and values from one product; keys' heads may be fewer than queries'."""
    queries, keys = heads.heads * heads.width, heads.key_heads * heads.width
    columns = queries + keys + heads.key_heads * heads.value_width
    part = linear("qkv", stream.tokens, columns, stream.hidden, bias)
    if head_norms:
        normed = stream.tokens * (queries + keys)
        tensors = 2 * _norm_tensors(stream.norm, heads.width)
        part += Part((_norm("head norms", normed),), tensors, (Kept("head norms", normed),))
    return part + (_rotary(stream.tokens * (queries + keys)) if rotary else Part())


def _rotary(elements: int) -> Part:
    return Part((Memory("rotary", elements, elements, elements, elements),))


def compressed(stream: Stream, heads: Heads, latent: Latent) -> Part:
    """Queries, keys and values through low-rank latents, which every rank has; all heads share a key's rotary part."""
    tokens, hidden, count = stream.tokens, stream.hidden, heads.heads
    part = Part()
    if latent.query_rank is None:
        part += linear("query", tokens, count * heads.width, hidden, False)
    else:
        part += linear("query down", tokens, latent.query_rank, hidden, False) + _normed_latent(stream, latent.query_rank)
        part += linear("query up", tokens, count * heads.width, latent.query_rank, False)
    part += linear("key down", tokens, latent.key_rank + latent.rotary_width, hidden, False)
    part += _normed_latent(stream, latent.key_rank)
    part += linear("key up", tokens, count * (latent.width + latent.value_width), latent.key_rank, False)
    return part + _rotary(tokens * (count + 1) * latent.rotary_width)


def _normed_latent(stream: Stream, rank: int) -> Part:
    """The norm of a latent; what it reads and what it writes are kept."""
    elements = stream.tokens * rank
    return Part((_norm("latent norm", elements),), _norm_tensors(stream.norm, rank), (Kept("latent", 2 * elements),))


def crossed(stream: Stream, source: Stream, heads: Heads) -> Part:
    """Queries from this stream, keys and values from another, whose ranks bring it together for them."""
    keys = heads.key_heads * (heads.width + heads.value_width)
    queries = linear("query", stream.tokens, heads.heads * heads.width, stream.hidden, False)
    return queries + entered(source) + linear("key value", source.tokens, keys, stream.hidden, False)


def attention(stream: Stream, heads: Heads, bias: bool, read_tokens: int | None = None) -> Part:
    """Attention with its output projection; the rank has `read_tokens` keys, as many as queries if None.

    Ranks that share a sample's tokens read one another's keys and values, or each attends to all tokens with some of the heads.
    A window bounds the keys that a query sees; the first queries see fewer, which is all that a causal mask hides then.
    """
    if stream.shard.context > 1 and stream.shard.context_by == "ulysses":
        return _attention_by_heads(stream, heads, bias, read_tokens)
    queries, own_keys = stream.tokens, read_tokens or stream.tokens
    keys = own_keys * stream.shard.context
    mixed, widths = heads.heads * heads.value_width, heads.width + heads.value_width
    part = _core(heads, queries, own_keys, keys, stream.dropout)
    around = Part(exchanges=_passed_around(stream.shard, part.operators[0].name, keys * heads.key_heads * widths))
    return _recomputable(part + around) + linear("projection", queries, stream.hidden, mixed, bias)


def _attention_by_heads(stream: Stream, heads: Heads, bias: bool, read_tokens: int | None) -> Part:
    """Attention of ranks that share a sample's tokens, each over all tokens with its share of the heads (arXiv 2309.14509).

    Queries, keys and values are sent before attention and its output after it, in both passes. Key heads that are fewer than
    ranks are repeated. Both what attention writes and what the projection reads are kept, since they are not the same tokens.
    """
    ranks, tokens, keys = stream.shard.context, stream.tokens, read_tokens or stream.tokens
    key_heads = max(heads.key_heads, ranks)
    own = heads._replace(
        heads=even_share("heads", heads.heads, ranks, "context"), key_heads=even_share("key_heads", key_heads, ranks, "context")
    )
    part = _core(own, tokens * ranks, keys * ranks, keys * ranks, stream.dropout)
    mixed = heads.heads * heads.value_width
    sent = tokens * heads.heads * heads.width + keys * key_heads * (heads.width + heads.value_width)
    around = tuple(
        Exchange("alltoall", elements, backward, axis="context")
        for elements in (sent, tokens * mixed)
        for backward in (False, True)
    )
    read = Part(kept=(Kept("projection input", tokens * mixed),), exchanges=around)
    return _recomputable(part) + read + linear("projection", tokens, stream.hidden, mixed, bias)


def _core(heads: Heads, queries: int, own_keys: int, keys: int, dropout: bool) -> Part:
    """Attention of `queries` to `keys`, of which a rank keeps `own_keys`."""
    window = min(heads.window or keys, keys)
    operator = Attention(
        "attention",
        heads.heads,
        heads.key_heads,
        queries,
        window,
        heads.width,
        heads.value_width,
        1 - window / (2 * keys) if heads.causal else 1.0,
        heads.flash,
    )
    kept = (
        Kept("queries", queries * heads.heads * heads.width),
        Kept("keys", own_keys * heads.key_heads * heads.width),
        Kept("values", own_keys * heads.key_heads * heads.value_width),
        *_scores(operator, dropout),
        Kept("attention output", queries * heads.heads * heads.value_width),
    )
    return Part((operator,), kept=kept)


def _recomputable(attention: Part) -> Part:
    """What attention writes is kept by the product that reads it, whether attention is recomputed or not."""
    return attention.module("core_attn", None, {one.name for one in attention.kept if one.name in _RECOMPUTED})


def _passed_around(shard: Shard, attention: str, elements: int) -> tuple[Exchange, ...]:
    """Keys and values of all ranks that share the tokens, `elements` of them; backward once more, and their gradients back."""
    if shard.context == 1:
        return ()
    hidden = shard.context_by == "ring"
    ways = (("all_gather", False), ("all_gather", True), ("reduce_scatter", True))
    return tuple(Exchange(op, elements, backward, hidden, "context", attention) for op, backward in ways)


# What the core of attention keeps for itself, which it makes again where it is recomputed.
_RECOMPUTED: Final = ("attention statistics", "attention scores", "attention mask", "dropped attention scores")


def _scores(operator: Attention, dropped: bool) -> tuple[Kept, ...]:
    """The softmax's output, dropout's mask and output; a flash kernel keeps one sum for each row of scores instead."""
    if operator.flash:
        return (Kept("attention statistics", operator.heads * operator.queries, 4),)
    softmax = Kept("attention scores", operator.scores, group="attention")
    if not dropped:
        return (softmax,)
    return (
        softmax,
        Kept("attention mask", operator.scores, 1, "attention"),
        Kept("dropped attention scores", operator.scores, group="attention"),
    )


def mlp(stream: Stream, feedforward: int, activation: Activation, bias: bool) -> Part:
    """Two products and the activation function between them; a gated one has twice the columns in the first."""
    return _mlp(stream, feedforward, activation, bias).module("mlp")


def _mlp(stream: Stream, feedforward: int, activation: Activation, bias: bool) -> Part:
    tokens, hidden = stream.tokens, stream.hidden
    up = linear("up", tokens, feedforward * _fan(activation), hidden, bias)
    return up + _activation(tokens * feedforward, activation) + linear("down", tokens, hidden, feedforward, bias)


def _fan(activation: Activation) -> int:
    """Inputs of an activation function for each of its outputs: the gate is one."""
    return 2 if activation in ("swiglu", "geglu") else 1


def _activation(elements: int, activation: Activation) -> Part:
    """What it reads is kept, unless what it writes tells, and what it writes, which the next product reads."""
    fan = _fan(activation)
    read = () if activation == "relu" else (Kept("up", fan * elements),)
    kept = (*read, Kept("activation", elements))
    part = Part((Memory(activation, fan * elements, elements, (fan + 1) * elements, fan * elements),), kept=kept)
    # without what it reads it cannot be computed again
    return part.module("activation", None, {"activation"}) if read else part


def mixture(stream: Stream, experts: Experts, activation: Activation) -> Part:
    """Router, experts and shared experts. Each expert gets active / count of the tokens, rounded up, times the room for them.

    Ranks that share the experts send each other their tokens, and get them back, in both passes: with sequence parallelism
    those that each of them has.
    """
    tokens, hidden, shard = stream.tokens, stream.hidden, stream.shard
    here = experts.count // shard.expert
    feedforward = experts.feedforward // shard.tensor
    sent = math.ceil(tokens * experts.active * experts.room)
    each = -(-sent * shard.expert // experts.count)
    wide = feedforward * _fan(activation)
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
    activated = _activation(sent * feedforward, activation)
    activated = activated.module("moe_act", None, {"activation"}) if activated.modules else activated
    part += Part((Matmul("expert up", each, wide, hidden, here),)) + activated
    weights = (hidden * wide, hidden * feedforward) * here
    part += Part((Matmul("expert down", each, hidden, feedforward, here),), weights, expert_parameters=sum(weights))
    part += Part((Memory("unpermute", sent * hidden, stream.whole, stream.whole + sent * hidden, sent * hidden),))
    if experts.shared:
        part += _mlp(stream, experts.shared * feedforward, activation, False).module("shared_experts")
    if shard.expert > 1:
        both = (False, False, True, True)
        elements = sent * hidden // (shard.tensor if shard.sequence else 1)
        part += Part(exchanges=tuple(Exchange("alltoall", elements, backward, axis="expert") for backward in both))
    return part.module("moe")


def looked_up(stream: Stream, rows: int, positions: int | None, types: int = 0) -> Part:
    """Embedding of `rows` words (of all ranks' tokens, which they then add up), with learned positions and token types.

    It is not recomputed, nor is the output head.
    """
    operators = [Memory("embedding", stream.whole, stream.whole, stream.whole, stream.whole)]
    tensors = [rows * stream.hidden]
    for table in filter(None, (positions, types)):
        operators.append(Memory("add embedding", 2 * stream.here, stream.here, stream.here, stream.here))
        tensors.append(table * stream.hidden)
    return Part(tuple(operators), tuple(tensors)) + left(stream) + never_recomputed(dropout(stream))


def output_head(stream: Stream, rows: int, tied: bool) -> Part:
    """The last norm, then `predicted`."""
    return Part(kept=(Kept("input", stream.here, group="input"),)) + norm(stream) + predicted(stream, rows, tied)


def predicted(stream: Stream, rows: int, tied: bool, bias: bool = False) -> Part:
    """Output words' logits, `rows` of them on this rank, and their loss, which keeps them with four bytes each.

    Ranks that share the words tell each other the largest logit, the sum of exponents and the right word's logit.
    """
    tokens, hidden = stream.tokens, stream.hidden
    logits = tokens * rows
    tensors = (*(() if tied else (hidden * rows,)), *((rows,) if bias else ()))
    operators = (Matmul("head", tokens, rows, hidden), Memory("loss", logits, logits, logits, logits))
    kept = (Kept("head input", stream.here, group="input"), Kept("logits", logits, 4, "input"))
    part = entered(stream) + Part(operators, tensors, kept)
    if stream.shard.tensor > 1:
        part += Part(exchanges=(Exchange("all_reduce", tokens, False),) * 3)
    return part


def never_recomputed(part: Part) -> Part:
    """The same with all that it keeps in the group that stays."""
    return Part(part.operators, part.tensors, tuple(kept._replace(group="input") for kept in part.kept), part.exchanges)


def even_share(what: str, number: int, ranks: int, field: str = "tensor") -> int:
    """What one of `ranks` ranks gets of `number`. Raises FieldError where it does not come out even."""
    if number % ranks:
        fewer = next(divisor for divisor in range(min(ranks, 1024), 0, -1) if number % divisor == 0)
        message = f"{ranks} ranks do not divide {what} {number}; give a divisor of it, such as {fewer}"
        raise FieldError(("strategy", field), message)
    return number // ranks
