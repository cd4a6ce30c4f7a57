"""Columns of the shapes of measured kernels."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Shapes:
    """Kernels of one kind that were measured on one GPU: arrays of shape (rows,) as fields."""

    def subset(self, mask: Mask) -> Self:
        """The shapes in which the mask is true."""
        return type(self)(*(getattr(self, field.name)[mask] for field in fields(self)))
