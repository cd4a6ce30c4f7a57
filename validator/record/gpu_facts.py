"""Facts about a GPU on which its speed depends: its identity and software, and what nvidia-smi reports.

Builds of torch for AMD's GPUs (ROCm) call these CUDA devices too. Their limits, modes and clocks are not read.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

_PROGRAM: Final = "nvidia-smi"
# Devices on which ranks train, and Apple's, on which nobody expects it.
_KNOWN: Final = ("cuda", "mps")
# Where the kernel modules of NVIDIA and AMD state their versions.
_NVIDIA: Final = Path("/proc/driver/nvidia/version")
_AMD: Final = Path("/sys/module/amdgpu/version")
# Which of AMD's GPUs a process sees.
_VISIBLE: Final = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
_PATIENCE_S: Final = 10.0
_MIB: Final = 2**20
# Where the driver has a folder for each GPU.
_DRIVERS_GPUS: Final = Path("/proc/driver/nvidia/gpus")
# Properties of `nvidia-smi --query-gpu` that stay the same, and those of the moment, with what they are called here.
_SETTINGS: Final = {
    "power.limit": "power limit",
    "clocks.max.sm": "highest clock",
    "clocks.max.memory": "highest memory clock",
    "compute_mode": "compute mode",
    "ecc.mode.current": "ECC",
    "mig.mode.current": "MIG",
}
_STATE: Final = {
    "clocks.sm": "clock",
    "clocks.mem": "memory clock",
    "power.draw": "power",
    "temperature.gpu": "Celsius",
}
# Those of the moment as numbers, with their names and units.
_LOAD: Final = {"clocks.sm": "clock_MHz", "power.draw": "power_W", "temperature.gpu": "temperature_C"}


def is_amd() -> bool:
    """Whether torch is built for AMD's GPUs."""
    import torch

    return torch.version.hip is not None


def unused() -> str:
    """A note where this machine has devices on which ranks do not train, such as Intel's GPUs; else ""."""
    import torch

    found = torch.accelerator.current_accelerator(check_available=True)
    return f" ({found.type} devices are not supported)" if found is not None and found.type not in _KNOWN else ""


def uuid_of(device: Any) -> str:
    """The identifier of a GPU, different for all GPUs of a machine. device: torch's."""
    import torch

    properties: Any = torch.cuda.get_device_properties(device)
    if (uuid := getattr(properties, "uuid", None)) is not None:
        return str(uuid)
    if (bus := getattr(properties, "pci_bus_id", None)) is not None:
        return f"{properties.pci_domain_id:04x}:{bus:02x}:{properties.pci_device_id:02x}"
    # older builds for AMD's GPUs
    return "/".join([*(os.environ.get(name, "") for name in _VISIBLE), str(torch.device(device).index)])


def architecture_of(device: Any) -> str:
    """The architecture of one of AMD's GPUs, such as "gfx942"; "" for NVIDIA's. device: torch's."""
    import torch

    return str(torch.cuda.get_device_properties(device).gcnArchName).partition(":")[0] if is_amd() else ""


def software() -> dict[str, str]:
    """The provenance entries of the versions of CUDA or HIP, of the driver, and of NCCL or RCCL."""
    import torch

    collectives = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    if is_amd():
        driver = _AMD.read_text().strip() if _AMD.exists() else "unknown"
        return {"hip": str(torch.version.hip), "driver": driver, "rccl": collectives}
    return {"cuda": str(torch.version.cuda), "driver": _nvidia_driver(), "nccl": collectives}


def _nvidia_driver() -> str:
    """The version of NVIDIA's kernel module: the first number in the first line."""
    words = _NVIDIA.read_text().splitlines()[0].split() if _NVIDIA.exists() else []
    return next((word for word in words if word[:1].isdigit()), "unknown")


def memories_bytes(otherwise_bytes: float) -> list[float]:
    """Bytes of memory of each GPU that processes started here see; empty without GPUs, or if their memory is not known.

    otherwise_bytes: of each where nvidia-smi is absent. Does not open a GPU, as a process that has done so cannot fork ranks.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    rows = _rows(["index", "uuid", "memory.total"], "--format=csv,noheader,nounits")
    if not rows:
        count = len(list(_DRIVERS_GPUS.iterdir())) if _DRIVERS_GPUS.is_dir() else 0
        return [otherwise_bytes] * (count if visible is None else min(count, sum(map(bool, visible.split(",")))))
    names = [index for index, _, _ in rows] if visible is None else [name.strip() for name in visible.split(",")]
    sizes = [size for name in names for index, uuid, size in rows if name and (name == index or uuid.startswith(name))]
    return [float(size) * _MIB for size in sizes if size.isdecimal()]


def settings(uuid: str) -> dict[str, str]:
    """The provenance entry of a GPU's limits and modes; empty without nvidia-smi. uuid: of `uuid_of`."""
    return _entry("gpu", uuid, _SETTINGS)


def state(uuid: str) -> dict[str, str]:
    """The provenance entry of a GPU's clocks, power and temperature now; empty without nvidia-smi. uuid: of `uuid_of`."""
    return _entry("gpu_after_training", uuid, _STATE)


def load(uuid: str) -> dict[str, float]:
    """A GPU's clock, power and temperature now, by name with unit; without those that nvidia-smi does not report. uuid: of
    `uuid_of`."""
    values = zip(_LOAD.values(), _queried(uuid, list(_LOAD)), strict=False)
    return {name: float(value.split()[0]) for name, value in values if re.match(r"\d", value)}


def _entry(name: str, uuid: str, properties: Mapping[str, str]) -> dict[str, str]:
    values = _queried(uuid, list(properties))
    known = {words: value for words, value in zip(properties.values(), values, strict=False) if "N/A" not in value}
    return {name: ", ".join(f"{words} {value}" for words, value in known.items())} if known else {}


def _queried(uuid: str, properties: list[str]) -> list[str]:
    """Values of properties of a GPU; no values if the program is absent or fails."""
    return next(iter(_rows(properties, "--format=csv,noheader", f"--id=GPU-{uuid}")), [])


def _rows(properties: list[str], *options: str) -> list[list[str]]:
    """Values of properties of each GPU; no rows if the program is absent or fails."""
    done = nvidia_smi(f"--query-gpu={','.join(properties)}", *options)
    if done is None or done.returncode != 0:
        return []
    return [[value.strip() for value in line.split(",")] for line in done.stdout.splitlines()]


def nvidia_smi(*arguments: str) -> subprocess.CompletedProcess[str] | None:
    """Runs nvidia-smi, and returns what it printed and its exit code; None if it is absent, or does not end in time."""
    program = shutil.which(_PROGRAM)
    if program is None:
        return None
    try:
        return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=_PATIENCE_S)
    except (OSError, subprocess.SubprocessError):
        return None
