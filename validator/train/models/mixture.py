"""Mixtures of experts: a router sends each token to a few small MLPs and adds up their weighted outputs."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from scaleproof.simulator.model.transformer.experts import Experts
from scaleproof.validator.train.recompute import Sections


class Expert(nn.Module):
    """An MLP without biases: (tokens, hidden) → the same shape. activation: section name of its activation function."""

    def __init__(self, hidden: int, feedforward: int, activation: str) -> None:
        super().__init__()
        self.activation, self.run = activation, Sections()
        self.up = nn.Linear(hidden, feedforward, bias=False)
        self.down = nn.Linear(feedforward, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The expert's outputs."""
        return self.run(self.activation, self._down, self.up(x))

    def _down(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.down(functional.gelu(x)))


class LocalExperts(nn.ModuleDict):
    """Experts by number: rows of tokens sorted by expert, and the number of rows of each expert → rows of outputs."""

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """The outputs of all experts, in the order of the rows. counts: rows of each expert."""
        parts = torch.split(rows, counts.tolist())
        # an expert without tokens is called as well, so that its gradients are zeros and not missing
        return torch.cat([expert(part) for expert, part in zip(self.values(), parts, strict=True)])


class Mixture(nn.Module):
    """A mixture: (batch, sequence, hidden) → the same shape. A token goes to the experts with the largest router weights.

    Expert outputs are weighted by the softmax over all experts. No token is dropped, unless experts have a capacity: each then
    gets a buffer of that multiple of an even share of the tokens, filled in their order and padded with zeros.
    """

    def __init__(self, hidden: int, spec: Experts) -> None:
        super().__init__()
        self.active, self.count, self.capacity = spec.active, spec.count, spec.capacity
        self.router = nn.Linear(hidden, spec.count, bias=False)
        self.run = Sections()
        self.experts = LocalExperts({str(number): Expert(hidden, spec.feedforward, "moe_act") for number in range(spec.count)})
        self.shared = Expert(hidden, spec.shared * spec.feedforward, "activation") if spec.shared else None

    def forward(self, x: Tensor) -> Tensor:
        """The weighted outputs of each token's experts, and those of the shared experts."""
        tokens = x.flatten(0, -2)
        weights, chosen = functional.softmax(self.router(tokens), dim=-1).topk(self.active)
        expert, order = chosen.flatten().sort(stable=True)
        counts = torch.bincount(expert, minlength=self.count)
        if self.capacity is None:
            outputs = self.experts(tokens[order // self.active], counts)
        else:
            rows = math.ceil(len(order) * self.capacity / self.count)
            place = torch.arange(len(order), device=x.device) - (counts.cumsum(0) - counts)[expert]
            order, slot = order[place < rows], (expert * rows + place)[place < rows]
            buffers = tokens.new_zeros(self.count * rows, tokens.shape[-1]).index_copy(0, slot, tokens[order // self.active])
            outputs = self.experts(buffers, torch.full_like(counts, rows))[slot]
        weighted = outputs * weights.flatten()[order].unsqueeze(-1)
        mixed = torch.zeros_like(tokens).index_add(0, order // self.active, weighted)
        return (mixed if self.shared is None else mixed + self.run("shared_experts", self.shared, tokens)).view_as(x)
