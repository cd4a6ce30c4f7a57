"""Matrix products of a table: their shapes, the fit of a device to them, and their predicted times."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster.device.device import Device, Precision
from scaleproof.simulator.cluster.device.products import products_s


@dataclass(frozen=True)
class ProductShapes:
    """Products of m × k and k × n matrices that were measured on one GPU, columns of shape (rows,)."""

    m: NDArray[np.float64]
    n: NDArray[np.float64]
    k: NDArray[np.float64]
    measured_s: NDArray[np.float64]

    def subset(self, mask: NDArray[np.bool_]) -> Self:
        """The shapes in which the mask is true."""
        return type(self)(*(getattr(self, field.name)[mask] for field in fields(self)))


def predicted_s(device: Device, precision: Precision, shapes: ProductShapes) -> NDArray[np.float64]:
    """Seconds of the products, by the functions that `predict` uses."""
    assert device.kernels is not None
    speed = device.speed(precision, device.kernels)
    m, n, k = shapes.m, shapes.n, shapes.k
    return products_s(speed, m, n, k, np.ones_like(m), (m * k + k * n) * speed.element_bytes, m * n * speed.element_bytes)
