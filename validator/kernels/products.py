"""Matrix products of a table: their shapes, the fit of a device's rates to them, and their predicted times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from scaleproof.simulator.cluster.device.device import Device, Precision
from scaleproof.simulator.cluster.device.kernels.products import CastRates, ProductPrecision, ProductRates, products_s
from scaleproof.validator.kernels.corrections import fitted_correction
from scaleproof.validator.kernels.parameters import Parameter, fit_parameters
from scaleproof.validator.kernels.shapes import Floats, Shapes

# Bytes of an operand of a product, by precision; the result has 16 bits at least.
_OPERAND_BYTES: Final[Mapping[str, float]] = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "fp4": 0.5}
# Precisions whose rows contain the cast of an input from 16 bits.
_CAST: Final = ("fp8",)
# Errors of the logarithm count as they are beyond about this, and squared below.
_ROBUST: Final = 0.05

# Generations whose tensor cores read both operands from shared memory. Their caches have two partitions, which keep copies of
# each other's data.
ASYNCHRONOUS: Final = ("hopper", "blackwell")

# Round values between those of an A100, an H100, a B200 and an L40S. They matter where a table does not determine a parameter.
_PARAMETERS: Final[Mapping[str, Parameter]] = {
    "tile_share": Parameter(0.85, 0.15, high=1),
    "edge": Parameter(15, 0.7, high=1000),
    "ramp": Parameter(150, 0.5, high=1000),
    "memory_share": Parameter(0.65, 0.15, high=1),
    "burst_share": Parameter(0.75, 0.25, high=1),
    "burst_s": Parameter(2e-4, 1.5),
    "fixed_s": Parameter(2e-6, 0.3),
}
_CAST_PARAMETERS: Final[Mapping[str, Parameter]] = {
    "cast.fixed_s": Parameter(10e-6, 0.3),
    "cast.memory_share": Parameter(0.6, 0.3, high=1),
    "cast.cached_gain": Parameter(2, 0.7, low=1, high=20),
}


@dataclass(frozen=True)
class ProductShapes(Shapes):
    """Products of m × k and k × n matrices that were measured on one GPU, columns of shape (rows,)."""

    m: Floats
    n: Floats
    k: Floats
    measured_s: Floats


def predicted_s(device: Device, precision: Precision, shapes: ProductShapes) -> Floats:
    """Seconds of the products in short bursts, by the functions that `predict` uses; in 8 bits with the cast of the input."""
    assert device.kernels is not None
    speed = device.speed(precision, device.kernels, burst=True)
    m, n, k = shapes.m, shapes.n, shapes.k
    operand_bytes = _OPERAND_BYTES[precision]
    written_bytes = m * n * max(2, operand_bytes)
    result_s = products_s(speed, m, n, k, np.ones_like(m), (m * k + k * n) * operand_bytes, written_bytes)
    cast = speed.products.cast if speed.products is not None else None
    return result_s if cast is None else result_s + cast.seconds(device.memory_bandwidth_Bps, m * k)


def with_rates(device: Device, precision: Precision, rates: ProductRates) -> Device:
    """The device with other rates of products in a precision."""
    assert device.kernels is not None
    products = {**device.kernels.products, _key(precision): rates}
    return device.model_copy(update={"kernels": device.kernels.model_copy(update={"products": products})})


def fit_products(
    device: Device, precision: Precision, shapes: ProductShapes, cache_bytes: float = 0.0, correct: bool = True
) -> ProductRates:
    """Rates of products in a precision, fitted to measured shapes. cache_bytes: second-level cache of the device.

    correct: whether a smooth correction is fitted to what the other parameters leave.
    """
    assert device.kernels is not None
    resident = resident_bytes(device.kernels.generation, cache_bytes)
    parameters = {**_PARAMETERS, **(_CAST_PARAMETERS if precision in _CAST else {})}

    def residuals(values: Mapping[str, float]) -> Floats:
        return _errors(device, precision, shapes, _rates(values, resident)) / _ROBUST

    found = _rates(fit_parameters(parameters, residuals), resident)
    if not correct:
        return found

    def errors(correction: str) -> Floats:
        return _errors(device, precision, shapes, found.model_copy(update={"correction": correction}))

    return found.model_copy(update={"correction": fitted_correction(shapes.m, shapes.n, shapes.k, errors)})


def _key(precision: Precision) -> ProductPrecision:
    if precision == "fp64":
        raise ValueError("products in fp64 have no rates")
    return "bf16" if precision == "fp16" else precision


def _rates(values: Mapping[str, float], cache_bytes: float) -> ProductRates:
    """Rates with values of their parameters; those of the cast have names such as cast.fixed_s."""
    own: dict[str, Any] = {name: value for name, value in values.items() if "." not in name}
    cast: dict[str, Any] = {name.partition(".")[2]: value for name, value in values.items() if "." in name}
    made = CastRates.model_construct(**cast, cache_bytes=cache_bytes) if cast else None
    return ProductRates.model_construct(**own, cast=made, correction="", state="measured")


def _errors(device: Device, precision: Precision, shapes: ProductShapes, rates: ProductRates) -> Floats:
    """Logarithms of measured over predicted times."""
    errors: Floats = np.log(shapes.measured_s / predicted_s(with_rates(device, precision, rates), precision, shapes))
    return errors


def resident_bytes(generation: str, l2_bytes: float) -> float:
    """Bytes of data that a second-level cache keeps for all processors."""
    return l2_bytes / 2 if generation in ASYNCHRONOUS else l2_bytes
