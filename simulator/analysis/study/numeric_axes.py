"""Numeric fields of links and devices in which points of a study may differ and still be compiled and replayed together."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster import Cluster, Device, Link
from scaleproof.simulator.cluster.device.batched_device import BatchedDevice
from scaleproof.simulator.common.batched_numbers import BatchedPoints

# Fields of links in which batched points may differ, with the part of the cluster and its attribute.
NUMBERS: Final[Mapping[str, tuple[str, str]]] = {
    "cluster.network.bandwidth": ("network", "bandwidth_Bps"),
    "cluster.network.latency": ("network", "latency_s"),
    "cluster.node.link.bandwidth": ("node.link", "bandwidth_Bps"),
    "cluster.node.link.latency": ("node.link", "latency_s"),
}
# Fields of devices in which batched points may differ.
_DEVICE_FIELDS: Final = tuple(f"cluster.device.{name}" for name in ("peak", "memory_bandwidth", "efficiency", "layer_overhead"))


def is_number(field: str) -> bool:
    """Whether points that differ in a field can be batched."""
    return field in NUMBERS or field in _DEVICE_FIELDS or field.startswith(tuple(f"{name}." for name in _DEVICE_FIELDS))


def value_of(cluster: Cluster, field: str) -> float | Device:
    """The value of a field of links in a cluster; for a field of devices, the device."""
    if field not in NUMBERS:
        return cluster.device
    part, name = NUMBERS[field]
    link = cluster.network if part == "network" else cluster.node.link
    assert link is not None
    return float(getattr(link, name))


@dataclass(frozen=True)
class Differences:
    """The values in which batched points differ.

    links: values by field of NUMBERS, each of shape (points,). devices: distinct devices, with the same name, memory and
    kernels; device: index of each point's device, shape (points,); none where all points have the scenario's device. known:
    cache of `BatchedDevice`.
    """

    links: Mapping[str, NDArray[np.float64]]
    devices: Sequence[Device] = ()
    device: NDArray[np.int64] | None = None
    known: dict[Hashable, Sequence[Sequence[float]]] = field(default_factory=dict, compare=False)

    def __len__(self) -> int:
        """The number of points."""
        columns = [*self.links.values(), *([] if self.device is None else [self.device])]
        return len(columns[0])

    def take(self, points: NDArray[np.int64] | NDArray[np.bool_]) -> Differences:
        """The values of some points."""
        device = None if self.device is None else self.device[points]
        return Differences({path: values[points] for path, values in self.links.items()}, self.devices, device, self.known)

    def varying(self, cluster: Cluster, batch: BatchedPoints) -> Cluster:
        """The cluster with the batched values of all points."""
        changed = with_numbers(cluster, {path: batch.number(values) for path, values in self.links.items()})
        if self.device is None:
            return changed
        return changed.model_copy(update={"device": BatchedDevice(batch, self.devices, self.device, self.known)})


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
