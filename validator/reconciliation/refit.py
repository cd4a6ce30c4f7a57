"""refit: a cluster's numbers brought nearer to what runs on it took, where that makes other runs' predictions better.

What is sought is how many times as slow each quantity is as the file says: the most probable slownesses where their logarithms
are spread as the file's intervals say, and predictions are off by as much as the fit itself finds. Both count robustly, so that
neither a run that went wrong nor a number that is far off is the judge of all others. What no run tells of stays as it is.

Whether it helps is told by runs left out: each scenario is predicted by what the others alone would have the numbers be.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.quantities import DEVIATIONS, QUANTITIES, Interval, slowed, uncertain
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.file_lock import PATIENCE_S, locked_file
from scaleproof.simulator.predict import timed
from scaleproof.simulator.run.run import Run, write_aside
from scaleproof.simulator.scenario.read import load_cluster
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.calibration.cluster_file import rewrite
from scaleproof.validator.calibration.fit.curve_fitting.robust import DEVIATION_OF_MEDIAN
from scaleproof.validator.launch.hosts import needed_nodes
from scaleproof.validator.reconciliation.history import fingerprint, workload

if TYPE_CHECKING:
    from scaleproof.validator.reconciliation.reconcile import ReconciledCase

_Array = NDArray[np.float64]
_FEWEST: Final = 3
_MOST_ALONE: Final = 10
_FOLDS: Final = 5
# How much slower a quantity is made to see what follows from it, as a logarithm: half of a usual interval.
_NUDGE: Final = 0.05
# What changes no run by as much as this share of what it changes itself is told by none; nor is what the runs leave more of
# its deviation than this.
_TELLING: Final = 0.01
_TOLD: Final = 0.8
# No interval is narrower than what this standard deviation makes it: the numbers in the file have four digits.
_SUREST: Final = 1e-3
# How far quantities may drift from where they were calibrated: beside this, intervals of a few per mille would hold for ever.
_DRIFT: Final = 0.03
# No quantity is further off than ten times: the bounds of the logarithms.
_FURTHEST: Final = math.log(10)
# Parts of a step are told apart less well than steps are timed: they count half.
_PARTS: Final = np.array([1.0, 2.0, 2.0])
# How sure it must be that runs left out are predicted better, by a one-sided t-test.
_SURE: Final = 0.9
# What the file says of predictions' own error counts as so many runs.
_BELIEF: Final = 2.0
# Ranks that wait as long as they are predicted to tell nothing of these.
_PACED: Final = ("device", "optimizer")


@dataclass(frozen=True)
class Change:
    """One quantity: what the file says, what it should say, and the 90 % interval of that, with units or as a share of the
    times that the file gives. slowness: how many times as slow it is. deviation: standard deviation of its logarithm."""

    quantity: str
    before: str
    after: str
    low: str
    high: str
    slowness: float
    deviation: float


@dataclass(frozen=True)
class Refit:
    """What came of it. changes: of quantities that the runs tell of. left_out: runs that were not used, and why.

    errors_before, errors_after: (predicted − measured) / measured step time of each run that was used, after the refit
    predicted by what runs of other scenarios say. improves: whether they are surely smaller. cluster: as it should be.
    """

    changes: tuple[Change, ...]
    errors_before: Mapping[str, float]
    errors_after: Mapping[str, float]
    left_out: Mapping[str, str]
    improves: bool
    cluster: Cluster

    @property
    def median_before(self) -> float:
        return _median(self.errors_before.values())

    @property
    def median_after(self) -> float:
        return _median(self.errors_after.values())

    def plain(self) -> dict[str, Any]:
        """As plain data for JSON."""
        changes = {one.quantity: {k: v for k, v in vars(one).items() if k != "quantity"} for one in self.changes}
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
    """Refits the cluster file to the cases that were measured, and writes it where runs left out are predicted better by it.

    Raises InputError for a file that is no cluster's or cannot be edited, and for runs that are too few or all alike.
    """
    cluster = load_cluster(path)
    done = refit(cluster, [(case.scenario, case.measured) for case in cases if case.measured is not None], str(path))
    if done.improves:
        with locked_file(path, "reconcile --update", PATIENCE_S):
            write_aside(path, rewrite.rewritten(path, cluster, done.cluster).encode())
    return done


def describe(done: Refit, path: Path) -> str:
    """What was found and what became of the file, in lines."""
    medians = f"{done.median_before:.1%} → {done.median_after:.1%}"
    runs = len(done.errors_before)
    verdict = "updated" if done.improves else "kept as it is: runs left out are not surely predicted better"
    lines = [f"refit to {runs} runs; median error of step times, each left out of its own fit: {medians}"]
    if done.improves:
        names = (f"  {one.quantity:<22} {one.before:>12} → {one.after:<12}" for one in done.changes)
        lines += [f"{name} {one.low} to {one.high}" for name, one in zip(names, done.changes, strict=True)]
    lines += [f"  not used: {name}: {why}" for name, why in done.left_out.items()]
    return "\n".join([*lines, f"{path}: {verdict}"])


def refit(cluster: Cluster, runs: Sequence[tuple[Scenario, Run]], where: str = "--update") -> Refit:
    """What the cluster's numbers should be by measured runs. where: names the file in errors. Raises InputError."""
    used, left_out = _sorted_out(cluster, runs)
    folds = _folds([workload(scenario) for scenario, _ in used])
    if len(used) < _FEWEST or len(folds) < 2:
        few = f"{len(used)} measured runs{' that are all alike' if len(used) >= _FEWEST else ''}"
        why = "".join(f"; {name} is {reason}" for name, reason in left_out.items())
        raise InputError(f"{where}: {few} are too few to refit; reconcile {_FEWEST} scenarios or more that differ{why}")
    deviations = uncertain(cluster)
    error = deviations.pop("model")
    nominal = _Told.at(used, dict.fromkeys(deviations, 1.0))
    told, prior = _narrowed(nominal, {name: math.hypot(deviation, _DRIFT) for name, deviation in deviations.items()}, error)
    told = _Told.at(used, told.slownesses(_solve(told, prior, error).logs))
    after_s = np.zeros(len(used))
    for fold in folds:
        logs = _solve(told.of(np.setdiff1d(np.arange(len(used)), fold)), prior, error).logs
        after_s[fold] = [_predicted(used[one][0], told.slownesses(logs)).step_time_s for one in fold]
    before, after = (seconds / told.measured_s[:, 0] - 1 for seconds in (nominal.predicted_s[:, 0], after_s))
    names = _distinct(scenario.name for scenario, _ in used)
    done = Refit(
        changes=_changes(cluster, told.names, _solve(told, prior, error)),
        errors_before=dict(zip(names, before.tolist(), strict=True)),
        errors_after=dict(zip(names, after.tolist(), strict=True)),
        left_out=left_out,
        improves=_surely_smaller(before, after),
        cluster=cluster,
    )
    return replace(done, cluster=_updated(cluster, done, len(used)))


