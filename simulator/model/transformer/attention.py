"""Attention of transformer layers: one rank's share of projections, core and collectives."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from pydantic import Field

from scaleproof.simulator.common.spec import Spec, Width
from scaleproof.simulator.model.layers import Layer, Shard
from scaleproof.simulator.model.operators import Attention, Exchange, MemoryBound, SavedActivation
from scaleproof.simulator.model.transformer.layer_parts import (
    ActivationStream,
    even_share,
    input_collectives,
    linear,
    norm_of,
    norm_tensors,
)


class Heads(NamedTuple):
    """Attention heads of one rank; fields as in `Attention`. window: number of tokens that a query attends to."""

    heads: int
    key_heads: int
    width: int
    value_width: int
    causal: bool
    flash: bool
    window: int | None = None


class Latent(Spec):
    """Multi-head latent attention with compressed keys and values (arXiv 2405.04434, section 2.1); widths are per head."""

    query_rank: Width | None = Field(None, description="width of the queries' latent; queries are not compressed if absent")
    key_rank: Width = Field(description="width of the latent that keys and values share")
    width: Width = Field(description="width of the part of queries and keys without rotary positions")
    rotary_width: Width = Field(description="width of the part of queries and keys with rotary positions")
    value_width: Width


def qkv_projection(
    stream: ActivationStream, heads: Heads, bias: bool, rotary: bool, head_norms: bool | Literal["whole"] = False
) -> Layer:
    """Queries, keys and values from one product, with norms of the heads and rotary positions if any. head_norms: of each head,
    or of all of a token's as a whole."""
    queries, keys = heads.heads * heads.width, heads.key_heads * heads.width
    columns = queries + keys + heads.key_heads * heads.value_width
    part = linear("qkv", stream.tokens, columns, stream.hidden, bias)
    if head_norms:
        normed = stream.tokens * (queries + keys)
        widths = (queries, keys) if head_norms == "whole" else (heads.width, heads.width)
        tensors = tuple(tensor for width in widths for tensor in norm_tensors(stream.norm, width))
        part += Layer(
            operators=(norm_of("head norms", normed),), tensors=tensors, kept=(SavedActivation("head norms", normed),)
        )
        if head_norms == "whole" and stream.shard.tensor > 1:
            # ranks add up the squares of the heads of queries and of keys, and the sums of the gradient
            part += Layer(exchanges=tuple(Exchange("all_reduce", 2 * stream.tokens, backward) for backward in (False, True)))
    return part + (_rotary(stream.tokens * (queries + keys)) if rotary else Layer())


def _rotary(elements: int) -> Layer:
    return Layer(operators=(MemoryBound("rotary", elements, elements, elements, elements),))


def latent_projection(stream: ActivationStream, heads: Heads, latent: Latent) -> Layer:
    """Queries, keys and values through low-rank latents, which every rank has; all heads share a key's rotary part."""
    tokens, hidden, count = stream.tokens, stream.hidden, heads.heads
    part = Layer()
    if latent.query_rank is None:
        part += linear("query", tokens, count * heads.width, hidden, False)
    else:
        part += linear("query down", tokens, latent.query_rank, hidden, False) + _normed_latent(stream, latent.query_rank)
        part += linear("query up", tokens, count * heads.width, latent.query_rank, False)
    part += linear("key down", tokens, latent.key_rank + latent.rotary_width, hidden, False)
    part += _normed_latent(stream, latent.key_rank)
    part += linear("key up", tokens, count * (latent.width + latent.value_width), latent.key_rank, False)
    return part + _rotary(tokens * (count + 1) * latent.rotary_width)


def _normed_latent(stream: ActivationStream, rank: int) -> Layer:
    """The norm of a latent, which keeps its input and output."""
    elements = stream.tokens * rank
    return Layer(
        operators=(norm_of("latent norm", elements),),
        tensors=norm_tensors(stream.norm, rank),
        kept=(SavedActivation("latent", 2 * elements),),
    )


def cross_projection(stream: ActivationStream, source: ActivationStream, heads: Heads) -> Layer:
    """Queries from this stream, keys and values from all tokens of another stream, with the collectives at its input."""
    keys = heads.key_heads * (heads.width + heads.value_width)
    queries = linear("query", stream.tokens, heads.heads * heads.width, stream.hidden, False)
    return queries + input_collectives(source) + linear("key value", source.tokens, keys, stream.hidden, False)


