"""Kernels of all kinds of a table: their predicted times, the fit of a device to them, and the intervals of its rates."""

from __future__ import annotations

import math
from typing import Final, NamedTuple, TypeVar

import numpy as np

from scaleproof.simulator.analysis.device_rates import UNMEASURED, product_error
from scaleproof.simulator.cluster.device.device import Device, Precision
from scaleproof.simulator.cluster.device.kernels.attention import AttentionRates
from scaleproof.simulator.common.spec import Spec
from scaleproof.validator.kernels import attention, mixture, products
from scaleproof.validator.kernels.devices import precision_of
from scaleproof.validator.kernels.shapes import Floats
from scaleproof.validator.kernels.table import ATTENTION, MIXTURE, PRODUCT, KernelTable

_Rates = TypeVar("_Rates", bound=Spec)
# Digits of fitted parameters.
_DIGITS: Final = 4


class LogError(NamedTuple):
    """5th and 95th percentile of the logarithm of measured over predicted time."""

    low: float
    high: float

    @property
    def shares(self) -> tuple[float, float]:
        """Both ends as relative differences of the measured from the predicted time."""
        return math.expm1(self.low), math.expm1(self.high)


def predicted_s(device: Device, kind: str, precision: str, rows: KernelTable) -> Floats:
    """Seconds of the kernels of one kind and precision on a device that has it, in a short burst at high clocks."""
    known = precision_of(device, precision)
    assert known is not None
    if kind == PRODUCT:
        return products.predicted_s(device, known, rows.products(precision))
    if kind == ATTENTION:
        return _attention_s(device, known, rows)
    assert kind == MIXTURE
    return mixture.predicted_s(device, known, rows.mixtures(precision))


def _attention_s(device: Device, precision: Precision, rows: KernelTable) -> Floats:
    """Seconds of passes of attention, each by the rates of its implementation."""
    result = np.empty(len(rows))
    for name in rows.implementations():
        mask = rows.implementation == name
        result[mask] = attention.predicted_s(device, precision, rows.subset(mask).attentions(), name)
    return result


def fitted(device: Device, kind: str, precision: str, rows: KernelTable) -> Device:
    """The device with rates of one kind and precision that are fitted to rows of a table, those of attention of one
    implementation. Mixtures consist of products, which are fitted before them."""
    known = precision_of(device, precision)
    assert known is not None
    assert device.kernels is not None
    if kind == PRODUCT:
        rates = products.fit_products(device, known, rows.products(precision), device.l2_bytes or 0.0)
        return products.with_rates(device, known, _rounded(rates))
    if kind == ATTENTION:
        speed = device.speed(known, device.kernels, burst=True)
        [implementation] = rows.implementations()
        measured = attention.MeasuredAttention(speed, rows.attentions(precision), device.l2_bytes, implementation)
        return _with_attention(device, implementation, _rounded(attention.fit_attention(measured)))
    return mixture.with_rates(device, known, mixture.fit_mixtures(device, known, rows.mixtures(precision)))


def _rounded(rates: _Rates) -> _Rates:
    """Rates with parameters of four digits."""
    values = {name: getattr(rates, name) for name in type(rates).model_fields}
    short = {name: float(f"{value:.{_DIGITS}g}") for name, value in values.items() if isinstance(value, float)}
    parts = {name: _rounded(value) for name, value in values.items() if isinstance(value, Spec)}
    return rates.model_copy(update=short | parts)


def _with_attention(device: Device, implementation: str, rates: AttentionRates) -> Device:
    """The device that runs an implementation of attention with these rates, in place of shares of the peak."""
    assert device.kernels is not None
    implementations = {implementation: rates} | {
        name: others for name, others in device.kernels.attention.items() if name != implementation
    }
    update = {"attention": implementations, "flash_forward_share": None, "flash_backward_share": None}
    return device.model_copy(update={"kernels": device.kernels.model_copy(update=update)})


def with_error(
    device: Device, kind: str, precision: str, error: LogError, implementation: str = attention.IMPLEMENTATION
) -> Device:
    """The device whose fitted rates of one kind and precision have the error of left-out shapes. implementation: of
    attention."""
    known = precision_of(device, precision)
    assert known is not None
    assert device.kernels is not None
    update = {"log_error": (round(error.low, 4), round(error.high, 4))}
    if kind == PRODUCT and (rates := device.kernels.product_rates(known)) is not None:
        return products.with_rates(device, known, rates.model_copy(update=update))
    if kind == ATTENTION:
        return _with_attention(device, implementation, device.kernels.attention[implementation].model_copy(update=update))
    if kind == MIXTURE and (mixtures := device.kernels.mixtures.get(known)) is not None:
        return mixture.with_rates(device, known, mixtures.model_copy(update=update))
    return device


def log_error(device: Device, kind: str, precision: str, implementation: str = attention.IMPLEMENTATION) -> LogError:
    """Error of predictions of one kind and precision: that of left-out shapes if the device's rates are measured.
    implementation: of attention."""
    known = precision_of(device, precision)
    if kind == PRODUCT and known is not None:
        return LogError(*product_error(device, known))
    if kind == ATTENTION and device.kernels is not None:
        rates = attention.rates_of(device, implementation)
        return LogError(*(UNMEASURED if rates is None else rates.log_error))
    return LogError(*(UNMEASURED if device.kernels is None else mixture.rates_of(device, precision).log_error))


def interval_s(
    device: Device, kind: str, precision: str, times_s: Floats, implementation: str = attention.IMPLEMENTATION
) -> tuple[Floats, Floats]:
    """Ends in seconds of the 90 % intervals of predicted times. implementation: of attention."""
    error = log_error(device, kind, precision, implementation)
    return times_s * np.exp(error.low), times_s * np.exp(error.high)
