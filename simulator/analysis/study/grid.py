"""Grids: scenarios at the points of axes, and numeric fields in which points may differ and still have the same program."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.study.axes import StudyAxis
from scaleproof.simulator.cluster import Cluster, Device, Link
from scaleproof.simulator.scenario.schema import Scenario

Numbers = NDArray[np.int64]

# Fields of links in which such points may differ, with the part of the cluster and its attribute.
NUMBERS: Final[Mapping[str, tuple[str, str]]] = {
    "cluster.network.bandwidth": ("network", "bandwidth_Bps"),
    "cluster.network.latency": ("network", "latency_s"),
    "cluster.node.link.bandwidth": ("node.link", "bandwidth_Bps"),
    "cluster.node.link.latency": ("node.link", "latency_s"),
}
# Fields of devices in which such points may differ.
_DEVICE_FIELDS: Final = tuple(f"cluster.device.{name}" for name in ("peak", "memory_bandwidth", "efficiency", "layer_overhead"))


class Grid(ABC):
    """Scenarios at the points of axes. Points are numbered from zero; the last axis varies fastest.

    groups: axes that are zipped, by index; values of different groups are combined in all ways.
    """

    axes: tuple[StudyAxis, ...]
    groups: tuple[tuple[int, ...], ...]

    @abstractmethod
    def scenario(self, places: Sequence[int] | Numbers) -> Scenario:
        """The scenario at these places on the axes. Raises InputError."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of values of each group."""
        return tuple(len(self.axes[group[0]].values) for group in self.groups)

    def __len__(self) -> int:
        return math.prod(self.shape)

    def places(self, points: Numbers) -> Numbers:
        """Indices of the points' values on each axis, shape (points, axes)."""
        result = np.empty((len(points), len(self.axes)), dtype=np.int64)
        for group, place in zip(self.groups, np.unravel_index(points, self.shape), strict=True):
            result[:, group] = place[:, None]
        return result

    def places_of(self, point: int) -> list[int]:
        """Indices of a point's values on each axis."""
        places: list[int] = self.places(np.array([point]))[0].tolist()
        return places

    def words_of(self, point: int) -> str:
        """The values of a point on the axes: 'strategy.workers 32, cluster.network.bandwidth 25 Gbit/s'."""
        return ", ".join(axis.words(place) for axis, place in zip(self.axes, self.places_of(point), strict=True))

    @functools.cached_property
    def numbers(self) -> list[int]:
        """Indices of the axes whose points can be batched."""
        return [i for i, axis in enumerate(self.axes) if is_number(axis.field)]

    @functools.cached_property
    def known_values(self) -> dict[tuple[int, ...], float | Device | dict[str, Any]]:
        """Cache of values of numeric axes, or of rows with their errors; each worker has its own."""
        return {}

    def batches(self, points: Numbers) -> tuple[list[Numbers], Numbers]:
        """The points in batches that differ in numbers alone, and those that differ from all others in more."""
        if not self.numbers or len(points) == 0:
            return [], points
        others = [axis for axis in range(len(self.axes)) if axis not in self.numbers]
        _, group = np.unique(self.places(points)[:, others], axis=0, return_inverse=True)
        order = np.argsort(group.ravel(), kind="stable")
        batches = np.split(points[order], np.flatnonzero(np.diff(group.ravel()[order])) + 1)
        single = np.concatenate([points[:0], *(batch for batch in batches if len(batch) == 1)])
        return [batch for batch in batches if len(batch) > 1], single


@dataclass(frozen=True)
class Variants(Grid):
    """Variants of a scenario. make: the scenario at one value of each axis; raises InputError."""

    axes: tuple[StudyAxis, ...]
    make: Callable[..., Scenario]

    @functools.cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:  # type: ignore[override]
        """One for each axis."""
        return tuple((axis,) for axis in range(len(self.axes)))

    def scenario(self, places: Sequence[int] | Numbers) -> Scenario:
        """The scenario at these places on the axes. Raises InputError."""
        return self.make(*(axis.values[place] for axis, place in zip(self.axes, places, strict=True)))


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
