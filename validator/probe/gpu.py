"""What a GPU does by itself and with its neighbours. Probes run on ranks, and on a CPU as well, where times are the host's.

Times are medians of rounds. A round lies between two marks on the device's own time line and repeats its work until it is long
beside the marks; nothing waits for the device within one.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any, Final, TypedDict

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scaleproof.simulator.model import Gpt, Mlp, ResNet
from scaleproof.validator.launch import rank
from scaleproof.validator.probe.device_timer import DeviceTimer
from scaleproof.validator.probe.network import round_trip
from scaleproof.validator.strategy.base import build_optimizer
from scaleproof.validator.train.models.models import DTYPES as TRAINED_DTYPES
from scaleproof.validator.train.models.models import build, loss

# fp32 is also computed as tf32, on the same tensors
DTYPES: Final = TRAINED_DTYPES | {"tf32": torch.float32, "fp16": torch.float16}
# What facts call a device that is none.
CPU: Final = "CPU"
_LEAST_ROUNDS: Final = 3
_LAUNCHES: Final = 500
_GRAPH_KERNELS: Final = 200
_WARM_UP: Final = 2
# Modules whose host time is measured: width, repetitions, and kernels of a linear layer with bias, GELU and layer norm: one
# each forward; backward two products and a sum, one, and two.
_NARROW: Final = 8
_MODULES: Final = 40
_MODULE_KERNELS: Final = 3 + 6


class DeviceFacts(TypedDict):
    """What the device says of itself. capability: (major, minor) on NVIDIA's; (0, 0) on a CPU."""

    name: str
    devices: int
    capability: list[int]
    processors: int
    memory_bytes: int


class MatmulTiming(TypedDict):
    """Median seconds of an m × k by k × n product."""

    precision: str
    m: int
    n: int
    k: int
    seconds: float


class MovedTiming(TypedDict):
    """Median seconds in which `moved_bytes` are read or written, or sent."""

    what: str
    moved_bytes: int
    seconds: float


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


class Launches(TypedDict):
    """Host seconds per kernel of a bare operation (issue_s) and of modules with their backward pass (module_s); seconds from
    one kernel of a graph to the next, with its own work (launch_s)."""

    issue_s: float
    module_s: float
    launch_s: float


def facts() -> DeviceFacts:
    """The rank's device."""
    device = rank.here().device
    if device.type != "cuda":
        return {"name": CPU, "devices": 1, "capability": [0, 0], "processors": 1, "memory_bytes": 2**33}
    found = torch.cuda.get_device_properties(device)
    return {
        "name": found.name,
        "devices": torch.cuda.device_count(),
        "capability": [found.major, found.minor],
        "processors": found.multi_processor_count,
        "memory_bytes": found.total_memory,
    }


def matmuls(shapes: Sequence[tuple[int, int, int]], precisions: Sequence[str], budget_s: float) -> list[MatmulTiming]:
    """Products of random matrices, (m, n, k) each, within about `budget_s` seconds over all."""
    clock, device = _clock()
    each_s = budget_s / (len(shapes) * len(precisions))
    result: list[MatmulTiming] = []
    for precision in precisions:
        with tf32(precision == "tf32"):
            for m, n, k in shapes:
                a, b = (torch.randn(size, device=device, dtype=DTYPES[precision]) for size in ((m, k), (k, n)))
                out = torch.empty(m, n, device=device, dtype=DTYPES[precision])
                seconds = clock.median_s(partial(torch.mm, a, b, out=out), each_s)
                result.append({"precision": precision, "m": m, "n": n, "k": k, "seconds": seconds})
    return result


