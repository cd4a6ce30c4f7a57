"""Rates of fused mixtures of experts on a device: what their time has in addition to that of their products."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from scaleproof.simulator.cluster.device.kernels.rates import Rates
from scaleproof.simulator.common.units import Seconds

# Variables of the correction, logarithms to base 2: rows of an expert, experts of the rank, width of the model, width of an
# expert's part, and the load of the rank over an even share. Their middles and half ranges: beyond, a variable counts as its
# end, so that the correction is bounded.
VARIABLES: Final = ("rows", "experts", "hidden", "inter", "imbalance")
MIDDLES: Final = (7.5, 4.0, 12.0, 10.5, 1.5)
HALF_RANGES: Final = (5.5, 5.0, 1.5, 3.5, 1.5)
# Terms: 1, each variable, and each product of two variables.
TERMS: Final = 1 + len(VARIABLES) + len(VARIABLES) * (len(VARIABLES) + 1) // 2


class MixtureRates(Rates):
    """A fused mixture of experts: routing, permutation, two grouped products with the activation between them, and the sum.

    The grouped products take as long as plain products of their sizes. `mixture.py` has the formulae.
    """

    fixed_s: Seconds = Field(alias="fixed", description="fixed time of routing and of all launches")
    memory_share: float = Field(gt=0, le=4, description="share of the memory bandwidth that the other kernels reach")
    correction: tuple[float, ...] = Field(
        (), max_length=TERMS, description="coefficients of a polynomial of second order for the logarithm of the time"
    )
    log_error: tuple[float, float] = (-0.5, 0.8)
