"""Paced compute: a small model computes real gradients, in tensors of the scenario's sizes, and the rank waits out the rest.

Each layer has parameter tensors of as many elements as the scenario's, of which a few make a small layer that is trained;
the rest is padding, whose gradients are zero. Activations are padded likewise. So every message has the size that it would
have, and ranks that share cores do not hold one another up, as long as copying is not too much for them.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from simulator.model.layers import Layer
from simulator.scenario import Scenario

# Of the small model; layers that hand on less are as narrow as they are.
_WIDTH: Final = 4
_PR_SET_TIMERSLACK: Final = 29  # linux/prctl.h
# A rank that is later than this stays late: one long interruption is not made up for at the cost of all that follows.
_MOST_LATE_S: Final = 0.005


class LayerTimes(NamedTuple):
    """Seconds of a layer's passes. inputs_s, weights_s: of the backward pass, by whose gradients are computed."""

    forward_s: float
    inputs_s: float
    weights_s: float


class Pace:
    """How long a rank takes for what: waits until that time is over, and makes up for having waited too long."""

    def __init__(self, scenario: Scenario) -> None:
        self._job = scenario.job()
        self._late_s = 0.0
        self.paced_s = 0.0
        self.overrun_s = 0.0
        self.times = lru_cache(maxsize=64)(self._times)
        if sys.platform.startswith("linux"):
            # the kernel wakes sleepers up to 50 us late otherwise
            ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)

    def wait(self, begin_s: float, duration_s: float) -> None:
        """Returns once `duration_s` have passed since `begin_s` (of time.perf_counter), earlier by what was late before."""
        self.paced_s += duration_s
        until_s = begin_s + duration_s - self._late_s
        left_s = until_s - time.perf_counter()
        if left_s > 0:
            time.sleep(left_s)
        late_s = time.perf_counter() - until_s
        self._late_s = min(late_s, _MOST_LATE_S)
        self.overrun_s += late_s - self._late_s

    def slow_down(self, optimizer: torch.optim.Optimizer) -> None:
        """From now on a step of the optimizer takes as long as the scenario's over as many parameters."""
        parameters = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
        step_s = self._job.optimizer_s(parameters)
        began: list[float] = []
        optimizer.register_step_pre_hook(lambda *_: began.append(time.perf_counter()))
        optimizer.register_step_post_hook(lambda *_: self.wait(began.pop(), step_s))

    def note(self) -> dict[str, float]:
        """Seconds that were to be waited in all, and by how much they were overrun."""
        return {"paced_s": self.paced_s, "overrun_s": self.overrun_s}

    def _times(self, samples: int) -> list[LayerTimes]:
        """Of each layer, for so many samples."""
        job = replace(self._job, samples_per_worker=samples)
        costs, weights_s = job.costs(), job.weights_s()
        inputs_s = np.maximum(0.0, costs.backward_s - weights_s)
        return [LayerTimes(*map(float, row)) for row in zip(costs.forward_s, inputs_s, weights_s, strict=True)]


class PacedLayer(nn.Module):
    """The small layer that stands for layer `number`: (samples, …) of which it reads the first columns → (samples, output)."""

    def __init__(self, layer: Layer, number: int, is_last: bool, width: int, pace: Pace | None) -> None:
        super().__init__()
        self.number, self.width, self.pace = number, width, pace
        self.output = width if is_last else layer.output_elements
        self.tensors = nn.ParameterList(nn.Parameter(_padded(elements, width)) for elements in layer.tensors)

    def forward(self, x: Tensor) -> Tensor:
        begin_s = time.perf_counter()
        samples, x = len(x), x[:, : self.width]
        parts = [tensor[: self.width**2] for tensor in self.tensors]
        if self.pace is not None:
            times = self.pace.times(samples)[self.number]
            # where no gradient of inputs is asked for, the gradients of weights take all the time
            weights_s = times.weights_s + (0.0 if x.requires_grad else times.inputs_s)
            began: list[float] = []
            if x.requires_grad:
                (x,) = _apply(_WaitForInputs, self.pace, times.inputs_s, began, x)
            if parts:
                parts = list(_apply(_Wait, self.pace, weights_s, began, *parts))
        x = torch.tanh(self._mixed(x, parts))
        if self.pace is not None:
            x = _apply(_Begin, began, x)
            self.pace.wait(begin_s, times.forward_s)
        return functional.pad(x, (0, self.output - self.width))

    def _mixed(self, x: Tensor, parts: Sequence[Tensor]) -> Tensor:
        """Every tensor has its part: those that are large enough multiply, the others are added."""
        for part in parts:
            x = x + (x @ part.view(self.width, self.width) if part.numel() == self.width**2 else part.sum())
        return x


class _Wait(torch.autograd.Function):
    """Hands on what it gets; the gradients on their way back wait until their time is over.

    began: when the pass began for which it waits, handed on to what else waits in the same pass. It is empty where gradients of
    weights have a pass of their own, which begins when they are first asked for.
    """

    @staticmethod
    def forward(context: Any, pace: Pace, duration_s: float, began: list[float], *inputs: Tensor) -> Any:
        context.pace, context.duration_s, context.began = pace, duration_s, began
        return tuple(one.view_as(one) for one in inputs)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        _wait(context)
        context.began.append(time.perf_counter())
        return None, None, None, *gradients


class _WaitForInputs(_Wait):
    """The same of gradients of inputs, with which a pass ends."""

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        _wait(context)
        return None, None, None, *gradients


def _wait(context: Any) -> None:
    begin_s = context.began.pop() if context.began else time.perf_counter()
    context.pace.wait(begin_s, context.duration_s)


class _Begin(torch.autograd.Function):
    """Hands on what it gets; notes when gradients come back."""

    @staticmethod
    def forward(context: Any, began: list[float], x: Tensor) -> Tensor:
        context.began = began
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        context.began[:] = [time.perf_counter()]
        return None, *gradients


def _apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """What autograd's untyped `apply` returns."""
    return function.apply(*arguments)  # type: ignore[no-untyped-call]


def small_width(layers: Sequence[Layer]) -> int:
    """Columns that the small model has."""
    return min(_WIDTH, *(layer.output_elements for layer in layers))


def build(scenario: Scenario, numbers: Iterable[int], pace: Pace | None) -> list[nn.Module]:
    """The small layers that stand for the scenario's layers of those numbers; they do not wait where there is no pace.

    Initial parameters follow from the seed and the number alone. They are fp32 on the CPU.
    """
    layers = scenario.model.build_layers()
    width = small_width(layers)
    result: list[nn.Module] = []
    for number in numbers:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(scenario.training.seed * 1_000_003 + number)
            result.append(PacedLayer(layers[number], number, number == len(layers) - 1, width, pace))
    return result


def _padded(elements: int, width: int) -> Tensor:
    """Random numbers, and zeros from where the small layer ends."""
    padded = torch.zeros(elements)
    small = min(elements, width**2)
    padded[:small] = torch.randn(small) / width
    return padded