def attention(stream: ActivationStream, heads: Heads, bias: bool, read_tokens: int | None = None, gated: bool = False) -> Layer:
    """Attention with its output projection. read_tokens: number of the rank's keys; that of queries if None. gated: whether a
    gate multiplies the output before the projection.

    Context-parallel ranks read one another's keys and values, or each attends to all tokens with some of the heads. A window
    bounds the keys of a query; a causal mask then hides keys only from the first queries.
    """
    if stream.shard.context > 1 and stream.shard.context_by == "ulysses":
        return _attention_by_heads(stream, heads, bias, read_tokens, gated)
    if stream.shard.context > 1 and stream.shard.repeats_keys:
        heads = heads._replace(key_heads=heads.heads)
    queries, own_keys = stream.tokens, read_tokens or stream.tokens
    keys = own_keys * stream.shard.context
    output_width, widths = heads.heads * heads.value_width, heads.width + heads.value_width
    pieces = stream.shard.context if stream.shard.context_by == "ring" else 1
    part = _core(heads, queries, own_keys, keys, stream.dropout, pieces)
    collectives = _key_collectives(stream.shard, part.operators[0].name, keys * heads.key_heads * widths)
    part = _recomputable(part + Layer(exchanges=collectives)) + (_gate(queries * output_width) if gated else Layer())
    return part + linear("projection", queries, stream.hidden, output_width, bias)


def _gate(elements: int) -> Layer:
    """The product of attention's output and the sigmoid of a gate. It keeps the gate and its own output."""
    gate = MemoryBound("gate", 2 * elements, elements, 3 * elements, 2 * elements)
    return Layer(operators=(gate,), kept=(SavedActivation("gate", elements), SavedActivation("gated", elements)))


def _attention_by_heads(stream: ActivationStream, heads: Heads, bias: bool, read_tokens: int | None, gated: bool) -> Layer:
    """Attention of context-parallel ranks, each over all tokens with its share of the heads (arXiv 2309.14509).

    All-to-alls exchange queries, keys and values before attention and its output after it, in both passes. Key heads are
    replicated if they are fewer than ranks. Both the output of attention and the input of the projection are kept, since they
    are of different tokens.
    """
    ranks, tokens, keys = stream.shard.context, stream.tokens, read_tokens or stream.tokens
    key_heads = max(heads.key_heads, ranks)
    own = heads._replace(
        heads=even_share("heads", heads.heads, ranks, "context"), key_heads=even_share("key_heads", key_heads, ranks, "context")
    )
    part = _core(own, tokens * ranks, keys * ranks, keys * ranks, stream.dropout)
    output_width = heads.heads * heads.value_width
    sent = tokens * heads.heads * heads.width + keys * key_heads * (heads.width + heads.value_width)
    exchanges = tuple(
        Exchange("alltoall", elements, backward, axis="context")
        for elements in (sent, tokens * output_width)
        for backward in (False, True)
    )
    read = Layer(kept=(SavedActivation("projection input", tokens * output_width),), exchanges=exchanges)
    read += _gate(tokens * output_width) if gated else Layer()
    return _recomputable(part) + read + linear("projection", tokens, stream.hidden, output_width, bias)


def _core(heads: Heads, queries: int, own_keys: int, keys: int, dropout: bool, pieces: int = 1) -> Layer:
    """Attention of `queries` to `keys`, of which the rank keeps `own_keys`. pieces: number of ranks whose keys pass around a
    ring; a window reaches few of them."""
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
        pieces if window == keys else 1,
    )
    kept = (
        SavedActivation("queries", queries * heads.heads * heads.width),
        SavedActivation("keys", own_keys * heads.key_heads * heads.width),
        SavedActivation("values", own_keys * heads.key_heads * heads.value_width),
        *_scores(operator, dropout),
        SavedActivation("attention output", queries * heads.heads * heads.value_width),
    )
    return Layer(operators=(operator,), kept=kept)


def _recomputable(attention: Layer) -> Layer:
    """Attention as a module that can be recomputed; its output is kept in any case, by the product that reads it."""
    return attention.module(
        "core_attn", None, {activation.name for activation in attention.kept if activation.name in _RECOMPUTED}
    )


def _key_collectives(shard: Shard, attention: str, elements: int) -> tuple[Exchange, ...]:
    """Gathering of all ranks' keys and values, `elements` of them, in both passes, and reduction of their gradients.

    attention: name of the operator that they overlap if they pass around a ring.
    """
    if shard.context == 1:
        return ()
    hidden = shard.context_by == "ring"
    passes = (("all_gather", False), ("all_gather", True), ("reduce_scatter", True))
    return tuple(Exchange(op, elements, backward, hidden, "context", attention) for op, backward in passes)


# Activations that only the core of attention needs, and that need not be kept if it is recomputed.
_RECOMPUTED: Final = ("attention statistics", "attention scores", "attention mask", "dropped attention scores")


def _scores(operator: Attention, dropped: bool) -> tuple[SavedActivation, ...]:
    """Kept activations of the scores: the softmax's output, dropout's mask and output, or a flash kernel's sum of each row."""
    if operator.flash:
        return (SavedActivation("attention statistics", operator.heads * operator.queries, 4),)
    softmax = SavedActivation("attention scores", operator.scores, group="attention")
    if not dropped:
        return (softmax,)
    return (
        softmax,
        SavedActivation("attention mask", operator.scores, 1, "attention"),
        SavedActivation("dropped attention scores", operator.scores, group="attention"),
    )
