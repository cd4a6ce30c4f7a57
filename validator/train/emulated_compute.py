"""Emulated compute (`compute: paced`): a small model computes real gradients, and the rank sleeps for the predicted time.

Parameter tensors of a layer have the scenario's sizes; a few elements make a small layer that is trained, the rest is padding
with zero gradients. Activations are padded likewise. So every message has its real size, and ranks that share cores do not slow
one another down, as long as copying does not saturate the cores.
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

from scaleproof.simulator.model.layers import Layer, owners_of
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.data_parallel.ring_allreduce import compression_s
from scaleproof.simulator.strategy.scenario_job import job_of_rank
from scaleproof.validator.record.emulation_lateness import Lateness
from scaleproof.validator.train.models.models import tie
from scaleproof.validator.train.models.wiring import Tie
from scaleproof.validator.train.perturbed import RankPerturbations

# Width of the small model, unless a layer has fewer outputs.
_WIDTH: Final = 4
_PR_SET_TIMERSLACK: Final = 29  # linux/prctl.h


class EmulatedLayerTimes(NamedTuple):
    """Seconds of a layer's passes. inputs_s, weights_s: parts of the backward pass for gradients of inputs and of weights."""

    forward_s: float
    inputs_s: float
    weights_s: float


class Pace:
    """Makes a rank's compute last as long as predicted: waits for the rest of the time, and makes up for late wake-ups.

    perturbations: of the rank's compute, which change the duration of each wait; those of the scenario for `rank` if None.
    """

    def __init__(self, scenario: Scenario, rank: int = 0, perturbations: RankPerturbations | None = None) -> None:
        self._job, self._plan = job_of_rank(scenario, rank), scenario.strategy.plan
        self._perturbations = perturbations or RankPerturbations(scenario, rank)
        self.lateness = Lateness()
        self._weights_end_s: float | None = None
        self.times = lru_cache(maxsize=64)(self._times)
        if sys.platform.startswith("linux"):
            # otherwise the kernel wakes sleeping threads up to 50 us late
            ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)

    def wait(self, begin_s: float, duration_s: float) -> None:
        """Returns once work of `duration_s` that began at `begin_s` (of time.perf_counter) would be done, minus the current
        lateness."""
        self._weights_end_s = None
        begin_s -= self.lateness.late_s
        duration_s = self._perturbations.lasts_s(begin_s, duration_s)
        until_s = begin_s + duration_s
        left_s = until_s - time.perf_counter()
        if left_s > 0:
            time.sleep(left_s)
        self.lateness.add(duration_s, until_s)

    def wait_for_weights(self, begin_s: float, duration_s: float) -> None:
        """Waits like `wait` for gradients of weights that have a pass of their own: begins at the end of the previous one."""
        self.wait(begin_s if self._weights_end_s is None else self._weights_end_s, duration_s)
        self._weights_end_s = time.perf_counter()

    def slow_down(self, optimizer: torch.optim.Optimizer, elements: int, orthogonalised_s: float = 0.0) -> None:
        """Makes each step of the optimizer last as long as predicted for updates of a number of elements, with the compression
        of its parameters' gradients; without copies to hosts, which a `HostLink` emulates. orthogonalised_s: additional seconds
        of Muon's products. A delayed step runs next to passes, of which it changes nothing."""
        tensors = [p.numel() for group in optimizer.param_groups for p in group["params"]]
        job = self._job
        is_offloaded = "optimizer" in job.offload
        work_s = job.host_update_s(elements, job.ranks) if is_offloaded else job.device_optimizer_s(elements)
        step_s = work_s + orthogonalised_s + compression_s(self._plan, job, tensors, self._plan.workers)
        wait = _wait_until_end if job.delays_update else self.wait
        began: list[float] = []
        optimizer.register_step_pre_hook(lambda *_: began.append(time.perf_counter()))
        optimizer.register_step_post_hook(lambda *_: wait(began.pop(), step_s))

    def _times(self, samples: int) -> list[EmulatedLayerTimes]:
        """Times of each layer for a number of samples."""
        job = replace(self._job, samples_per_worker=samples)
        costs, weights_s = job.costs(), job.weights_s()
        # what the first and the last microbatch have more or less, in equal parts
        made_s, bucketed_s = job.gradients_s(samples) / self._plan.microbatches
        inputs_s = np.maximum(0.0, costs.backward_s - weights_s)
        columns = costs.forward_s, inputs_s, np.maximum(0.0, weights_s + made_s + bucketed_s * self._plan.averages)
        return [EmulatedLayerTimes(*map(float, row)) for row in np.stack(columns, axis=1)]


