"""The scenario of a captured script: what the script decides, around which a cluster is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from scaleproof.simulator.captured.script import read
from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.common.yaml_file import Located
from scaleproof.simulator.scenario import aliases
from scaleproof.simulator.scenario.fields import GPUS

SUFFIX: Final = ".zip"
_WORKERS: Final = ("strategy", "workers")


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


def gpus_of(located: Located, overrides: Sequence[str]) -> list[str]:
    """The override of the number of GPUs that a captured scenario needs, unless one of the overrides decides it: so that
    clusters get as many nodes as the script has ranks."""
    fields = [_field(override) for override in overrides]
    if GPUS in fields or "cluster.nodes" in fields or ".".join(_WORKERS) in fields:
        return []
    script = read(Path(located.data["strategy"]["record"]))
    return [f"{GPUS}={script.world_size}"]


def _field(override: str) -> str:
    return ".".join(aliases.canonical(tuple(override.partition("=")[0].split("."))))
