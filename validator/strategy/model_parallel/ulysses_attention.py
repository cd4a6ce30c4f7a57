"""Ulysses context parallelism: ranks that share a sample's tokens exchange them for heads around attention (arXiv 2309.14509).

Between two all-to-alls a rank has all tokens of its share of the heads, so that attention is computed as by one process.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from scaleproof.validator.strategy.model_parallel.pass_collectives import PassCollectives
from scaleproof.validator.train.models.transformer import Block

# of (batch, tokens, heads, …)
_TOKENS: Final = 1
_HEADS: Final = 2


def contiguous_positions(place: int, ranks: int, sequence: int) -> Tensor:
    """Positions of a rank's tokens: one of `ranks` contiguous parts of the sequence."""
    return torch.arange(sequence).chunk(ranks)[place]


def exchange_heads(block: Block, collectives: PassCollectives) -> None:
    """Makes a block attend to all tokens with this rank's heads."""
    block.to_heads = lambda split: collectives.transposed(split, _HEADS, _TOKENS)
    block.to_tokens = lambda mixed: collectives.transposed(mixed, _TOKENS, _HEADS)
