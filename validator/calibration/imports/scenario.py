"""A scenario that predicts what was profiled, with the time of the profiled step in place of the device's model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from scaleproof.simulator.run.run import write_aside
from scaleproof.validator.calibration.cluster_file.section import seconds_text


def describe(model: str, cluster: Path, workers: int, samples: int, precision: str, step_s: float) -> dict[str, Any]:
    """Data parallel training by so many workers, each of which takes step_s for `samples` samples where it waits for nobody."""
    return {
        "description": f"{model} as it was profiled on {workers} ranks; say which optimizer it has",
        "model": model,
        "cluster": f"./{cluster.name}",
        "strategy": {"kind": "data_parallel", "workers": workers},
        "batch": {"per_worker": samples},
        "training": {"precision": precision, "measured_step": {"samples": samples, "time": seconds_text(step_s)}},
    }


def path_beside(cluster: Path) -> Path:
    """Where the scenario of a cluster file is written."""
    return cluster.with_suffix(".scenario.yaml")


def write(scenario: dict[str, Any], path: Path) -> None:
    """Writes it as YAML that people can read."""
    header = "# Imported from a trace of torch.profiler. `scaleproof predict` takes this file.\n"
    write_aside(path, (header + yaml.safe_dump(scenario, sort_keys=False, allow_unicode=True, width=120)).encode())
