"""Description of where a script runs: this machine's cores, and the network between ranks as calibration measures it now."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from scaleproof.simulator.common.part_reference import resolve_file
from scaleproof.simulator.common.yaml_file import Located
from scaleproof.simulator.scenario.read import load_device, load_model
from scaleproof.validator.calibration.calibrate import calibrate
from scaleproof.validator.calibration.cluster_file.files import description, write
from scaleproof.validator.calibration.plan import ProbePlan
from scaleproof.validator.capture.job import DeviceProperties
from scaleproof.validator.launch.job import Host
from scaleproof.validator.launch.launch import LocalRanks, run_on_ranks
from scaleproof.validator.measure import MeasureOptions, On
from scaleproof.validator.record.cpu_usage import usable
from scaleproof.validator.record.provenance import cpu_model, memory_bytes

_NETWORK: Final = ("message", "collective")
_MOST_PROCESSES: Final = 64
_BUDGET_S: Final = 25.0
_BASE: Final = "cpu-core"
_LAB: Final = "netlab-500mbit"
# Side of the square products by which the rate of a precision is measured; some processors compute half types a hundred times
# slower than fp32.
_SIDES: Final = {"fp32": 1024, "fp64": 512, "bf16": 128, "fp16": 128}
_DTYPES: Final = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16, "fp16": torch.float16}
_COPIED_BYTES: Final = 1 << 28
_REPEATS: Final = 5


def properties(ranks: int) -> DeviceProperties:
    """What a script reads of its device: a core of this machine, and an equal share of its memory."""
    device = load_device(_BASE)
    return replace(DeviceProperties.of(device), name=device_name(), memory_bytes=memory_bytes() // ranks)


def device_name() -> str:
    """Name of a core of this machine."""
    return f"core of {cpu_model()}"


def describe(on: On, ranks: int, path: Path, timeout_s: float, progress: Callable[[str], None]) -> None:
    """Writes a cluster file with this machine's cores and the measured network of `ranks` ranks. Raises InputError and RunError
    as calibration does."""
    cores = len(usable())
    progress("measuring this machine")
    rates = run_on_ranks(core_rates, LocalRanks([Host()] * min(ranks, cores)), timeout_s=timeout_s)[0]
    device = {
        "base": _BASE, "name": device_name(), "description": "a core of this machine, measured by products and copies",
        "peak": {name: f"{rate / 1e9:.4g} GFLOP/s" for name, rate in rates["peak"].items()},
        "memory": f"{memory_bytes() // ranks / 2**30:.4g} GiB", "memory_bandwidth": f"{rates['memory_Bps'] / 1e9:.4g} GB/s",
        "assumed": ["kernels", "clock"], "source": "measured; operators of a captured script are timed one by one",
    }  # fmt: skip
    if on == "netlab":
        base = description(_LAB) | {"nodes": ranks, "shared_cores": cores}
        base.pop("source", None)
    else:
        base = {"name": "this machine", "nodes": 1, "node": {"devices": _MOST_PROCESSES, "cores": cores}}
    described = _resolved({**base, "device": device})
    if ranks > 1:
        plan = ProbePlan([load_model("gpt-mini")], _NETWORK, sorted({2, ranks}), budget_s=_BUDGET_S)
        hosts = ranks if on == "netlab" else None
        calibrated = calibrate(plan, on, described, hosts, MeasureOptions(timeout_s), nullcontext(progress))
        assert calibrated is not None, "this process starts the ranks"
        described = dict(calibrated.cluster)
    write(described, path)


def _resolved(data: dict[str, Any]) -> dict[str, Any]:
    """The description with its device written out."""
    located = Located(data, {(): "this machine"})
    resolve_file(located, "cluster", Path())
    return dict(located.data)


def core_rates() -> dict[str, Any]:
    """On a rank: FLOP/s of products by precision, and bytes per second that copies read and write."""
    peak = {}
    for name, side in _SIDES.items():
        a, b = (torch.randn(side, side).to(_DTYPES[name]) for _ in range(2))
        peak[name] = 2.0 * side**3 / _fastest_s(partial(torch.matmul, a, b))
    source, target = (torch.ones(_COPIED_BYTES // 4) for _ in range(2))
    return {"peak": peak, "memory_Bps": 2.0 * _COPIED_BYTES / _fastest_s(lambda: target.copy_(source))}


def _fastest_s(step: Callable[[], object]) -> float:
    taken_s = []
    for _ in range(_REPEATS):
        dist.barrier()
        begin_s = time.perf_counter()
        step()
        taken_s.append(time.perf_counter() - begin_s)
    return min(taken_s)
