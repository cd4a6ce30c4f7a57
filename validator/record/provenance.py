"""The environment: what a run was measured on and with, and what else its machines were busy with."""

from __future__ import annotations

import os
import platform
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from scaleproof.validator.record.cpu_usage import usable

# Settings that change how fast training is. What else is in the environment is nobody's business.
_SETTINGS: Final = ("NCCL_", "GLOO_", "OMP_", "MKL_", "KMP_", "TORCH_", "PYTORCH_", "CUDA_")
_CPU_INFO: Final = Path("/proc/cpuinfo")
_STAT: Final = Path("/proc/stat")
_DRIVER: Final = Path("/proc/driver/nvidia/version")
# Columns of a core in /proc/stat that are work: user, nice, system, and what a hypervisor took; see proc_stat(5). Interrupts
# are left out: among them is what the network of the run itself needs.
_WORK: Final = (1, 2, 3, 8)
# The kernel counts in ticks of 10 ms, which say little of less time.
_SHORTEST_S: Final = 0.5
_MOST_VALUES: Final = 8
# The share of a machine's cores that others may take before a run is not to be trusted.
NOTICED_LOAD: Final = 0.3
_LOAD: Final = "foreign_load"
_OF_CORES: Final = "% of the cores"


def of_process() -> dict[str, str]:
    """Where and when something is measured, and with what."""
    return {
        "host": socket.gethostname(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": version("torch"),
    }


def of_rank(device: Any) -> dict[str, str]:
    """What this process trains on and with. device: torch's."""
    import torch
    import torch.distributed as dist

    told = of_process() | {
        "backend": dist.get_backend(),
        "cpu": cpu_model(),
        "cores": _numbers(usable()),
        "threads": str(torch.get_num_threads()),
        "load_average": f"{os.getloadavg()[0]:.2f}",
        "device": "cpu, 1 thread per rank",
    }
    if device.type == "cuda":
        told |= {"device": torch.cuda.get_device_name(device), "cuda": str(torch.version.cuda), "driver": _driver()}
    if told["backend"] == "nccl":
        told["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    settings = {name: value for name, value in sorted(os.environ.items()) if name.startswith(_SETTINGS)}
    return told | ({"settings": " ".join(f"{name}={value}" for name, value in settings.items())} if settings else {})


def combined(everyones: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """What ranks told, in rank order, each different value once. The date is rank 0's."""
    names = dict.fromkeys(name for one in everyones for name in one)
    values = {name: list(dict.fromkeys(one[name] for one in everyones if name in one)) for name in names}
    return {name: _several(different) for name, different in values.items()} | {"date": everyones[0]["date"]}


def warned(warnings: Iterable[str]) -> dict[str, str]:
    """The entry of what is to be known before a run is trusted, a line each; none without."""
    told = list(filter(None, warnings))
    return {"warnings": "\n".join(told)} if told else {}


@dataclass(frozen=True)
class Usage:
    """Seconds of work until now: of each core that this process may use, by whomever, and of this process itself."""

    at_s: float
    cores_s: Mapping[int, float]
    own_s: float

    @classmethod
    def now(cls) -> Usage:
        return cls(time.perf_counter(), _core_seconds(usable()), time.process_time())

    def since(self, earlier: Usage) -> dict[str, Any]:
        """What was used meanwhile, as plain data for JSON."""
        cores_s = {str(core): seconds - earlier.cores_s[core] for core, seconds in self.cores_s.items()}
        return {"elapsed_s": self.at_s - earlier.at_s, "cores_s": cores_s, "own_s": self.own_s - earlier.own_s}


def foreign_loads(machines: Sequence[str], usages: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Of each machine the share of its cores that others than the ranks took while these trained; nothing where it cannot be
    told. machines: that of each rank."""
    loads = {}
    for machine in dict.fromkeys(machines):
        own = [usage for usage, where in zip(usages, machines, strict=True) if where == machine]
        elapsed_s = min(usage["elapsed_s"] for usage in own)
        cores_s: dict[str, float] = {}
        for usage in own:
            cores_s |= {core: max(seconds, cores_s.get(core, 0.0)) for core, seconds in usage["cores_s"].items()}
        if cores_s and elapsed_s >= _SHORTEST_S:
            others_s = sum(cores_s.values()) - sum(usage["own_s"] for usage in own)
            loads[machine] = min(1.0, max(0.0, others_s / (elapsed_s * len(cores_s))))
    return loads


def told_load(load: float) -> dict[str, str]:
    """The entry of a run's provenance for the share of its busiest machine's cores that other work took."""
    return {_LOAD: f"{100 * load:.0f}{_OF_CORES}"}


def load_of(provenance: Mapping[str, str]) -> float:
    """The share that `told_load` told; 0 where nothing was told."""
    return float(provenance.get(_LOAD, "0").removesuffix(_OF_CORES)) / 100


def load_warning(load: float) -> str:
    """What to know of a run beside which other work took such a share of the cores, if anything."""
    if load <= NOTICED_LOAD:
        return ""
    return f"other work took {load:.0%} of the cores meanwhile; measure on a quiet machine"


def _core_seconds(cores: Iterable[int]) -> dict[int, float]:
    if not _STAT.exists():
        return {}
    rows = [line.split() for line in _STAT.read_text().splitlines() if line.startswith("cpu")]
    ticks = {row[0]: sum(int(row[column]) for column in _WORK) for row in rows}
    per_s = os.sysconf("SC_CLK_TCK")
    return {core: ticks[f"cpu{core}"] / per_s for core in cores if f"cpu{core}" in ticks}


def cpu_model() -> str:
    """The processor's name, as the kernel tells it."""
    if _CPU_INFO.exists():
        for line in _CPU_INFO.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _driver() -> str:
    """The version of NVIDIA's kernel module, which its first line names before a date."""
    words = _DRIVER.read_text().splitlines()[0].split() if _DRIVER.exists() else []
    return next((word for word in words if word[:1].isdigit()), "unknown")


def _numbers(numbers: Sequence[int]) -> str:
    """'0-3,8' for 0, 1, 2, 3, 8."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _several(values: Sequence[str]) -> str:
    left = len(values) - _MOST_VALUES
    return "; ".join(values[:_MOST_VALUES]) + (f"; and {left} more" if left > 0 else "")
