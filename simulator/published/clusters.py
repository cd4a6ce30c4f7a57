"""The cluster of a published row: one that ships under the row's name, or one of the GPU and network that the row states."""

from __future__ import annotations

import functools
import re
from typing import Any, Final

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.device.device import Device
from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.published.tables import Row
from scaleproof.simulator.scenario.read import load_cluster, load_device

# For a cluster that is not known by name: the shipped cluster whose node and network are usual for a GPU.
_USUAL: Final = {
    "V100-16GB": "dgx1-v100-16gb", "V100-32GB": "dgx1-v100", "A100-40GB-SXM": "dgx-a100-40gb", "A100-80GB-SXM": "dgx-a100",
    "H100-80GB-SXM": "dgx-h100", "H100-96GB-HBM2e-500W": "grand-teton-h100", "H200-141GB-SXM": "azure-nd-h200-v5",
    "B200-SXM": "dgx-b200", "GB200": "gb200-nvl72", "B300": "b300-cluster", "GB300": "gb300-nvl72", "P100-SXM2": "dgx1",
    "MI300X": "azure-nd-mi300x-v5", "MI325X": "mi325x-cluster", "MI355X": "mi355x-cluster",
}  # fmt: skip
# Devices of a machine; more are a domain of NVLink over several, of which sources give the devices of one.
_MOST_OF_MACHINE: Final = 16
_NETWORK: Final = re.compile(r"(?:(\d+)\s*[x×]\s*)?(\d+(?:\.\d+)?)\s*Gbit/s")


def cluster_of(row: Row) -> tuple[Cluster, tuple[str, ...]]:
    """The cluster of a row, with nodes enough for its GPUs, and the columns that had to be assumed.

    Raises InputError where neither the name nor the GPU is known.
    """
    devices = int(row["gpus"])
    if row["cluster"] in catalog.names("clusters"):
        return _with_nodes(_shipped(row["cluster"]), devices), ()
    usual = next((name for gpu, name in _USUAL.items() if gpu == row["gpu"]), None)
    usual = usual or next((name for gpu, name in _USUAL.items() if row["gpu"] and gpu.startswith(f"{row['gpu']}-")), None)
    try:
        cluster = nodes_of(row["gpu"]) if usual is None else _shipped(usual)
    except InputError:
        raise InputError(f"unknown cluster and GPU: {row['cluster'] or 'not named'}, {row['gpu'] or 'not named'}") from None
    cluster = cluster.model_copy(update={"name": row["cluster"] or cluster.name})
    stated = _NETWORK.search(row["note"])
    if stated and cluster.network is not None:
        total_Bps = float(stated[1] or 1) * float(stated[2]) * 1e9 / 8
        network = cluster.network.model_copy(update={"bandwidth_Bps": total_Bps})
        cluster = cluster.model_copy(update={"network": network})
    per_node = int(row["gpus_per_node"] or cluster.node.devices)
    if per_node < cluster.node.devices <= _MOST_OF_MACHINE:
        node = cluster.node.model_copy(update={"installed": per_node})
        cluster = cluster.model_copy(update={"node": node})
    return _with_nodes(cluster, devices), ("cluster",) if stated else ("cluster", "network")


def device_named(words: str) -> str:
    """The name of the device that ships whose words are those of a table. Raises InputError."""
    wanted = name_words(words)
    found = [
        (len(own & wanted), own == wanted, "sxm" in own, name)
        for name in catalog.names("devices")
        if wanted and ((own := name_words(name)) <= wanted or wanted <= own)
    ]
    if not found:
        raise InputError(f"no device that ships is called {words}")
    return max(found)[-1]


def name_words(name: str) -> set[str]:
    """Words of a device's name, without those of the vendor."""
    plain = re.sub(r"(?<=sxm)\d|nvidia|tesla|\(.*\)", "", name.lower().replace("-", " "))
    return set(re.sub(r"(gaudi|trainium|tpu)(?=[v\d])", r"\1 ", plain).split())


@functools.cache
def nodes_of(gpu: str, devices: int = 2, networked: bool = False) -> Cluster:
    """Nodes of a GPU as they ship, else those of another GPU of its generation and form with this one in place of theirs.

    devices: of a node; networked: whether nodes have a network; where no such nodes are like that, others are taken. Those that
    vendors of GPUs sell come first. A GPU that ships with another size of memory is taken with the size that its words say.
    Raises InputError.
    """
    memory, wanted = re.search(r"\b(\d+) ?GB", gpu), name_words(gpu)
    try:
        device = load_device(device_named(gpu))
        form = _form(device.name)
    except InputError:
        if memory is None:
            raise
        device = load_device(device_named(gpu.replace(memory[0], "")))
        form, size_bytes = _form(device.name), int(memory[1]) * 2.0**30
        device = device.model_copy(update={"name": gpu, "memory_bytes": size_bytes, "usable_memory_bytes": None})

    def rank(one: Cluster) -> tuple[bool, bool, bool, int, str]:
        lacks_network = networked and one.network is None
        return one.node.devices < devices, lacks_network, not one.name.startswith(("dgx", "hgx")), len(one.name), one.name

    clusters = list(map(_shipped, catalog.names("clusters")))
    if own := [one for one in clusters if wanted <= name_words(one.device.name)]:
        return min(own, key=rank)
    near = [one for one in clusters if _generation(one.device) == _generation(device) is not None]
    similar = [one for one in near if _form(one.device.name) == form] or near
    if not similar:
        raise InputError(f"no nodes of {gpu} ship")
    return min(similar, key=rank).model_copy(update={"device": device})


def _generation(device: Device) -> str | None:
    return None if device.kernels is None else device.kernels.generation


def _form(device: str) -> str:
    """Whether a device is on a module, by its name, or on a card."""
    return "module" if {"sxm", "oam"} & {word.rstrip("0123456789") for word in device.lower().split("-")} else "card"


def _with_nodes(cluster: Cluster, devices: int) -> Cluster:
    # nodes enough where a power of two of each node's devices is used, as groups of ranks that straddle no nodes may need
    used = 1 << (cluster.node.devices.bit_length() - 1)
    update: dict[str, Any] = {"nodes": max(-(-devices // used), cluster.nodes)}
    return cluster.model_copy(update=update)


@functools.cache
def _shipped(name: str) -> Cluster:
    found = load_cluster(name)
    return found.model_copy(update={"name": name})
