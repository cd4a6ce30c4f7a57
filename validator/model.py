"""Torch twins of the simulator's models: one module per simulator layer, in the same order, with the same tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from simulator.model import Gpt, Mlp, ResNet
from validator import model_resnet

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
        return cast(Tensor, self.token(tokens) + self.position(self.positions))


class Block(nn.Module):
    """A pre-norm transformer block: (batch, sequence, hidden) → the same shape."""

    def __init__(self, spec: Gpt) -> None:
        super().__init__()
        hidden = spec.hidden
        self.heads = spec.heads
        self.attention_norm = nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.projection = nn.Linear(hidden, hidden)
        self.mlp_norm = nn.LayerNorm(hidden)
        self.expand = nn.Linear(hidden, 4 * hidden)
        self.contract = nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self._attention(self.attention_norm(x))
        return cast(Tensor, x + self.contract(functional.gelu(self.expand(self.mlp_norm(x)))))

    def _attention(self, x: Tensor) -> Tensor:
        batch, sequence, hidden = x.shape
        split = self.qkv(x).view(batch, sequence, 3, self.heads, hidden // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return cast(Tensor, self.projection(mixed.transpose(1, 2).reshape(batch, sequence, hidden)))


class Head(nn.Module):
    """Final norm and output projection: (batch, sequence, hidden) → (batch, sequence, vocabulary) logits."""

    def __init__(self, spec: Gpt) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(spec.hidden)
        self.output = nn.Linear(spec.hidden, spec.vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.output(self.norm(x)))


def build(model: Gpt | Mlp | ResNet, layers: Iterable[int], seed: int) -> list[nn.Module]:
    """The given layers of `model`, numbered as `model.build_layers()` numbers them.

    A layer's initial parameters follow from the seed and its number alone, so that every rank that builds a layer builds
    the same, whatever else it builds. They are fp32 on the CPU.
    """
    return [_seeded(model, index, seed) for index in layers]


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy of (…, classes) outputs against (…) class numbers."""
    return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def _seeded(model: Gpt | Mlp | ResNet, index: int, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        # far enough apart that no two runs with small seeds share a layer
        torch.manual_seed(seed * 1_000_003 + index)
        if isinstance(model, ResNet):
            return model_resnet.layer(model, index)
        return _gpt_layer(model, index) if isinstance(model, Gpt) else _mlp_layer(model, index)


def _gpt_layer(spec: Gpt, index: int) -> nn.Module:
    if index == 0:
        return Embedding(spec)
    return Head(spec) if index == spec.layers + 1 else Block(spec)


def _mlp_layer(spec: Mlp, index: int) -> nn.Module:
    widths = spec.widths()
    linear = nn.Linear(widths[index], widths[index + 1])
    return linear if index == spec.layers - 1 else nn.Sequential(linear, nn.ReLU())
