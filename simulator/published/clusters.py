"""The cluster of a published row: one that ships under the row's name, or one of the GPU and network that the row states."""

from __future__ import annotations

import functools
import re
from typing import Any, Final

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.published.tables import Row
from scaleproof.simulator.scenario.read import load_cluster

# For a cluster that is not known by name: the shipped cluster whose node and network are usual for a GPU.
_USUAL: Final = {
    "V100-16GB": "dgx1-v100-16gb", "V100-32GB": "dgx1-v100", "A100-40GB-SXM": "dgx-a100-40gb", "A100-80GB-SXM": "dgx-a100",
    "H100-80GB-SXM": "dgx-h100", "H100-96GB-HBM2e-500W": "grand-teton-h100", "H200-141GB-SXM": "azure-nd-h200-v5",
    "B200-SXM": "dgx-b200", "GB200": "gb200-nvl72", "B300": "b300-cluster", "GB300": "gb300-nvl72", "P100-SXM2": "dgx1",
    "MI300X": "azure-nd-mi300x-v5", "MI325X": "mi325x-cluster", "MI355X": "mi355x-cluster",
}  # fmt: skip
_NETWORK: Final = re.compile(r"(?:(\d+)\s*[x×]\s*)?(\d+(?:\.\d+)?)\s*Gbit/s")


def cluster_of(row: Row) -> tuple[Cluster, tuple[str, ...]]:
    """The cluster of a row, with nodes enough for its GPUs, and the columns that had to be assumed.

    Raises InputError where neither the name nor the GPU is known.
    """
    devices = int(row["gpus"])
    if row["cluster"] in catalog.names("clusters"):
        return _with_nodes(_shipped(row["cluster"]), devices), ()
    usual = next((name for gpu, name in _USUAL.items() if gpu == row["gpu"]), None)
    usual = usual or next((name for gpu, name in _USUAL.items() if row["gpu"] and gpu.startswith(row["gpu"])), None)
    if usual is None:
        raise InputError(f"unknown cluster and GPU: {row['cluster'] or 'not named'}, {row['gpu'] or 'not named'}")
    cluster = _shipped(usual).model_copy(update={"name": row["cluster"] or usual})
    stated = _NETWORK.search(row["note"])
    if stated and cluster.network is not None:
        total_Bps = float(stated[1] or 1) * float(stated[2]) * 1e9 / 8
        network = cluster.network.model_copy(update={"bandwidth_Bps": total_Bps})
        cluster = cluster.model_copy(update={"network": network})
    per_node = int(row["gpus_per_node"] or cluster.node.devices)
    if per_node < cluster.node.devices:
        node = cluster.node.model_copy(update={"installed": per_node})
        cluster = cluster.model_copy(update={"node": node})
    return _with_nodes(cluster, devices), ("cluster",) if stated else ("cluster", "network")


def _with_nodes(cluster: Cluster, devices: int) -> Cluster:
    update: dict[str, Any] = {"nodes": max(-(-devices // cluster.node.devices), cluster.nodes)}
    return cluster.model_copy(update=update)


@functools.cache
def _shipped(name: str) -> Cluster:
    found = load_cluster(name)
    return found.model_copy(update={"name": name})
