"""Torch modules of the simulator's models: one per simulator layer, in the same order, with the same tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from scaleproof.simulator.model import Gpt, Mlp, ResNet
from scaleproof.simulator.model.transformer.experts import Experts
from scaleproof.validator.train.models import resnet
from scaleproof.validator.train.models.mixture import Mixture
from scaleproof.validator.train.recompute import Sections

DTYPES: Final = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16}


class Embedding(nn.Module):
    """Token plus learned position embedding: (batch, sequence) tokens → (batch, sequence, hidden)."""

    positions: Tensor

    def __init__(self, spec: Gpt) -> None:
        super().__init__()
        self.token = nn.Embedding(spec.vocabulary, spec.hidden)
        self.position = nn.Embedding(spec.sequence, spec.hidden)
        self.register_buffer("positions", torch.arange(spec.sequence), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """The embedded tokens."""
        return cast(Tensor, self.token(tokens) + self.position(self.positions))


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention of heads: (batch, heads, sequence, width) each → the same shape."""
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def _unchanged(x: Tensor) -> Tensor:
    return x


class Block(nn.Module):
    """A pre-norm transformer block, with an MLP or a mixture of experts: (batch, sequence, hidden) → the same shape.

    attend: the attention function. to_heads, to_tokens: exchanges before and after it among ranks that share a sample's tokens.
    run: runs the block's sections. With tensor parallelism a rank has some of the heads and a part of the MLP.
    """

    def __init__(self, spec: Gpt, mixed: bool = False) -> None:
        super().__init__()
        hidden = spec.hidden
        self.head_width = hidden // spec.heads
        self.attend = attend
        self.to_heads: Callable[[Tensor], Tensor] = _unchanged
        self.to_tokens: Callable[[Tensor], Tensor] = _unchanged
        self.run = Sections()
        self.attention_norm = nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.projection = nn.Linear(hidden, hidden)
        self.mlp_norm = nn.LayerNorm(hidden)
        if mixed:
            self.mixture = Mixture(hidden, cast(Experts, spec.experts))
        else:
            self.expand = nn.Linear(hidden, 4 * hidden)
            self.contract = nn.Linear(4 * hidden, hidden)
        self.mixed = mixed

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        x = x + self._attention(self.run("layernorm", self.attention_norm, x))
        normed = self.run("layernorm", self.mlp_norm, x)
        return x + (self.run("moe", self.mixture, normed) if self.mixed else self.run("mlp", self._mlp, normed))

    def _mlp(self, x: Tensor) -> Tensor:
        return self.run("activation", self._contract, self.expand(x))

    def _contract(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.contract(functional.gelu(x)))

    def _attention(self, x: Tensor) -> Tensor:
        # a head's queries, keys and values are neighbours, so that a contiguous part of the columns has whole heads
        split = self.qkv(x).unflatten(-1, (-1, 3, self.head_width))
        query, key, value = self.to_heads(split).permute(3, 0, 2, 1, 4)
        mixed = self.run("core_attn", self.attend, query, key, value)
        return cast(Tensor, self.projection(self.to_tokens(mixed.transpose(1, 2)).flatten(-2)))


class Head(nn.Module):
    """Final norm and output projection: (batch, sequence, hidden) → (batch, sequence, vocabulary) logits."""

    def __init__(self, spec: Gpt) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(spec.hidden)
        self.output = nn.Linear(spec.hidden, spec.vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        return cast(Tensor, self.output(self.norm(x)))


def build(model: Gpt | Mlp | ResNet, layers: Iterable[int], seed: int) -> list[nn.Module]:
    """The layers of `model` with the given numbers, as in `model.build_layers()`.

    A layer's initial parameters depend only on the seed and its number, so that all ranks build equal ones. They are fp32 on
    the CPU.

    """
    return [_seeded(model, index, seed) for index in layers]


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy of (…, classes) outputs against (…) class numbers."""
    return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def _seeded(model: Gpt | Mlp | ResNet, index: int, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        # so that no two runs with small seeds share a layer
        torch.manual_seed(seed * 1_000_003 + index)
        if isinstance(model, ResNet):
            return resnet.layer(model, index)
        return _gpt_layer(model, index) if isinstance(model, Gpt) else _mlp_layer(model, index)


def _gpt_layer(spec: Gpt, index: int) -> nn.Module:
    if index == 0:
        return Embedding(spec)
    if index == spec.layers + 1:
        return Head(spec)
    return Block(spec, mixed=spec.experts is not None and index > spec.experts.dense_layers)


def _mlp_layer(spec: Mlp, index: int) -> nn.Module:
    widths = spec.widths()
    linear = nn.Linear(widths[index], widths[index + 1])
    return linear if index == spec.layers - 1 else nn.Sequential(linear, nn.ReLU())
