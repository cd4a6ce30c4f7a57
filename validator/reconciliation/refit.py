"""Refit of a cluster's quantities to measured runs, used if it improves the predictions of other runs.

The fit is a maximum a posteriori (MAP) estimate of each quantity's slowdown factor relative to the file: the prior of its
logarithm is the file's interval, and the noise of the predictions is estimated with it. Both have robust losses, so neither a
single bad run nor a quantity far from its prior dominates. Quantities on which no run depends are unchanged.

The improvement is measured on held-out runs: each scenario is predicted with the quantities fitted to the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.quantities import DEVIATIONS, QUANTITIES, Interval, slowed, uncertain
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.units import format_percent
from scaleproof.simulator.predict import timed
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.read import load_cluster
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.calibration.cluster_file import files
from scaleproof.validator.estimation.posterior import Array, ParameterFit, Prior, cauchy, fit, robust_deviation, soft_l1
from scaleproof.validator.launch.job import needed_nodes
from scaleproof.validator.reconciliation.history import fingerprint, workload

if TYPE_CHECKING:
    from scaleproof.validator.reconciliation.reconcile import ReconciledCase

_FEWEST: Final = 3
_MOST_ALONE: Final = 10
_FOLDS: Final = 5
# Logarithm of the slowdown factor by which a quantity's influence is probed: half of a typical interval.
_NUDGE: Final = 0.05
# A quantity is fitted only if its influence on some run's step is at least this share of its own change, and if the runs reduce
# its standard deviation to less than this share.
_INFLUENCE: Final = 0.01
_REDUCTION: Final = 0.8
# Smallest standard deviation of a logarithm: numbers in the file have four digits.
_SUREST: Final = 1e-3
# Standard deviation of the drift of quantities since their calibration; without it, intervals of a few per mille would never
# change.
_DRIFT: Final = 0.03
# Bound of the logarithms: no quantity is off by more than a factor of ten.
_FURTHEST: Final = math.log(10)
# Weights of the standard deviations of step time, compute and communication: parts are known less well and count half.
_PARTS: Final = np.array([1.0, 2.0, 2.0])
# Confidence of the one-sided t-test that held-out runs are predicted better.
_SURE: Final = 0.9
# Number of runs as which the file's prediction error counts.
_BELIEF: Final = 2.0
# Quantities on which runs with emulated compute do not depend.
_PACED: Final = ("device", "optimizer")


@dataclass(frozen=True)
class Change:
    """Change of one quantity: values before and after, and the 90 % interval of the latter, with units or as a share of the
    times that the file gives. slowdown: slowdown factor. deviation: standard deviation of its logarithm."""

    quantity: str
    before: str
    after: str
    low: str
    high: str
    slowdown: float
    deviation: float


@dataclass(frozen=True)
class Refit:
    """Result of a refit. changes: of the quantities on which runs depend. left_out: runs that were not used, and why.

    errors_before, errors_after: (predicted − measured) / measured step time of each run used; after the refit, predicted with
    the fit to runs of other scenarios. improves: whether the errors are significantly smaller. cluster: the updated one.
    """

    changes: tuple[Change, ...]
    errors_before: Mapping[str, float]
    errors_after: Mapping[str, float]
    left_out: Mapping[str, str]
    improves: bool
    cluster: Cluster

    @property
    def median_before(self) -> float:
        """Median absolute error before the refit."""
        return _median(self.errors_before.values())

    @property
    def median_after(self) -> float:
        """Median absolute error after the refit."""
        return _median(self.errors_after.values())

    def plain(self) -> dict[str, Any]:
        """The result as plain data for JSON."""
        changes = {change.quantity: {k: v for k, v in vars(change).items() if k != "quantity"} for change in self.changes}
        return {
            "runs": len(self.errors_before),
            "improves": self.improves,
            "median_error_before": self.median_before,
            "median_error_after": self.median_after,
            "errors_before": dict(self.errors_before),
            "errors_after": dict(self.errors_after),
            "quantities": changes,
            "left_out": dict(self.left_out),
        }


def update(path: Path, cases: Sequence[ReconciledCase]) -> Refit:
    """Refits the cluster file to the measured cases, and rewrites it if held-out runs are predicted better.

    Raises InputError for a file that is not a cluster's or cannot be edited, and for too few or identical runs.
    """
    cluster = load_cluster(path)
    result = refit(cluster, [(case.scenario, case.measured) for case in cases if case.measured is not None], str(path))
    if result.improves:
        files.update(path, cluster, result.cluster, "reconcile --update")
    return result


def refit(cluster: Cluster, runs: Sequence[tuple[Scenario, Run]], where: str = "--update") -> Refit:
    """Refits the cluster's quantities to measured runs. where: names the file in errors. Raises InputError for too few runs."""
    used, left_out = _usable(cluster, runs)
    folds = _folds([workload(scenario) for scenario, _ in used])
    if len(used) < _FEWEST or len(folds) < 2:
        few = f"{len(used)} measured runs{' of the same scenario' if len(used) >= _FEWEST else ''}"
        why = "".join(f"; {name} is {reason}" for name, reason in left_out.items())
        raise InputError(f"{where}: {few} are too few for a refit; reconcile at least {_FEWEST} different scenarios{why}")
    deviations = uncertain(cluster)
    error = deviations.pop("model")
    nominal = _Linearised.at(used, dict.fromkeys(deviations, 1.0))
    deviations = {name: math.hypot(deviation, _DRIFT) for name, deviation in deviations.items()}
    runs_model, prior = _determined(nominal, deviations, error)
    runs_model = _Linearised.at(used, runs_model.factors(_solve(runs_model, prior, error).values))
    after_s = np.zeros(len(used))
    for fold in folds:
        logs = _solve(runs_model.of(np.setdiff1d(np.arange(len(used)), fold)), prior, error).values
        after_s[fold] = [_predicted(used[run][0], runs_model.factors(logs)).step_time_s for run in fold]
    before, after = (seconds / runs_model.measured_s[:, 0] - 1 for seconds in (nominal.predicted_s[:, 0], after_s))
    names = _distinct(scenario.name for scenario, _ in used)
    result = Refit(
        changes=_changes(cluster, runs_model.names, _solve(runs_model, prior, error)),
        errors_before=dict(zip(names, before.tolist(), strict=True)),
        errors_after=dict(zip(names, after.tolist(), strict=True)),
        left_out=left_out,
        improves=_is_significantly_smaller(before, after),
        cluster=cluster,
    )
    return replace(result, cluster=_updated(cluster, result, len(used)))


