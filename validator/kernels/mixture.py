"""Mixtures of experts in a table: their shapes, the fit of a device to them, and their predicted times."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster.device.device import Device, Precision
from scaleproof.simulator.cluster.device.products import products_s


@dataclass(frozen=True)
class MixtureShapes:
    """Forward passes of mixtures of experts that were measured on one rank of a group, columns of shape (rows,)."""

    tokens: NDArray[np.float64]
    hidden: NDArray[np.float64]
    inter: NDArray[np.float64]
    experts: NDArray[np.float64]
    topk: NDArray[np.float64]
    moe_tp: NDArray[np.float64]
    moe_ep: NDArray[np.float64]
    routing: NDArray[np.str_]
    measured_s: NDArray[np.float64]

    def subset(self, mask: NDArray[np.bool_]) -> Self:
        """The shapes in which the mask is true."""
        return type(self)(*(getattr(self, field.name)[mask] for field in fields(self)))


def predicted_s(device: Device, precision: Precision, shapes: MixtureShapes) -> NDArray[np.float64]:
    """Seconds of the forward passes, by the functions that `predict` uses."""
    assert device.kernels is not None
    speed = device.speed(precision, device.kernels)
    local = np.maximum(1, shapes.experts / shapes.moe_ep)
    rows = np.ceil(shapes.tokens * shapes.topk / shapes.experts)
    width = np.maximum(1, shapes.inter / shapes.moe_tp)
    total = np.zeros_like(rows)
    for n, k in ((2 * width, shapes.hidden), (shapes.hidden, width)):
        read, written = local * (rows * k + k * n) * speed.element_bytes, local * rows * n * speed.element_bytes
        total += products_s(speed, rows, n, k, local, read, written)
    return total
