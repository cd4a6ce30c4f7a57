"""Muon: the momentum of each matrix of a block is made orthogonal by products of Newton and Schulz; Adam updates the rest.

Keller Jordan, "Muon: an optimizer for hidden layers in neural networks", 2024. Which parameters are matrices is written on them
by `mark_matrices`. Where ranks have parts of matrices, a function gathers them first. Emulated layers have vectors in place of
matrices, which are gathered, but not made orthogonal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch import Tensor, nn

from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.muon import ITERATIONS, matrices
from scaleproof.validator.train.master_copies import part_of

# Coefficients of the polynomial of each iteration, and decay of the momentum, as in Jordan's program.
_COEFFICIENTS: Final = (3.4445, -4.7750, 2.0315)
_MOMENTUM: Final = 0.95
_SMALLEST: Final = 1e-7
_MARK: Final = "is_matrix"
# In which momentum is gathered and made orthogonal.
NARROW: Final = torch.bfloat16

# Given this rank's parts of the momentum of all matrices, one after the other, returns its parts of the orthogonal matrices.
Orthogonalise = Callable[[Iterable[Tensor]], Iterable[Tensor]]


def each_whole(momentum: Iterable[Tensor]) -> Iterable[Tensor]:
    """The orthogonal matrices, where this rank has the momentum of each as a whole."""
    return map(orthogonal, momentum)


def mark_matrices(module: nn.Module, layer: Layer) -> None:
    """Notes which of the trained parameters of a layer's module are matrices, as the simulator counts them."""
    products = matrices(layer)
    if not products:
        return
    linear = [part.weight for part in module.modules() if isinstance(part, nn.Linear)]
    if not linear:
        # emulated layers have the same sizes
        sizes = Counter(size for product in products for size in (product.weights, product.weights // product.count))
        linear = [parameter for parameter in module.parameters() if parameter.numel() in sizes]
    for weight in linear:
        setattr(weight, _MARK, True)


def copy_mark(parameter: nn.Parameter, part: nn.Parameter) -> None:
    """Marks a part of a parameter as the parameter is."""
    setattr(part, _MARK, is_matrix(parameter))


def is_matrix(parameter: nn.Parameter) -> bool:
    """Whether a parameter has been marked as a matrix."""
    return getattr(parameter, _MARK, False)


class Muon(torch.optim.Optimizer):
    """Updates matrices by their orthogonal momentum, and other parameters by Adam. orthogonalise: gathers
    parts of matrices, where ranks have parts."""

    def __init__(self, parameters: Iterable[nn.Parameter], learning_rate: float, orthogonalise: Orthogonalise) -> None:
        given = list(parameters)
        super().__init__(given, {"lr": learning_rate})
        self._matrices = [parameter for parameter in given if is_matrix(parameter)]
        others = [parameter for parameter in given if not is_matrix(parameter)]
        self.adam = torch.optim.Adam(others, lr=learning_rate) if others else None
        self._rate, self._orthogonal = learning_rate, orthogonalise

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Updates all parameters that have a gradient."""
        if self.adam is not None:
            self.adam.step()
        updated = [parameter for parameter in self._matrices if parameter.grad is not None]
        momentum = (self._momentum(parameter, part_of(parameter.grad)).to(NARROW) for parameter in updated)  # type: ignore[arg-type]
        for parameter, orthogonal in zip(updated, self._orthogonal(momentum), strict=True):
            part_of(parameter).sub_(self._rate * orthogonal)

    def _momentum(self, parameter: nn.Parameter, gradient: Tensor) -> Tensor:
        """Nesterov's momentum of a parameter, after its gradient has been added."""
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(gradient)
        momentum: Tensor = state["momentum"]
        momentum.mul_(_MOMENTUM).add_(gradient)
        return gradient + _MOMENTUM * momentum


def orthogonal(matrix: Tensor) -> Tensor:
    """The nearest orthogonal matrix, approximately, scaled for its shape: matrix · (matrixᵀ · matrix)^(-1/2)."""
    if matrix.dim() != 2:
        return matrix
    rows, columns = matrix.shape
    x = matrix.mT if rows > columns else matrix
    x = x / (x.norm() + _SMALLEST)
    first, third, fifth = _COEFFICIENTS
    for _ in range(ITERATIONS):
        square = x @ x.mT
        x = first * x + (third * square + fifth * square @ square) @ x
    result: Tensor = max(1.0, rows / columns) ** 0.5 * (x.mT if rows > columns else x)
    return result
