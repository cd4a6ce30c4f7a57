"""Torch modules of siamese networks: two towers with the same weights, and the distance of their outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from torch import Tensor, nn
from torch.nn import functional

from scaleproof.simulator.model import Siamese
from scaleproof.validator.train.models.wiring import Tie


def layer(spec: Siamese, index: int, tower_layer: Callable[[int], nn.Module]) -> nn.Module:
    """Layer number `index` of a siamese network, as in `spec.build_layers()`."""
    count = len(spec.tower.build_layers())
    return Distance(spec.tower.build_layers()[-1].output_elements) if index == 2 * count else tower_layer(index % count)


def ties(spec: Siamese, parameters: Callable[[int], Sequence[str]]) -> Sequence[Tie]:
    """The right tower's parameters are the left one's. parameters: names of those of a layer."""
    count = len(spec.tower.build_layers())
    return [Tie(count + left, name, left, name) for left in range(count) for name in parameters(left)]


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy of (batch, 1) logits that two inputs are of the same class."""
    return functional.binary_cross_entropy_with_logits(outputs.squeeze(-1), targets.to(outputs.dtype))


class Distance(nn.Module):
    """The weighted L1 distance of two embeddings: two of (batch, width) → (batch, 1)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 1)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """The logit of each pair."""
        return cast(Tensor, self.linear((left - right).abs()))
