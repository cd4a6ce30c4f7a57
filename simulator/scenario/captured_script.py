"""The scenario of a captured script: what the script decides, around which a cluster is chosen."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final

from scaleproof.simulator.captured.script import read
from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.common.yaml_file import Located
from scaleproof.simulator.scenario import aliases

SUFFIX: Final = ".zip"


def is_capture(reference: str) -> bool:
    """Whether a reference to a scenario is a capture file."""
    return reference.endswith(SUFFIX)


def around_capture(reference: str, overrides: Sequence[str]) -> Located:
    """The fields of the scenario of a capture file, on the cluster for which it was captured.

    Raises InputError if the file cannot be read, and ScenarioError if neither it nor an override names a cluster.
    """
    script = read(Path(reference))
    if script.cluster is None and "cluster" not in map(_field, overrides):
        example = "--set cluster=dgx-h100"
        raise ScenarioError([f"{reference}: the capture is of no cluster; name one, such as {example}"])
    data: dict[str, Any] = {
        "name": script.name,
        "model": {"kind": "captured", "name": script.name, "parameters": script.parameters, "sequence": script.tokens},
        "strategy": {"kind": "captured", "record": str(Path(reference).resolve()), "workers": script.replicas.count},
        "batch": {"per_worker": script.samples},
        "training": {"precision": script.precision, "optimizer": script.optimizer},
    }
    if script.cluster is not None:
        data["cluster"] = script.cluster
    return Located(data, {(): reference})


def fit_to_cluster(located: Located, fixed: Collection[str]) -> None:
    """Fits a captured script and its cluster to one another: gives the cluster the number of nodes that the ranks need, and the
    training the precision that the device has; neither where an override gives it.

    fixed: fields that overrides have set.
    """
    strategy, cluster = located.data.get("strategy"), located.data.get("cluster")
    is_captured = isinstance(strategy, dict) and strategy.get("kind") == "captured"
    if not (is_captured and isinstance(cluster, dict)):
        return
    script, workers, device = read(Path(strategy["record"])), strategy.get("workers", 1), cluster.get("device")
    training = located.data.get("training", {})
    if isinstance(device, dict) and training.get("precision") == script.precision and "training.precision" not in fixed:
        training["precision"] = script.precision_on(device.get("peak", {}))
    if "cluster.nodes" in fixed:
        return
    devices, nodes = cluster.get("node", {}).get("devices", 1), cluster.get("nodes", 1)
    if all(isinstance(number, int) for number in (workers, devices, nodes)) and devices > 0:
        ranks = workers * script.world_size // script.replicas.count
        cluster["nodes"] = max(nodes, -(-ranks // devices))


def _field(override: str) -> str:
    return ".".join(aliases.canonical(tuple(override.partition("=")[0].split("."))))