def _usable(cluster: Cluster, runs: Sequence[tuple[Scenario, Run]]) -> tuple[list[tuple[Scenario, Run]], dict[str, str]]:
    """The runs on this cluster, and why others are left out, by scenario."""
    used: list[tuple[Scenario, Run]] = []
    left_out: dict[str, str] = {}
    mine = fingerprint(cluster)
    for scenario, run in runs:
        if fingerprint(scenario.cluster) != mine:
            left_out[scenario.name] = f"of another cluster ({scenario.cluster.name or 'without a name'}), or of other values"
        elif run.disturbed:
            left_out[scenario.name] = run.disturbed
        elif run.provenance.get("on") == "local" and needed_nodes(scenario) > 1:
            left_out[scenario.name] = "measured on this machine alone, not over the network"
        else:
            used.append((scenario, run))
    return used, left_out


def _folds(kinds_of_runs: Sequence[str]) -> list[NDArray[np.int64]]:
    """Runs that are held out together: those of one scenario, or of every fifth if there are many scenarios."""
    kinds = sorted(set(kinds_of_runs))
    parts = [kinds[i::_FOLDS] for i in range(_FOLDS)] if len(kinds) > _MOST_ALONE else [[kind] for kind in kinds]
    return [np.array([i for i, kind in enumerate(kinds_of_runs) if kind in part]) for part in parts]


