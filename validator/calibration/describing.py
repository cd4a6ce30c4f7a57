"""What is measured, as somebody described it: a cluster file with its device in place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simulator import library, yamlfile
from simulator.device_part import resolve_device
from simulator.scenario import load_cluster


def description(reference: str) -> dict[str, Any]:
    """A cluster as its YAML file has it, of a name that ships or a path. Raises NotFoundError or ScenarioError."""
    path = library.find_part("cluster", reference, Path())
    load_cluster(path)
    located = yamlfile.read(path)
    resolve_device(located, (), path.parent)
    found: dict[str, Any] = located.data
    return {"name": path.stem} | found
