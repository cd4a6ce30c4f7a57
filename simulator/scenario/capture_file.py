"""The scenario of a capture file, on the cluster for which it was captured."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.common.yaml_file import Located
from scaleproof.simulator.scenario import aliases

if TYPE_CHECKING:
    from scaleproof.simulator.captured.script import CapturedScript

# End of the names of capture files.
SUFFIX: Final = ".zip"


def around_capture(reference: str, overrides: Sequence[str]) -> Located:
    """The fields of the scenario of a capture file, on the cluster for which it was captured.

    Raises InputError if the file cannot be read, and ScenarioError if neither it nor an override names a cluster.
    """
    script = _script(reference)
    if script.cluster is None and "cluster" not in map(aliases.field_set_by, overrides):
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
    """Fits a captured script and its cluster to one another: samples to a number that was given for them, the precision to the
    device, and the number of nodes to the ranks; none of them where an override gives it.

    fixed: fields that overrides have set.
    """
    strategy, cluster = located.data["strategy"], located.data.get("cluster")
    if not isinstance(cluster, dict):
        return
    script = _script(strategy["record"])
    declared = strategy.get("samples")
    if isinstance(declared, int) and not any(field.startswith("batch") for field in fixed):
        located.data["batch"] = {"per_worker": max(1, declared // script.replicas.count)}
    device, training = cluster.get("device"), located.data.get("training", {})
    if isinstance(device, dict) and training.get("precision") == script.precision and "training.precision" not in fixed:
        training["precision"] = script.precision_on(device.get("peak", {}))
    workers, devices, nodes = strategy.get("workers", 1), cluster.get("node", {}).get("devices", 1), cluster.get("nodes", 1)
    are_numbers = all(isinstance(number, int) for number in (workers, devices, nodes))
    if "cluster.nodes" not in fixed and are_numbers and devices > 0:
        ranks = workers * script.world_size // script.replicas.count
        cluster["nodes"] = max(nodes, -(-ranks // devices))


def _script(path: str) -> CapturedScript:
    # other scenarios are loaded without the modules that read captures
    from scaleproof.simulator.captured.reading import read

    return read(Path(path))
