"""Fit of the rules by which rates of products follow from data sheets, and their error on a GPU that is left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster.device.data_sheet import Constants, DataSheet, product_rates
from scaleproof.simulator.cluster.device.device import Device, Precision
from scaleproof.validator.kernels.least_squares import minimum
from scaleproof.validator.kernels.products import ProductShapes, predicted_s, with_rates

Floats = NDArray[np.float64]

# Middles of the constants and standard deviations of their logarithms before the fit: round values. Four GPUs do not determine
# by which exponent shares fall with the clock, so that its deviation is small.
_PRIORS: Final[Mapping[str, tuple[float, float]]] = {
    "tile_share": (1, 0.3), "clock_loss": (0.35, 0.1), "synchronous_edge": (20, 0.7), "edge": (5, 0.7),
    "synchronous_ramp": (200, 0.7), "ramp": (100, 0.7), "bytes_per_cycle": (25, 0.7), "burst_GHz": (1.4, 0.2),
    "burst_s": (2e-4, 1), "fixed_s": (2e-6, 0.3), "narrow_tile_share": (0.95, 0.1), "narrow_burst_share": (0.95, 0.1),
    "cast_s": (10e-6, 0.3), "cast_bytes_per_cycle": (14, 0.5),
}  # fmt: skip
# Errors of the logarithm count as they are beyond about this, and squared below.
_ROBUST: Final = 0.08
# Each table counts as much as this number of products with independent errors.
_INDEPENDENT: Final = 60


class Measured(NamedTuple):
    """Products that were measured on a GPU with a known data sheet."""

    facts: DataSheet
    device: Device
    precision: Precision
    shapes: ProductShapes

    def errors(self, constants: Constants) -> Floats:
        """Logarithms of measured over predicted times."""
        device = with_rates(self.device, self.precision, product_rates(self.facts, self.precision, constants))
        result: Floats = np.log(self.shapes.measured_s / predicted_s(device, self.precision, self.shapes))
        return result


def fit_constants(tables: Sequence[Measured]) -> Constants:
    """The constants of the rules that fit measured products best."""
    middles, deviations = np.array([_PRIORS[name] for name in Constants._fields]).T
    middles = np.log(middles)

    def residuals(values: Floats) -> Floats:
        constants, result = Constants(*np.exp(values).tolist()), [(values - middles) / deviations]
        for table in tables:
            errors = table.errors(constants) / _ROBUST
            robust = np.sign(errors) * np.sqrt(2 * (np.sqrt(1 + errors * errors) - 1))
            result.append(robust * np.sqrt(_INDEPENDENT / len(errors)))
        return np.concatenate(result)

    return Constants(*(float(f"{value:.3g}") for value in np.exp(minimum(residuals, middles))))
