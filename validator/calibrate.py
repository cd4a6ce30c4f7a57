"""calibrate: measures this machine and writes a cluster file that says what it found."""

from __future__ import annotations

import os
import platform
import socket
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml

from simulator.model import Gpt, Mlp
from simulator.run import write_aside
from validator import fit
from validator.launch import run_on_ranks

# torch is imported where probes run: on the ranks
_MESSAGE_BYTES: Final = (4, 4096, 65_536, 2**18, 2**20, 2**22, 2**24)
_SAMPLES: Final = (1, 4, 8, 16, 32)
_ROUNDS: Final = 3
_OPTIMIZERS: Final = ("sgd", "momentum", "adam")
_MOST_PROCESSES: Final = 64
_BUFFER_BYTES: Final = 2**22
_MATMUL_SIDE: Final = 512
_LARGE_BYTES: Final = 2**20

Progress = Callable[[str], None]
T = TypeVar("T")


@dataclass(frozen=True)
class Plan:
    """What to measure. groups: sizes of allreduce groups. budget_s: seconds per single point."""

    models: Sequence[Gpt | Mlp]
    groups: Sequence[int] = (2, 4)
    precision: str = "fp32"
    budget_s: float = 0.2
    timeout_s: float = 120.0
    progress: Progress = field(default=lambda _: None)


def calibrate(plan: Plan) -> dict[str, Any]:
    """Measures this machine; returns a cluster as the YAML file has it. Raises RankError when a probe fails."""
    from validator.probe import network

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    device, useful_cores = _device(plan, cores)
    plan.progress("messages between two processes")
    link = _messages(plan, network.point_to_point, 2)
    collectives = []
    for ranks in plan.groups:
        plan.progress(f"allreduce over {ranks} processes")
        collectives.append({"ranks": ranks, **_messages(plan, network.allreduce, ranks)})
    return {
        "name": socket.gethostname(),
        "description": f"{cores} cores of this machine, measured; processes talk over the loopback interface with gloo",
        "nodes": 1,
        "node": {"devices": _MOST_PROCESSES, "cores": round(useful_cores, 3), "link": link},
        "device": device,
        "collectives": {"measured": collectives},
        "provenance": provenance() | {"models": ", ".join(model.name for model in plan.models)},
    }


def write(cluster: dict[str, Any], path: Path) -> None:
    """Writes a calibrated cluster as YAML that people can read."""
    header = "# Measured on the host named below. Every number may be edited; `scaleproof predict` uses what stands here.\n"
    write_aside(path, (header + yaml.safe_dump(cluster, sort_keys=False, allow_unicode=True, width=120)).encode())


def _device(plan: Plan, cores: int) -> tuple[dict[str, Any], float]:
    """The device section, and how many cores' worth of work all cores together get done.

    Times are those of one process alone: processes that run together share the cores' worth.
    """
    from validator.probe import compute

    measured: dict[str, Any] = {}
    alone_s = together_s = 0.0
    for model in plan.models:
        plan.progress(f"compute of {model.name}, one process and then {cores} at once")
        rounds = [(_layer_points(plan, model, 1), _layer_points(plan, model, cores)) for _ in range(_ROUNDS)]
        alone, together = (_median(points) for points in zip(*rounds, strict=True))
        alone_s += _total_s(alone)
        together_s += _total_s(together)
        measured |= {m["signature"]: m for m in _fitted_layers(alone, plan.precision)}
    plan.progress("optimizers, memory, matrix products")
    model = plan.models[0]

    def run(function: Callable[..., T], *args: Any) -> T:
        result: T = run_on_ranks(function, 1, *args, plan.budget_s, timeout_s=plan.timeout_s)[0]
        return result

    peak_flops = run(compute.matmul_flops, _MATMUL_SIDE, plan.precision)
    device = {
        "name": _processor(),
        "peak": {plan.precision: f"{peak_flops / 1e9:.4g} GFLOP/s"},
        "memory": f"{_memory_bytes() / 2**30:.4g} GiB",
        "memory_bandwidth": f"{run(compute.memory_Bps, _BUFFER_BYTES, plan.precision) / 1e9:.4g} GB/s",
        "measured_layers": list(measured.values()),
        "measured_optimizers": _fitted_optimizers(run(compute.optimizers, model, plan.precision, _OPTIMIZERS), plan.precision),
    }
    # more than all of them is noise
    return device, min(float(cores), cores * alone_s / together_s)


