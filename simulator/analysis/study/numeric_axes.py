"""Numeric fields of links and devices in which points of a study may differ and still have the same program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from scaleproof.simulator.cluster import Cluster, Device, Link

# Fields of links in which such points may differ, with the part of the cluster and its attribute.
NUMBERS: Final[Mapping[str, tuple[str, str]]] = {
    "cluster.network.bandwidth": ("network", "bandwidth_Bps"),
    "cluster.network.latency": ("network", "latency_s"),
    "cluster.node.link.bandwidth": ("node.link", "bandwidth_Bps"),
    "cluster.node.link.latency": ("node.link", "latency_s"),
}
# Fields of devices in which such points may differ.
_DEVICE_FIELDS: Final = tuple(f"cluster.device.{name}" for name in ("peak", "memory_bandwidth", "efficiency", "layer_overhead"))


def is_number(field: str) -> bool:
    """Whether points that differ in a field have the same program."""
    return field in NUMBERS or field in _DEVICE_FIELDS or field.startswith(tuple(f"{name}." for name in _DEVICE_FIELDS))


def value_of(cluster: Cluster, field: str) -> float | Device:
    """The value of a field of links in a cluster; for a field of devices, the device."""
    if field not in NUMBERS:
        return cluster.device
    part, name = NUMBERS[field]
    link = cluster.network if part == "network" else cluster.node.link
    assert link is not None
    return float(getattr(link, name))


def with_numbers(cluster: Cluster, numbers: Mapping[str, object]) -> Cluster:
    """The cluster with other values of link fields, by field of NUMBERS; they are not validated."""
    changes: dict[str, dict[str, object]] = {"network": {}, "node.link": {}}
    for path, number in numbers.items():
        part, name = NUMBERS[path]
        changes[part][name] = number
    network, link = _changed(cluster.network, changes["network"]), _changed(cluster.node.link, changes["node.link"])
    return cluster.model_copy(update={"network": network, "node": cluster.node.model_copy(update={"link": link})})


def _changed(link: Link | None, changes: Mapping[str, object]) -> Link | None:
    return link.model_copy(update=changes) if link is not None and changes else link
