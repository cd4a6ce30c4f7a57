"""Decoder-only transformers of the GPT-2/GPT-3 kind: learned positions, biases, pre-norm, GELU, untied output head."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from simulator.model.layers import WHOLE, Layer, ModelSpec, Shard, refuse_to_shard
from simulator.model.operators import Attention, Matmul, Operator
from simulator.spec import Depth, Width


class Gpt(ModelSpec):
    """A GPT. FLOPs are those of its matrix products, two per multiply-add (arXiv 2104.04473, appendix)."""

    kind: Literal["gpt"] = "gpt"
    layers: Depth
    hidden: Width
    heads: Width
    vocabulary: Width
    sequence: Width

    @model_validator(mode="after")
    def _heads_divide_hidden(self) -> Self:
        if self.hidden % self.heads:
            raise ValueError(f"heads: {self.heads} heads do not divide hidden {self.hidden}; give a divisor of it")
        return self

    def build_layers(self, shard: Shard = WHOLE) -> list[Layer]:
        refuse_to_shard(self.kind, shard)
        block = self._block()
        blocks = [Layer(f"block{i}", *block) for i in range(self.layers)]
        return [self._embedding(), *blocks, self._head()]

    def _embedding(self) -> Layer:
        h, v, s = self.hidden, self.vocabulary, self.sequence
        return Layer("embedding", f"gpt.embedding(h={h},v={v},s={s})", (), (v * h, s * h), s * h, glued=True)

    def _block(self) -> tuple[str, tuple[Operator, ...], tuple[int, ...], int]:
        """Signature, operators, tensors and output elements of one block."""
        h, s = self.hidden, self.sequence
        operators = (
            Matmul("qkv", s, 3 * h, h),
            Attention("attention", self.heads, self.heads, s, s, h // self.heads, h // self.heads),
            Matmul("projection", s, h, h),
            Matmul("up", s, 4 * h, h),
            Matmul("down", s, h, 4 * h),
        )
        norm = (h, h)
        attention = (3 * h * h, 3 * h, h * h, h)
        mlp = (4 * h * h, 4 * h, 4 * h * h, h)
        return f"gpt.block(h={h},heads={self.heads},s={s})", operators, (*norm, *attention, *norm, *mlp), s * h

    def _head(self) -> Layer:
        h, v, s = self.hidden, self.vocabulary, self.sequence
        return Layer("head", f"gpt.head(h={h},v={v},s={s})", (Matmul("head", s, v, h),), (h, h, v * h), s * v, glued=True)