_Points = dict[tuple[str, int], tuple[float, float]]


def _layer_points(plan: Plan, model: Gpt | Mlp, processes: int) -> _Points:
    """(signature, samples) → mean over processes of the median forward and backward seconds."""
    from validator.probe import compute

    arguments = (model, plan.precision, _SAMPLES, plan.budget_s)
    points: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for timings in run_on_ranks(compute.layers, processes, *arguments, timeout_s=plan.timeout_s):
        for t in timings:
            points.setdefault((t["signature"], t["samples"]), []).append((t["forward_s"], t["backward_s"]))
    return {key: (statistics.mean(f for f, _ in v), statistics.mean(b for _, b in v)) for key, v in points.items()}


def _median(rounds: Sequence[_Points]) -> _Points:
    """Of each point the median of several rounds, so that one round in which the machine did something else does not count."""
    passes = {key: zip(*(points[key] for points in rounds), strict=True) for key in rounds[0]}
    return {key: (statistics.median(next(p)), statistics.median(next(p))) for key, p in passes.items()}


def _total_s(points: _Points) -> float:
    return sum(forward_s + backward_s for forward_s, backward_s in points.values())


def _fitted_layers(points: _Points, precision: str) -> list[dict[str, Any]]:
    """One entry of `measured_layers` per signature."""
    result = []
    for signature in dict.fromkeys(signature for signature, _ in points):
        samples = [count for name, count in points if name == signature]
        passes = zip(*(points[signature, count] for count in samples), strict=True)
        forward, backward = (fit.line(samples, seconds) for seconds in passes)
        lines = {name: {"base": _us(base), "per_sample": _us(slope)} for name, (base, slope) in
                 (("forward", forward), ("backward", backward))}  # fmt: skip
        result.append({"signature": signature, "precision": precision, **lines})
    return result


def _fitted_optimizers(timings: Sequence[Any], precision: str) -> list[dict[str, Any]]:
    result = []
    for name in _OPTIMIZERS:
        mine = [t for t in timings if t["optimizer"] == name]
        base, slope = fit.line([t["parameters"] for t in mine], [t["seconds"] for t in mine])
        result.append({"optimizer": name, "precision": precision, "base": _us(base), "per_parameter": f"{slope * 1e9:.4g} ns"})
    return result


def _messages(plan: Plan, probe: Callable[..., Any], ranks: int) -> dict[str, Any]:
    """latency + size / bandwidth through a probe's medians, and the cores that large messages keep busy."""
    timings = run_on_ranks(probe, ranks, _MESSAGE_BYTES, plan.budget_s, timeout_s=plan.timeout_s)[0]
    medians_s = [statistics.median(t["seconds"]) for t in timings]
    latency_s, per_byte_s = fit.line([t["size_bytes"] for t in timings], medians_s)
    busy = statistics.median(t["cores_busy"] for t in timings if t["size_bytes"] >= _LARGE_BYTES)
    return {"bandwidth": f"{1e-9 / per_byte_s:.4g} GB/s", "latency": _us(latency_s), "cores_busy": round(busy, 3)}


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.4g} us"


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _processor() -> str:
    """The processor's name, as the kernel tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def provenance() -> dict[str, str]:
    """Where and when a cluster was measured, and with what."""
    from importlib.metadata import version

    return {
        "host": socket.gethostname(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": version("torch"),
        "scaleproof": _version(),
    }


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("scaleproof")
    except PackageNotFoundError:
        return "not installed"
