"""Provenance of a measured run: hardware, software, settings, and warnings of the load of machines by other work."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Iterable, Mapping, Sequence
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
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
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
