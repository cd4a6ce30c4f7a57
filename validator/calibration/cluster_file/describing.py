"""Description of a cluster before measuring: its cluster file with its device included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scaleproof.simulator.common import catalog, yaml_file
from scaleproof.simulator.common.device_reference import resolve_device
from scaleproof.simulator.scenario.read import load_cluster


def description(reference: str) -> dict[str, Any]:
    """Data of a cluster file, given by the name of a shipped cluster or by a path. Raises NotFoundError or ScenarioError."""
    path = catalog.find_part("cluster", reference, Path())
    load_cluster(path)
    located = yaml_file.read(path)
    resolve_device(located, (), path.parent)
    data: dict[str, Any] = located.data
    return {"name": path.stem} | data
