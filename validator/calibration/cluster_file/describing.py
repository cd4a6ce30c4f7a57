"""What is measured, as somebody described it: a cluster file with its device in place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scaleproof.simulator.common import catalog, yaml_file
from scaleproof.simulator.scenario.device_reference import resolve_device
from scaleproof.simulator.scenario.read import load_cluster


def description(reference: str) -> dict[str, Any]:
    """A cluster as its YAML file has it, of a name that ships or a path. Raises NotFoundError or ScenarioError."""
    path = catalog.find_part("cluster", reference, Path())
    load_cluster(path)
    located = yaml_file.read(path)
    resolve_device(located, (), path.parent)
    found: dict[str, Any] = located.data
    return {"name": path.stem} | found
