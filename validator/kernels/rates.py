"""Kernels of all kinds of a table: their predicted times, the fit of a device to them, and the intervals of its rates."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from scaleproof.simulator.cluster.device.device import Device
from scaleproof.validator.kernels import attention, mixture, products
from scaleproof.validator.kernels.devices import precision_of
from scaleproof.validator.kernels.table import ATTENTION, MIXTURE, PRODUCT, Floats, KernelTable

# 5th and 95th percentile of the logarithm of measured over predicted time on devices without measured rates: assumptions.
_UNMEASURED: Final = (-0.4, 0.4)


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
        return attention.predicted_s(device, known, rows.attentions(precision))
    assert kind == MIXTURE
    return mixture.predicted_s(device, known, rows.mixtures(precision))


def fitted(device: Device, kind: str, precision: str, rows: KernelTable) -> Device:
    """The device with rates of one kind and precision that are fitted to rows of a table."""
    assert device.kernels is not None
    field = {PRODUCT: "tile_share", ATTENTION: "flash_forward_share", MIXTURE: "memory_share"}[kind]
    tried = [
        device.model_copy(update={"kernels": device.kernels.model_copy(update={field: share})})
        for share in np.geomspace(0.125, 1.0, 22).tolist()
    ]
    return min(tried, key=lambda one: float(np.abs(np.log(rows.measured_s / predicted_s(one, kind, precision, rows))).mean()))


def with_error(device: Device, kind: str, precision: str, error: LogError) -> Device:
    """The device whose rates of one kind and precision have the error of left-out shapes."""
    return device


def log_error(device: Device, kind: str, precision: str) -> LogError:
    """Error of predictions of one kind and precision: that of left-out shapes if the device's rates are measured."""
    return LogError(*_UNMEASURED)


def interval_s(device: Device, kind: str, precision: str, times_s: Floats) -> tuple[Floats, Floats]:
    """Ends in seconds of the 90 % intervals of predicted times."""
    error = log_error(device, kind, precision)
    return times_s * np.exp(error.low), times_s * np.exp(error.high)
