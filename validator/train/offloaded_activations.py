"""Activations of blocks in host memory: copied there after the forward pass, and back one block ahead of the backward pass.

On a processor the link to the host is emulated: activations stay where they are, and passes wait as long as their copies would
last. A GPU copies them by torch's `save_on_cpu`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

import torch
from torch import Tensor, nn

from scaleproof.simulator.strategy.job import Job
from scaleproof.validator.record.recorder import Recorder

# Blocks whose activations are on a device in addition to those of the block that computes.
_BLOCKS_AHEAD: Final = 1


class OffloadedActivations:
    """Copies of the activations of a rank's blocks, one after another in each direction."""

    def __init__(self, job: Job, recorder: Recorder, device: torch.device) -> None:
        self._job, self._recorder, self._device = job, recorder, device
        self._link_Bps = job.host_link_Bps(job.ranks)
        # when the last copies in each direction end, of time.perf_counter
        self._sent_s = self._fetched_s = 0.0
        # copies of the current forward pass in order, and the number of its last layer
        self._copies: list[_Copy] = []
        self._last = -1

    def attach(self, number: int, layer: nn.Module) -> None:
        """Offloads the activations of layer `number`, if it is a block; else its backward pass begins that of the blocks."""
        if self._device.type == "cuda":
            if not self._job.layers[number].pinned_to_end:
                _within(layer, lambda: torch.autograd.graph.save_on_cpu(pin_memory=True))
            return
        if self._job.layers[number].pinned_to_end:
            layer.register_forward_hook(lambda _, __, output: self._begin_backward(output))
        else:
            saved = Saved(layer)
            layer.register_forward_pre_hook(lambda *_: self._begin_forward(number))
            if not self._job.is_emulated:
                _within(layer, saved.noting)
            layer.register_forward_hook(lambda _, inputs, output: self._send(number, saved, len(inputs[0]), output))

    def _begin_forward(self, number: int) -> None:
        """Waits for the copies of the block two before."""
        if number <= self._last:
            self._copies = []
        self._last = number
        if len(self._copies) > _BLOCKS_AHEAD:
            self._wait(self._copies[-1 - _BLOCKS_AHEAD].sent_s)

    def _send(self, number: int, saved: Saved, samples: int, output: Any) -> None:
        """Begins to send a block's activations, and notes what its backward pass does."""
        kept_bytes = float(self._job.kept_bytes(samples)[number]) if self._job.is_emulated else saved.size_bytes
        lasts_s = kept_bytes / self._link_Bps
        self._sent_s = max(self._sent_s, time.perf_counter()) + lasts_s
        copy = _Copy(self._copies[-1] if self._copies else None, self._sent_s, lasts_s)
        self._copies.append(copy)

        def begin_backward(_: Tensor) -> None:
            self._fetch(copy)
            if copy.before is not None:
                self._fetch(copy.before)
            self._wait(copy.fetched_s)

        _first(output).register_hook(begin_backward)  # type: ignore[no-untyped-call]

    def _begin_backward(self, output: Any) -> None:
        """Has the backward pass of a layer behind the blocks fetch the activations of the last one."""
        copies = self._copies
        if copies and _first(output).requires_grad:
            _first(output).register_hook(lambda _: self._fetch(copies[-1]))  # type: ignore[no-untyped-call]

    def _fetch(self, copy: _Copy) -> None:
        if copy.fetched_s is None:
            self._fetched_s = copy.fetched_s = max(self._fetched_s, copy.sent_s, time.perf_counter()) + copy.lasts_s

    def _wait(self, until_s: float | None) -> None:
        if until_s is not None and until_s > time.perf_counter():
            with self._recorder.waiting(self._recorder.now()):
                time.sleep(max(0.0, until_s - time.perf_counter()))


class _Copy:
    """The copy of a block's activations to the host and back. before: of the block before. sent_s, fetched_s: its ends."""

    def __init__(self, before: _Copy | None, sent_s: float, lasts_s: float) -> None:
        self.before, self.sent_s, self.lasts_s = before, sent_s, lasts_s
        self.fetched_s: float | None = None


class Saved:
    """The size of what a layer's forward pass saves for the backward pass, other than parameters."""

    def __init__(self, layer: nn.Module) -> None:
        self._layer = layer
        self._sizes: dict[int, int] = {}
        self._parameters: set[int] = set()

    @property
    def size_bytes(self) -> float:
        """Bytes of all storages."""
        return float(sum(self._sizes.values()))

    def noting(self) -> AbstractContextManager[Any]:
        """A context in which saved tensors are noted."""
        self._sizes.clear()
        self._parameters = {parameter.untyped_storage().data_ptr() for parameter in self._layer.parameters()}
        return torch.autograd.graph.saved_tensors_hooks(self._note, lambda tensor: tensor)

    def _note(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._parameters:
            self._sizes[storage.data_ptr()] = storage.nbytes()
        return tensor


def _within(layer: nn.Module, context: Callable[[], AbstractContextManager[Any]]) -> None:
    """Runs each forward pass of a layer within a context."""
    entered: list[AbstractContextManager[Any]] = []

    def enter(*_: Any) -> None:
        entered.append(context())
        entered[-1].__enter__()

    layer.register_forward_pre_hook(enter)
    layer.register_forward_hook(lambda *_: entered.pop().__exit__(None, None, None), always_call=True)


def _first(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output[0]
