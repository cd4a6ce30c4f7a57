"""Mixtures of experts: a router sends each token to a few small MLPs and adds up their weighted outputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from scaleproof.simulator.model.transformer.experts import Experts
from scaleproof.simulator.model.transformer.layer_parts import Activation
from scaleproof.validator.train.models.interleaved import expansion
from scaleproof.validator.train.recompute import Sections

# Maps the router's (tokens, experts) weights to the weights and the numbers of each token's experts, (tokens, active) each.
Choose = Callable[[Tensor], tuple[Tensor, Tensor]]


def activated(x: Tensor, activation: Activation) -> Tensor:
    """The activation function of an MLP. If it is gated, neighbouring columns are a value and its factor."""
    if activation in ("swiglu", "geglu"):
        value, factor = x.view(*x.shape[:-1], -1, 2).unbind(-1)
        function: Callable[[Tensor], Tensor] = functional.silu if activation == "swiglu" else functional.gelu
        return value * function(factor)
    return functional.relu(x) if activation == "relu" else functional.gelu(x)


class Expert(nn.Module):
    """An MLP without biases: (…, hidden) → the same shape."""

    def __init__(self, hidden: int, feedforward: int, activation: Activation) -> None:
        super().__init__()
        self.activation, self.run = activation, Sections()
        self.up = expansion(hidden, feedforward, activation, bias=False)
        self.down = nn.Linear(feedforward, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The expert's outputs."""
        return self.run("activation", self._down, self.up(x))

    def _down(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.down(activated(x, self.activation)))


class RoutedExpert(Expert):
    """An expert of some tokens. Its products count as one with those of the other experts, as if they were grouped."""

    def forward(self, x: Tensor) -> Tensor:
        """The expert's outputs."""
        return self.run("moe_act", self._down, self.run.joined("expert up", self.up, x))

    def _down(self, x: Tensor) -> Tensor:
        return self.run.joined("expert down", self.down, activated(x, self.activation))


class LocalExperts(nn.ModuleDict):
    """Experts by number: rows of tokens sorted by expert, and the number of rows of each expert → rows of outputs.

    mixes: whether it reads tokens, weights and numbers of each token's experts instead, and returns weighted sums.
    """

    mixes = False

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """The outputs of all experts, in the order of the rows. counts: rows of each expert."""
        parts = torch.split(rows, counts.tolist())
        # an expert without tokens is called as well, so that its gradients are zeros and not missing
        return torch.cat([expert(part) for expert, part in zip(self.values(), parts, strict=True)])


class Mixture(nn.Module):
    """A mixture: (batch, sequence, hidden) → the same shape. A token goes to the experts with the largest router weights.

    Without a capacity no token is dropped. With one, every expert computes the same number of rows: those beyond it are
    dropped, and missing ones are zeros. Expert outputs are weighted by the softmax over all experts.
    """

    def __init__(self, hidden: int, spec: Experts, activation: Activation = "gelu") -> None:
        super().__init__()
        self.active, self.count, self.capacity = spec.active, spec.count, spec.capacity
        self.router = nn.Linear(hidden, spec.count, bias=False)
        self.choose: Choose = partial(_largest, active=spec.active)
        self.run = Sections()
        own = {str(number): RoutedExpert(hidden, spec.feedforward, activation) for number in range(spec.count)}
        self.experts = LocalExperts(own)
        shared = spec.shared * spec.feedforward
        self.shared = Expert(hidden, shared, activation) if spec.shared else None

    def forward(self, x: Tensor) -> Tensor:
        """The weighted outputs of each token's experts, and those of the shared experts."""
        tokens = x.flatten(0, -2)
        weights, chosen = self.choose(functional.softmax(self.router(tokens), dim=-1))
        mixed: Tensor
        mixed = self.experts(tokens, weights, chosen) if self.experts.mixes else self._mixed(tokens, weights, chosen)
        mixed = mixed.view_as(x)
        return mixed if self.shared is None else mixed + self.run("shared_experts", self.shared, x)

    def _mixed(self, tokens: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """The weighted sum of the outputs of each token's experts."""
        expert, order = chosen.flatten().sort(stable=True)
        token, counts = order // self.active, torch.bincount(expert, minlength=self.count)
        rows, weights = tokens[token], weights.flatten()[order].unsqueeze(-1)
        outputs = self.experts(rows, counts) if self.capacity is None else self._within_capacity(rows, expert, counts)
        return torch.zeros_like(tokens).index_add(0, token, outputs * weights)

    def _within_capacity(self, rows: Tensor, expert: Tensor, counts: Tensor) -> Tensor:
        """The outputs of rows sorted by expert; zeros for those beyond its capacity."""
        assert self.capacity is not None
        places = math.ceil(len(rows) * self.capacity / self.count)
        number = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[expert]
        kept = number < places
        place = (expert * places + number)[kept]
        filled = rows.new_zeros(self.count * places, rows.shape[-1]).index_copy(0, place, rows[kept])
        outputs = self.experts(filled, torch.full_like(counts, places))
        return torch.zeros_like(rows).masked_scatter(kept.unsqueeze(-1), outputs[place])


def _largest(weights: Tensor, active: int) -> tuple[Tensor, Tensor]:
    """The experts with the largest weights of each token."""
    largest = weights.topk(active)
    return largest.values, largest.indices
