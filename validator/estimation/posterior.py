"""Parameters after measurements: the mode of their posterior, and its covariance there.

A fit minimises half of the sum of losses of residuals and of distances from priors. Residuals are mostly logarithms of
predicted over measured times in standard deviations of the noise, and parameters logarithms of constants, so that errors are
relative and no constant is negative. A loss that grows slower than squares limits the influence of single measurements that are
far off (Huber, Robust Statistics, 1981). The covariance is Laplace's approximation: the inverse of the curvature at the mode.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
# Squared residuals, shape (n,) → their loss and its first two derivatives, shape (3, n).
Loss = Callable[[Array], Array]
# Parameters (..., p) → logarithms of times (..., n) and their derivatives (..., n, p).
LogModel = Callable[[Array], tuple[Array, Array]]

# Standard deviation of normal noise, over the median of its absolute values.
_DEVIATION_OF_MEDIAN: Final = 1.4826
_LARGEST_STEP: Final = 1.0
_RIDGE: Final = 1e-7


def squares(squared: Array) -> Array:
    """Squared residuals, as of normal errors."""
    return np.stack([squared, np.ones_like(squared), np.zeros_like(squared)])


def soft_l1(squared: Array) -> Array:
    """Squares of small residuals and twice the size of large ones."""
    far = 1 + squared
    return np.stack([2 * (np.sqrt(far) - 1), far**-0.5, -0.5 * far**-1.5])


def cauchy(squared: Array) -> Array:
    """Squares of small residuals and logarithms of large ones, which hardly count."""
    far = 1 + squared
    return np.stack([np.log(far), 1 / far, -1 / far**2])


def student(freedom: float) -> Loss:
    """The loss of residuals with Student's distribution. freedom: its degrees."""

    def loss(squared: Array) -> Array:
        scales: Array = np.array([[1.0], [freedom], [freedom**2]])
        return (freedom + 1) * cauchy(squared / freedom) / scales

    return loss


def weighted(loss: Loss, weight: float | Array) -> Loss:
    """A loss times a weight, or times one for each residual."""
    return lambda squared: weight * loss(squared)


@dataclass(frozen=True)
class Prior:
    """Parameters before measurements, shape (p,): middles, and standard deviations, infinite where nothing is known."""

    middles: Array
    deviations: Array
    loss: Loss = squares


@dataclass(frozen=True)
class ParameterFit:
    """Parameters after measurements, shape (p,). residuals: those of measurements, shape (n,). slopes: derivatives of all
    residuals by the parameters, those of the prior last, scaled such that their squares add up to the curvature."""

    values: Array
    residuals: Array
    slopes: Array

    @cached_property
    def covariance(self) -> Array:
        """Covariance of the parameters, shape (p, p)."""
        return np.asarray(np.linalg.pinv(self.slopes.T @ self.slopes, hermitian=True))

    @property
    def deviations(self) -> Array:
        """Standard deviations of the parameters."""
        return np.sqrt(np.diag(self.covariance))

    @property
    def freedom(self) -> float:
        """Number of residuals less the number of parameters that these determine: a parameter that only its prior determines
        takes up nothing."""
        own = self.slopes[: len(self.residuals)]
        return len(own) - float(np.einsum("np,pq,nq->", own, self.covariance, own))


def fit(
    residuals: Callable[[Array], Array],
    start: Array,
    loss: Loss = squares,
    prior: Prior | None = None,
    *,
    slopes: Callable[[Array], Array] | None = None,
    bounds: tuple[float | Array, float | Array] = (-np.inf, np.inf),
    tolerance: float = 1e-8,
    most_steps: int | None = None,
) -> ParameterFit:
    """The most probable parameters. residuals: of measurements, by the parameters. loss: of these.

    slopes: derivatives of residuals by parameters, shape (n, p); finite differences if None. tolerance: relative change of
    parameters and of the loss at which the search ends.
    """
    from scipy.optimize import least_squares

    if not len(start):
        return ParameterFit(start, residuals(start), np.zeros((len(residuals(start)), 0)))
    prior = prior or Prior(start, np.full_like(start, np.inf))
    middles, deviations, of_prior, count = prior.middles, prior.deviations, prior.loss, len(start)

    def every(values: Array) -> Array:
        return np.concatenate([residuals(values), (values - middles) / deviations])

    def every_slope(values: Array) -> Array:
        assert slopes is not None
        return np.concatenate([slopes(values), np.diag(1 / deviations)])

    def every_loss(squared: Array) -> Array:
        return np.concatenate([loss(squared[:-count]), of_prior(squared[-count:])], axis=1)

    found = least_squares(
        every,
        start,
        jac="2-point" if slopes is None else every_slope,
        bounds=bounds,
        loss=cast(Any, every_loss),
        x_scale=np.where(np.isfinite(deviations), deviations, 1.0),
        xtol=tolerance,
        ftol=tolerance,
        max_nfev=most_steps,
    )
    # scipy scales the derivatives by the loss
    return ParameterFit(np.asarray(found.x), found.fun[:-count], np.asarray(found.jac))


def fit_model(
    model: LogModel,
    log_times: Array,
    start: Array,
    scale: float,
    loss: Loss = soft_l1,
    prior: Prior | None = None,
    *,
    bounds: tuple[float | Array, float | Array] = (-np.inf, np.inf),
    tolerance: float = 1e-10,
) -> ParameterFit:
    """The most probable parameters of a model with derivatives. scale: standard deviation of the noise of logarithms."""

    def residuals(values: Array) -> Array:
        return np.asarray((model(values)[0] - log_times) / scale)

    def slopes(values: Array) -> Array:
        return np.asarray(model(values)[1] / scale)

    return fit(residuals, start, loss, prior, slopes=slopes, bounds=bounds, tolerance=tolerance)


def refitted(model: LogModel, log_times: Array, weights: Array, start: Array, scale: float, steps: int) -> Array:
    """Parameters, shape (rows, p), of fits with the soft L1 loss, one for each row of weights, from those of a similar fit.

    All rows take the same few Gauss-Newton steps. A bootstrap or a cross-validation cannot afford more and does not need it: a
    few steps from the full solution are as accurate as a full search (Davidson & MacKinnon, "Bootstrap testing in nonlinear
    models", International Economic Review 40, 1999). log_times: (n,) or one row per row of weights. scale: of residuals.
    """
    values = np.tile(start, (len(weights), 1))
    for _ in range(steps):
        logs, slopes = model(values)
        errors = logs - log_times
        pulls = weights * soft_l1((errors / scale) ** 2)[1]
        pulled = np.swapaxes(slopes * pulls[..., None], 1, 2)
        curvature = pulled @ slopes + _RIDGE * np.eye(len(start))
        step = np.linalg.solve(curvature, pulled @ errors[..., None])[..., 0]
        values = values - np.clip(step, -_LARGEST_STEP, _LARGEST_STEP)
    return values


def robust_deviation(errors: Array) -> float:
    """Standard deviation of errors around zero from the median of their sizes, on which a few large ones have no influence."""
    return _DEVIATION_OF_MEDIAN * float(np.median(np.abs(errors)))


def student_reach(freedom: float) -> float:
    """Half width of the 90 % interval of Student's distribution, in its scale."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.95))
