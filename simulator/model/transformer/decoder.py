"""Decoder-only transformers: one description of all of them, with the defaults of GPT and of Llama.

FLOPs are those of matrix products, two per multiply-add (arXiv 2104.04473, appendix).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Self

from pydantic import Field, model_validator

from scaleproof.simulator.common.spec import Depth, Width
from scaleproof.simulator.model.layers import WHOLE, Layer, ModelSpec, Shard
from scaleproof.simulator.model.transformer.attention import Heads, Latent, attention, compressed, projected
from scaleproof.simulator.model.transformer.experts import Experts, mixture
from scaleproof.simulator.model.transformer.layer_parts import (
    Activation,
    ActivationStream,
    LayerPart,
    Norm,
    block,
    even_share,
    joined,
    looked_up,
    mlp,
    output_head,
)

# In all layers: some ten times as many as any model has, which are listed tensor by tensor.
_MOST_EXPERTS: Final = 250_000
# fields that a layer's signature gives apart from its options, or that tell no layer from another
_NO_OPTIONS: Final = frozenset({"kind", "name", "description", "layers", "hidden", "heads", "vocabulary", "sequence"})


class Transformer(ModelSpec):
    """Fields of all families; a family is defaults for them."""

    kind: str
    layers: Depth
    hidden: Width
    heads: Width
    vocabulary: Width
    sequence: Width = Field(description="tokens of a sample")
    feedforward: Width | None = Field(None, description="width of the MLP; four times hidden if absent")
    key_heads: Width | None = Field(None, description="heads of keys and values; as many as of queries if absent")
    head_width: Width | None = Field(None, description="hidden / heads if absent")
    activation: Activation = "gelu"
    norm: Norm = "layer"
    biases: Literal["all", "qkv", "none"] = "all"
    positions: Literal["learned", "rotary", "none"] = "learned"
    position_rows: Width | None = Field(None, description="longest sequence that learned positions know; sequence if absent")
    window: Width | None = Field(None, description="tokens that one looks back on; all if absent")
    tied: bool = Field(False, description="whether the output head shares the embedding's weights")
    parallel: bool = Field(False, description="whether attention and MLP read the same input")
    head_norms: bool = Field(False, description="whether queries and keys are normed")
    dropout: bool = Field(False, description="whether there is dropout, of attention scores too")
    flash: bool = Field(True, description="whether attention is one kernel that keeps no scores")
    experts: Experts | None = None
    latent: Latent | None = None

    @model_validator(mode="after")
    def _fields_fit(self) -> Self:
        if self.head_width is None and self.latent is None and self.hidden % self.heads:
            raise ValueError(f"heads: {self.heads} does not divide hidden {self.hidden}; give a divisor of it")
        if self.key_heads is not None and self.heads % self.key_heads:
            raise ValueError(f"key_heads: {self.key_heads} does not divide heads {self.heads}; give a divisor of it")
        if self.latent is not None and self.key_heads not in (None, self.heads):
            message = f"key_heads: {self.key_heads} differs from heads {self.heads}; with latent attention they are alike"
            raise ValueError(message)
        if self.latent is not None and self.head_width is not None:
            raise ValueError(f"head_width: {self.head_width} beside the widths of latent; leave it out")
        if self.position_rows is not None and self.positions == "learned" and self.sequence > self.position_rows:
            message = f"sequence: {self.sequence} is more than position_rows {self.position_rows}; give at most that many"
            raise ValueError(message)
        if self.experts is not None and self.experts.dense_layers > self.layers:
            raise ValueError(f"experts.dense_layers: {self.experts.dense_layers} is more than layers {self.layers}; give fewer")
        if self.experts is not None and self.experts.count * (mixed := self.layers - self.experts.dense_layers) > _MOST_EXPERTS:
            message = f"experts.count: {self.experts.count} in each of {mixed} blocks; give at most {_MOST_EXPERTS} in all"
            raise ValueError(message)
        return self

    def build_layers(self, shard: Shard = WHOLE) -> list[Layer]:
        """Embedding, blocks (those with an MLP first, where there are experts), output head.

        Tensor-parallel ranks divide heads, MLPs and words; key heads that are fewer than they are repeated.
        """
        count = self.experts.count if self.experts else None
        stream = ActivationStream.checked(self.sequence, self.hidden, shard, self.norm, self.dropout, count)
        h, v, s = f"h={self.hidden}", f"v={self.vocabulary}", f"s={self.sequence}"
        end = f"{options(self)}{shared(shard)})"
        dense = self.experts.dense_layers if self.experts else self.layers
        mixing = self._attention(stream)
        blocks: list[Layer] = []
        for count, role, made in ((dense, "block", self._mlp), (self.layers - dense, "experts", self._mixture)):
            if count:
                branch, collectives = made(stream)
                part = block(stream, (mixing, branch), self.parallel, (joined(stream), collectives))
                signature = f"{self.kind}.{role}({h},heads={self.heads},{s}{end}"
                blocks += repeated("block", len(blocks), count, signature, part, stream.here)
        first, last = self._ends(stream)
        return [
            layer("embedding", f"{self.kind}.embedding({h},{v},{s}{end}", first, stream.here, glued=True),
            *blocks,
            layer("head", f"{self.kind}.head({h},{v},{s}{end}", last, self._words(shard) * stream.tokens, glued=True),
        ]

    def active_parameters(self) -> int:
        """Parameters that a token meets: all but those of the experts that it is not sent to."""
        if self.experts is None:
            return self.parameters()
        mixed = self.layers - self.experts.dense_layers
        gated = 3 if self.activation in ("swiglu", "geglu") else 2
        idle = self.experts.count - self.experts.active
        return self.parameters() - mixed * idle * gated * self.hidden * self.experts.feedforward

    def _attention(self, stream: ActivationStream) -> LayerPart:
        ranks = stream.shard.tensor
        heads = even_share("heads", self.heads, ranks)
        window, bias = self.window, self.biases == "all"
        if self.latent is not None:
            width = self.latent.width + self.latent.rotary_width
            shape = Heads(heads, heads, width, self.latent.value_width, True, self.flash, window)
            mixing = compressed(stream, shape, self.latent) + attention(stream, shape, bias)
            up, kept = {"query", "query up", "key up", "rotary"}, {"queries", "keys", "values"}
            return mixing.module("mla_up_proj", up, kept, exchanges=False)
        # of two key heads among eight ranks, each rank has one, as three others have
        key_heads = even_share("key_heads", max(self.key_heads or self.heads, ranks), ranks)
        width = self.head_width or self.hidden // self.heads
        shape = Heads(heads, key_heads, width, width, True, self.flash, window)
        rotary = self.positions == "rotary"
        return projected(stream, shape, self.biases != "none", rotary, self.head_norms) + attention(stream, shape, bias)

    def _mlp(self, stream: ActivationStream) -> tuple[LayerPart, LayerPart]:
        """An MLP, and the collectives around it."""
        feedforward = even_share("feedforward", self.feedforward or 4 * self.hidden, stream.shard.tensor)
        return mlp(stream, feedforward, self.activation, self.biases == "all"), joined(stream)

    def _mixture(self, stream: ActivationStream) -> tuple[LayerPart, LayerPart]:
        """A mixture of experts, and the collectives around it: where fewer ranks share an expert than what all tokens pass,
        either has its own."""
        experts, own = self.experts, stream.folded
        assert experts is not None
        even_share("experts.feedforward", experts.feedforward, own.shard.tensor, "tensor" if own is stream else "expert_tensor")
        part = mixture(own, experts, self.activation)
        collectives = joined(stream) if own is stream else joined(own, "expert_tensor")
        if experts.shared:
            feedforward = even_share("experts.shared · feedforward", experts.shared * experts.feedforward, stream.shard.tensor)
            part += mlp(stream, feedforward, self.activation, False, "shared_experts")
            collectives += LayerPart() if own is stream else joined(stream)
        return part.module("moe"), collectives

    def _words(self, shard: Shard) -> int:
        """Words of one rank; the last rank's are padded."""
        return -(-self.vocabulary // shard.tensor)

    def _ends(self, stream: ActivationStream) -> tuple[LayerPart, LayerPart]:
        words = self._words(stream.shard)
        rows = (self.position_rows or self.sequence) if self.positions == "learned" else None
        return looked_up(stream, words, rows), output_head(stream, words, self.tied)


class Gpt(Transformer):
    """A GPT: learned positions, biases, norms before attention and MLP, GELU; attention in one kernel, no dropout."""

    kind: Literal["gpt"] = "gpt"


class Llama(Transformer):
    """A Llama and its kin (Mistral, Mixtral, Qwen, DeepSeek): rotary positions, no biases, RMS norms, gated MLPs."""

    kind: Literal["llama"] = "llama"
    activation: Activation = "swiglu"
    norm: Norm = "rms"
    biases: Literal["all", "qkv", "none"] = "none"
    positions: Literal["learned", "rotary", "none"] = "rotary"


def layer(
    name: str, signature: str, part: LayerPart, output: int, glued: bool = False, inputs: tuple[str, ...] | None = None
) -> Layer:
    """A layer made of one part."""
    rest = part.kept, part.exchanges, inputs, part.expert_parameters, part.modules
    return Layer(name, signature, part.operators, part.tensors, output, glued, *rest)


def repeated(name: str, first: int, count: int, signature: str, part: LayerPart, output: int) -> Sequence[Layer]:
    """`count` layers of the same kind, numbered from `first`."""
    return [layer(f"{name}{first + index}", signature, part, output) for index in range(count)]


def options(model: ModelSpec) -> str:
    """Fields in which a model differs from its family's defaults, for signatures."""
    fields = type(model).model_fields
    return "".join(f",{field}={value}" for field, value in model if field not in _NO_OPTIONS and value != fields[field].default)


def shared(shard: Shard) -> str:
    """How a layer is divided, for signatures; nothing if it is not."""
    return "".join(f",{field}={value}" for field, value in shard._asdict().items() if value != getattr(WHOLE, field))
