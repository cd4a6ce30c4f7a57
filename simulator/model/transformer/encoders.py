"""Transformers with an encoder: BERT, and T5, which also has a decoder."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, Self

from pydantic import Field, model_validator

from scaleproof.simulator.common.spec import Depth, Width
from scaleproof.simulator.model.layers import WHOLE, Layer, ModelSpec, Shard
from scaleproof.simulator.model.operators import MemoryBound, SavedActivation
from scaleproof.simulator.model.transformer.attention import Heads, attention, cross_projection, qkv_projection
from scaleproof.simulator.model.transformer.decoder import options, repeated, sharding
from scaleproof.simulator.model.transformer.layer_parts import (
    Activation,
    ActivationStream,
    block,
    embedding,
    even_share,
    linear,
    logits_and_loss,
    mlp,
    never_recomputed,
    norm,
    output_head,
)


class Bert(ModelSpec):
    """BERT (arXiv 1810.04805): norms after the additions, token types, a pooler, and with `pretraining` both pre-training
    heads."""

    kind: Literal["bert"] = "bert"
    layers: Depth
    hidden: Width
    heads: Width
    vocabulary: Width = 30522
    sequence: Width = Field(512, description="tokens of a sample")
    feedforward: Width | None = Field(None, description="width of the MLP; four times hidden if absent")
    position_rows: Width = Field(512, description="longest sequence with learned positions")
    token_types: Width = 2
    dropout: bool = Field(True, description="whether there is dropout, including that of attention scores")
    flash: bool = Field(False, description="whether attention is one kernel that keeps no scores")
    pretraining: bool = Field(False, description="whether the heads for masked words and for the next sentence are trained")

    @model_validator(mode="after")
    def _fields_fit(self) -> Self:
        if self.hidden % self.heads:
            raise ValueError(f"heads: {self.heads} does not divide hidden {self.hidden}; give a divisor of it")
        if self.sequence > self.position_rows:
            message = f"sequence: {self.sequence} is more than position_rows {self.position_rows}; give at most that many"
            raise ValueError(message)
        return self

    def build_layers(self, shard: Shard = WHOLE) -> list[Layer]:
        """Embedding with its norm, blocks, and pooler (with pre-training heads). Raises FieldError if it cannot be divided
        so."""
        h, s, ranks = self.hidden, self.sequence, shard.tensor
        stream = ActivationStream.checked(s, h, shard, "layer", self.dropout)
        width = h // self.heads
        heads = even_share("heads", self.heads, ranks)
        shape = Heads(heads, heads, width, width, False, self.flash)
        mixing = qkv_projection(stream, shape, True, False) + attention(stream, shape, True)
        feedforward = even_share("feedforward", self.feedforward or 4 * h, ranks)
        encode = block(stream, (mixing, mlp(stream, feedforward, "gelu", True)))
        words = -(-self.vocabulary // ranks)
        first = embedding(stream, words, self.position_rows, self.token_types) + norm(stream)
        first += Layer(kept=(SavedActivation("embedding sum", stream.local_elements, group="input"),))
        end = f"s={s}{options(self)}{sharding(shard)})"
        signature = f"bert.block(h={h},heads={self.heads},{end}"
        return [
            first.named(
                "embedding", f"bert.embedding(h={h},v={self.vocabulary},{end}", stream.local_elements, pinned_to_end=True
            ),
            *repeated("block", 0, self.layers, signature, encode, stream.local_elements),
            self._head(stream, words).named("head", f"bert.head(h={h},v={self.vocabulary},{end}", h, pinned_to_end=True),
        ]

    def _head(self, stream: ActivationStream, words: int) -> Layer:
        """The pooler, which reads one token, and the pre-training heads, which predict masked words from all tokens, like the
        reference implementation."""
        h = stream.hidden
        pooler = linear("pooler", 1, h, h, True) + Layer(
            operators=(MemoryBound("tanh", h, h, 2 * h, h),), kept=(SavedActivation("pooled", 2 * h),)
        )
        if not self.pretraining:
            return never_recomputed(pooler)
        n = stream.local_elements
        transform = linear("transform", stream.tokens, h, h, True)
        transform += Layer(operators=(MemoryBound("gelu", n, n, 2 * n, n),), kept=(SavedActivation("transform", 3 * n),))
        next_sentence = linear("next sentence", 1, 2, h, True)
        return never_recomputed(pooler + transform + norm(stream) + logits_and_loss(stream, words, True, True) + next_sentence)


class T5(ModelSpec):
    """T5 (arXiv 1910.10683): an encoder and a decoder that reads its output; relative positions, RMS norms, no biases.

    Version 1.1 has a gated activation function and untied output weights: `activation: geglu`, `tied: false`.
    """

    kind: Literal["t5"] = "t5"
    layers: Depth = Field(description="number of layers of the encoder, and of the decoder")
    hidden: Width
    heads: Width
    head_width: Width = 64
    feedforward: Width
    vocabulary: Width = 32128
    sequence: Width = Field(512, description="tokens of a sample that the encoder reads")
    target_sequence: Width = Field(114, description="tokens of a sample that the decoder writes")
    position_buckets: Width = 32
    activation: Activation = "relu"
    tied: bool = Field(True, description="whether the output head shares the embedding's weights")
    dropout: bool = Field(True, description="whether there is dropout, including that of attention scores")
    flash: bool = Field(False, description="whether attention is one kernel that keeps no scores")

    def build_layers(self, shard: Shard = WHOLE) -> list[Layer]:
        """Embedding, encoder blocks, decoder blocks (which also read the last encoder block) and head.

        The final norm of a stack belongs to the last encoder block or to the head, the embedding of the decoder's tokens to the
        first decoder block, and the table of relative positions to the first block of its stack. Raises FieldError if the model
        cannot be divided so.
        """
        source = ActivationStream.checked(self.sequence, self.hidden, shard, "rms", self.dropout)
        target = ActivationStream.checked(self.target_sequence, self.hidden, shard, "rms", self.dropout)
        words = -(-self.vocabulary // shard.tensor)
        sizes = f"h={self.hidden},heads={self.heads},v={self.vocabulary},s={self.sequence}"
        end = f"({sizes}{options(self)}{sharding(shard)})"
        head = output_head(target, words, self.tied)
        return [
            embedding(source, words, None).named("embedding", f"t5.embedding{end}", source.local_elements, pinned_to_end=True),
            *self._encoder(source, end),
            *self._decoder(target, source, embedding(target, words, None), end),
            head.named("head", f"t5.head{end}", target.tokens * words, pinned_to_end=True),
        ]

    def _encoder(self, stream: ActivationStream, end: str) -> list[Layer]:
        shape = self._heads(stream.shard, causal=False)
        inner = block(stream, (self._mixing(stream, shape), self._mlp(stream)))
        layers = []
        for index in range(self.layers):
            part, role = inner, "encoder"
            if index == 0:
                part, role = self._with_table(part, shape), f"{role}.first"
            if index == self.layers - 1:
                part, role = (
                    part + norm(stream) + Layer(kept=(SavedActivation("last norm", stream.local_elements),)),
                    f"{role}.last",
                )
            layers.append(part.named(f"encoder{index}", f"t5.{role}{end}", stream.local_elements))
        return layers

    def _decoder(self, stream: ActivationStream, source: ActivationStream, token_embedding: Layer, end: str) -> list[Layer]:
        shape = self._heads(stream.shard, causal=True)
        cross = shape._replace(causal=False)
        crossing = cross_projection(stream, source, cross) + attention(stream, cross, False, source.tokens)
        inner = block(stream, (self._mixing(stream, shape), crossing, self._mlp(stream)))
        # the embedding's weights are the encoder's; all blocks read the encoder's output, which is kept once
        encoder_output = SavedActivation("encoder output", source.local_elements, group="input")
        words = replace(token_embedding, tensors=(), kept=(*token_embedding.kept, encoder_output))
        last_encoder = f"encoder{self.layers - 1}"
        first = words + self._with_table(inner, shape)
        layers = [first.named("decoder0", f"t5.decoder.first{end}", stream.local_elements, inputs=(last_encoder,))]
        for index in range(1, self.layers):
            inputs = (f"decoder{index - 1}", last_encoder)
            layers.append(inner.named(f"decoder{index}", f"t5.decoder{end}", stream.local_elements, inputs=inputs))
        return layers

    def _heads(self, shard: Shard, causal: bool) -> Heads:
        heads = even_share("heads", self.heads, shard.tensor)
        return Heads(heads, heads, self.head_width, self.head_width, causal, self.flash)

    def _mixing(self, stream: ActivationStream, shape: Heads) -> Layer:
        return qkv_projection(stream, shape, False, False) + attention(stream, shape, False)

    def _mlp(self, stream: ActivationStream) -> Layer:
        return mlp(stream, even_share("feedforward", self.feedforward, stream.shard.tensor), self.activation, False)

    def _with_table(self, part: Layer, shape: Heads) -> Layer:
        """The part with a stack's table of relative positions; adding them to the scores counts as part of attention."""
        return part + Layer(tensors=(self.position_buckets * shape.heads,))
