"""Devices: several of them in place of one, for points that differ in the numbers of what they compute on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.cluster.device import Device, Optimizer, Precision
from simulator.cluster.kernels import Kernels
from simulator.model.layers import Layer
from simulator.model.operators import Operator
from simulator.varying import Crowd, Varying


@dataclass(frozen=True)
class Devices:
    """Stands for a Device where a program is compiled for many points at once; what it tells varies from point to point.

    each: devices of one name, memory and kernels; at: which of them each point has, shape (points,). known: what each takes for
    a layer, by what that follows from; of all that have the same devices.
    """

    crowd: Crowd
    each: Sequence[Device]
    at: NDArray[np.int64]
    known: dict[tuple[str, float, Precision], Sequence[tuple[float, float]]] = field(default_factory=dict, compare=False)

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

    def layer_s(self, layer: Layer, samples: float, precision: Precision) -> tuple[Varying, ...]:
        """As a Device has it."""
        key = layer.signature, samples, precision
        if key not in self.known:
            self.known[key] = [one.layer_s(layer, samples, precision) for one in self.each]
        return self._numbers(self.known[key])

    def weights_s(self, layer: Layer, samples: float, precision: Precision) -> Varying:
        """As a Device has it."""
        return self._number([one.weights_s(layer, samples, precision) for one in self.each])

    def operators_s(
        self, layer: Layer, operators: Sequence[Operator], samples: float, precision: Precision
    ) -> tuple[Varying, ...]:
        """As a Device has it."""
        return self._numbers([one.operators_s(layer, operators, samples, precision) for one in self.each])

    def scores_s(self, layer: Layer, samples: float, precision: Precision) -> Varying:
        """As a Device has it."""
        return self._number([one.scores_s(layer, samples, precision) for one in self.each])

    def share_s(self, layer: Layer, operators: tuple[Operator, ...], samples: float, precision: Precision) -> Varying:
        """As a Device has it."""
        return self._number([one.share_s(layer, operators, samples, precision) for one in self.each])

    def moved_s(self, size_bytes: float) -> Varying:
        """As a Device has it."""
        return self._number([one.moved_s(size_bytes) for one in self.each])

    def optimizer_s(self, parameters: float, optimizer: Optimizer, precision: Precision) -> Varying:
        """As a Device has it."""
        return self._number([one.optimizer_s(parameters, optimizer, precision) for one in self.each])

    def changed(self, change: Callable[[Device], Device]) -> Devices:
        """With each of them changed."""
        return Devices(self.crowd, [change(one) for one in self.each], self.at)

    def _numbers(self, values: Sequence[Sequence[float]]) -> tuple[Varying, ...]:
        return tuple(self._number(of_each) for of_each in zip(*values, strict=True))

    def _number(self, values: Any) -> Varying:
        return self.crowd.number(np.array(values, dtype=np.float64)[self.at])
