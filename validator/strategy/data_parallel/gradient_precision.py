"""Gradient precision: buffers in which gradients are accumulated over microbatches, and the precision of sums over ranks.

`training.accumulate_precision` and `training.reduce_precision`. Parameters keep the training precision, and so do the gradients
that the optimizer applies.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from scaleproof.simulator.scenario.training import Training
from scaleproof.validator.train.models.models import DTYPES


class GradientPrecision(NamedTuple):
    """Data types of gradients. computed: of a backward pass. accumulated: of the buffer of sums over microbatches. reduced: of
    sums over ranks."""

    computed: torch.dtype
    accumulated: torch.dtype
    reduced: torch.dtype

    @classmethod
    def of(cls, training: Training) -> Self:
        """The precisions of a scenario's training, with the same defaults as in predictions.

        With ZeRO's stage 3 `fully_shard` accumulates: a rank's shard of gradients in the parameters' precision.
        """
        reduced = training.reduce_precision or training.precision
        accumulated = training.precision if training.zero == 3 else training.accumulate_precision or reduced
        return cls(DTYPES[training.precision], DTYPES[accumulated], DTYPES[reduced])

    @property
    def is_uniform(self) -> bool:
        """Whether gradients are computed, accumulated and reduced in one precision."""
        return len(set(self)) == 1


class Accumulator:
    """The sums of parameters' gradients over a step's microbatches.

    If the buffer has a precision of its own, each gradient is added to it as soon as it is computed, and freed; else autograd
    accumulates. optimizer: receives the sums that have not been taken when it steps; None where all are taken.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], precision: GradientPrecision, optimizer: torch.optim.Optimizer | None
    ) -> None:
        self.precision = precision
        self._sums: dict[nn.Parameter, Tensor] = {}
        self._hooks: list[Any] = []
        if precision.accumulated != precision.computed:
            self._hooks = [p.register_post_accumulate_grad_hook(self._add) for p in parameters if p.requires_grad]  # type: ignore[no-untyped-call]
            if optimizer is not None:
                self._hooks.append(optimizer.register_step_pre_hook(lambda *_: self._assign_gradients()))

    def take(self, parameters: Iterable[nn.Parameter]) -> list[Tensor]:
        """The sums of those of `parameters` that have gradients; the next gradient starts a new sum."""
        sums = (self._sums.pop(parameter, parameter.grad) for parameter in parameters)
        return [gradient for gradient in sums if gradient is not None]

    def close(self) -> None:
        """Removes the hooks, so that no more gradients are accumulated."""
        for hook in self._hooks:
            hook.remove()

    def _assign_gradients(self) -> None:
        for parameter, gradient in self._sums.items():
            parameter.grad = gradient.to(parameter.dtype)
        self._sums.clear()

    def _add(self, parameter: nn.Parameter) -> None:
        gradient, parameter.grad = parameter.grad, None
        assert gradient is not None, "autograd calls the hook after it has set the gradient"
        if parameter in self._sums:
            self._sums[parameter].add_(gradient)
        else:
            self._sums[parameter] = gradient.to(self.precision.accumulated)