def _predicted(scenario: Scenario, factors: Mapping[str, float]) -> Run:
    """Prediction of the scenario with the cluster's quantities slowed by the factors."""
    if scenario.compute == "paced":
        factors = {name: factor for name, factor in factors.items() if name not in _PACED}
    return timed(scenario.model_copy(update={"cluster": slowed(scenario.cluster, factors)}))


def _seconds(run: Run) -> list[float]:
    """Seconds of a step, of its compute, and of its exposed communication."""
    return [run.step_time_s, run.breakdown_s.get("compute", 0.0), run.breakdown_s.get("exposed_communication", 0.0)]


@dataclass(frozen=True)
class _Linearised:
    """Predicted seconds of each run as a linear function of the slowdown factors, about the factors in `about`.

    predicted_s, measured_s: shape (runs, 3), columns as in _seconds. slopes_s: shape (runs, 3, quantities), seconds per unit of
    the slowdown factor.
    """

    names: tuple[str, ...]
    about: Array
    predicted_s: Array
    slopes_s: Array
    measured_s: Array

    @classmethod
    def at(cls, runs: Sequence[tuple[Scenario, Run]], factors: Mapping[str, float]) -> _Linearised:
        """Linearises by predicting each run with each quantity a little slower. Raises FieldError."""
        predicted_s, slopes_s = [], []
        for scenario, _ in runs:
            here = np.array(_seconds(_predicted(scenario, factors)))
            predicted_s.append(here)
            slopes_s.append(
                [
                    (np.array(_seconds(_predicted(scenario, {**factors, name: slower}))) - here) / (slower - factor)
                    for name, factor in factors.items()
                    for slower in [factor * math.exp(_NUDGE)]
                ]
            )
        return cls(
            names=tuple(factors),
            about=np.array(list(factors.values())),
            predicted_s=np.array(predicted_s),
            slopes_s=np.moveaxis(np.array(slopes_s).reshape(len(runs), len(factors), 3), 1, 2),
            measured_s=np.array([_seconds(run) for _, run in runs]),
        )

    def of(self, runs: NDArray[np.int64]) -> _Linearised:
        """The model of some of the runs."""
        parts = {name: getattr(self, name)[runs] for name in ("predicted_s", "slopes_s", "measured_s")}
        return replace(self, **parts)

    def restricted(self, mask: NDArray[np.bool_]) -> _Linearised:
        """The model in the quantities that `mask` selects, with the others fixed as in `about`."""
        names = tuple(name for name, is_selected in zip(self.names, mask, strict=True) if is_selected)
        return replace(self, names=names, about=self.about[mask], slopes_s=self.slopes_s[:, :, mask])

    def influential(self) -> _Linearised:
        """The model in the quantities that influence at least one run's step."""
        shares = np.abs(self.slopes_s[:, 0] * self.about) / self.predicted_s[:, :1]
        return self.restricted(shares.max(axis=0) >= _INFLUENCE)

    def factors(self, logs: Array) -> dict[str, float]:
        return dict(zip(self.names, np.exp(logs).tolist(), strict=True))

    def residuals(self, logs: Array) -> Array:
        """Residuals, shape (runs, 3): logarithm of predicted over measured step, and errors of its parts as shares of the
        step."""
        seconds = self.predicted_s + self.slopes_s @ (np.exp(logs) - self.about)
        steps_s = self.measured_s[:, :1]
        step = np.log(np.maximum(seconds[:, :1], 1e-6 * steps_s) / steps_s)
        return np.hstack([step, (seconds[:, 1:] - self.measured_s[:, 1:]) / steps_s])


def _determined(model: _Linearised, deviations: Mapping[str, float], error: float) -> tuple[_Linearised, Array]:
    """The model in the quantities that the runs determine, and the prior standard deviations of their logarithms."""
    model = model.influential()
    prior = np.array([deviations[name] for name in model.names])
    solution = _solve(model, prior, error)
    is_determined = solution.deviations < _REDUCTION * np.maximum(prior, np.abs(solution.values))
    return model.restricted(is_determined), prior[is_determined]


