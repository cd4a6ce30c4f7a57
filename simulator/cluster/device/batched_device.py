"""Several devices in place of one, for points of a study that differ in their devices' numbers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster.device.device import Device, Precision
from scaleproof.simulator.cluster.device.kernels.parameters import Kernels
from scaleproof.simulator.cluster.device.kernels.rates import State
from scaleproof.simulator.common.batched_numbers import BatchedNumber, BatchedPoints


@dataclass(frozen=True)
class BatchedDevice:
    """Has the interface of a Device where a program is compiled for many points at once; its numbers are batched.

    devices: they have the same name, memory, power limit and kernels. device_of_point: index into `devices`, shape (points,).
    cache: numbers of each device by a key of what they depend on; batches of the same devices share it.
    """

    batch: BatchedPoints
    devices: Sequence[Device]
    device_of_point: NDArray[np.int64]
    cache: dict[Hashable, Sequence[Sequence[float]]] = field(default_factory=dict, compare=False)

    @property
    def name(self) -> str:
        """Name, which all devices share."""
        return self.devices[0].name

    @property
    def kernels(self) -> Kernels | None:
        """Parameters of the kernel model, which all devices share."""
        return self.devices[0].kernels

    @property
    def kernels_state(self) -> State:
        """How the rate of kernels is known, which all devices share."""
        return self.devices[0].kernels_state

    @property
    def memory_bytes(self) -> float:
        """Bytes of memory, which all devices share."""
        return self.devices[0].memory_bytes

    @property
    def capacity_bytes(self) -> float:
        """Bytes of memory that programs can allocate, which all devices share."""
        return self.devices[0].capacity_bytes

    @property
    def power_limit_W(self) -> float | None:
        """Power limit in watts, which all devices share."""
        return self.devices[0].power_limit_W

    @property
    def memory_bandwidth_Bps(self) -> BatchedNumber:
        """Memory bandwidth of each point's device."""
        return self._number([device.memory_bandwidth_Bps for device in self.devices])

    @property
    def efficiency(self) -> BatchedNumber | None:
        """Efficiency of each point's device; None if no device has one."""
        efficiencies = [device.efficiency for device in self.devices if device.efficiency is not None]
        return self._number(efficiencies) if efficiencies else None

    @property
    def peak_flops(self) -> dict[Precision, BatchedNumber]:
        """Peak FLOP/s of each point's device, by precision."""
        names = self.devices[0].peak_flops
        return {name: self._number([device.peak_flops[name] for device in self.devices]) for name in names}

    def per_device(self, key: Hashable, function: Callable[[Device], Sequence[float]]) -> tuple[BatchedNumber, ...]:
        """Batched numbers that `function` computes of each device; computed once for each `key`."""
        if key not in self.cache:
            self.cache[key] = [function(device) for device in self.devices]
        return tuple(self._number(values) for values in zip(*self.cache[key], strict=True))

    def changed(self, change: Callable[[Device], Device]) -> BatchedDevice:
        """A batch of the changed devices."""
        return BatchedDevice(self.batch, [change(device) for device in self.devices], self.device_of_point)

    def _number(self, values: Any) -> BatchedNumber:
        return self.batch.number(np.array(values, dtype=np.float64)[self.device_of_point])
