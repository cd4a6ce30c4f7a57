"""Context parallelism: ranks that share a sample's tokens.

They gather one another's keys and values, pass them around a ring (`ring_attention`), or exchange tokens for heads: between two
all-to-alls a rank then has all tokens of its share of the heads (Ulysses, arXiv 2309.14509).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from scaleproof.validator.strategy.model_parallel.pass_collectives import PassCollectives
from scaleproof.validator.train.models.transformer import Block

# of (batch, heads, sequence, width)
_SEQUENCE: Final = 2
# of (batch, tokens, heads, …)
_TOKENS: Final = 1
_HEADS: Final = 2


def own_positions(place: int, ranks: int, sequence: int) -> Tensor:
    """Positions of a rank's tokens: of 2 × ranks parts one from the front and one from the back.

    All ranks then have the same work in causal attention (arXiv 2407.21783, section 3.3.2).
    """
    parts = torch.arange(sequence).view(2 * ranks, -1)
    return torch.cat([parts[place], parts[2 * ranks - 1 - place]])


def contiguous_positions(place: int, ranks: int, sequence: int) -> Tensor:
    """Positions of a rank's tokens: one of `ranks` contiguous parts of the sequence."""
    return torch.arange(sequence).chunk(ranks)[place]


def exchange_heads(block: Block, collectives: PassCollectives) -> None:
    """Makes a block attend to all tokens with this rank's heads."""
    block.to_heads = lambda split: collectives.transposed(split, _HEADS, _TOKENS)
    block.to_tokens = lambda mixed: collectives.transposed(mixed, _TOKENS, _HEADS)


class GatheredAttention:
    """Causal attention of a rank's queries to the keys and values of all ranks, which are gathered first."""

    def __init__(self, collectives: PassCollectives, sequence: int) -> None:
        self.collectives = collectives
        team = collectives.team
        positions = torch.cat([own_positions(place, team.size, sequence) for place in range(team.size)])
        self.order = positions.argsort()
        self.part = sequence // (2 * team.size)
        self.ends = [(number + 1) * self.part for number in (team.place, 2 * team.size - 1 - team.place)]

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """(batch, heads, own tokens, width) each, of keys and values maybe for fewer heads → the queries' shape."""
        own = torch.stack([key, value])
        both = self._in_order(self.collectives.gathered(own, 1 + _SEQUENCE))
        saved = _RegatheredTensors(both, lambda: self._in_order(self.collectives.together(own, 1 + _SEQUENCE)))
        with torch.autograd.graph.saved_tensors_hooks(saved.pack, saved.unpack):
            keys, values = both
            parts = zip(torch.split(query, self.part, _SEQUENCE), self.ends, strict=True)
            return torch.cat([_attended(q, keys[:, :, :end], values[:, :, :end]) for q, end in parts], _SEQUENCE)

    def _in_order(self, gathered: Tensor) -> Tensor:
        """Sorts gathered tokens, which are in rank order, by position."""
        return gathered.index_select(1 + _SEQUENCE, self.order.to(gathered.device))


class _RegatheredTensors:
    """Hooks for autograd's saved tensors: keys and values are not saved, but gathered again in the backward pass."""

    def __init__(self, whole: Tensor, gather: Callable[[], Tensor]) -> None:
        self._storage = whole.untyped_storage().data_ptr()
        self._gather = gather
        self._whole: Tensor | None = None
        self._missing = 0

    def pack(self, kept: Tensor) -> Tensor | _View:
        """Called with each tensor to be saved."""
        if kept.untyped_storage().data_ptr() != self._storage:
            return kept
        self._missing += 1
        return _View(kept.size(), kept.stride(), int(kept.storage_offset()))

    def unpack(self, kept: Tensor | _View) -> Tensor:
        """Called with each result of `pack`, once."""
        if isinstance(kept, Tensor):
            return kept
        whole = self._gather() if self._whole is None else self._whole
        self._missing -= 1
        self._whole = whole if self._missing else None
        return whole.as_strided(*kept)


class _View(NamedTuple):
    """A view of a tensor that is not kept."""

    size: torch.Size
    stride: tuple[int, ...]
    offset: int


def _attended(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Causal attention; the queries belong to the tokens of the last keys."""
    queries, read = query.shape[_SEQUENCE], keys.shape[_SEQUENCE]
    seen = torch.ones(queries, read, dtype=torch.bool, device=query.device).tril(read - queries)
    return functional.scaled_dot_product_attention(
        query, keys, values, attn_mask=seen, enable_gqa=keys.shape[1] < query.shape[1]
    )
