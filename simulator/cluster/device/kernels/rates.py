"""Rates of kernels on a device, fitted to measurements or derived from a data sheet: what all kinds of kernels share."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeVar

from pydantic import Field

from scaleproof.simulator.common.spec import Spec
from scaleproof.simulator.common.units import Seconds

# How a parameter of a device is known.
State = Literal["measured", "data sheet", "assumed"]
_Spec = TypeVar("_Spec", bound=Spec)
# End of the names of fields in seconds.
_SECONDS: Final = "_s"


class Rates(Spec):
    """Rates of one kind of kernel on a device, with the error of predictions by them."""

    log_error: tuple[float, float] = Field(
        (-0.3, 0.3), description="5th and 95th percentile of the logarithm of measured over predicted time"
    )
    state: State = "assumed"
    source: str = ""


def slower(spec: _Spec, slowdown: float) -> _Spec:
    """Parameters whose times in seconds, nested ones included, are `slowdown` times as long.

    Shares stay the same: they are of the device's peaks, which are slowed by themselves.
    """
    values = {name: getattr(spec, name) for name in type(spec).model_fields}
    return spec.model_copy(update={name: _slower_value(name, value, slowdown) for name, value in values.items()})


def _slower_value(name: str, value: Any, slowdown: float) -> Any:
    if isinstance(value, Spec):
        return slower(value, slowdown)
    if isinstance(value, dict):
        return {key: _slower_value("", one, slowdown) for key, one in value.items()}
    return value * slowdown if name.endswith(_SECONDS) and value is not None else value


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