def memory(sizes_bytes: Sequence[int], budget_s: float) -> list[MovedTiming]:
    """One buffer copied to another (a read and a write), and added to another (two reads and a write)."""
    clock, device = _clock()
    each_s = budget_s / (2 * len(sizes_bytes))
    result: list[MovedTiming] = []
    for size_bytes in sizes_bytes:
        target, source = (torch.randn(size_bytes // 4, device=device) for _ in range(2))
        copy_s = clock.median_s(partial(target.copy_, source), each_s)
        add_s = clock.median_s(partial(target.add_, source), each_s)
        result.append({"what": "copy", "moved_bytes": 2 * size_bytes, "seconds": copy_s})
        result.append({"what": "add", "moved_bytes": 3 * size_bytes, "seconds": add_s})
    return result


def launches() -> Launches:
    """Kernels of one element: how fast the host issues them, and how fast a graph of them runs; the same on a CPU."""
    clock, device = _clock()
    x = torch.zeros(1, device=device)
    issued_s = []
    for _ in range(_WARM_UP + 5):
        clock.wait()
        begin_s = time.perf_counter()
        for _ in range(_LAUNCHES):
            x.add_(1.0)
        issued_s.append((time.perf_counter() - begin_s) / _LAUNCHES)
    issue_s = statistics.median(issued_s[_WARM_UP:])
    launch_s = _graphed_s(clock, x) if clock.is_gpu else issue_s
    return {"issue_s": issue_s, "module_s": _module_s(clock, device), "launch_s": launch_s}


def _module_s(clock: DeviceTimer, device: torch.device) -> float:
    """Host seconds per kernel of modules and their backward pass, on tensors so small that kernels are shorter than that."""
    units = [(nn.Linear(_NARROW, _NARROW), nn.GELU(), nn.LayerNorm(_NARROW)) for _ in range(_MODULES)]
    chain = nn.Sequential(*(module for unit in units for module in unit)).to(device)
    x = torch.zeros(_NARROW, _NARROW, device=device)
    passed_s = []
    for _ in range(_WARM_UP + 5):
        chain.zero_grad(set_to_none=True)
        clock.wait()
        begin_s = time.perf_counter()
        chain(x).sum().backward()
        passed_s.append((time.perf_counter() - begin_s) / (_MODULES * _MODULE_KERNELS))
    return statistics.median(passed_s[_WARM_UP:])


def host_copies(sizes_bytes: Sequence[int], budget_s: float) -> list[MovedTiming]:
    """Between pinned memory of the host and the device, either way."""
    clock, device = _clock()
    each_s = budget_s / (2 * len(sizes_bytes))
    result: list[MovedTiming] = []
    for size_bytes in sizes_bytes:
        host = torch.zeros(size_bytes // 4, pin_memory=clock.is_gpu)
        own = torch.zeros(size_bytes // 4, device=device)
        for what, target, source in (("host to device", own, host), ("device to host", host, own)):
            seconds = clock.median_s(partial(target.copy_, source, non_blocking=True), each_s)
            result.append({"what": what, "moved_bytes": size_bytes, "seconds": seconds})
    return result


def device_copies(sizes_bytes: Sequence[int], budget_s: float) -> list[MovedTiming]:
    """From the first device to each other one that this process sees; nothing where there is none."""
    clock, device = _clock()
    others = range(1, torch.cuda.device_count()) if clock.is_gpu else range(0)
    each_s = budget_s / max(1, len(others) * len(sizes_bytes))
    result: list[MovedTiming] = []
    for other in others:
        for size_bytes in sizes_bytes:
            source = torch.zeros(size_bytes // 4, device=device)
            target = torch.zeros(size_bytes // 4, device=torch.device("cuda", other))
            # copies run on the source's current stream, where the marks are
            seconds = clock.median_s(partial(target.copy_, source, non_blocking=True), each_s)
            result.append({"what": f"device 0 to {other}", "moved_bytes": size_bytes, "seconds": seconds})
    return result


def point_to_point(sizes_bytes: Sequence[int], repetitions: int) -> list[MovedTiming]:
    """One-way times of messages from rank 0 to rank 1 and back."""
    return _exchanges("message", round_trip(), sizes_bytes, repetitions, messages=2)


def allreduces(sizes_bytes: Sequence[int], repetitions: int) -> list[MovedTiming]:
    """Times of summing a 32-bit float buffer over all ranks."""
    return _exchanges("allreduce", lambda buffer: dist.all_reduce(buffer), sizes_bytes, repetitions, messages=1)


def layers(model: Gpt | Mlp | ResNet, precision: str, samples: Sequence[int], budget_s: float) -> list[LayerTiming]:
    """Times of every kind of layer of `model`, `budget_s` seconds per number of samples; the loss counts with the last."""
    clock, device = _clock()
    specs, dtype = model.build_layers(), DTYPES[precision]
    modules = [module.to(device, dtype) for module in build(model, range(len(specs)), seed=0)]
    result: list[LayerTiming] = []
    for count in samples:
        inputs, targets = draw_batch(model, count, device, dtype)
        for _ in range(_WARM_UP):
            passes_s(clock, modules, inputs, targets)
        times: dict[str, list[tuple[float, float]]] = defaultdict(list)
        until_s, rounds = time.perf_counter() + budget_s, 0
        while rounds < _LEAST_ROUNDS or time.perf_counter() < until_s:
            for spec, seconds in zip(specs, passes_s(clock, modules, inputs, targets), strict=True):
                times[spec.signature].append(seconds)
            rounds += 1
        for signature, seconds_of in times.items():
            forward_s, backward_s = (statistics.median(column) for column in zip(*seconds_of, strict=True))
            result.append({"signature": signature, "samples": count, "forward_s": forward_s, "backward_s": backward_s})
    return result


def optimizers(sizes: Sequence[int], precision: str, names: Sequence[str], budget_s: float) -> list[OptimizerTiming]:
    """Times of optimizer steps over so many parameters, in tensors of 2²⁰ elements at most."""
    clock, device = _clock()
    each_s = budget_s / (len(sizes) * len(names))
    result: list[OptimizerTiming] = []
    for size in sizes:
        parts = [min(2**20, size - begin) for begin in range(0, size, 2**20)]
        parameters = [nn.Parameter(torch.randn(part, device=device, dtype=DTYPES[precision])) for part in parts]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        for name in names:
            step = build_optimizer(name, parameters, 1e-6).step  # type: ignore[arg-type]
            result.append({"optimizer": name, "parameters": size, "seconds": clock.median_s(step, each_s)})
    return result


def _clock() -> tuple[DeviceTimer, torch.device]:
    device = rank.here().device
    return DeviceTimer(device), device


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Whether products of 32-bit floats may be computed as tf32 meanwhile."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _graphed_s(clock: DeviceTimer, x: Tensor) -> float:
    """Seconds per kernel of a CUDA graph."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_GRAPH_KERNELS):
            x.add_(1.0)
    return clock.median_s(graph.replay, 0.1) / _GRAPH_KERNELS


def _exchanges(
    what: str, step: Callable[[Tensor], object], sizes_bytes: Sequence[int], repetitions: int, messages: int
) -> list[MovedTiming]:
    """As many repetitions on every rank; each rank's median, of the slowest rank."""
    clock, device = _clock()
    result: list[MovedTiming] = []
    for size_bytes in sizes_bytes:
        buffer = torch.zeros(max(1, size_bytes // 4), device=device)
        for _ in range(_WARM_UP):
            step(buffer)
        seconds = []
        for _ in range(repetitions):
            clock.wait()
            begin = clock.mark()
            step(buffer)
            end = clock.mark()
            clock.wait()
            seconds.append(clock.seconds(begin, end) / messages)
        slowest = torch.tensor([statistics.median(seconds)], dtype=torch.float64, device=device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        result.append({"what": what, "moved_bytes": buffer.numel() * 4, "seconds": float(slowest)})
    return result


def draw_batch(model: Gpt | Mlp | ResNet, samples: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Random inputs and targets of a model."""
    if isinstance(model, Gpt):
        tokens = torch.randint(model.vocabulary, (2, samples, model.sequence), device=device)
        return tokens[0], tokens[1]
    shape: tuple[int, ...]
    if isinstance(model, ResNet):
        shape, classes = (3, model.image, model.image), model.classes
    else:
        shape, classes = (model.inputs,), model.outputs
    return torch.randn(samples, *shape, device=device, dtype=dtype), torch.randint(classes, (samples,), device=device)


def passes_s(clock: DeviceTimer, modules: Sequence[nn.Module], inputs: Tensor, targets: Tensor) -> list[tuple[float, float]]:
    """Forward and backward seconds of each module in one training step, the loss counted with the last.

    The backward pass is one, as in training: where it passes from one module to the next is told by the gradient between them.
    """
    for module in modules:
        module.zero_grad()
    clock.wait()
    begun: dict[int, Any] = {}

    def note(index: int) -> Callable[[Tensor], None]:
        """What marks when the backward pass of a module begins."""

        def mark(_: Tensor) -> None:
            begun[index] = clock.mark()

        return mark

    x = inputs
    marks = [clock.mark()]
    for index, module in enumerate(modules):
        x = module(x)
        if index == len(modules) - 1:
            x = loss(x, targets)
        else:
            x.register_hook(note(index))
        marks.append(clock.mark())
    back = [clock.mark()]
    x.backward()  # type: ignore[no-untyped-call]
    end = clock.mark()
    clock.wait()
    back += [begun[index] for index in reversed(range(len(modules) - 1))] + [end]
    forward_s = [clock.seconds(*pair) for pair in pairwise(marks)]
    backward_s = [clock.seconds(*pair) for pair in pairwise(back)]
    return list(zip(forward_s, reversed(backward_s), strict=True))
