"""Torch modules of transformers with an encoder: BERT and T5, with the same tensors as the simulator's layers in order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from scaleproof.simulator.model import T5, Bert
from scaleproof.validator.train.models.attention import DROPOUT, Attend
from scaleproof.validator.train.models.transformer import Block, BlockShape, Head, cross_entropy, norm_of
from scaleproof.validator.train.models.wiring import DATA, Tie, Wire, Wiring

# Distance in tokens from which all positions share a row of the table (arXiv 1910.10683, section 2.1).
_FARTHEST: Final = 128

Values = Tensor | tuple[Tensor, ...]


def bert_layer(spec: Bert, index: int) -> nn.Module:
    """Layer number `index` of a BERT, as in `spec.build_layers()`."""
    if index == 0:
        return BertEmbedding(spec)
    if index == spec.layers + 1:
        return BertHead(spec)
    width, drop = spec.hidden // spec.heads, _rate(spec)
    sizes = spec.hidden, spec.heads, spec.heads, width, spec.feedforward or 4 * spec.hidden, spec.sequence
    return PostNormBlock(BlockShape(*sizes, dropout=drop), Attend(False, spec.flash, dropout=drop))


def bert_loss(outputs: Tensor | tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    """Cross entropy of the pooled output; with pre-training heads that of every word and of the next sentence."""
    if isinstance(outputs, Tensor):
        return cross_entropy(outputs, targets)
    return cross_entropy(outputs[0], targets[:, :-1]) + cross_entropy(outputs[1], targets[:, -1])


class BertEmbedding(nn.Module):
    """Tokens, positions and token types, all of type 0, with a norm: (batch, sequence) tokens → (batch, sequence, hidden)."""

    positions: Tensor

    def __init__(self, spec: Bert) -> None:
        super().__init__()
        self.token = nn.Embedding(spec.vocabulary, spec.hidden)
        self.position = nn.Embedding(spec.position_rows, spec.hidden)
        self.token_type = nn.Embedding(spec.token_types, spec.hidden)
        self.register_buffer("positions", torch.arange(spec.sequence), persistent=False)
        self.norm = nn.LayerNorm(spec.hidden)
        self.dropout = nn.Dropout(_rate(spec))

    def forward(self, tokens: Tensor) -> Tensor:
        """The embedded tokens."""
        types = self.token_type(torch.zeros_like(self.positions))
        return cast(Tensor, self.dropout(self.norm(self.token(tokens) + self.position(self.positions) + types)))


class PostNormBlock(Block):
    """A block with norms after the additions, as BERT has them."""

    def forward(self, x: Tensor, documents: Tensor | None = None) -> Tensor:
        """The block's output; a sample is one document."""
        x = self.run("layernorm", self.attention_norm, x + self.dropout(self.attention(x)))
        return self.run("layernorm", self.mlp_norm, x + self.dropout(self.feed_forward(x)))


class BertHead(nn.Module):
    """The pooler, which reads the first token, or with it both pre-training heads: logits of every word, of the next
    sentence."""

    def __init__(self, spec: Bert) -> None:
        super().__init__()
        self.pooler = nn.Linear(spec.hidden, spec.hidden)
        self.pretraining = spec.pretraining
        if spec.pretraining:
            self.transform = nn.Linear(spec.hidden, spec.hidden)
            self.norm = nn.LayerNorm(spec.hidden)
            self.output = nn.Linear(spec.hidden, spec.vocabulary)
            self.next = nn.Linear(spec.hidden, 2)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """The pooled output, or the logits of words and of the next sentence."""
        pooled = torch.tanh(self.pooler(x[:, 0]))
        if not self.pretraining:
            return pooled
        return self.output(self.norm(functional.gelu(self.transform(x)))), self.next(pooled)


def bert_ties(spec: Bert) -> Sequence[Tie]:
    """The weights of the words' logits are those of the embedding."""
    return [Tie(spec.layers + 1, "output.weight", 0, "token.weight")] if spec.pretraining else []


def t5_layer(spec: T5, index: int) -> nn.Module:
    """Layer number `index` of a T5, as in `spec.build_layers()`."""
    if index == 0:
        return T5Embedding(spec)
    if index == 2 * spec.layers + 1:
        return Head(spec.hidden, spec.vocabulary, "rms")
    place = (index - 1) % spec.layers
    return Encoder(spec, place) if index <= spec.layers else Decoder(spec, place)


def t5_ties(spec: T5) -> Sequence[Tie]:
    """The decoder embeds its tokens as the encoder does; the head's weights may also be those of the embedding."""
    words = Tie(spec.layers + 1, "words.token.weight", 0, "token.weight")
    return [words, Tie(2 * spec.layers + 1, "output.weight", 0, "token.weight")] if spec.tied else [words]


def t5_wiring(spec: T5) -> Wiring:
    """Blocks read the one before them and their stack's relative positions, those of the decoder also the encoder's output."""
    encoded, first, last = spec.layers, spec.layers + 1, 2 * spec.layers
    encoders = [(Wire(number - 1), Wire(1, 1)) for number in range(2, encoded + 1)]
    decoders = [(Wire(number - 1), Wire(encoded), Wire(first, 1)) for number in range(first + 1, last + 1)]
    return [(Wire(DATA),), (Wire(0),), *encoders, (Wire(DATA, 1), Wire(encoded)), *decoders, (Wire(last),)]


