"""Steps to a target loss by batch and staleness: the coefficients of `simulator.scenario.convergence`, and how sure they are.

Least squares of logarithms: steps of one setting scatter by a share, whatever their number. Standard errors follow from the
scatter and from how much each coefficient moves the steps (the linearised covariance; Seber & Wild, Nonlinear Regression, 1989,
section 2.1). How well the model tells steps of a setting that it has not seen is found by leaving out each in turn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.scenario.convergence import Convergence

Array = npt.NDArray[np.float64]

_FEWEST_BATCHES: Final = 2
# The critical batch is sought within so many powers of e of the batches that were tried, and the fewest steps of the steps.
_REACH: Final = 12.0
# A coefficient is told no better than not at all where its standard error is such a share of it.
_VAGUE: Final = 0.5


class Reached(NamedTuple):
    """A run that reached the target: by updates of so many samples, with so many by others in a worker's step, in how many."""

    batch: float
    staleness: float
    steps: float


class HeldOut(NamedTuple):
    """A setting that the model was not fitted to: what it says of it, and what its runs took (their geometric mean)."""

    setting: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class FittedConvergence:
    """errors: standard errors by coefficient. scatter: standard deviation of the logarithms of steps about the fit.

    `convergence.uncertainty` is how far held-out settings are off, as a standard deviation, where there are any; else the
    scatter.
    """

    convergence: Convergence
    errors: Mapping[str, float]
    scatter: float
    held_out: tuple[HeldOut, ...]

    @property
    def vague(self) -> list[str]:
        """Coefficients that the runs hardly tell."""
        of = self.convergence.model_dump()
        return [name for name, error in self.errors.items() if error > _VAGUE * of[name]]


def fit_convergence(runs: Mapping[str, Sequence[Reached]]) -> FittedConvergence:
    """The model of runs, by setting. The staleness penalty is None where no gradients were stale.

    Raises InputError where runs are too few, or all of one batch.
    """
    rows = [row for of_setting in runs.values() for row in of_setting]
    _check(rows)
    found, errors, scatter = solve(rows)
    held_out = tuple(_held_out(runs))
    off = [math.log(one.predicted / one.measured) for one in held_out]
    uncertainty = math.sqrt(float(np.mean(np.square(off)))) if off else scatter
    return FittedConvergence(found.model_copy(update={"uncertainty": uncertainty}), errors, scatter, held_out)


def _check(rows: Sequence[Reached]) -> None:
    if len({row.batch for row in rows if row.staleness == 0}) < _FEWEST_BATCHES:
        raise InputError("the target was reached in step with too few batches to fit; give two or more, or an easier target")
    if len(rows) <= (coefficients := len(_names(rows))):
        runs = "run" if len(rows) == 1 else "runs"
        message = f"{len(rows)} {runs} that reached the target are too few to fit {coefficients} coefficients"
        raise InputError(f"{message}; give more batches or seeds")


def _names(rows: Sequence[Reached]) -> tuple[str, ...]:
    names = ("minimum_steps", "critical_batch", "staleness_penalty")
    return names if any(row.staleness > 0 for row in rows) else names[:2]


def solve(rows: Sequence[Reached]) -> tuple[Convergence, dict[str, float], float]:
    """Coefficients, their standard errors, and the scatter. rows: more than there are coefficients."""
    from scipy.optimize import least_squares

    batch, staleness, steps = np.array(rows, dtype=float).T
    names = _names(rows)
    start = np.array([float(np.log(steps.min())), float(np.log(batch).mean()), 0.1])[: len(names)]

    def of(sought: Array) -> tuple[Array, Array]:
        """Logarithms of steps, and what each thing sought changes of them."""
        penalty = sought[2] if len(sought) > 2 else 0.0
        whole = 1 + penalty * staleness + np.exp(sought[1]) / batch
        columns = [np.ones_like(batch), np.exp(sought[1]) / batch / whole, staleness / whole]
        return sought[0] + np.log(whole), np.stack(columns[: len(sought)], axis=-1)

    low = np.array([start[0] - _REACH, start[1] - _REACH, 0.0])[: len(names)]
    high = np.array([start[0] + _REACH, start[1] + _REACH, np.inf])[: len(names)]

    def off(sought: Array) -> Array:
        return np.asarray(of(sought)[0] - np.log(steps))

    def changed(sought: Array) -> Array:
        return of(sought)[1]

    found = least_squares(off, start, changed, (low, high), xtol=1e-12, ftol=1e-12)
    scatter = math.sqrt(float((found.fun**2).sum()) / (len(rows) - len(names)))
    changes = of(found.x)[1]
    spread = scatter * np.sqrt(np.diag(np.linalg.pinv(changes.T @ changes)))
    values = [math.exp(found.x[0]), math.exp(found.x[1]), *found.x[2:].tolist()]
    errors = [values[0] * spread[0], values[1] * spread[1], *spread[2:]]
    convergence = Convergence(**dict(zip(names, values, strict=True)))
    return convergence, {name: float(error) for name, error in zip(names, errors, strict=True)}, scatter


def _held_out(runs: Mapping[str, Sequence[Reached]]) -> Iterator[HeldOut]:
    """Of each setting that the others suffice to tell of."""
    for setting, of_setting in runs.items():
        rest = [row for other, rows in runs.items() if other != setting for row in rows]
        batches = {row.batch for row in rest if row.staleness == 0}
        is_told = max(row.staleness for row in of_setting) == 0 or any(row.staleness > 0 for row in rest)
        if len(batches) < _FEWEST_BATCHES or len(rest) <= len(_names(rest)) or not is_told:
            continue
        convergence, _, _ = solve(rest)
        predicted = [convergence.steps(row.batch, row.staleness) for row in of_setting]
        yield HeldOut(setting, _middle(predicted), _middle([row.steps for row in of_setting]))


def _middle(values: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(float(np.mean(np.log(values))))
