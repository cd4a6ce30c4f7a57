"""Gradient precision: buffers in which microbatches add their gradients up, and the precision in which ranks sum them.

`training.accumulate_precision` and `training.reduce_precision`. Parameters keep the training precision, and so do the gradients
that the optimizer applies.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from scaleproof.simulator.scenario.schema import Training
from scaleproof.validator.train.models.models import DTYPES


class GradientPrecision(NamedTuple):
    """computed: of the gradients that a backward pass makes. accumulated: of the buffer to which microbatches add them.
    reduced: of what ranks sum."""

    computed: torch.dtype
    accumulated: torch.dtype
    reduced: torch.dtype

    @classmethod
    def of(cls, training: Training) -> Self:
        """As a scenario's training states them: what is left out is as predictions have it.

        Of gradients that ZeRO scatters a rank has a part, which `fully_shard` adds up in the parameters' precision.
        """
        reduced = training.reduce_precision or training.precision
        accumulated = training.precision if training.zero else training.accumulate_precision or reduced
        return cls(DTYPES[training.precision], DTYPES[accumulated], DTYPES[reduced])

    @property
    def is_one(self) -> bool:
        """Whether gradients are computed, accumulated and reduced in one precision."""
        return len(set(self)) == 1


class Accumulator:
    """The sums of parameters' gradients over a step's microbatches.

    Where the buffer has a precision of its own, each gradient is added to that as soon as a backward pass leaves it, and
    dropped; else autograd adds it up. optimizer: gets the sums that nobody has taken when it steps.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], precision: GradientPrecision, optimizer: torch.optim.Optimizer
    ) -> None:
        self.precision = precision
        self._sums: dict[nn.Parameter, Tensor] = {}
        self._hooks: list[Any] = []
        if precision.accumulated != precision.computed:
            self._hooks = [one.register_post_accumulate_grad_hook(self._add) for one in parameters]  # type: ignore[no-untyped-call]
            self._hooks.append(optimizer.register_step_pre_hook(lambda *_: self._hand_over()))

    def take(self, parameters: Iterable[nn.Parameter]) -> list[Tensor]:
        """The sums of some parameters, of those that have gradients; the next gradient begins a new sum."""
        sums = (self._sums.pop(parameter, parameter.grad) for parameter in parameters)
        return [one for one in sums if one is not None]

    def close(self) -> None:
        """Adds up no more."""
        for hook in self._hooks:
            hook.remove()

    def _hand_over(self) -> None:
        for parameter, one in self._sums.items():
            parameter.grad = one.to(parameter.dtype)
        self._sums.clear()

    def _add(self, parameter: nn.Parameter) -> None:
        gradient, parameter.grad = parameter.grad, None
        assert gradient is not None, "autograd calls the hook once the gradient is there"
        if parameter in self._sums:
            self._sums[parameter].add_(gradient)
        else:
            self._sums[parameter] = gradient.to(self.precision.accumulated)
