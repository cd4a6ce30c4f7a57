"""Power contention: the rate that kernels lose to collectives at a device's power limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster.device.device import Device
from scaleproof.simulator.cluster.device.kernels.parameters import at_power_limit, power_constants

Times = NDArray[np.float64]

_BITS: Final = 8
_PICO: Final = 1e-12


@dataclass(frozen=True)
class PowerBudget:
    """Power of kernels and collectives, as shares of the device's power limit minus its idle power.

    products, memory: kernels alone that are bound by matrix products or by memory bandwidth. channels: processors of all
    channels of collectives. budget_W: power limit minus idle power, watts.
    """

    products: float
    memory: float
    channels: float
    budget_W: float

    @classmethod
    def of(cls, device: Device, processors: float) -> Self | None:
        """The budget of a device on which channels occupy the share `processors`; None if no limit is known."""
        if device.power_limit_W is None or device.kernels is None:
            return None
        known = power_constants()
        idle = known["idle_share"]
        kernels = at_power_limit(device.kernels, device.power_limit_W)
        products = min(1.0, kernels.tile_share / kernels.sustained_share)
        return cls(
            products=(products - idle) / (1 - idle),
            memory=(known["memory_bound_share"] - idle) / (1 - idle),
            channels=processors * known["channel_share"],
            budget_W=(1 - idle) * device.power_limit_W,
        )

    def lost(self, moved_W: Times) -> tuple[Times, Times]:
        """Shares of their rate that kernels bound by products, and by memory bandwidth, lose next to collectives.

        moved_W: watts that collectives draw for moving bytes. Power is shared max-min fairly: collectives get their demand, up
        to a half.
        """
        left = 1 - np.minimum(self.channels + moved_W / self.budget_W, 0.5)
        products, memory = (np.maximum(0.0, 1 - left / alone) for alone in (self.products, self.memory))
        return products, memory


def joules_per_bus_byte(memory_bytes: float) -> float:
    """Joules that a device spends per byte on the bus, if `memory_bytes` bytes of memory are moved for it."""
    known = power_constants()
    energy_pJ = known["memory_pJ_per_bit"] * memory_bytes + known["link_pJ_per_bit"]
    return float(_BITS * _PICO * energy_pJ)
