"""The exponential moving average of parameters, by which models are evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn

from scaleproof.validator.train.master_copies import part_of

# Share of the average that stays in a step.
DECAY: Final = 0.999


class ParameterAverage:
    """The average of what an optimizer updates, as another state. values: this rank's parts."""

    def __init__(self, parameters: Sequence[nn.Parameter], dtype: torch.dtype) -> None:
        self._parameters = parameters
        self.values: list[Tensor] = [part_of(one.detach()).to(dtype, copy=True) for one in parameters]

    @torch.no_grad()
    def add(self) -> None:
        """Adds the parameters after an update."""
        for value, parameter in zip(self.values, self._parameters, strict=True):
            value.lerp_(part_of(parameter).to(value.dtype), 1 - DECAY)

    @torch.no_grad()
    def write(self) -> None:
        """Gives the parameters the average."""
        for value, parameter in zip(self.values, self._parameters, strict=True):
            part_of(parameter).copy_(value)
