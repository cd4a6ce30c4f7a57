"""Times of a GPU that a CPU core does not have: launch overheads of kernels, copies between GPUs, optimizer steps by size.

The probes also run on a CPU, where times are the host's. Points and budgets are as in `compute`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypedDict

import torch
from torch import nn

from scaleproof.validator.launch.rank import here
from scaleproof.validator.probe.adaptive import DeviceTimer, Step, repeat
from scaleproof.validator.probe.compute import averaged, rank_point
from scaleproof.validator.probe.peers import collected
from scaleproof.validator.probe.points import Point
from scaleproof.validator.probe.rounds import in_rounds
from scaleproof.validator.record import gpu_facts
from scaleproof.validator.train.models.models import DTYPES
from scaleproof.validator.train.optimizers import build_optimizer

# Name of a device that is not a GPU, in `DeviceFacts`.
CPU: Final = "CPU"
_LAUNCHES: Final = 500
_GRAPH_KERNELS: Final = 200
# Modules whose host time is measured: width, repetitions, and the number of kernels of a linear layer with bias, a GELU and a
# layer norm: one each in the forward pass; in the backward pass two products and a sum, one, and two.
_NARROW: Final = 8
_MODULES: Final = 40
_MODULE_KERNELS: Final = 3 + 6


class DeviceFacts(TypedDict):
    """Properties that the device reports. capability: (major, minor) on NVIDIA GPUs; (0, 0) on a CPU.
    architecture: of AMD's GPUs, such as "gfx942"; "" for others."""

    name: str
    devices: int
    capability: list[int]
    architecture: str
    processors: int
    memory_bytes: int


def facts() -> DeviceFacts:
    """Properties of the rank's device."""
    device = here().device
    if device.type != "cuda":
        return {"name": CPU, "devices": 1, "capability": [0, 0], "architecture": "", "processors": 1, "memory_bytes": 2**33}
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "devices": torch.cuda.device_count(),
        "capability": [properties.major, properties.minor],
        "architecture": gpu_facts.architecture_of(device),
        "processors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
    }


def launches(budget_s: float) -> list[dict[str, Any]]:
    """Points of seconds per kernel of one element ("launch"): of the host for a bare operation ("issue") and for modules with
    their backward pass ("module"); from one kernel of a CUDA graph to the next, the kernel included ("graph", not on a CPU)."""
    clock, x = DeviceTimer(here().device), torch.zeros(1, device=here().device)
    steps = {"issue": _issue(clock, x), "module": _module(clock)} | ({"graph": _graphed(x)} if clock.is_gpu else {})
    return collected(
        [rank_point("launch", what, 1.0, "kernels", repeat(step, budget_s / len(steps))) for what, step in steps.items()]
    )


def _issue(clock: DeviceTimer, x: torch.Tensor) -> Step:
    def issue() -> float:
        clock.wait()
        begin_s = time.perf_counter()
        for _ in range(_LAUNCHES):
            x.add_(1.0)
        return (time.perf_counter() - begin_s) / _LAUNCHES

    return issue


def _module(clock: DeviceTimer) -> Step:
    """Step of modules on tensors so small that the host is the bottleneck."""
    units = [(nn.Linear(_NARROW, _NARROW), nn.GELU(), nn.LayerNorm(_NARROW)) for _ in range(_MODULES)]
    chain = nn.Sequential(*(module for unit in units for module in unit)).to(here().device)
    x = torch.zeros(_NARROW, _NARROW, device=here().device)

    def train() -> float:
        chain.zero_grad(set_to_none=True)
        clock.wait()
        begin_s = time.perf_counter()
        chain(x).sum().backward()
        return (time.perf_counter() - begin_s) / (_MODULES * _MODULE_KERNELS)

    return train


def _graphed(x: torch.Tensor) -> Step:
    # loads the kernel, which may not be done while a graph is captured
    x.add_(1.0)
    torch.cuda.synchronize(x.device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_GRAPH_KERNELS):
            x.add_(1.0)
    replay = averaged(graph.replay)
    return lambda: replay() / _GRAPH_KERNELS


def device_copies(sizes_bytes: Sequence[int], budget_s: float) -> list[dict[str, Any]]:
    """Points of copies from device 0 to every other device that this process sees ("host_copy"); empty for one device."""
    device = here().device
    others = range(1, torch.cuda.device_count()) if device.type == "cuda" else range(0)

    def one_round(budget_s: float) -> Iterator[Point]:
        for other in others:
            for size_bytes in sizes_bytes:
                source = torch.zeros(size_bytes // 4, device=device)
                target = torch.zeros(size_bytes // 4, device=torch.device("cuda", other))
                # copies run on the source's current stream, where the marks are
                step = averaged(partial(target.copy_, source, non_blocking=True))
                samples = repeat(step, budget_s / (len(others) * len(sizes_bytes)))
                yield rank_point("host_copy", f"device 0 to {other}", float(size_bytes), "bytes", samples)

    return collected(in_rounds(one_round, budget_s))


def optimizers(sizes: Sequence[int], precision: str, names: Sequence[str], budget_s: float) -> list[dict[str, Any]]:
    """Points of optimizer steps ("optimizer") over `sizes` parameters, in tensors of at most 2²⁰ elements. Their group is the
    precision."""
    device = here().device

    def one_round(budget_s: float) -> Iterator[Point]:
        for size in sizes:
            parts = [min(2**20, size - begin) for begin in range(0, size, 2**20)]
            parameters = [nn.Parameter(torch.randn(part, device=device, dtype=DTYPES[precision])) for part in parts]
            for parameter in parameters:
                parameter.grad = torch.randn_like(parameter)
            for name in names:
                step = averaged(build_optimizer(name, parameters, 1e-6).step)  # type: ignore[arg-type]
                samples = repeat(step, budget_s / (len(sizes) * len(names)))
                yield replace(rank_point("optimizer", name, float(size), "parameters", samples), group=precision)

    return collected(in_rounds(one_round, budget_s))