def _solve(model: _Linearised, prior: Array, error: float) -> ParameterFit:
    """MAP estimate of the slowdown factors, alternating with an estimate of the noise, since each depends on the other.

    Runs have a soft L1 loss, quantities a Cauchy loss, so that a cluster far from its file is hardly pulled back. prior:
    standard deviations of the logarithms. error: standard deviation of predictions according to the file.
    """
    file_error, runs, none = error, len(model.measured_s), np.zeros(len(prior))
    found = ParameterFit(none, none, np.diag(1 / prior))
    for _ in range(3 if len(prior) else 0):

        def residuals(logs: Array, error: float = error) -> Array:
            return (model.residuals(logs) / (error * _PARTS)).ravel()

        found = fit(residuals, found.values, soft_l1, Prior(none, prior, cauchy), bounds=(-_FURTHEST, _FURTHEST))
        # of runs, each of which has several residuals
        freedom = runs - (found.residuals.size - found.freedom)
        left = runs * robust_deviation(model.residuals(found.values)[:, 0]) ** 2
        error = math.sqrt((left + _BELIEF * file_error**2) / (_BELIEF + max(0.0, freedom)))
    return found


def _changes(cluster: Cluster, names: Sequence[str], solution: ParameterFit) -> tuple[Change, ...]:
    changes = []
    for name, log, deviation in zip(names, solution.values, solution.deviations, strict=True):
        quantity = QUANTITIES[name]
        value = quantity.value(cluster)
        assert value is not None
        after = value * math.exp(-log if quantity.larger_is_faster else log)
        reach = math.exp(DEVIATIONS * deviation)
        changes.append(
            Change(
                quantity=name,
                before=quantity.format(value),
                after=quantity.format(after),
                low=quantity.format(after / reach),
                high=quantity.format(after * reach),
                slowdown=math.exp(log),
                deviation=float(deviation),
            )
        )
    return tuple(changes)


def _updated(cluster: Cluster, result: Refit, runs: int) -> Cluster:
    """The cluster with changed quantities, their intervals, and provenance."""
    changed = slowed(cluster, {change.quantity: change.slowdown for change in result.changes})
    # predictions err as much as those of held-out runs
    off = float(np.sqrt(np.mean(np.log1p(list(result.errors_after.values())) ** 2)))
    deviations = {change.quantity: change.deviation for change in result.changes} | {"model": max(_SUREST, off)}
    intervals = {name: _interval(changed, name, deviation, runs) for name, deviation in deviations.items()}
    medians = f"{format_percent(result.median_before)} → {format_percent(result.median_after)}"
    today = datetime.now(UTC).date().isoformat()
    text = f"{today}, from {runs} runs, median error {medians} on held-out runs"
    update = {"uncertainty": {**cluster.uncertainty, **intervals}, "provenance": {**cluster.provenance, "updated": text}}
    return changed.model_copy(update=update)


def _interval(cluster: Cluster, name: str, deviation: float, runs: int) -> Interval:
    """Interval of a quantity of the updated cluster."""
    quantity, old = QUANTITIES[name], cluster.uncertainty.get(name)
    value, reach = quantity.value(cluster), math.exp(DEVIATIONS * deviation)
    assert value is not None
    return Interval(
        low=quantity.format(value / reach),
        high=quantity.format(value * reach),
        nominal=old.nominal if old else "",
        measurements=runs + (old.measurements if old else 0),
    )


def _is_significantly_smaller(before: Array, after: Array) -> bool:
    """Whether the median error is smaller, and the gain significant."""
    from scipy.stats import t

    gain = np.abs(np.log1p(before)) - np.abs(np.log1p(after))
    reach = t.ppf(_SURE, len(gain) - 1) * gain.std(ddof=1) / math.sqrt(len(gain))
    return bool(gain.mean() > reach and np.median(np.abs(after)) < np.median(np.abs(before)))


def _distinct(names: Iterable[str]) -> list[str]:
    """Names with a number appended to repeated ones: 'ring-4', 'ring-4 (2)'."""
    seen: dict[str, int] = {}
    result = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        result.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return result


def _median(errors: Iterable[float]) -> float:
    return float(np.median(np.abs(list(errors))))
