"""Rates of kernels on a device, fitted to measurements or derived from a data sheet: what all kinds of kernels share."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from scaleproof.simulator.common.spec import Spec
from scaleproof.simulator.common.units import Seconds

# How a parameter of a device is known.
State = Literal["measured", "data sheet", "assumed"]


class Rates(Spec):
    """Rates of one kind of kernel on a device, with the error of predictions by them."""

    log_error: tuple[float, float] = Field(
        (-0.3, 0.3), description="5th and 95th percentile of the logarithm of measured over predicted time"
    )
    state: State = "assumed"
    source: str = ""


# Terms of the correction of mixtures, a polynomial of second order of five variables: 1, each, and each product of two.
MIXTURE_TERMS: Final = 21


class MixtureRates(Rates):
    """A fused mixture of experts: routing, permutation, two grouped products with the activation between them, and the sum.

    The grouped products take as long as plain products of their sizes. Serving software has such kernels: tables of kernels are
    predicted with the rates (`validator.kernels.mixture`).
    """

    fixed_s: Seconds = Field(alias="fixed", description="fixed time of routing and of all launches")
    memory_share: float = Field(gt=0, le=4, description="share of the memory bandwidth that the other kernels reach")
    correction: tuple[float, ...] = Field(
        (), max_length=MIXTURE_TERMS, description="coefficients of a polynomial of second order for the logarithm of the time"
    )
    log_error: tuple[float, float] = (-0.5, 0.8)
