"""Differences: the numbers in which points of a study differ that share all else, down to the shape of their programs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster import Cluster, Device, Link
from scaleproof.simulator.cluster.device.batched_device import BatchedDevice
from scaleproof.simulator.common.batched import BatchedPoints

# The fields of links that points may differ in, and where the cluster has their numbers.
NUMBERS: Final[Mapping[str, tuple[str, str]]] = {
    "cluster.network.bandwidth": ("network", "bandwidth_Bps"),
    "cluster.network.latency": ("network", "latency_s"),
    "cluster.node.link.bandwidth": ("node.link", "bandwidth_Bps"),
    "cluster.node.link.latency": ("node.link", "latency_s"),
}
# Those of devices.
_OF_DEVICE: Final = tuple(f"cluster.device.{name}" for name in ("peak", "memory_bandwidth", "efficiency", "layer_overhead"))


def is_number(field: str) -> bool:
    """Whether points may differ in a field and be told together."""
    return field in NUMBERS or field in _OF_DEVICE or field.startswith(tuple(f"{name}." for name in _OF_DEVICE))


def value_of(cluster: Cluster, field: str) -> float | Device:
    """The number that a field of links has in a cluster; of a field of devices the device."""
    if field not in NUMBERS:
        return cluster.device
    part, name = NUMBERS[field]
    link = cluster.network if part == "network" else cluster.node.link
    assert link is not None
    return float(getattr(link, name))


@dataclass(frozen=True)
class Differences:
    """links: by field of NUMBERS, what it is at each point, shape (points,). devices: which there are, alike in name, memory
    and kernels, and `device`, which of them each point has; none where all have the scenario's own. known: what
    these take, as `BatchedDevice` has it."""

    links: Mapping[str, NDArray[np.float64]]
    devices: Sequence[Device] = ()
    device: NDArray[np.int64] | None = None
    known: dict[Hashable, Sequence[Sequence[float]]] = field(default_factory=dict, compare=False)

    def __len__(self) -> int:
        """How many points there are."""
        columns = [*self.links.values(), *([] if self.device is None else [self.device])]
        return len(columns[0])

    def take(self, points: NDArray[np.int64] | NDArray[np.bool_]) -> Differences:
        """Of some points."""
        device = None if self.device is None else self.device[points]
        return Differences({path: values[points] for path, values in self.links.items()}, self.devices, device, self.known)

    def varying(self, cluster: Cluster, crowd: BatchedPoints) -> Cluster:
        """The cluster with the numbers of all points at once."""
        changed = with_numbers(cluster, {path: crowd.number(values) for path, values in self.links.items()})
        if self.device is None:
            return changed
        return changed.model_copy(update={"device": BatchedDevice(crowd, self.devices, self.device, self.known)})


def with_numbers(cluster: Cluster, numbers: Mapping[str, object]) -> Cluster:
    """The cluster with other numbers of links, which are taken to be valid; by field of NUMBERS."""
    changes: dict[str, dict[str, object]] = {"network": {}, "node.link": {}}
    for path, number in numbers.items():
        part, name = NUMBERS[path]
        changes[part][name] = number
    network, link = _changed(cluster.network, changes["network"]), _changed(cluster.node.link, changes["node.link"])
    return cluster.model_copy(update={"network": network, "node": cluster.node.model_copy(update={"link": link})})


def _changed(link: Link | None, changes: Mapping[str, object]) -> Link | None:
    return link.model_copy(update=changes) if link is not None and changes else link
