"""Mixtures of experts: a router sends each token to a few small MLPs, and adds up what they make of it."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from scaleproof.simulator.model.transformer.experts import Experts
from scaleproof.validator.train.recompute import Sections


class Expert(nn.Module):
    """An MLP without biases: (tokens, hidden) → the same shape. activation: the section that its activation function is."""

    def __init__(self, hidden: int, feedforward: int, activation: str) -> None:
        super().__init__()
        self.activation, self.run = activation, Sections()
        self.up = nn.Linear(hidden, feedforward, bias=False)
        self.down = nn.Linear(feedforward, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self.activation, self._down, self.up(x))

    def _down(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.down(functional.gelu(x)))


class LocalExperts(nn.ModuleDict):
    """Experts by their number: rows of tokens that are sorted by expert, and how many each expert has → the same rows."""

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        parts = torch.split(rows, counts.tolist())
        # an expert that nobody is sent to is called as well, so that its gradients are zeros and not missing
        return torch.cat([expert(part) for expert, part in zip(self.values(), parts, strict=True)])


class Mixture(nn.Module):
    """(batch, sequence, hidden) → the same shape. A token goes to the experts that the router gives it the most weight for.

    No token is dropped. What an expert makes of it counts by its share of the softmax over all of them.
    """

    def __init__(self, hidden: int, spec: Experts) -> None:
        super().__init__()
        self.active, self.count = spec.active, spec.count
        self.router = nn.Linear(hidden, spec.count, bias=False)
        self.run = Sections()
        self.experts = LocalExperts({str(number): Expert(hidden, spec.feedforward, "moe_act") for number in range(spec.count)})
        self.shared = Expert(hidden, spec.shared * spec.feedforward, "activation") if spec.shared else None

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, -2)
        weights, chosen = functional.softmax(self.router(tokens), dim=-1).topk(self.active)
        expert, order = chosen.flatten().sort(stable=True)
        token = order // self.active
        made = self.experts(tokens[token], torch.bincount(expert, minlength=self.count))
        mixed = torch.zeros_like(tokens).index_add(0, token, made * weights.flatten()[order].unsqueeze(-1))
        return (mixed if self.shared is None else mixed + self.run("shared_experts", self.shared, tokens)).view_as(x)
