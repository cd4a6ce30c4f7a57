"""Multi-head latent attention: queries, keys and values through low-rank latents (arXiv 2405.04434, section 2.1)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from scaleproof.simulator.model.transformer.attention import Latent
from scaleproof.validator.train.models.attention import rotary_table, rotated
from scaleproof.validator.train.recompute import Sections


class LatentProjection(nn.Module):
    """Queries, keys and values of all heads, which share the rotary part of a key. norm: builds the norm of a latent."""

    turn: Tensor

    def __init__(self, hidden: int, heads: int, latent: Latent, sequence: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.register_buffer("turn", rotary_table(sequence, latent.rotary_width), persistent=False)
        self.widths, self.heads, self.run = latent, heads, Sections()
        columns = heads * (latent.width + latent.rotary_width)
        if latent.query_rank is None:
            self.query = nn.Linear(hidden, columns, bias=False)
        else:
            self.query_down = nn.Linear(hidden, latent.query_rank, bias=False)
            self.query_norm = norm(latent.query_rank)
            self.query = nn.Linear(latent.query_rank, columns, bias=False)
        self.key_down = nn.Linear(hidden, latent.key_rank + latent.rotary_width, bias=False)
        self.key_norm = norm(latent.key_rank)
        self.key_up = nn.Linear(latent.key_rank, heads * (latent.width + latent.value_width), bias=False)

    def heads_of(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values: (batch, heads, sequence, width) each."""
        down = x if self.widths.query_rank is None else self.query_norm(self.query_down(x))
        query = self.run("mla_up_proj", self.query, down)
        latent, shared = self.key_down(x).split([self.widths.key_rank, self.widths.rotary_width], -1)
        latent, width = self.key_norm(latent), self.widths.width
        key = self.run("mla_up_proj", self.key_up, latent)
        query, key = (x.view(*x.shape[:-1], self.heads, -1).transpose(1, 2) for x in (query, key))
        turn = self.turn[:, : x.shape[1]]
        turned = rotated(shared.unsqueeze(1), turn).expand(-1, self.heads, -1, -1)
        query = torch.cat([query[..., :width], rotated(query[..., width:], turn)], -1)
        return query, torch.cat([key[..., :width], turned], -1), key[..., width:]
