"""Facts about a GPU on which its speed depends, as nvidia-smi reports them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

_PROGRAM: Final = "nvidia-smi"
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


def uuid_of(device: Any) -> str:
    """The identifier of a GPU. device: torch's."""
    import torch

    return str(torch.cuda.get_device_properties(device).uuid)


def memories_bytes(otherwise_bytes: float) -> list[float]:
    """Bytes of memory of each GPU that processes started here see; empty where there is none, or its memory is not known.

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


def _entry(name: str, uuid: str, properties: Mapping[str, str]) -> dict[str, str]:
    values = _queried(uuid, list(properties))
    known = {words: value for words, value in zip(properties.values(), values, strict=False) if "N/A" not in value}
    return {name: ", ".join(f"{words} {value}" for words, value in known.items())} if known else {}


def _queried(uuid: str, properties: list[str]) -> list[str]:
    """Values of properties of a GPU; none where the program is absent or fails."""
    return next(iter(_rows(properties, "--format=csv,noheader", f"--id=GPU-{uuid}")), [])


def _rows(properties: list[str], *options: str) -> list[list[str]]:
    """Values of properties of each GPU; none where the program is absent or fails."""
    program = shutil.which(_PROGRAM)
    if program is None:
        return []
    command: list[Any] = [program, f"--query-gpu={','.join(properties)}", *options]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [[value.strip() for value in line.split(",")] for line in done.stdout.splitlines()]
