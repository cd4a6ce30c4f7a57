"""Linear layers of several products, such as queries, keys and values, whose columns alternate in one weight."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from scaleproof.simulator.model.transformer.layer_parts import Activation, activation_inputs
from scaleproof.validator.train.recompute import Sections


class InterleavedLinear(nn.Linear):
    """A linear layer of groups of neighbouring columns, each with the columns of every product one after the other, so that a
    contiguous part of the columns has whole groups.

    widths: number of columns of each product in a group. All products are computed at once, or one by one where recomputation
    separates them; the columns of the result are the same.
    """

    def __init__(self, inputs: int, groups: int, widths: Sequence[int], bias: bool) -> None:
        super().__init__(inputs, groups * sum(widths), bias)
        self.widths, self.run = list(widths), Sections()

    def forward(self, x: Tensor) -> Tensor:
        """The results of all products: (…, inputs) → (…, columns)."""
        if not self.run.separates_products or len(self.widths) == 1:
            return super().forward(x)
        weights = self._parts(self.weight)
        biases = [None] * len(weights) if self.bias is None else self._parts(self.bias)
        results = [
            functional.linear(x, weight.flatten(0, 1), None if bias is None else bias.flatten()).view(*x.shape[:-1], -1, width)
            for weight, bias, width in zip(weights, biases, self.widths, strict=True)
        ]
        return torch.cat(results, -1).flatten(-2)

    def _parts(self, parameter: Tensor) -> Sequence[Tensor]:
        """Each product's rows of a parameter, by group."""
        return torch.split(parameter.view(-1, sum(self.widths), *parameter.shape[1:]), self.widths, 1)


def expansion(hidden: int, feedforward: int, activation: Activation, bias: bool) -> InterleavedLinear:
    """The first product of an MLP, or both of a gated one, whose values and factors alternate."""
    return InterleavedLinear(hidden, feedforward, [1] * activation_inputs(activation), bias)
