"""Fit of the steps to a target loss by batch size and staleness: the coefficients of `simulator.scenario.convergence`.

The fit is least squares of logarithms, because the steps of one setting scatter by a share whatever their number. Standard
errors follow from the scatter and from the derivatives by each coefficient (Seber & Wild, Nonlinear Regression, 1989, section
2.1). The error for a setting that the fit has not seen follows from leaving out each setting in turn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.scenario.convergence import Convergence
from scaleproof.validator.estimation.posterior import Array, fit_model, squares

_FEWEST_BATCHES: Final = 2
# Bounds of the logarithms of the critical batch and the fewest steps: within this distance of the start.
_REACH: Final = 12.0
# A coefficient is vague if its standard error exceeds this share of it.
_VAGUE: Final = 0.5


class RunToTarget(NamedTuple):
    """A run that reached the target. batch: samples per update. staleness: updates by others within a worker's step. steps:
    needed."""

    batch: float
    staleness: float
    steps: float


class HeldOut(NamedTuple):
    """Steps of a setting to which the model was not fitted: predicted and measured (geometric means of its runs)."""

    setting: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Relative error of the predicted number of steps."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class FittedConvergence:
    """errors: standard errors by coefficient. scatter: standard deviation of the logarithms of steps about the fit.

    `convergence.uncertainty` is the root mean square of the logarithmic errors of held-out settings if there are any; otherwise
    the scatter.
    """

    convergence: Convergence
    errors: Mapping[str, float]
    scatter: float
    held_out: tuple[HeldOut, ...]

    @property
    def vague(self) -> list[str]:
        """Names of the coefficients that the runs hardly determine."""
        values = self.convergence.model_dump()
        return [name for name, error in self.errors.items() if error > _VAGUE * values[name]]


def fit_convergence(runs: Mapping[str, Sequence[RunToTarget]]) -> FittedConvergence:
    """Fits the model to runs, by setting. The staleness penalty is None if no gradients were stale.

    Raises InputError if there are too few runs, or all have the same batch.
    """
    rows = [row for of_setting in runs.values() for row in of_setting]
    _check(rows)
    convergence, errors, scatter = solve(rows)
    held_out = tuple(_held_out(runs))
    log_errors = [math.log(setting.predicted / setting.measured) for setting in held_out]
    uncertainty = math.sqrt(float(np.mean(np.square(log_errors)))) if log_errors else scatter
    return FittedConvergence(convergence.model_copy(update={"uncertainty": uncertainty}), errors, scatter, held_out)


def _check(rows: Sequence[RunToTarget]) -> None:
    if len({row.batch for row in rows if row.staleness == 0}) < _FEWEST_BATCHES:
        raise InputError("too few synchronous batch sizes reached the target for a fit; give two or more, or an easier target")
    if len(rows) <= (coefficients := len(_names(rows))):
        runs = "run" if len(rows) == 1 else "runs"
        message = f"{len(rows)} {runs} that reached the target are too few to fit {coefficients} coefficients"
        raise InputError(f"{message}; give more batches or seeds")


def _names(rows: Sequence[RunToTarget]) -> tuple[str, ...]:
    names = ("minimum_steps", "critical_batch", "staleness_penalty")
    return names if any(row.staleness > 0 for row in rows) else names[:2]


def solve(rows: Sequence[RunToTarget]) -> tuple[Convergence, dict[str, float], float]:
    """Coefficients, their standard errors, and the scatter. rows: more than there are coefficients."""
    batch, staleness, steps = np.array(rows, dtype=float).T
    names = _names(rows)
    start = np.array([float(np.log(steps.min())), float(np.log(batch).mean()), 0.1])[: len(names)]

    def model(sought: Array) -> tuple[Array, Array]:
        """Logarithms of steps, shape (rows,), and their derivatives, shape (rows, coefficients)."""
        penalty = sought[2] if len(sought) > 2 else 0.0
        whole = 1 + penalty * staleness + np.exp(sought[1]) / batch
        columns = [np.ones_like(batch), np.exp(sought[1]) / batch / whole, staleness / whole]
        return sought[0] + np.log(whole), np.stack(columns[: len(sought)], axis=-1)

    low = np.array([start[0] - _REACH, start[1] - _REACH, 0.0])[: len(names)]
    high = np.array([start[0] + _REACH, start[1] + _REACH, np.inf])[: len(names)]

    found = fit_model(model, np.log(steps), start, 1.0, squares, bounds=(low, high), tolerance=1e-12)
    scatter = math.sqrt(float((found.residuals**2).sum()) / (len(rows) - len(names)))
    deviations = scatter * found.deviations
    values = [math.exp(found.values[0]), math.exp(found.values[1]), *found.values[2:].tolist()]
    errors = [values[0] * deviations[0], values[1] * deviations[1], *deviations[2:]]
    convergence = Convergence(**dict(zip(names, values, strict=True)))
    return convergence, {name: float(error) for name, error in zip(names, errors, strict=True)}, scatter


def _held_out(runs: Mapping[str, Sequence[RunToTarget]]) -> Iterator[HeldOut]:
    """Predictions for each setting by a fit to the others, if these suffice."""
    for setting, of_setting in runs.items():
        rest = [row for other, rows in runs.items() if other != setting for row in rows]
        batches = {row.batch for row in rest if row.staleness == 0}
        covers_staleness = max(row.staleness for row in of_setting) == 0 or any(row.staleness > 0 for row in rest)
        if len(batches) < _FEWEST_BATCHES or len(rest) <= len(_names(rest)) or not covers_staleness:
            continue
        convergence, _, _ = solve(rest)
        predicted = [convergence.steps(row.batch, row.staleness) for row in of_setting]
        yield HeldOut(setting, _geometric_mean(predicted), _geometric_mean([row.steps for row in of_setting]))


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(float(np.mean(np.log(values))))
