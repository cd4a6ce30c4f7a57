"""The core of attention, and rotary positions, as transformers of all families use them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

# Rate of all dropout in transformers (arXiv 1706.03762, section 5.4).
DROPOUT: Final = 0.1
_ROTARY_BASE: Final = 10_000.0


@dataclass(frozen=True)
class Attend:
    """Attention of heads: (batch, heads, queries, width), and keys and values of the same or of fewer heads.

    causal: whether a token attends only to itself and to earlier ones. flash: whether torch's fused kernel computes it, which
    keeps no scores. window: tokens that a token attends to. dropout: rate of dropout of the scores.
    """

    causal: bool
    flash: bool = True
    window: int | None = None
    dropout: float = 0.0

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None) -> Tensor:
        """The mixed values: (batch, heads, queries, width of values). bias: is added to the scores."""
        grouped = key.shape[1] < query.shape[1]
        if self.flash and bias is None and self._window(key) is None:
            return functional.scaled_dot_product_attention(
                query, key, value, is_causal=self.causal, dropout_p=self.dropout, enable_gqa=grouped
            )
        seen = self._seen(query, key)
        if self.flash:
            mask = bias if seen is None else seen if bias is None else bias.masked_fill(~seen, -torch.inf)
            return functional.scaled_dot_product_attention(query, key, value, mask, self.dropout, enable_gqa=grouped)
        if grouped:
            key, value = (heads.repeat_interleave(query.shape[1] // key.shape[1], 1) for heads in (key, value))
        scores = query @ key.mT * query.shape[-1] ** -0.5
        scores = scores if bias is None else scores + bias
        scores = scores if seen is None else scores.masked_fill(~seen, -torch.inf)
        return functional.dropout(functional.softmax(scores, -1), self.dropout) @ value

    def _window(self, key: Tensor) -> int | None:
        """The window, if it is shorter than the sequence."""
        return self.window if self.window is not None and self.window < key.shape[-2] else None

    def _seen(self, query: Tensor, key: Tensor) -> Tensor | None:
        """(queries, keys): the keys that each query attends to; None for all."""
        if not self.causal:
            return None
        everything = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device)
        window = self._window(key)
        return everything.tril() if window is None else everything.tril().triu(1 - window)


def within_documents(attend: Callable[..., Tensor], documents: Tensor) -> Callable[..., Tensor]:
    """Attention of the tokens of each document by itself, as kernels for sequences of several lengths compute it. documents:
    numbers (batch, sequence), equal for neighbouring tokens of a document."""
    counts = [row.unique_consecutive(return_counts=True)[1].tolist() for row in documents]

    def mixed(*heads: Tensor) -> Tensor:
        rows = []
        for number, own in enumerate(counts):
            parts = zip(*(torch.split(one[number : number + 1], own, -2) for one in heads), strict=True)
            rows.append(torch.cat([attend(*part) for part in parts], -2))
        return torch.cat(rows)

    return mixed


def rotary_table(positions: int, width: int) -> Tensor:
    """Cosines and sines by which rotary positions turn pairs of columns (arXiv 2104.09864): (2, positions, width)."""
    frequencies = _ROTARY_BASE ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.outer(torch.arange(positions, dtype=torch.float64), frequencies).repeat(1, 2)
    return torch.stack([angles.cos(), angles.sin()]).to(torch.float32)


def rotated(x: Tensor, table: Tensor) -> Tensor:
    """Heads with rotary positions: (…, tokens, width) by a table of (2, tokens, width)."""
    first, second = x.chunk(2, -1)
    return x * table[0] + torch.cat([-second, first], -1) * table[1]
