"""Scenario of the profiled training, with the time of the profiled step in place of the device's model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from scaleproof.simulator.run.files import write_atomically
from scaleproof.validator.calibration.cluster_file.section import seconds_text


def describe(model: str, cluster: Path, workers: int, samples: int, precision: str, step_s: float) -> dict[str, Any]:
    """Data of a scenario: data-parallel training by `workers` workers, whose steps over `samples` samples take step_s without
    waiting."""
    return {
        "description": f"{model} as it was profiled on {workers} ranks; set its optimizer",
        "model": model,
        "cluster": f"./{cluster.name}",
        "strategy": {"kind": "data_parallel", "workers": workers},
        "batch": {"per_worker": samples},
        "training": {"precision": precision, "measured_step": {"samples": samples, "time": seconds_text(step_s)}},
    }


def path_for(cluster: Path) -> Path:
    """Path of the scenario that belongs to a cluster file."""
    return cluster.with_suffix(".scenario.yaml")


def write(scenario: dict[str, Any], path: Path) -> None:
    """Writes a scenario as YAML."""
    header = "# Imported from a trace of torch.profiler. `scaleproof predict` takes this file.\n"
    write_atomically(path, (header + yaml.safe_dump(scenario, sort_keys=False, allow_unicode=True, width=120)).encode())