def _sorted_out(cluster: Cluster, runs: Sequence[tuple[Scenario, Run]]) -> tuple[list[tuple[Scenario, Run]], dict[str, str]]:
    """The runs that tell of this cluster, and why others do not, by their scenarios."""
    used: list[tuple[Scenario, Run]] = []
    left_out: dict[str, str] = {}
    mine = fingerprint(cluster)
    for scenario, run in runs:
        if fingerprint(scenario.cluster) != mine:
            left_out[scenario.name] = f"of another cluster ({scenario.cluster.name or 'without a name'}), or of other numbers"
        elif run.provenance.get("on") == "local" and needed_nodes(scenario) > 1:
            left_out[scenario.name] = "measured on this machine alone, not over the network"
        else:
            used.append((scenario, run))
    return used, left_out


def _folds(alike: Sequence[str]) -> list[NDArray[np.int64]]:
    """Which runs are left out together: those of a scenario, or of every fifth where scenarios are many."""
    kinds = sorted(set(alike))
    parts = [kinds[i::_FOLDS] for i in range(_FOLDS)] if len(kinds) > _MOST_ALONE else [[kind] for kind in kinds]
    return [np.array([i for i, kind in enumerate(alike) if kind in part]) for part in parts]


def _predicted(scenario: Scenario, slownesses: Mapping[str, float]) -> Run:
    """The scenario on the cluster with quantities so many times as slow."""
    if scenario.compute == "paced":
        slownesses = {name: slowness for name, slowness in slownesses.items() if name not in _PACED}
    return timed(scenario.model_copy(update={"cluster": slowed(scenario.cluster, slownesses)}))


