"""Provenance of a measured run: hardware, software, settings, and the load of machines by other work."""

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

from scaleproof.simulator.common.units import format_percent
from scaleproof.simulator.run.run import DISTURBED
from scaleproof.validator.record import gpu_facts
from scaleproof.validator.record.cpu_usage import usable

_OF_AMD: Final = ("HIP_", "HIPBLASLT_", "HSA_", "RCCL_", "ROCR_")
# Prefixes of environment variables that affect the speed of training. Others are private and not recorded.
_SETTINGS: Final = ("NCCL_", "GLOO_", "OMP_", "MKL_", "KMP_", "TORCH_", "PYTORCH_", "CUDA_", *_OF_AMD)
_CPU_INFO: Final = Path("/proc/cpuinfo")
_STAT: Final = Path("/proc/stat")
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
# Columns of a core in /proc/stat that count as work: user, nice, system and steal; see proc_stat(5). Interrupts are left out,
# as they include those of the run's own network.
_WORK: Final = (1, 2, 3, 8)
# The kernel counts in ticks of 10 ms, which are too coarse for less time.
_SHORTEST_S: Final = 0.5
_MOST_VALUES: Final = 8
# Share of a machine's cores taken by other work from which a run is not trusted.
NOTICED_LOAD: Final = 0.3
# Backend of ranks that share GPUs, whose messages pass through the host's memory.
STAGED: Final = "staged"
_LOAD: Final = "foreign_load"
_OF_CORES: Final = "% of the cores"


def of_process() -> dict[str, str]:
    """Host, date and software versions of a measurement in this process."""
    return {
        "host": socket.gethostname(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": version("torch"),
    }


def of_rank(device: Any) -> dict[str, str]:
    """Hardware, software and settings with which this rank trains. device: torch's."""
    import torch
    import torch.distributed as dist

    entries = of_process() | {
        "backend": dist.get_backend(),
        "cpu": cpu_model(),
        "cores": _numbers(usable()),
        "threads": str(torch.get_num_threads()),
        "load_average": f"{os.getloadavg()[0]:.2f}",
        "device": f"cpu, 1 thread per rank{gpu_facts.unused()}",
    }
    if device.type == "cuda":
        entries |= {"device": torch.cuda.get_device_name(device)} | gpu_facts.software()
        entries |= gpu_facts.settings(gpu_facts.uuid_of(device))
    settings = {name: value for name, value in sorted(os.environ.items()) if name.startswith(_SETTINGS)}
    return entries | ({"settings": " ".join(f"{name}={value}" for name, value in settings.items())} if settings else {})


def machine() -> str:
    """An identifier of this machine, equal for processes that share a clock."""
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else platform.node()


def combined(everyones: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The entries of all ranks, in rank order, each distinct value once. The date is rank 0's."""
    names = dict.fromkeys(name for one in everyones for name in one)
    values = {name: list(dict.fromkeys(one[name] for one in everyones if name in one)) for name in names}
    return {name: _several(different) for name, different in values.items()} | {"date": everyones[0]["date"]}


def warned(warnings: Iterable[str]) -> dict[str, str]:
    """The provenance entry of warnings, one line each; empty without warnings."""
    lines = list(filter(None, warnings))
    return {"warnings": "\n".join(lines)} if lines else {}


@dataclass(frozen=True)
class Usage:
    """Seconds of work until now. cores_s: of each core that this process may use, by any process. own_s: of this process."""

    at_s: float
    cores_s: Mapping[int, float]
    own_s: float

    @classmethod
    def now(cls) -> Usage:
        """Usage of cores and of this process at this instant."""
        return cls(time.perf_counter(), _core_seconds(usable()), time.process_time())

    def since(self, earlier: Usage) -> dict[str, Any]:
        """Usage since an earlier time, as plain data for JSON."""
        cores_s = {str(core): seconds - earlier.cores_s[core] for core, seconds in self.cores_s.items()}
        return {"elapsed_s": self.at_s - earlier.at_s, "cores_s": cores_s, "own_s": self.own_s - earlier.own_s}


def foreign_loads(machines: Sequence[str], usages: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """By machine, the share of its cores that other processes than ranks used during training; without unknown ones.

    machines: machine of each rank. usages: `Usage.since` of each rank.
    """
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


def load_entry(load: float) -> dict[str, str]:
    """The provenance entry of the share of the busiest machine's cores that other work used."""
    return {_LOAD: f"{100 * load:.0f}{_OF_CORES}"}


def load_of(provenance: Mapping[str, str]) -> float:
    """The share of `load_entry` in a run's provenance; 0 without the entry."""
    return float(provenance.get(_LOAD, "0").removesuffix(_OF_CORES)) / 100


def load_warning(load: float, what: str = "run", again: str = "measure") -> str:
    """A warning where other work used more than the tolerated share of the cores; else empty.

    what: was disturbed. again: the verb that repeats it.
    """
    if load <= NOTICED_LOAD:
        return ""
    return f"other work used {format_percent(load, 0)} of the cores during the {what}; {again} on a quiet machine"


def staged_warning(provenance: Mapping[str, str]) -> str:
    """A warning where ranks share GPUs; else empty."""
    if provenance.get("backend") != STAGED:
        return ""
    return "ranks share GPUs, so that messages pass through the host's memory; times are not those of ranks with a GPU each"


def disturbance(load: float, what: str = "run", again: str = "measure") -> dict[str, str]:
    """The provenance entries of the load by other work, and of the warning about it, if any."""
    warning = load_warning(load, what, again)
    return load_entry(load) | ({DISTURBED: warning} if warning else {})


def _core_seconds(cores: Iterable[int]) -> dict[int, float]:
    if not _STAT.exists():
        return {}
    rows = [line.split() for line in _STAT.read_text().splitlines() if line.startswith("cpu")]
    ticks = {row[0]: sum(int(row[column]) for column in _WORK) for row in rows}
    per_s = os.sysconf("SC_CLK_TCK")
    return {core: ticks[f"cpu{core}"] / per_s for core in cores if f"cpu{core}" in ticks}


def memory_bytes() -> int:
    """Bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def cpu_model() -> str:
    """The processor's name according to the kernel."""
    if _CPU_INFO.exists():
        for line in _CPU_INFO.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


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
