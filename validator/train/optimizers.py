"""The optimizers that scenarios name, and their states in few bits."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from scaleproof.simulator.cluster.device.device import Optimizer, StateBits
from scaleproof.simulator.model.recommender.lookups import RowOptimizer
from scaleproof.validator.train.muon import Muon, Orthogonalise, each_whole
from scaleproof.validator.train.narrow_states import NarrowStates

# Decay of the means of gradients and of their squares, and the term that keeps divisors from zero.
_FIRST_DECAY: Final = 0.9
_SECOND_DECAY: Final = 0.999
_EPSILON: Final = 1e-6
# Lion's shares of the momentum in the update, and in the next momentum (arXiv 2302.06675, algorithm 2).
_LION_DECAYS: Final = (0.9, 0.99)


def build_optimizer(
    name: Optimizer, parameters: Iterable[nn.Parameter], learning_rate: float, bits: StateBits | None = None,
    orthogonalise: Orthogonalise = each_whole,
) -> torch.optim.Optimizer:  # fmt: skip
    """The optimizer that scenarios call `name`. bits: of its states; those of parameters if None. orthogonalise: makes
    Muon's matrices orthogonal, of which parameters may be parts."""
    if bits is not None:
        return NarrowStates(parameters, partial(build_optimizer, name, learning_rate=learning_rate), bits)
    match name:
        case "adam":
            return torch.optim.Adam(parameters, lr=learning_rate)
        case "adafactor":
            return torch.optim.Adafactor(parameters, lr=learning_rate)
        case "lamb":
            return Lamb(parameters, learning_rate)
        case "lion":
            return Lion(parameters, learning_rate)
        case "muon":
            return Muon(parameters, learning_rate, orthogonalise)
        case _:
            return torch.optim.SGD(parameters, lr=learning_rate, momentum=0.9 if name == "momentum" else 0.0)


def build_row_optimizer(name: RowOptimizer, parameters: Iterable[nn.Parameter], learning_rate: float) -> torch.optim.Optimizer:
    """The optimizer of the parts of tables. It changes no rows whose gradient is zero, such as those that are not looked up."""
    match name:
        case "rowwise_adagrad":
            return RowwiseAdagrad(parameters, learning_rate)
        case "adagrad":
            return torch.optim.Adagrad(parameters, lr=learning_rate)
        case _:
            return torch.optim.SGD(parameters, lr=learning_rate)


def update_in_backward(parameter: nn.Parameter, optimizer: torch.optim.Optimizer) -> None:
    """Makes backward passes update a parameter by an optimizer of its own as soon as its gradient is computed."""

    def update(_: Tensor) -> None:
        optimizer.step()
        optimizer.zero_grad()

    parameter.register_post_accumulate_grad_hook(update)  # type: ignore[no-untyped-call]


class _TensorOptimizer(torch.optim.Optimizer):
    """An optimizer that updates one parameter after the other, without weight decay."""

    def __init__(self, parameters: Iterable[nn.Parameter], learning_rate: float) -> None:
        super().__init__(parameters, {"lr": learning_rate})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Updates all parameters that have a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter, parameter.grad, group["lr"])

    @abstractmethod
    def update(self, parameter: nn.Parameter, gradient: Tensor, learning_rate: float) -> None:
        """Updates a parameter and its states."""


class Lamb(_TensorOptimizer):
    """LAMB without weight decay (arXiv 1904.00962, algorithm 2): Adam's update of each tensor, scaled by the ratio of the norms
    of the tensor and of the update."""

    def update(self, parameter: nn.Parameter, gradient: Tensor, learning_rate: float) -> None:
        """Updates a parameter, and both means."""
        state = self.state[parameter]
        if not state:
            state.update(step=0, first=torch.zeros_like(parameter), second=torch.zeros_like(parameter))
        state["step"] += 1
        step, first, second = state["step"], state["first"], state["second"]
        first.lerp_(gradient, 1 - _FIRST_DECAY)
        second.mul_(_SECOND_DECAY).addcmul_(gradient, gradient, value=1 - _SECOND_DECAY)
        mean, square = first / (1 - _FIRST_DECAY**step), second / (1 - _SECOND_DECAY**step)
        change = mean / (square.sqrt() + _EPSILON)
        norm, change_norm = parameter.norm(), change.norm()
        ratio = torch.where((norm > 0) & (change_norm > 0), norm / change_norm, 1.0)
        parameter.sub_(learning_rate * ratio * change)


class Lion(_TensorOptimizer):
    """Lion without weight decay (arXiv 2302.06675, algorithm 2): the sign of a mean of gradients."""

    def update(self, parameter: nn.Parameter, gradient: Tensor, learning_rate: float) -> None:
        """Updates a parameter, and its momentum."""
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        in_update, in_next = _LION_DECAYS
        parameter.sub_(learning_rate * state["momentum"].lerp(gradient, 1 - in_update).sign_())
        state["momentum"].lerp_(gradient, 1 - in_next)


class RowwiseAdagrad(_TensorOptimizer):
    """Adagrad with one state for each row of a table, the sum of its gradients' mean squares (TorchRec's row-wise Adagrad, doi
    10.1145/3523227.3547387)."""

    def update(self, parameter: nn.Parameter, gradient: Tensor, learning_rate: float) -> None:
        """Updates a table and the states of its rows; of a sparse gradient, those that it has."""
        state = self.state[parameter]
        if not state:
            state["squares"] = parameter.new_zeros(len(parameter), 1)
        rows: Any = slice(None)
        if gradient.is_sparse:
            gradient = gradient.coalesce()
            (rows,), gradient = gradient.indices(), gradient.values()
        state["squares"][rows] += gradient.square().mean(-1, keepdim=True)
        parameter[rows] -= learning_rate * gradient / (state["squares"][rows].sqrt() + _EPSILON)
