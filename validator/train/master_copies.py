"""Optimizers of copies of parameters: in 32 bits for parameters of 16 bits, and in host memory for offloaded states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.distributed.tensor import DTensor

BuildOptimizer = Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer]


class MasterOptimizer(torch.optim.Optimizer):
    """Updates copies of parameters by another optimizer, and copies the results to the parameters.

    scaler: divides gradients by the scale of the loss, leaves out steps in which a gradient is infinite or not a number on any
    rank, and then halves the scale (arXiv 1710.03740, section 3.2); None where losses are not scaled.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        build: BuildOptimizer,
        dtype: torch.dtype,
        device: torch.device,
        scaler: GradScaler | None = None,
    ) -> None:
        """dtype, device: of the copies. build: the optimizer of the copies."""
        given = list(parameters)
        super().__init__(given, {})
        self._pairs = [
            (one, nn.Parameter(part_of(one.detach()).to(device, dtype, copy=True), one.requires_grad)) for one in given
        ]
        self._inner = build([master for _, master in self._pairs])
        self._scaler = scaler
        # numbers of the steps that no rank applied, from 0
        self.skipped: list[int] = []
        self._steps = 0

    def step(self, closure: Any = None) -> Any:
        """Applies the gradients of the parameters to the copies, and the copies to the parameters."""
        for parameter, master in self._pairs:
            if parameter.grad is not None:
                master.grad = part_of(parameter.grad).to(master, copy=True)
        if self._scaler is None:
            self._inner.step()
        else:
            scale = self._scaler.get_scale()
            self._scaler.step(self._inner)
            self._scaler.update()
            if self._scaler.get_scale() < scale:
                self.skipped.append(self._steps)
        self._steps += 1
        self._inner.zero_grad()
        self._write()

    def read(self) -> None:
        """Takes the values of parameters that were changed by others."""
        with torch.no_grad():
            for parameter, master in self._pairs:
                master.copy_(part_of(parameter))

    def widen(self) -> None:
        """Gives the parameters the values and the precision of the copies; they cannot be trained after that."""
        for parameter, master in self._pairs:
            if not isinstance(parameter, DTensor):
                parameter.data = master.data.to(parameter.device)

    def _write(self) -> None:
        with torch.no_grad():
            for parameter, master in self._pairs:
                part_of(parameter).copy_(master)


def part_of(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor that may be sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
