"""Torch modules of transformers: embeddings, blocks and heads of decoders, with parts that encoders use too."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Literal, NamedTuple, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from scaleproof.simulator.model.transformer.attention import Latent
from scaleproof.simulator.model.transformer.decoder import Transformer
from scaleproof.simulator.model.transformer.layer_parts import Activation, Norm, Norms
from scaleproof.simulator.model.transformer.recurrent import Recurrence
from scaleproof.validator.train.models.attention import DROPOUT, Attend, rotary_table, rotated, within_documents
from scaleproof.validator.train.models.interleaved import InterleavedLinear, expansion
from scaleproof.validator.train.models.latent import LatentProjection
from scaleproof.validator.train.models.mixture import Mixture, activated
from scaleproof.validator.train.models.recurrent import Mixer
from scaleproof.validator.train.recompute import Sections

# The target of a token that does not count in the loss, as in torch.
IGNORED: Final = -100
# Largest absolute logit with a softcap: that of Gemma 2 (final_logit_softcapping of its config.json).
_SOFTCAP: Final = 30.0


class BlockShape(NamedTuple):
    """Sizes and options of a block. bias, qkv_bias: of all products, and of that of queries, keys and values.

    key_heads: heads of keys and values. norms, head_norms, parallel, gated: as in `Transformer`. dropout: rate. branches:
    letters of a pattern, of which a block has at most one that mixes tokens and one that does not.
    """

    hidden: int
    heads: int
    key_heads: int
    width: int
    feedforward: int
    sequence: int
    activation: Activation = "gelu"
    norm: Norm = "layer"
    bias: bool = True
    qkv_bias: bool = True
    rotary: bool = False
    head_norms: bool | Literal["whole"] = False
    parallel: bool | Literal["one norm"] = False
    dropout: float = 0.0
    norms: Norms = "before"
    gated: bool = False
    branches: str = "*-"

    @classmethod
    def of(cls, spec: Transformer) -> Self:
        """The shape of a decoder's blocks."""
        return cls(
            spec.hidden,
            spec.heads,
            spec.key_heads or spec.heads,
            spec.head_width or max(1, spec.hidden // spec.heads),
            spec.feedforward or 4 * spec.hidden,
            spec.sequence,
            spec.activation,
            spec.norm,
            bias=spec.biases == "all",
            qkv_bias=spec.biases != "none",
            rotary=spec.positions == "rotary" and spec.latent is None,
            head_norms=spec.head_norms,
            parallel=spec.parallel,
            dropout=DROPOUT if spec.dropout else 0.0,
            norms=spec.norms,
            gated=spec.gated,
        )

    @property
    def mixes_tokens(self) -> bool:
        """Whether the block has attention or a recurrence."""
        return "*" in self.branches or "M" in self.branches

    @property
    def feeds_forward(self) -> bool:
        """Whether the block has an MLP or a mixture of experts."""
        return "-" in self.branches or "E" in self.branches


def norm_of(kind: Norm, width: int) -> nn.Module:
    """A layer norm or an RMS norm."""
    return nn.LayerNorm(width) if kind == "layer" else nn.RMSNorm(width)


class Embedding(nn.Module):
    """Token embedding, with learned positions if there are any: (batch, sequence) tokens → (batch, sequence, hidden)."""

    positions: Tensor

    def __init__(self, spec: Transformer) -> None:
        super().__init__()
        self.token = nn.Embedding(spec.vocabulary, spec.hidden)
        rows = spec.position_rows or spec.sequence
        self.position = nn.Embedding(rows, spec.hidden) if spec.positions == "learned" else None
        self.register_buffer("positions", torch.arange(spec.sequence), persistent=False)
        self.dropout = nn.Dropout(DROPOUT if spec.dropout else 0.0)

    def forward(self, tokens: Tensor) -> Tensor:
        """The embedded tokens."""
        x = self.token(tokens)
        return cast(Tensor, self.dropout(x if self.position is None else x + self.position(self.positions[: x.shape[1]])))


def _unchanged(x: Tensor) -> Tensor:
    return x


class Block(nn.Module):
    """A transformer block, with an MLP or a mixture of experts: (batch, sequence, hidden) → the same shape.

    attend: the attention function. to_heads, to_tokens: exchanges before and after it among ranks that share a sample's tokens.
    run: runs the block's sections. With tensor parallelism a rank has some of the heads and a part of the MLP.
    """

    turn: Tensor

    def __init__(self, shape: BlockShape, attend: Callable[..., Tensor], mixture: Mixture | None = None) -> None:
        super().__init__()
        hidden = shape.hidden
        self.head_width, self.group, self.shape = shape.width, shape.heads // shape.key_heads, shape
        self.attend = attend
        self.to_heads: Callable[[Tensor], Tensor] = _unchanged
        self.to_tokens: Callable[[Tensor], Tensor] = _unchanged
        self.run = Sections()
        self.dropout = nn.Dropout(shape.dropout)
        normed = partial(norm_of, shape.norm, hidden)
        if shape.mixes_tokens:
            self.attention_norm = normed() if shape.norms != "after" else nn.Identity()
            if shape.parallel:
                self.mlp_norm = normed() if shape.parallel != "one norm" else self.attention_norm
            self.projection = nn.Linear(self.add_heads() * shape.heads, hidden, bias=shape.bias)
            self.attention_output_norm = normed() if shape.norms != "before" else nn.Identity()
        self.add_middle()
        self.mixed = mixture is not None
        if not shape.feeds_forward:
            return
        if not shape.parallel:
            self.mlp_norm = normed() if shape.norms != "after" else nn.Identity()
        if mixture is not None:
            self.mixture = mixture
        else:
            self.expand = expansion(hidden, shape.feedforward, shape.activation, shape.bias)
            self.contract = nn.Linear(shape.feedforward, hidden, bias=shape.bias)
        self.mlp_output_norm = normed() if shape.norms != "before" else nn.Identity()

    def add_heads(self) -> int:
        """Adds the modules that compute queries, keys and values; returns the width of a head's values."""
        shape = self.shape
        # of a head of keys: its heads of queries, its keys and its values
        widths = self.group * shape.width, shape.width, shape.width
        self.qkv = InterleavedLinear(shape.hidden, shape.key_heads, widths, shape.qkv_bias)
        if shape.head_norms:
            queries, keys = (shape.heads, shape.key_heads) if shape.head_norms == "whole" else (1, 1)
            self.query_norm = norm_of(shape.norm, queries * shape.width)
            self.key_norm = norm_of(shape.norm, keys * shape.width)
        if shape.gated:
            self.gate = nn.Linear(shape.hidden, shape.heads * shape.width, bias=False)
        if shape.rotary:
            self.register_buffer("turn", rotary_table(shape.sequence, shape.width), persistent=False)
        return shape.width

    def add_middle(self) -> None:
        """Adds the modules of a branch between attention and MLP; none here."""

    def forward(self, x: Tensor, documents: Tensor | None = None) -> Tensor:
        """The block's output. documents: numbers (batch, sequence) of the tokens' documents, to which alone they attend."""
        attention = self.attention if documents is None else partial(self.attention, documents=documents)
        if self.shape.parallel:
            normed = self.normed(self.attention_norm, x)
            second = normed if self.mlp_norm is self.attention_norm else self.normed(self.mlp_norm, x)
            return x + cast(Tensor, self.dropout(attention(normed) + self.feed_forward(second)))
        if self.shape.mixes_tokens:
            x = x + self.dropout(self.normed(self.attention_output_norm, attention(self.normed(self.attention_norm, x))))
        if not self.shape.feeds_forward:
            return x
        return x + cast(
            Tensor, self.dropout(self.normed(self.mlp_output_norm, self.feed_forward(self.normed(self.mlp_norm, x))))
        )

    def normed(self, norm: nn.Module, x: Tensor) -> Tensor:
        """Normalised activations, where there is a norm."""
        return x if isinstance(norm, nn.Identity) else self.run("layernorm", norm, x)

    def turn_at(self, positions: Tensor) -> None:
        """Makes the block's tokens those at other positions than the first ones."""
        if self.shape.rotary:
            self.turn = self.turn[:, positions.to(self.turn.device)]

    def feed_forward(self, x: Tensor) -> Tensor:
        """The output of the MLP or of the mixture."""
        return self.run("moe", self.mixture, x) if self.mixed else self.run("mlp", self._mlp, x)

    def _mlp(self, x: Tensor) -> Tensor:
        return self.run("activation", self._contract, self.expand(x))

    def _contract(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.contract(activated(x, self.shape.activation)))

    def attention(self, x: Tensor, *bias: Tensor, documents: Tensor | None = None) -> Tensor:
        """The output of self-attention. bias: is added to the scores. documents: as in `forward`."""
        attend = self.attend if documents is None else within_documents(self.attend, documents)
        mixed = self.run("core_attn", attend, *self.heads_of(x), *bias)
        output = self.to_tokens(mixed.transpose(1, 2)).flatten(-2)
        return cast(Tensor, self.projection(output * self.gate(x).sigmoid() if self.shape.gated else output))

    def heads_of(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values: (batch, heads, sequence, width) each."""
        # queries of a head of keys, the keys and the values are neighbours, so that a contiguous part of the columns has whole
        # heads
        split = self.to_heads(self.qkv(x).unflatten(-1, (-1, self.group + 2, self.head_width))).transpose(1, 2)
        query, key, value = split[..., :-2, :].transpose(2, 3).flatten(1, 2), split[..., -2, :], split[..., -1, :]
        if self.shape.head_norms:
            query, key = self._normed_heads(self.query_norm, query), self._normed_heads(self.key_norm, key)
        if self.shape.rotary:
            turn = self.turn[:, : query.shape[-2]]
            query, key = rotated(query, turn), rotated(key, turn)
        return query, key, value

    def _normed_heads(self, norm: nn.Module, heads: Tensor) -> Tensor:
        """Heads, (batch, heads, sequence, width), each normalised, or all of a token's as a whole."""
        if self.shape.head_norms != "whole":
            return cast(Tensor, norm(heads))
        return norm(heads.transpose(1, 2).flatten(-2)).unflatten(-1, (-1, self.head_width)).transpose(1, 2)  # type: ignore[no-any-return]


class LatentBlock(Block):
    """A block whose queries, keys and values come from low-rank latents."""

    def __init__(self, shape: BlockShape, latent: Latent, attend: Callable[..., Tensor], mixture: Mixture | None) -> None:
        self._latent = latent
        super().__init__(shape, attend, mixture)

    def add_heads(self) -> int:
        """Adds the latents and what is computed from them; returns the width of a head's values."""
        shape = self.shape
        self.latent = LatentProjection(shape.hidden, shape.heads, self._latent, shape.sequence, partial(norm_of, shape.norm))
        return self._latent.value_width

    def heads_of(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values: (batch, heads, sequence, width) each."""
        return self.latent.heads_of(x)


class RecurrentBlock(Block):
    """A block with a recurrence in place of attention."""

    def __init__(
        self, shape: BlockShape, recurrence: Recurrence, attend: Callable[..., Tensor], mixture: Mixture | None
    ) -> None:
        self._recurrence = recurrence
        super().__init__(shape._replace(heads=recurrence.heads, rotary=False, bias=False), attend, mixture)

    def add_heads(self) -> int:
        """Adds the recurrence; returns the width of a head's values."""
        self.mixer = Mixer(self.shape.hidden, self._recurrence)
        return self._recurrence.value_width

    def attention(self, x: Tensor, *bias: Tensor, documents: Tensor | None = None) -> Tensor:
        """The output of the recurrence."""
        return cast(Tensor, self.projection(self.mixer(x)))


class Head(nn.Module):
    """Final norm and output projection: (batch, sequence, hidden) → (batch, sequence, vocabulary) logits."""

    def __init__(self, hidden: int, vocabulary: int, norm: Norm, bias: bool = False, softcap: bool = False) -> None:
        super().__init__()
        self.norm, self.softcap = norm_of(norm, hidden), softcap
        self.output = nn.Linear(hidden, vocabulary, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        logits = cast(Tensor, self.output(self.norm(x)))
        return _SOFTCAP * torch.tanh(logits / _SOFTCAP) if self.softcap else logits


def layer(spec: Transformer, index: int) -> nn.Module:
    """Layer number `index` of a decoder, as in `spec.build_layers()`."""
    if index == 0:
        return Embedding(spec)
    if index == spec.layers + 1:
        return Head(spec.hidden, spec.vocabulary, spec.norm, spec.head_bias, spec.softcap)
    attend = Attend(True, spec.flash, spec.window_of(index - 1), DROPOUT if spec.dropout else 0.0)
    is_mixed = spec.experts is not None and spec.is_mixed(index - 1)
    mixture = Mixture(spec.hidden, spec.experts, spec.activation) if spec.experts is not None and is_mixed else None
    shape = BlockShape.of(spec)._replace(branches=spec.branches_of(index - 1))
    if spec.recurrence is not None and "M" in shape.branches:
        return RecurrentBlock(shape, spec.recurrence, attend, mixture)
    if spec.latent is not None:
        return LatentBlock(shape, spec.latent, attend, mixture)
    return Block(shape, attend, mixture)


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy of (…, classes) outputs against (…) class numbers."""
    return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def mean_of_samples(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean over samples of the mean cross entropy of their tokens, other than ignored ones."""
    losses = functional.cross_entropy(outputs.flatten(0, -2), targets.flatten(), ignore_index=IGNORED, reduction="none")
    return (losses.view_as(targets).sum(1) / (targets != IGNORED).sum(1)).mean()
