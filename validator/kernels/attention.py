"""Forward passes of causal attention in a table: their shapes, the fit of a device to them, and their predicted times."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster.device.attention import flash_s
from scaleproof.simulator.cluster.device.device import Device, Precision
from scaleproof.simulator.model.operators import Attention


@dataclass(frozen=True)
class AttentionShapes:
    """Forward passes of causal attention that were measured on one GPU, columns of shape (rows,)."""

    batch: NDArray[np.float64]
    seq: NDArray[np.float64]
    heads: NDArray[np.float64]
    kv_heads: NDArray[np.float64]
    head_dim: NDArray[np.float64]
    measured_s: NDArray[np.float64]

    def subset(self, mask: NDArray[np.bool_]) -> Self:
        """The shapes in which the mask is true."""
        return type(self)(*(getattr(self, field.name)[mask] for field in fields(self)))


def predicted_s(device: Device, precision: Precision, shapes: AttentionShapes) -> NDArray[np.float64]:
    """Seconds of the forward passes, by the functions that `predict` uses."""
    assert device.kernels is not None
    speed = device.speed(precision, device.kernels)
    columns = (shapes.batch, shapes.seq, shapes.heads, shapes.kv_heads, shapes.head_dim)
    rows = zip(*(column.astype(int).tolist() for column in columns), strict=True)
    return np.array(
        [
            flash_s(Attention("", heads, shared, seq, seq, width, width, flash=True), batch, speed)
            for batch, seq, heads, shared, width in rows
        ]
    )
