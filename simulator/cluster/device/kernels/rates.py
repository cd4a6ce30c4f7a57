"""What all rates of kernels state: how they are known, and how far predictions by them are off."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from scaleproof.simulator.common.spec import Spec

# How a parameter of a device is known.
State = Literal["measured", "data sheet", "assumed"]


class Rates(Spec):
    """Rates of one kind of kernel on a device, with the error of predictions by them."""

    log_error: tuple[float, float] = Field(
        (-0.3, 0.3), description="5th and 95th percentile of the logarithm of measured over predicted time"
    )
    state: State = "assumed"
    source: str = ""