class T5Embedding(nn.Module):
    """Embedded tokens: (batch, sequence) tokens → (batch, sequence, hidden)."""

    def __init__(self, spec: T5) -> None:
        super().__init__()
        self.token = nn.Embedding(spec.vocabulary, spec.hidden)
        self.dropout = nn.Dropout(_rate(spec))

    def forward(self, tokens: Tensor) -> Tensor:
        """The embedded tokens."""
        return cast(Tensor, self.dropout(self.token(tokens)))


class RelativePositions(nn.Embedding):
    """A table of what is added to the scores of each head by the distance of two tokens: rows of near ones, then wider ones."""

    def __init__(self, spec: T5, both_ways: bool) -> None:
        super().__init__(spec.position_buckets, spec.heads)
        self.both_ways = both_ways

    def bias(self, tokens: int) -> Tensor:
        """(1, heads, tokens, tokens): what is added to the scores."""
        position = torch.arange(tokens, device=self.weight.device)
        bias: Tensor = self(self._rows(position - position.unsqueeze(1)))
        return bias.permute(2, 0, 1).unsqueeze(0).contiguous()

    def _rows(self, distance: Tensor) -> Tensor:
        rows, first = self.num_embeddings, torch.zeros_like(distance)
        if self.both_ways:
            rows //= 2
            first = (distance > 0) * rows
        distance = distance.abs() if self.both_ways else (-distance).clamp(min=0)
        near = rows // 2
        far = near + (distance.clamp(min=1) / max(near, 1)).log() / math.log(_FARTHEST / max(near, 1)) * (rows - near)
        return first + torch.where(distance < near, distance, far.long().clamp(max=rows - 1))


class Encoder(Block):
    """A block of the encoder: the first has the table of relative positions, and returns its bias too; the last has a norm."""

    def __init__(self, spec: T5, place: int) -> None:
        super().__init__(_shape(spec, spec.sequence), Attend(False, spec.flash, dropout=_rate(spec)))
        self.table = RelativePositions(spec, both_ways=True) if place == 0 else None
        self.last_norm = norm_of("rms", spec.hidden) if place == spec.layers - 1 else None

    def forward(self, x: Tensor, *bias: Tensor) -> Values:  # type: ignore[override]
        """The block's output, in the first one with the bias of the scores."""
        if self.table is not None:
            bias = (self.table.bias(x.shape[1]),)
        x = x + self.dropout(self.attention(self.run("layernorm", self.attention_norm, x), *bias))
        x = x + self.dropout(self.feed_forward(self.run("layernorm", self.mlp_norm, x)))
        if self.last_norm is not None:
            return cast(Tensor, self.last_norm(x))
        return x if self.table is None else (x, *bias)


class Decoder(Block):
    """A block of the decoder, which also reads the encoder's output. The first embeds the decoder's tokens, and has the table
    of relative positions."""

    def __init__(self, spec: T5, place: int) -> None:
        self._cross = Attend(False, spec.flash, dropout=_rate(spec))
        super().__init__(_shape(spec, spec.target_sequence), Attend(True, spec.flash, dropout=_rate(spec)))
        self.table = RelativePositions(spec, both_ways=False) if place == 0 else None
        self.words = T5Embedding(spec) if place == 0 else None
        self.returns_bias = place == 0 and spec.layers > 1

    def add_middle(self) -> None:
        """Adds attention to the encoder's output."""
        shape = self.shape
        columns = shape.heads * shape.width
        self.cross_norm = norm_of(shape.norm, shape.hidden)
        self.query = nn.Linear(shape.hidden, columns, bias=False)
        self.key_value = nn.Linear(shape.hidden, 2 * columns, bias=False)
        self.cross_projection = nn.Linear(columns, shape.hidden, bias=False)

    def forward(self, x: Tensor, encoded: Tensor, *bias: Tensor) -> Values:  # type: ignore[override]
        """The block's output, in the first one with the bias of the scores. x: in the first block, tokens."""
        x = x if self.words is None else self.words(x)
        if self.table is not None:
            bias = (self.table.bias(x.shape[1]),)
        x = x + self.dropout(self.attention(self.run("layernorm", self.attention_norm, x), *bias))
        x = x + self.dropout(self._read(self.run("layernorm", self.cross_norm, x), encoded))
        x = x + self.dropout(self.feed_forward(self.run("layernorm", self.mlp_norm, x)))
        return (x, *bias) if self.returns_bias else x

    def _read(self, x: Tensor, encoded: Tensor) -> Tensor:
        """Attention of the decoder's tokens to the encoder's."""
        query = self.query(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
        key, value = self.key_value(encoded).unflatten(-1, (-1, 2, self.head_width)).permute(3, 0, 2, 1, 4)
        mixed = self.run("core_attn", self._cross, query, key, value)
        return cast(Tensor, self.cross_projection(mixed.transpose(1, 2).flatten(-2)))


def _shape(spec: T5, sequence: int) -> BlockShape:
    sizes = spec.hidden, spec.heads, spec.heads, spec.head_width, spec.feedforward, sequence
    return BlockShape(*sizes, spec.activation, "rms", bias=False, qkv_bias=False, dropout=_rate(spec))


def _rate(spec: Bert | T5) -> float:
    return DROPOUT if spec.dropout else 0.0
