"""Devices: several of them in place of one, for points that differ in the numbers of what they compute on."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster.device.device import Device, Precision
from scaleproof.simulator.cluster.device.kernels import Kernels
from scaleproof.simulator.common.batched import BatchedPoints, Varying


@dataclass(frozen=True)
class BatchedDevice:
    """Stands for a Device where a program is compiled for many points at once; what it tells varies from point to point.

    each: devices of one name, memory, power limit and kernels; at: which of them each point has, shape (points,). known: what
    was computed of each device, by what it follows from; shared by all that have the same devices.
    """

    crowd: BatchedPoints
    each: Sequence[Device]
    at: NDArray[np.int64]
    known: dict[Hashable, Sequence[Sequence[float]]] = field(default_factory=dict, compare=False)

    @property
    def name(self) -> str:
        """Of all."""
        return self.each[0].name

    @property
    def kernels(self) -> Kernels | None:
        """Of all."""
        return self.each[0].kernels

    @property
    def memory_bytes(self) -> float:
        """Of all."""
        return self.each[0].memory_bytes

    @property
    def capacity_bytes(self) -> float:
        """Of all."""
        return self.each[0].capacity_bytes

    @property
    def power_limit_W(self) -> float | None:
        """Of all."""
        return self.each[0].power_limit_W

    @property
    def memory_bandwidth_Bps(self) -> Varying:
        """Of each."""
        return self._number([one.memory_bandwidth_Bps for one in self.each])

    @property
    def efficiency(self) -> Varying | None:
        """None where no device has one."""
        found = [one.efficiency for one in self.each if one.efficiency is not None]
        return self._number(found) if found else None

    @property
    def peak_flops(self) -> dict[Precision, Varying]:
        """Of each, by precision."""
        return {name: self._number([one.peak_flops[name] for one in self.each]) for name in self.each[0].peak_flops}

    def of_each(self, key: Hashable, function: Callable[[Device], Sequence[float]]) -> tuple[Varying, ...]:
        """What `function` says of each device, as numbers that vary from point to point; once for each `key`."""
        if key not in self.known:
            self.known[key] = [function(one) for one in self.each]
        return tuple(self._number(values) for values in zip(*self.known[key], strict=True))

    def changed(self, change: Callable[[Device], Device]) -> BatchedDevice:
        """With each of them changed."""
        return BatchedDevice(self.crowd, [change(one) for one in self.each], self.at)

    def _number(self, values: Any) -> Varying:
        return self.crowd.number(np.array(values, dtype=np.float64)[self.at])