def _seconds(run: Run) -> list[float]:
    """Of a step, of its compute, and of communication that it waits for."""
    return [run.step_time_s, run.breakdown_s.get("compute", 0.0), run.breakdown_s.get("exposed_communication", 0.0)]


@dataclass(frozen=True)
class _Told:
    """What runs tell: seconds of each, and how they follow from slownesses about those in `at`.

    predicted_s, measured_s: a row for each run, as _seconds has it. slopes_s: with a further axis, the quantities: seconds for
    each unit of slowness.
    """

    names: tuple[str, ...]
    about: _Array
    predicted_s: _Array
    slopes_s: _Array
    measured_s: _Array

    @classmethod
    def at(cls, runs: Sequence[tuple[Scenario, Run]], slownesses: Mapping[str, float]) -> _Told:
        """By predicting each run with each quantity a little slower. Raises FieldError."""
        predicted_s, slopes_s = [], []
        for scenario, _ in runs:
            here = np.array(_seconds(_predicted(scenario, slownesses)))
            predicted_s.append(here)
            slopes_s.append(
                [
                    (np.array(_seconds(_predicted(scenario, {**slownesses, name: slower}))) - here) / (slower - slowness)
                    for name, slowness in slownesses.items()
                    for slower in [slowness * math.exp(_NUDGE)]
                ]
            )
        return cls(
            names=tuple(slownesses),
            about=np.array(list(slownesses.values())),
            predicted_s=np.array(predicted_s),
            slopes_s=np.moveaxis(np.array(slopes_s).reshape(len(runs), len(slownesses), 3), 1, 2),
            measured_s=np.array([_seconds(run) for _, run in runs]),
        )

    def of(self, runs: NDArray[np.int64]) -> _Told:
        """What some of the runs tell."""
        parts = {name: getattr(self, name)[runs] for name in ("predicted_s", "slopes_s", "measured_s")}
        return replace(self, **parts)

    def about_those(self, which: NDArray[np.bool_]) -> _Told:
        """What they tell of some of the quantities, where the others are as in `about`."""
        names = tuple(name for name, one in zip(self.names, which, strict=True) if one)
        return replace(self, names=names, about=self.about[which], slopes_s=self.slopes_s[:, :, which])

    def telling(self) -> _Told:
        """Without the quantities that change no run's step."""
        shares = np.abs(self.slopes_s[:, 0] * self.about) / self.predicted_s[:, :1]
        return self.about_those(shares.max(axis=0) >= _TELLING)

    def slownesses(self, logs: _Array) -> dict[str, float]:
        return dict(zip(self.names, np.exp(logs).tolist(), strict=True))

    def residuals(self, logs: _Array) -> _Array:
        """How far off each run's step is, as a logarithm, and its parts, as shares of the step."""
        seconds = self.predicted_s + self.slopes_s @ (np.exp(logs) - self.about)
        steps_s = self.measured_s[:, :1]
        step = np.log(np.maximum(seconds[:, :1], 1e-6 * steps_s) / steps_s)
        return np.hstack([step, (seconds[:, 1:] - self.measured_s[:, 1:]) / steps_s])


@dataclass(frozen=True)
class _Solution:
    """Logarithms of slownesses, how they vary together, and the standard deviation of the errors that are left."""

    logs: _Array
    covariance: _Array
    error: float

    @property
    def deviations(self) -> _Array:
        return np.asarray(np.sqrt(np.diag(self.covariance)))


def _narrowed(told: _Told, deviations: Mapping[str, float], error: float) -> tuple[_Told, _Array]:
    """Without quantities that the runs do not tell of; and standard deviations of the logarithms of the others, by the file."""
    told = told.telling()
    prior = np.array([deviations[name] for name in told.names])
    found = _solve(told, prior, error)
    is_told = found.deviations < _TOLD * np.maximum(prior, np.abs(found.logs))
    return told.about_those(is_told), prior[is_told]


