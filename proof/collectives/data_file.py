"""Writes the constants of collectives' timing to scenarios/collectives, with their priors and sources as they were."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from scaleproof.proof.collectives.fit import FITTED
from scaleproof.simulator.cluster.collectives.nccl.constants import FILES, FittedValue, Tables
from scaleproof.simulator.common import yaml_file
from scaleproof.simulator.common.atomic_file import write_atomically

# Comments above the first entry of a file.
_HEADS: Final = {
    "libraries": "# Constants of the timing of collectives by library",
    "generations": "# Constants of the timing of collectives by generation of GPUs",
    "transports": "# Constants of the timing of collectives by transport between nodes",
}


def write(folder: Path, tables: Tables) -> None:
    """Replaces the fitted constants in the files of a folder. Raises OSError if a file cannot be written."""
    for name in FILES:
        path = folder / f"{name}.yaml"
        text = path.read_text(encoding="utf-8")
        fields = yaml_file.shipped(path)
        # comments before the entries and the sources after them stay
        head, _, rest = text.partition(f"{name}:\n")
        _, mark, tail = rest.partition("\nsource:")
        body = "\n".join(_entry(entry, fields[name][entry], tables[name][entry], FITTED[name]) for entry in fields[name])
        write_atomically(path, f"{head or _HEADS[name]}{name}:\n{body}{mark}{tail}".encode())


def _entry(
    name: str, fields: Mapping[str, Mapping[str, Any]], values: Mapping[str, FittedValue], fitted: tuple[str, ...]
) -> str:
    is_fitted = name not in ("rccl", "cdna")
    lines = [_line(key, field, values[key] if is_fitted and key in fitted else None) for key, field in fields.items()]
    return "\n".join([f"  {name}:", *lines])


def _line(key: str, field: Mapping[str, Any], value: FittedValue | None) -> str:
    """One constant in YAML; unchanged without a new value."""
    unit = str(field["value"]).partition(" ")[2]
    parts = {name: field[name] for name in ("value", "low", "high")}
    if value is not None:
        factor = {"us": 1e-6, "GB/s": 1e9}.get(unit, 1.0)
        parts = {name: f"{getattr(value, name) / factor:.3g} {unit}".strip() for name in parts}
    numbers = ", ".join(f"{name}: {number}" for name, number in parts.items())
    prior = f", prior: [{field['prior'][0]}, {field['prior'][1]}]" if "prior" in field else ""
    return f"    {key}: {{{numbers}{prior}, source: {field['source']}}}"