def _wait_until_end(begin_s: float, duration_s: float) -> None:
    time.sleep(max(0.0, begin_s + duration_s - time.perf_counter()))


class EmulatedLayer(nn.Module):
    """The small layer that emulates layer `number`: reads the first columns of each input (samples, …) → (samples, output).

    experts: numbers of the tensors of experts that other ranks do not have; their gradients are zeros, so that all ranks keep
    the same ones. frozen: number of parameters that are gathered with the tensors, but not trained.
    """

    def __init__(
        self,
        layer: Layer,
        number: int,
        is_last: bool,
        width: int,
        pace: Pace | None,
        experts: range = range(0),
        frozen: int = 0,
    ) -> None:
        super().__init__()
        self.experts = experts
        self.number, self.width, self.pace = number, width, pace
        self.output = width if is_last else layer.output_elements
        self.tensors = nn.ParameterList(nn.Parameter(_padded(elements, width)) for elements in layer.tensors)
        self.frozen = nn.Parameter(_padded(frozen, width), requires_grad=False) if frozen else None

    def forward(self, *inputs: Tensor) -> Tensor:
        """The layer's output after the emulated duration of its forward pass."""
        begin_s = time.perf_counter()
        times = EmulatedLayerTimes(0.0, 0.0, 0.0) if self.pace is None else self.pace.times(len(inputs[0]))[self.number]
        # where no gradient of inputs is needed, the gradients of weights get all of the time
        weights_s = times.weights_s + (0.0 if any(x.requires_grad for x in inputs) else times.inputs_s)
        began: list[float] = []
        passed_s = times.inputs_s + times.weights_s
        x: Tensor = _apply(_Narrow, _Wait(self.pace, times.inputs_s, 0.0, began), self.width, *inputs)
        if self.tensors:
            x = x + x @ _apply(_Weights, _Wait(self.pace, passed_s, weights_s, began), self.width, self.shares(), *self.tensors)
        x = _apply(_Widen, began, self.output, torch.tanh(x))
        if self.pace is not None:
            self.pace.wait(begin_s, times.forward_s)
        return x

    def shares(self) -> list[float]:
        """The weight of each tensor's trained elements in the small layer's."""
        count = len(self.tensors)
        return [0.0 if number in self.experts else (1 + number) / count for number in range(count)]

    def expert_parameters(self) -> list[nn.Parameter]:
        """The tensors of experts that other ranks do not have."""
        return [self.tensors[number] for number in self.experts]


class _Wait(NamedTuple):
    """The wait of gradients in the backward pass, none without a pace.

    Gradients of weights are computed first, and wait for the whole pass, since sums of gradients follow it, as in predictions.
    duration_s: in the pass of the layer. alone_s: in a pass of their own, which begins when they are first computed; 0 without
    one. began: begin of the layer's pass, until one has waited for it; empty in another pass.
    """

    pace: Pace | None
    duration_s: float
    alone_s: float
    began: list[float]

    def __call__(self, begin_s: float) -> None:
        """begin_s: when the computation of these gradients began."""
        if self.pace is None:
            return
        if self.began:
            self.pace.wait(self.began.pop(), self.duration_s)
        elif self.alone_s:
            self.pace.wait_for_weights(begin_s, self.alone_s)


class _Narrow(torch.autograd.Function):
    """Adds up the first columns of all inputs, which the small layer reads. A backward pass ends with their gradients."""

    @staticmethod
    def forward(context: Any, wait: _Wait, width: int, *inputs: Tensor) -> Tensor:
        context.wait, context.columns = wait, [x.shape[1] for x in inputs]
        total = inputs[0][:, :width].clone()
        for number, x in enumerate(inputs[1:], start=2):
            # each weighted differently, so that they cannot be confused
            total.add_(x[:, :width], alpha=1 / number)
        return total

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        begin_s = time.perf_counter()
        results = [_widened(gradients[0] / number, columns) for number, columns in enumerate(context.columns, start=1)]
        context.wait(begin_s)
        return None, None, *results


