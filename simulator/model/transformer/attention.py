"""Attention of transformer layers, as one of the ranks that share a layer has it: projections, core, and exchanges."""

from __future__ import annotations

from typing import Final, NamedTuple

from pydantic import Field

from scaleproof.simulator.common.spec import Spec, Width
from scaleproof.simulator.model.layers import Shard
from scaleproof.simulator.model.operators import Attention, Exchange, MemoryBound, SavedActivation
from scaleproof.simulator.model.transformer.layer_parts import (
    ActivationStream,
    LayerPart,
    entered,
    even_share,
    linear,
    norm_of,
    norm_tensors,
)


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


def projected(stream: ActivationStream, heads: Heads, bias: bool, rotary: bool, head_norms: bool = False) -> LayerPart:
    """Queries, keys and values from one product; keys' heads may be fewer than queries'."""
    queries, keys = heads.heads * heads.width, heads.key_heads * heads.width
    columns = queries + keys + heads.key_heads * heads.value_width
    part = linear("qkv", stream.tokens, columns, stream.hidden, bias)
    if head_norms:
        normed = stream.tokens * (queries + keys)
        tensors = 2 * norm_tensors(stream.norm, heads.width)
        part += LayerPart((norm_of("head norms", normed),), tensors, (SavedActivation("head norms", normed),))
    return part + (_rotary(stream.tokens * (queries + keys)) if rotary else LayerPart())


def _rotary(elements: int) -> LayerPart:
    return LayerPart((MemoryBound("rotary", elements, elements, elements, elements),))


def compressed(stream: ActivationStream, heads: Heads, latent: Latent) -> LayerPart:
    """Queries, keys and values through low-rank latents, which every rank has; all heads share a key's rotary part."""
    tokens, hidden, count = stream.tokens, stream.hidden, heads.heads
    part = LayerPart()
    if latent.query_rank is None:
        part += linear("query", tokens, count * heads.width, hidden, False)
    else:
        part += linear("query down", tokens, latent.query_rank, hidden, False) + _normed_latent(stream, latent.query_rank)
        part += linear("query up", tokens, count * heads.width, latent.query_rank, False)
    part += linear("key down", tokens, latent.key_rank + latent.rotary_width, hidden, False)
    part += _normed_latent(stream, latent.key_rank)
    part += linear("key up", tokens, count * (latent.width + latent.value_width), latent.key_rank, False)
    return part + _rotary(tokens * (count + 1) * latent.rotary_width)


def _normed_latent(stream: ActivationStream, rank: int) -> LayerPart:
    """The norm of a latent; what it reads and what it writes are kept."""
    elements = stream.tokens * rank
    return LayerPart(
        (norm_of("latent norm", elements),), norm_tensors(stream.norm, rank), (SavedActivation("latent", 2 * elements),)
    )


def crossed(stream: ActivationStream, source: ActivationStream, heads: Heads) -> LayerPart:
    """Queries from this stream, keys and values from another, whose ranks bring it together for them."""
    keys = heads.key_heads * (heads.width + heads.value_width)
    queries = linear("query", stream.tokens, heads.heads * heads.width, stream.hidden, False)
    return queries + entered(source) + linear("key value", source.tokens, keys, stream.hidden, False)


def attention(stream: ActivationStream, heads: Heads, bias: bool, read_tokens: int | None = None) -> LayerPart:
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
    around = LayerPart(exchanges=_passed_around(stream.shard, part.operators[0].name, keys * heads.key_heads * widths))
    return _recomputable(part + around) + linear("projection", queries, stream.hidden, mixed, bias)


def _attention_by_heads(stream: ActivationStream, heads: Heads, bias: bool, read_tokens: int | None) -> LayerPart:
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
    read = LayerPart(kept=(SavedActivation("projection input", tokens * mixed),), exchanges=around)
    return _recomputable(part) + read + linear("projection", tokens, stream.hidden, mixed, bias)


def _core(heads: Heads, queries: int, own_keys: int, keys: int, dropout: bool) -> LayerPart:
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
        SavedActivation("queries", queries * heads.heads * heads.width),
        SavedActivation("keys", own_keys * heads.key_heads * heads.width),
        SavedActivation("values", own_keys * heads.key_heads * heads.value_width),
        *_scores(operator, dropout),
        SavedActivation("attention output", queries * heads.heads * heads.value_width),
    )
    return LayerPart((operator,), kept=kept)


def _recomputable(attention: LayerPart) -> LayerPart:
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


def _scores(operator: Attention, dropped: bool) -> tuple[SavedActivation, ...]:
    """The softmax's output, dropout's mask and output; a flash kernel keeps one sum for each row of scores instead."""
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
