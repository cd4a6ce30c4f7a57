"""Optimizers of copies of parameters: in 32 bits for parameters of 16 bits, and in host memory for offloaded states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.distributed.tensor import DTensor

BuildOptimizer = Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer]


class MasterOptimizer(torch.optim.Optimizer):
    """Updates copies of parameters by another optimizer, and copies the results to the parameters.

    scaler: divides gradients by the scale of the loss in the precision of the copies, and leaves out steps in which one is
    infinite or not a number (arXiv 1710.03740, section 3.2); None where losses are not scaled.
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
        # numbers of the steps that were left out, from 0
        self.skipped: list[int] = []
        self._steps = self._applied = 0
        self._inner.register_step_post_hook(self._note_applied)

    @property
    def copies(self) -> list[nn.Parameter]:
        """The copies, in the order of the parameters. Gradients that they have are applied too."""
        return [master for _, master in self._pairs]

    def step(self, closure: Any = None) -> Any:
        """Applies the gradients of the parameters to the copies, and the copies to the parameters."""
        for parameter, master in self._pairs:
            if parameter.grad is not None:
                master.grad = part_of(parameter.grad).to(master, copy=True)
        if self._scaler is None:
            self._inner.step()
        else:
            before = self._applied
            self._scaler.step(self._inner)
            self._scaler.update()
            if self._applied == before:
                self.skipped.append(self._steps)
        self._steps += 1
        self._inner.zero_grad()
        self._write()

    def load(self, values: Iterable[Tensor]) -> None:
        """Gives the copies, and with them the parameters, values that others have computed."""
        with torch.no_grad():
            for (_, master), value in zip(self._pairs, values, strict=True):
                master.copy_(value)
        self._write()

    def widen(self) -> None:
        """Gives the parameters the values and the precision of the copies; they cannot be trained after that."""
        for parameter, master in self._pairs:
            if not isinstance(parameter, DTensor):
                parameter.data = master.data.to(parameter.device)

    def _write(self) -> None:
        with torch.no_grad():
            for parameter, master in self._pairs:
                part_of(parameter).copy_(master)

    def _note_applied(self, *_: Any) -> None:
        self._applied += 1


class StaticScaler(GradScaler):
    """A scale of losses that does not change, for ranks whose gradients are applied by others: these know the scale in advance.

    Scales from 8 to 32,768 train well (arXiv 1710.03740, section 3.2). With this one gradients between 6e-11 and 64 are in the
    range of fp16.
    """

    SCALE: Final = 1024.0

    def __init__(self, device: str) -> None:
        super().__init__(device, init_scale=self.SCALE)

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Ends a step of all optimizers."""
        super().update(self.SCALE)


def updated_by(optimizer: torch.optim.Optimizer, parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """What an optimizer of `parameters` updates: its copies of them, or the parameters themselves."""
    return optimizer.copies if isinstance(optimizer, MasterOptimizer) else list(parameters)


def part_of(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor that may be sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
