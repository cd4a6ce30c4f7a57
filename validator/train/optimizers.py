"""The optimizers that scenarios name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch import nn

from scaleproof.simulator.cluster.device.device import Optimizer

# Decay of the means of gradients and of their squares, and the term that keeps divisors from zero.
_FIRST_DECAY: Final = 0.9
_SECOND_DECAY: Final = 0.999
_EPSILON: Final = 1e-6


def build_optimizer(name: Optimizer, parameters: Iterable[nn.Parameter], learning_rate: float) -> torch.optim.Optimizer:
    """The optimizer that scenarios call `name`."""
    match name:
        case "adam":
            return torch.optim.Adam(parameters, lr=learning_rate)
        case "adafactor":
            return torch.optim.Adafactor(parameters, lr=learning_rate)
        case "lamb":
            return Lamb(parameters, learning_rate)
        case _:
            return torch.optim.SGD(parameters, lr=learning_rate, momentum=0.9 if name == "momentum" else 0.0)


class Lamb(torch.optim.Optimizer):
    """LAMB without weight decay (arXiv 1904.00962, algorithm 2): Adam's update of each tensor, scaled by the ratio of the norms
    of the tensor and of the update."""

    def __init__(self, parameters: Iterable[nn.Parameter], learning_rate: float) -> None:
        super().__init__(parameters, {"lr": learning_rate})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Updates all parameters that have a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group["lr"])

    def _update(self, parameter: nn.Parameter, learning_rate: float) -> None:
        state = self.state[parameter]
        if not state:
            state.update(step=0, first=torch.zeros_like(parameter), second=torch.zeros_like(parameter))
        state["step"] += 1
        step, first, second = state["step"], state["first"], state["second"]
        first.lerp_(parameter.grad, 1 - _FIRST_DECAY)
        second.mul_(_SECOND_DECAY).addcmul_(parameter.grad, parameter.grad, value=1 - _SECOND_DECAY)
        mean, square = first / (1 - _FIRST_DECAY**step), second / (1 - _SECOND_DECAY**step)
        change = mean / (square.sqrt() + _EPSILON)
        norm, change_norm = parameter.norm(), change.norm()
        ratio = torch.where((norm > 0) & (change_norm > 0), norm / change_norm, 1.0)
        parameter.sub_(learning_rate * ratio * change)
