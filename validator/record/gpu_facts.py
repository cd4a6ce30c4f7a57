"""Facts about a GPU on which its speed depends, as nvidia-smi reports them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any, Final

_PROGRAM: Final = "nvidia-smi"
_PATIENCE_S: Final = 10.0
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


def uuid_of(device: Any) -> str:
    """The identifier of a GPU. device: torch's."""
    import torch

    return str(torch.cuda.get_device_properties(device).uuid)


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
    """Values of properties of a GPU; none where the program is absent or fails."""
    program = shutil.which(_PROGRAM)
    if program is None:
        return []
    command: list[Any] = [program, f"--query-gpu={','.join(properties)}", "--format=csv,noheader", f"--id=GPU-{uuid}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [value.strip() for value in done.stdout.strip().split(",")]
