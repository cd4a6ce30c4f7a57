"""Power: the share of the peak that a device sustains at a power limit.

A device at its limit lowers its clock. Dynamic power is C V² f: it grows with the cube of the clock where the voltage
follows the clock, and in proportion to it where the voltage is at its floor. Published products agree with the cube above
the limit at which a device was measured. Below it they do not decide between both, and the rate is taken to be proportional
to the limit.
"""

from __future__ import annotations

import functools
from typing import Any

from scaleproof.simulator.cluster.device.kernels.parameters import Kernels
from scaleproof.simulator.common import catalog, yaml_file


@functools.lru_cache(maxsize=256)
def sustained(kernels: Kernels, power_limit_W: float | None) -> Kernels:
    """The kernels with the share of the peak that a power limit sustains, from the share at the limit `sustained_at`."""
    at_W = kernels.sustained_at_W
    if power_limit_W is None or at_W is None or at_W == power_limit_W:
        return kernels
    ratio = power_limit_W / at_W
    share = kernels.sustained_share * min(ratio, ratio ** (1 / constants()["clock_exponent"]))
    return kernels.model_copy(update={"sustained_share": min(1.0, share), "sustained_at_W": power_limit_W})


@functools.lru_cache(maxsize=256)
def sustaining(kernels: Kernels, share: float) -> Kernels:
    """The kernels with `share` times the shares of the peak that tiles and the power limit sustain."""
    update = {"tile_share": kernels.tile_share * share, "sustained_share": kernels.sustained_share * share}
    return kernels.model_copy(update=update)


@functools.cache
def constants() -> dict[str, Any]:
    """The assumptions of scenarios/kernels/power.yaml."""
    found: dict[str, Any] = yaml_file.shipped(catalog.ROOT / "kernels" / "power.yaml")
    return found
