"""Times of a GPU's computation, memory, copies and messages. The probes also run on a CPU, where times are the host's.

Times are medians of rounds. A round lies between two marks on the device's own time line and repeats its work until it is long
compared with the marks; the host does not wait for the device within a round.
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

# tf32 products use fp32 tensors
DTYPES: Final = TRAINED_DTYPES | {"tf32": torch.float32, "fp16": torch.float16}
# Name of a device that is not a GPU, in `DeviceFacts`.
CPU: Final = "CPU"
_LEAST_ROUNDS: Final = 3
_LAUNCHES: Final = 500
_GRAPH_KERNELS: Final = 200
_WARM_UP: Final = 2
# Modules whose host time is measured: width, repetitions, and the number of kernels of a linear layer with bias, a GELU and a
# layer norm: one each in the forward pass; in the backward pass two products and a sum, one, and two.
_NARROW: Final = 8
_MODULES: Final = 40
_MODULE_KERNELS: Final = 3 + 6


class DeviceFacts(TypedDict):
    """Properties that the device reports. capability: (major, minor) on NVIDIA GPUs; (0, 0) on a CPU."""

    name: str
    devices: int
    capability: list[int]
    processors: int
    memory_bytes: int


class MatmulTiming(TypedDict):
    """Median seconds of a product of an m × k and a k × n matrix."""

    precision: str
    m: int
    n: int
    k: int
    seconds: float


class MovedTiming(TypedDict):
    """Median seconds of reading or writing, or of sending, `moved_bytes`."""

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
    """Median seconds of an optimizer step."""

    optimizer: str
    parameters: int
    seconds: float


class Launches(TypedDict):
    """Launch overheads: host seconds per kernel of a bare operation (issue_s) and of modules with their backward pass
    (module_s); seconds from one kernel of a CUDA graph to the next, including the kernel (launch_s)."""

    issue_s: float
    module_s: float
    launch_s: float


def facts() -> DeviceFacts:
    """Properties of the rank's device."""
    device = rank.here().device
    if device.type != "cuda":
        return {"name": CPU, "devices": 1, "capability": [0, 0], "processors": 1, "memory_bytes": 2**33}
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "devices": torch.cuda.device_count(),
        "capability": [properties.major, properties.minor],
        "processors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
    }


def matmuls(shapes: Sequence[tuple[int, int, int]], precisions: Sequence[str], budget_s: float) -> list[MatmulTiming]:
    """Times of products of random matrices of shapes (m, n, k), within about `budget_s` seconds in total."""
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
    """Times of copying a buffer to another (one read, one write) and of adding one to another (two reads, one write)."""
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
    """Overheads of launching kernels of one element, from the host and in a CUDA graph; launch_s equals issue_s on a CPU."""
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
    """Host seconds per kernel of modules and their backward pass, on tensors so small that the host is the bottleneck."""
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
    """Times of copies between pinned host memory and the device, in both directions."""
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
    """Times of copies from device 0 to every other device that this process sees; empty if there is none."""
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
    """Times of an all-reduce of a 32-bit float buffer over all ranks."""
    return _exchanges("allreduce", lambda buffer: dist.all_reduce(buffer), sizes_bytes, repetitions, messages=1)


def layers(model: Gpt | Mlp | ResNet, precision: str, samples: Sequence[int], budget_s: float) -> list[LayerTiming]:
    """Times of every kind of layer of `model`, `budget_s` seconds per number of samples; the last layer includes the loss."""
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
    """Times of optimizer steps over `sizes` parameters, in tensors of at most 2²⁰ elements."""
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
    """Sets whether products of 32-bit floats may be computed as tf32 within the context."""
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
    """Seconds of `step` on buffers of `sizes_bytes`, per message: each rank's median over the repetitions, of the slowest
    rank."""
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
    """Random inputs and targets for a model."""
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
    """Forward and backward seconds of each module in one training step; the last module includes the loss.

    There is one backward pass, as in training: a hook on the gradient between two modules marks where one ends and the next
    begins.
    """
    for module in modules:
        module.zero_grad()
    clock.wait()
    begun: dict[int, Any] = {}

    def begin_marker(index: int) -> Callable[[Tensor], None]:
        """Hook that marks the beginning of a module's backward pass."""

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
            x.register_hook(begin_marker(index))
        marks.append(clock.mark())
    back = [clock.mark()]
    x.backward()  # type: ignore[no-untyped-call]
    end = clock.mark()
    clock.wait()
    back += [begun[index] for index in reversed(range(len(modules) - 1))] + [end]
    forward_s = [clock.seconds(*pair) for pair in pairwise(marks)]
    backward_s = [clock.seconds(*pair) for pair in pairwise(back)]
    return list(zip(forward_s, reversed(backward_s), strict=True))
