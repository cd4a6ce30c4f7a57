"""Fit of the parameters of a model of kernels to measured times."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import numpy as np

from scaleproof.validator.estimation.posterior import Loss, Prior, fit, soft_l1, squares
from scaleproof.validator.kernels.shapes import Floats

# Relative change at which the search ends: parameters have four digits.
_TOLERANCE: Final = 1e-6
_MOST_STEPS: Final = 100


class Parameter(NamedTuple):
    """A positive parameter before the fit: its middle, the standard deviation of its logarithm, which is infinite where nothing
    is known, and its bounds."""

    middle: float
    deviation: float = math.inf
    low: float = 0.0
    high: float = math.inf


def fit_parameters(
    parameters: Mapping[str, Parameter],
    errors: Callable[[dict[str, float]], Floats],
    loss: Loss = soft_l1,
    loss_of_prior: Loss = squares,
) -> dict[str, float]:
    """The most probable parameters. errors: logarithms of measured over predicted times by the parameters, in standard
    deviations of the noise."""
    with np.errstate(divide="ignore"):
        middles, _, lows, highs = np.log(list(parameters.values())).T
    prior = Prior(middles, np.array([one.deviation for one in parameters.values()]), loss_of_prior)

    def values(logs: Floats) -> dict[str, float]:
        return dict(zip(parameters, np.exp(logs).tolist(), strict=True))

    def residuals(logs: Floats) -> Floats:
        return errors(values(logs))

    return values(
        fit(residuals, middles, loss, prior, bounds=(lows, highs), tolerance=_TOLERANCE, most_steps=_MOST_STEPS).values
    )