def _solve(told: _Told, prior: _Array, error: float) -> _Solution:
    """The most probable slownesses. How far off runs are is found with them, since each needs the other: in turns.

    prior: standard deviations of the logarithms. error: of predictions, as the file has it.
    """
    from scipy.optimize import least_squares

    believed, runs = error, len(told.measured_s)
    logs, covariance = np.zeros(len(prior)), np.diag(prior**2)
    for _ in range(3 if len(prior) else 0):

        def off(logs: _Array, error: float = error) -> _Array:
            return np.concatenate([(told.residuals(logs) / (error * _PARTS)).ravel(), logs / prior])

        solved = least_squares(off, logs, bounds=(-_FURTHEST, _FURTHEST), loss=partial(_loss, len(prior)), x_scale=prior)
        logs = solved.x
        jacobian = np.asarray(solved.jac)
        covariance = np.linalg.inv(jacobian.T @ jacobian)
        # numbers that were fitted take as many of the runs' errors away
        fitted = len(prior) - float(np.trace(covariance / prior**2))
        left = runs * (DEVIATION_OF_MEDIAN * np.median(np.abs(told.residuals(logs)[:, 0]))) ** 2
        error = math.sqrt((left + _BELIEF * believed**2) / (_BELIEF + max(0.0, runs - fitted)))
    return _Solution(logs, covariance, error)


def _loss(quantities: int, squares: _Array) -> _Array:
    """What squared deviations cost, with two derivatives: of runs about their size beyond one ("soft l1"), of quantities, which
    come last, their logarithm (Cauchy): a cluster that is far from its file is hardly held back by it."""
    runs, own = 1 + squares[:-quantities], 1 + squares[-quantities:]
    of_runs = np.array([2 * (np.sqrt(runs) - 1), runs**-0.5, -0.5 * runs**-1.5])
    return np.hstack([of_runs, np.array([np.log(own), 1 / own, -1 / own**2])])


def _changes(cluster: Cluster, names: Sequence[str], found: _Solution) -> tuple[Change, ...]:
    changes = []
    for name, log, deviation in zip(names, found.logs, found.deviations, strict=True):
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
                slowness=math.exp(log),
                deviation=float(deviation),
            )
        )
    return tuple(changes)


def _updated(cluster: Cluster, done: Refit, runs: int) -> Cluster:
    """The cluster with its numbers changed, how sure they are, and from what that comes."""
    changed = slowed(cluster, {one.quantity: one.slowness for one in done.changes})
    # predictions are as far off as those of runs that were left out are
    off = float(np.sqrt(np.mean(np.log1p(list(done.errors_after.values())) ** 2)))
    deviations = {one.quantity: one.deviation for one in done.changes} | {"model": max(_SUREST, off)}
    intervals = {name: _interval(changed, name, deviation, runs) for name, deviation in deviations.items()}
    medians = f"{done.median_before:.1%} → {done.median_after:.1%}".replace("%", " %")
    today = datetime.now(UTC).date().isoformat()
    said = f"{today}, from {runs} runs, median error {medians} on runs left out"
    told = {"uncertainty": {**cluster.uncertainty, **intervals}, "provenance": {**cluster.provenance, "updated": said}}
    return changed.model_copy(update=told)


def _interval(cluster: Cluster, name: str, deviation: float, runs: int) -> Interval:
    """Of a quantity of the updated cluster."""
    quantity, old = QUANTITIES[name], cluster.uncertainty.get(name)
    value, reach = quantity.value(cluster), math.exp(DEVIATIONS * deviation)
    assert value is not None
    return Interval(
        low=quantity.format(value / reach),
        high=quantity.format(value * reach),
        nominal=old.nominal if old else "",
        measurements=runs + (old.measurements if old else 0),
    )


def _surely_smaller(before: _Array, after: _Array) -> bool:
    """Whether errors are smaller than they were, by the median, and by more than chance would have them."""
    from scipy.stats import t

    gain = np.abs(np.log1p(before)) - np.abs(np.log1p(after))
    reach = t.ppf(_SURE, len(gain) - 1) * gain.std(ddof=1) / math.sqrt(len(gain))
    return bool(gain.mean() > reach and np.median(np.abs(after)) < np.median(np.abs(before)))


def _distinct(names: Iterable[str]) -> list[str]:
    """Names of which the second and further ones are numbered: 'ring-4', 'ring-4 (2)'."""
    seen: dict[str, int] = {}
    result = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        result.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return result


def _median(errors: Iterable[float]) -> float:
    return float(np.median(np.abs(list(errors))))
