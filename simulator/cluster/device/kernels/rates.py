"""Rates of kernels on a device, fitted to measurements or derived from a data sheet: what all kinds of kernels share."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeVar

from pydantic import Field

from scaleproof.simulator.common.spec import Spec

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
