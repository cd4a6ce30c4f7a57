"""Times of a model's layers, of optimizer steps and of memory, on as many ranks at once as the process group has."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TypedDict

import torch
import torch.distributed as dist
from torch import Tensor, nn

from simulator.model import Gpt, Mlp
from validator.model import DTYPES, build, loss

_WARM_UP = 2
_OPTIMIZER_SAMPLES = 8


class LayerTiming(TypedDict):
    """Median seconds of one kind of layer for a number of samples."""

    signature: str
    samples: int
    forward_s: float
    backward_s: float


class OptimizerTiming(TypedDict):
    """Median seconds of an optimizer's step."""

    optimizer: str
    parameters: int
    seconds: float


def layers(model: Gpt | Mlp, precision: str, samples: Sequence[int], budget_s: float) -> list[LayerTiming]:
    """Times of every kind of layer of `model`, `budget_s` seconds per number of samples, while all ranks do the same."""
    specs = model.build_layers()
    modules = [module.to(DTYPES[precision]) for module in build(model, range(len(specs)), seed=0)]
    result: list[LayerTiming] = []
    for count in samples:
        inputs, targets = _batch(model, count, DTYPES[precision])
        times: dict[str, list[tuple[float, float]]] = defaultdict(list)

        def step(
            inputs: Tensor = inputs, targets: Tensor = targets, times: dict[str, list[tuple[float, float]]] = times
        ) -> None:
            for spec, seconds in zip(specs, _train_step(modules, inputs, targets), strict=True):
                times[spec.signature].append(seconds)
            _forget_gradients(modules)

        for _ in range(_WARM_UP):
            step()
        times.clear()
        dist.barrier()
        _repeat(step, budget_s)
        for signature, seconds in times.items():
            forward_s, backward_s = (statistics.median(column) for column in zip(*seconds, strict=True))
            result.append({"signature": signature, "samples": count, "forward_s": forward_s, "backward_s": backward_s})
    return result


def optimizers(model: Gpt | Mlp, precision: str, names: Sequence[str], budget_s: float) -> list[OptimizerTiming]:
    """Times of optimizer steps over the whole model and over its first half, `budget_s` seconds each.

    Each follows a training step, which leaves the caches as training leaves them.
    """
    specs = model.build_layers()
    modules = [module.to(DTYPES[precision]) for module in build(model, range(len(specs)), seed=0)]
    inputs, targets = _batch(model, _OPTIMIZER_SAMPLES, DTYPES[precision])
    result: list[OptimizerTiming] = []
    for count in (len(specs) // 2, len(specs)):
        parameters = [p for module in modules[:count] for p in module.parameters()]
        for name in names:
            optimizer = _OPTIMIZERS[name](parameters)
            seconds: list[float] = []
            until_s = time.perf_counter() + budget_s
            while len(seconds) < _WARM_UP + 5 or time.perf_counter() < until_s:
                _train_step(modules, inputs, targets)
                start_s = time.perf_counter()
                optimizer.step()
                seconds.append(time.perf_counter() - start_s)
                _forget_gradients(modules)
            size = sum(p.numel() for p in parameters)
            result.append({"optimizer": name, "parameters": size, "seconds": statistics.median(seconds[_WARM_UP:])})
    return result


def memory_Bps(size_bytes: int, precision: str, budget_s: float) -> float:
    """Bytes per second read and written while one buffer is added to another."""
    dtype = DTYPES[precision]
    target, source = (torch.zeros(size_bytes // dtype.itemsize, dtype=dtype) for _ in range(2))
    dist.barrier()
    seconds = _repeat(lambda: target.add_(source), budget_s)
    return 3 * size_bytes / statistics.median(seconds)


def matmul_flops(side: int, precision: str, budget_s: float) -> float:
    """FLOP/s of a square matrix product."""
    a = torch.randn(side, side, dtype=DTYPES[precision])
    dist.barrier()
    return 2.0 * side**3 / statistics.median(_repeat(lambda: a @ a, budget_s))


_OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
}


def _repeat(step: Callable[[], object], budget_s: float) -> list[float]:
    """Seconds of each repetition; at least three, and for at least `budget_s`."""
    seconds: list[float] = []
    until_s = time.perf_counter() + budget_s
    while len(seconds) < 3 or time.perf_counter() < until_s:
        start_s = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start_s)
    return seconds


def _batch(model: Gpt | Mlp, samples: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    if isinstance(model, Gpt):
        tokens = torch.randint(model.vocabulary, (2, samples, model.sequence))
        return tokens[0], tokens[1]
    return torch.randn(samples, model.inputs, dtype=dtype), torch.randint(model.outputs, (samples,))


def _train_step(modules: list[nn.Module], inputs: Tensor, targets: Tensor) -> list[tuple[float, float]]:
    """Forward and backward seconds of each module, the loss counted with the last; each is differentiated on its own."""
    forward_s, backward_s = [], []
    inputs_of, outputs_of = [], []
    x = inputs
    for i, module in enumerate(modules):
        x = x.detach().requires_grad_(i > 0)
        inputs_of.append(x)
        start_s = time.perf_counter()
        x = module(x)
        if i == len(modules) - 1:
            x = loss(x, targets)
        forward_s.append(time.perf_counter() - start_s)
        outputs_of.append(x)
    gradient: Tensor | None = None
    for source, output in zip(reversed(inputs_of), reversed(outputs_of), strict=True):
        start_s = time.perf_counter()
        output.backward(gradient)  # type: ignore[no-untyped-call]
        backward_s.append(time.perf_counter() - start_s)
        gradient = source.grad
    return list(zip(forward_s, reversed(backward_s), strict=True))


def _forget_gradients(modules: list[nn.Module]) -> None:
    for module in modules:
        module.zero_grad()
