"""Power: the share of the peak that a device sustains at a power limit.

A device at its limit lowers its clock and, with the clock, its voltage. Dynamic power is C V² f, so that it grows with the
cube of the clock where the voltage is proportional to it; idle power stays. The rate of long products is proportional to the
clock.
"""

from __future__ import annotations

import functools
from typing import Any

import yaml

from scaleproof.simulator.cluster.device.kernels import Kernels
from scaleproof.simulator.common import catalog


@functools.lru_cache(maxsize=256)
def sustained(kernels: Kernels, power_limit_W: float | None) -> Kernels:
    """The kernels with the share of the peak that a power limit sustains, from the share at the limit `sustained_at`."""
    at_W = kernels.sustained_at_W
    if power_limit_W is None or at_W is None or at_W == power_limit_W:
        return kernels
    idle = constants()["idle_share"]
    dynamic = max(constants()["least_dynamic_share"], (power_limit_W / at_W - idle) / (1 - idle))
    share = kernels.sustained_share * dynamic ** (1 / constants()["clock_exponent"])
    return kernels.model_copy(update={"sustained_share": min(1.0, share), "sustained_at_W": power_limit_W})


@functools.cache
def constants() -> dict[str, Any]:
    """The assumptions of scenarios/kernels/power.yaml."""
    found: dict[str, Any] = yaml.safe_load((catalog.ROOT / "kernels" / "power.yaml").read_text(encoding="utf-8"))
    return found