class _Weights(torch.autograd.Function):
    """The weights of a small layer, (width, width): the sum of the trained elements of each tensor, weighted differently.

    One node of the graph for any number of tensors, as split backward passes search for a path from each parameter.
    """

    @staticmethod
    def forward(context: Any, wait: _Wait, width: int, shares: list[float], *tensors: Tensor) -> Tensor:
        context.wait, context.shares, context.elements = wait, shares, [tensor.numel() for tensor in tensors]
        mixed = tensors[0].new_zeros(width**2)
        for share, tensor in zip(shares, tensors, strict=True):
            trained = tensor[: width**2]
            mixed[: len(trained)].add_(trained, alpha=share)
        return mixed.view(width, width)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        begin_s = time.perf_counter()
        flat = gradients[0].flatten()
        results = []
        for share, elements in zip(context.shares, context.elements, strict=True):
            result = flat.new_zeros(elements)
            result[: len(flat)].add_(flat[:elements], alpha=share)
            results.append(result)
        context.wait(begin_s)
        return None, None, None, *results


class _Widen(torch.autograd.Function):
    """Pads to the layer's number of columns with zeros. A backward pass begins with their gradients."""

    @staticmethod
    def forward(context: Any, began: list[float], columns: int, x: Tensor) -> Tensor:
        context.began, context.width = began, x.shape[1]
        return _widened(x, columns)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        context.began[:] = [time.perf_counter()]
        return None, None, gradients[0][:, : context.width].clone()


def _widened(x: Tensor, columns: int) -> Tensor:
    return functional.pad(x, (0, columns - x.shape[1]))


def _apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """Calls autograd's untyped `apply`."""
    return function.apply(*arguments)  # type: ignore[no-untyped-call]


def small_width(layers: Sequence[Layer]) -> int:
    """Number of columns of the small model."""
    return min(_WIDTH, *(layer.output_elements for layer in layers))


def build(scenario: Scenario, numbers: Iterable[int], pace: Pace | None) -> list[nn.Module]:
    """The small layers that emulate the scenario's layers with these numbers; without a pace they do not wait.

    Initial parameters depend only on the seed and the number. They are fp32 on the CPU. Layers that share weights have the same
    parameters, as in `models.build`.
    """
    layers = with_shared_tensors(scenario.layers(scenario.strategy.plan.shard))
    width = small_width(layers)

    def seeded(number: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(scenario.training.seed * 1_000_003 + number)
            experts = _tensors_of_experts(scenario, layers[number])
            # only sharded ones are gathered
            frozen = layers[number].frozen_parameters if scenario.training.zero == 3 else 0
            return EmulatedLayer(layers[number], number, number == len(layers) - 1, width, pace, experts, frozen)

    modules = {number: seeded(number) for number in numbers}
    tie(modules, ties(scenario), seeded)
    return list(modules.values())


def _tensors_of_experts(scenario: Scenario, layer: Layer) -> range:
    """The numbers of the tensors of a layer's experts, two of each, if other ranks have other experts."""
    plan, mixture = scenario.strategy.plan, getattr(scenario.model, "experts", None)
    if mixture is None or plan.expert == 1 or not layer.expert_parameters:
        return range(0)
    count = 2 * mixture.count // plan.expert
    sums = {begin: sum(layer.tensors[begin : begin + count]) for begin in range(len(layer.tensors) - count + 1)}
    first = next(begin for begin, elements in sums.items() if elements == layer.expert_parameters)
    return range(first, first + count)


def with_shared_tensors(layers: Sequence[Layer]) -> list[Layer]:
    """The layers, where those without weights of their own have the tensors of the layer whose weights they share."""
    owners = owners_of(layers)
    return [replace(layer, tensors=layers[owners.get(i, i)].tensors) for i, layer in enumerate(layers)]


def ties(scenario: Scenario) -> list[Tie]:
    """The weights that emulated layers share."""
    layers = scenario.layers(scenario.strategy.plan.shard)
    return [
        Tie(layer, f"tensors.{place}", owner, f"tensors.{place}")
        for layer, owner in owners_of(layers).items()
        for place in range(len(layers[owner].tensors))
    ]


def _padded(elements: int, width: int) -> Tensor:
    """Random numbers for the small layer, padded with zeros to `elements`."""
    padded = torch.zeros(elements)
    small = min(elements, width**2)
    padded[:small] = torch.randn(small) / width
    return padded
