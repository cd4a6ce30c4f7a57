"""Clipping of gradients by their norm over the whole model, of which each rank may have a part."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

from scaleproof.validator.train.master_copies import part_of

# Largest norm, the default of trainers that clip; and what keeps divisors from zero, as in torch.
LARGEST_NORM: Final = 1.0
_EPSILON: Final = 1e-6


class Part(NamedTuple):
    """A part of a parameter of the model. name: of the parameter. updated: what the optimizer updates of it. begin: its first
    element in the flattened parameter."""

    name: str
    updated: nn.Parameter
    begin: int = 0

    @property
    def elements(self) -> int:
        """Number of its elements."""
        return part_of(self.updated).numel()


class GradientClipping:
    """Scales the gradients of all parts so that their norm is at most `LARGEST_NORM`.

    A rank divides the square of each part's norm by the number of ranks with a copy, so that the sum over ranks counts each
    element once. Where all ranks have all gradients, nothing is summed.
    """

    def __init__(
        self,
        parts: Iterable[Part],
        whole: Mapping[str, int],
        gathered: Callable[[Mapping[str, int]], list[Mapping[str, int]]],
        add: Callable[[Tensor], None],
    ) -> None:
        """whole: elements of each parameter of the model. gathered: objects of all ranks. add: sums a tensor over all ranks."""
        self._parts, self._add = list(parts), add
        own = Counter[str]()
        for part in self._parts:
            own[part.name] += part.elements
        everyones = gathered(own)
        total = sum((Counter(one) for one in everyones), Counter[str]())
        # ranks may have padding
        self._copies = {name: max(1, math.floor(total[name] / whole[name] + 0.5)) for name in own}
        self.is_divided = any(Counter(one) != own for one in everyones) or any(own[name] < whole[name] for name in own)

    @torch.no_grad()
    def clip(self) -> None:
        """Scales the gradients in place."""
        gradients = [(part_of(part.updated.grad), part.name) for part in self._parts if part.updated.grad is not None]
        if not gradients and not self.is_divided:
            return
        device = part_of(self._parts[0].updated).device if self._parts else None
        square = torch.zeros((), dtype=torch.float64, device=device)
        for gradient, name in gradients:
            square += gradient.double().pow(2).sum() / (self._copies[name] if self.is_divided else 1)
        if self.is_divided:
            self._add(square)
        factor = (LARGEST_NORM / (square.sqrt() + _EPSILON)).clamp(max=1.0)
        for gradient, _ in gradients:
            gradient.mul_(factor.to(gradient.dtype))
