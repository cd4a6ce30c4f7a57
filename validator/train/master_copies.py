"""Optimizers of copies of parameters: in 32 bits for parameters of 16 bits, and in host memory for offloaded states."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.distributed.tensor import DTensor

BuildOptimizer = Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer]


class PinnedBuffers:
    """Vectors in pinned memory of the host, by which parameters on a GPU exchange gradients and values with their copies.

    Without them the host would copy pageable memory, which is slower, and wait for the GPU at each tensor. gradients, values: a
    view of one vector each for every parameter, in the parameters' precision.
    """

    def __init__(self, parts: Sequence[Tensor]) -> None:
        """parts: this rank's parts of the parameters, all in one precision."""
        self._parts = parts
        self.gradients, self.values = self._new(), self._new()
        for value, part in zip(self.values, parts, strict=True):
            value.copy_(part)

    def fetch(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Gradients in the host's memory, until the next call; None for those that are None."""
        fetched: list[Tensor | None] = []
        for gradient, own in zip(gradients, self.gradients, strict=True):
            fetched.append(None if gradient is None else own.copy_(gradient, non_blocking=True))
        self.wait()
        return fetched

    def write(self) -> None:
        """Starts to copy the values to the parameters; what the GPU does next comes after that."""
        for part, value in zip(self._parts, self.values, strict=True):
            part.copy_(value, non_blocking=True)

    def wait(self) -> None:
        """Waits until all copies are complete, so that the buffers may change."""
        torch.cuda.current_stream().synchronize()

    def _new(self) -> list[Tensor]:
        sizes = [part.numel() for part in self._parts]
        flat = _pinned(sum(sizes), self._parts[0].dtype)
        return [own.view(part.shape) for own, part in zip(torch.split(flat, sizes), self._parts, strict=True)]


class MasterOptimizer(torch.optim.Optimizer):
    """Updates copies of parameters by another optimizer, and copies the results to the parameters.

    scaler: divides gradients by the scale of the loss in the precision of the copies, and leaves out steps in which one is
    infinite or not a number (arXiv 1710.03740, section 3.2); None where losses are not scaled. delays: whether an update
    runs next to what follows it, up to the next step, which gives the parameters its results (arXiv 2101.06840, section 5.2).
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        build: BuildOptimizer,
        dtype: torch.dtype,
        device: torch.device,
        scaler: GradScaler | None = None,
        delays: bool = False,
    ) -> None:
        """dtype, device: of the copies. build: the optimizer of the copies."""
        given = list(parameters)
        super().__init__(given, {})
        parts = [part_of(one.detach()) for one in given]
        self._buffers = PinnedBuffers(parts) if device.type == "cpu" and _are_on_gpu(parts) else None
        # in the parameters' precision the buffers' values are the copies
        copies = [one.to(device, dtype, copy=True) for one in parts] if self._buffers is None else self._buffers.values
        self._pairs = [(one, nn.Parameter(copy.to(dtype), one.requires_grad)) for one, copy in zip(given, copies, strict=True)]
        self.inner = build([master for _, master in self._pairs])
        self._scaler = scaler
        self._thread = ThreadPoolExecutor(1, "update") if delays else None
        self._under_way: Future[float] | None = None
        # when the update whose results the parameters have was complete, of time.perf_counter, where updates are delayed
        self.updated_s = 0.0
        # numbers of the steps that were left out, from 0
        self.skipped: list[int] = []
        self._steps = self._applied = 0
        self.inner.register_step_post_hook(self._note_applied)

    @property
    def copies(self) -> list[nn.Parameter]:
        """The copies, in the order of the parameters. Gradients that they have are applied too."""
        return [master for _, master in self._pairs]

    def step(self, closure: Any = None) -> Any:
        """Applies the gradients of the parameters to the copies, and the copies to the parameters."""
        self.finish()
        gradients = [None if one.grad is None else part_of(one.grad) for one, _ in self._pairs]
        if self._buffers is not None:
            gradients = self._buffers.fetch(gradients)
        for (_, master), gradient in zip(self._pairs, gradients, strict=True):
            if gradient is not None:
                master.grad = gradient.to(master, copy=self._buffers is None)
        if self._thread is not None:
            self._under_way = self._thread.submit(self._update)
            return
        self._update()
        self.write()

    def finish(self) -> None:
        """Waits for a delayed update, and gives the parameters its results."""
        if self._under_way is not None:
            self.updated_s = self._under_way.result()
            self._under_way = None
            self.write()

    def _update(self) -> float:
        if self._scaler is None:
            self.inner.step()
        else:
            before = self._applied
            self._scaler.step(self.inner)
            self._scaler.update()
            if self._applied == before:
                self.skipped.append(self._steps)
        self._steps += 1
        self.inner.zero_grad()
        return time.perf_counter()

    def load(self, values: Iterable[Tensor]) -> None:
        """Gives the copies, and with them the parameters, values that others have computed."""
        if self._buffers is not None:
            self._buffers.wait()
        with torch.no_grad():
            for (_, master), value in zip(self._pairs, values, strict=True):
                master.copy_(value)
        self.write()

    def widen(self) -> None:
        """Gives the parameters the values and the precision of the copies; they cannot be trained after that."""
        for parameter, master in self._pairs:
            if not isinstance(parameter, DTensor):
                parameter.data = master.data.to(parameter.device)

    def write(self) -> None:
        """Gives the parameters the values of the copies."""
        with torch.no_grad():
            if self._buffers is None:
                for parameter, master in self._pairs:
                    part_of(parameter).copy_(master)
                return
            for (_, master), value in zip(self._pairs, self._buffers.values, strict=True):
                if master.dtype != value.dtype:
                    value.copy_(master)
            self._buffers.write()

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


def _are_on_gpu(parts: Sequence[Tensor]) -> bool:
    return any(part.is_cuda for part in parts)


def _pinned(elements: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(elements, dtype=dtype, pin_memory=True)


def part_of(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor that may be sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def first_of(tensor: Tensor) -> int:
    """The first element, in the flattened tensor, of this rank's part of one whose rows may be sharded."""
    if not isinstance(tensor, DTensor):
        return 0
    shape, mesh = tensor.shape, tensor.device_mesh
    each = -(-shape[0] // mesh.size())
    return min(shape[0], each * mesh.get_local_rank()) * shape[1:].numel()
