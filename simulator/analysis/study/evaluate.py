"""Rows of tables: predictions of the points of studies and other grids. Those of studies run in workers."""

from __future__ import annotations

import functools
import math
import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.study.grid import NUMBERS, Grid, Numbers, value_of, with_numbers
from scaleproof.simulator.analysis.study.priced_points import steps_s, timed_together
from scaleproof.simulator.analysis.study.study import Study
from scaleproof.simulator.cluster import Cluster, Device
from scaleproof.simulator.common.errors import FieldError, ScaleproofError, ScenarioError, one_line
from scaleproof.simulator.predict import predict
from scaleproof.simulator.prediction.scaling import Baseline
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.uncertainty.unmodelled import most_s

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, Any]
Times = NDArray[np.float64]


# Columns of every point in addition to its axes: type, and the exponent of the step time if nothing else changes.
RESULTS: Final[Mapping[str, tuple[type, int]]] = {
    "framework": (str, 0),
    "framework_is_default": (bool, 0),
    "ranks": (int, 0),
    "samples": (int, 0),
    "step_time_s": (float, 1),
    "low_s": (float, 1),
    "high_s": (float, 1),
    "samples_per_s": (float, -1),
    "tokens_per_s": (float, -1),
    "mfu": (float, -1),
    "efficiency": (float, -1),
    "strong_efficiency": (float, -1),
    "memory_bytes": (float, 0),
    "capacity_bytes": (float, 0),
    "fits": (bool, 0),
    "cost_USD_per_million_samples": (float, 1),
    "error": (str, 0),
}
# Further columns where the study's scenario models convergence.
TARGET_RESULTS: Final[Mapping[str, tuple[type, int]]] = {"time_to_target_s": (float, 1)}


class TaskResult(NamedTuple):
    """The result of a task. rows: of points that are done. alone: points that have to be predicted one by one. rest: points for
    which there was no time."""

    rows: list[Row]
    alone: Numbers
    rest: Numbers


def rows(blob: bytes, points: Numbers, intervals: bool, together: bool, enough_s: float = 2.0) -> TaskResult:
    """Rows of a study's points, with their numbers; stops after about `enough_s` seconds, but not before the first row.

    blob: the pickled study. together: whether to replay the points together, which may differ only in numeric axes; points for
    which that is not possible are returned as `alone`.
    """
    study, begun_s, first_s = _unpickled(blob), time.monotonic(), 0.0
    places = study.places(points)
    found = (
        _BatchablePoints(study, places, intervals).rows()
        if together
        else (_predicted_row(study, place, functools.partial(results_of, intervals=intervals)) for place in places)
    )
    done: list[Row] = []
    alone: list[int] = []
    for point, row in zip(points.tolist(), found, strict=True):
        if row is None:
            alone.append(point)
        else:
            done.append({"point": point, **row})
        took_s = time.monotonic() - begun_s
        # the first row may include a long start, which must not be repeated for every row
        first_s = first_s or took_s
        if took_s > max(enough_s, 2 * first_s):
            break
    return TaskResult(done, np.array(alone, dtype=np.int64), points[len(done) + len(alone) :])


@functools.lru_cache(maxsize=2)
def _unpickled(blob: bytes) -> Study:
    study: Study = pickle.loads(blob)  # noqa: S301 (our own process made it)
    return study


def failed(error: Exception) -> Row:
    """The row of a point that failed."""
    problems = str(error).splitlines()
    return {"error": " | ".join(problems) if isinstance(error, ScaleproofError) and problems else one_line(error)}


def results_of(scenario: Scenario, intervals: bool = False) -> Row:
    """The row of a scenario's prediction."""
    return row_of(predict(scenario, interval=intervals, remedy=False))


def table(grid: Grid, results: Callable[[Scenario], Row] = results_of) -> list[Row]:
    """Rows of all points of a grid, in their order, predicted in this process. results: the row of a scenario; points that
    differ in numbers alone have those of `results_of`."""
    found: dict[int, Row | None] = {}
    points = np.arange(len(grid))
    for batch in grid.batches(points)[0]:
        found |= zip(batch.tolist(), _BatchablePoints(grid, grid.places(batch), intervals=False).rows(), strict=True)
    return [found.get(point) or _predicted_row(grid, grid.places_of(point), results) for point in points.tolist()]


def predicted(build: Callable[[], Scenario], results: Callable[[Scenario], Row] = results_of) -> Row:
    """The row of one scenario that is predicted by itself. build: makes it."""
    try:
        return results(build())
    except Exception as error:
        # an error is this point's result: the others continue
        return failed(error)


def _predicted_row(grid: Grid, places: Sequence[int], results: Callable[[Scenario], Row]) -> Row:
    return predicted(lambda: grid.scenario(places), results)


def row_of(run: Run) -> Row:
    """The row of a run."""
    low_s, high_s = run.prediction_interval_s or (None, None)
    efficiency, cost = run.efficiency or {}, run.cost_USD or {}
    return {
        "framework": run.framework,
        "framework_is_default": run.framework_is_default,
        "ranks": run.ranks,
        "samples": run.samples,
        "step_time_s": run.step_time_s,
        "low_s": low_s,
        "high_s": high_s,
        "samples_per_s": run.samples_per_s,
        "tokens_per_s": run.tokens_per_s,
        "mfu": run.mfu,
        "efficiency": efficiency.get("weak"),
        "strong_efficiency": efficiency.get("strong"),
        "memory_bytes": run.memory_bytes_per_rank,
        "capacity_bytes": run.capacity_bytes,
        "fits": run.fits,
        "cost_USD_per_million_samples": cost.get("per_million_samples"),
        **({} if run.to_target is None else {"time_to_target_s": run.time_to_target_s}),
    }


class _BatchablePoints:
    """Points that differ only in numeric axes of links and devices."""

    def __init__(self, study: Grid, places: Numbers, intervals: bool) -> None:
        self.study = study
        self.places = places
        self.intervals = intervals

    def rows(self) -> Iterator[Row | None]:
        """Rows in the order of the points; None for points that have to be predicted one by one."""
        done = 0
        try:
            for row in self._rows():
                yield row
                done += 1
        except Exception as error:
            # a ScenarioError applies to all points; after any other error they are predicted one by one
            yield from (failed(error) if isinstance(error, ScenarioError) else None for _ in self.places[done:])

    def _rows(self) -> Iterator[Row | None]:
        """Rows as from `rows`. Raises ScenarioError for an error that all points have."""
        scenario, first = self._valid()
        clusters, problems = self._clusters(scenario.cluster, first)
        # a measured interval of a value does not apply to another value
        own = {self.study.axes[axis].field.removeprefix("cluster.") for axis in self.study.numbers}
        if self.intervals and own & set(scenario.cluster.uncertainty):
            yield from problems
            return
        times = timed_together(scenario, clusters, self.intervals)
        if np.isnan(times.step_s).all():
            yield from problems
            return
        first_row = row_of(run := predict(scenario, interval=False, remedy=False))
        columns = {"low_s": times.low_s, "high_s": times.high_s + most_s(scenario)} if self.intervals else {}
        columns |= _unscaled(run, scenario, clusters, times.step_s)
        cells = zip(*(column.tolist() for column in (times.step_s, *columns.values())), strict=True)
        for problem in problems:
            if problem is not None:
                yield problem
                continue
            step_s, *own_cells = next(cells)
            is_known = not any(map(math.isnan, (step_s, *own_cells)))
            yield _scaled(first_row, step_s) | dict(zip(columns, own_cells, strict=True)) if is_known else None

    def _valid(self) -> tuple[Scenario, Numbers]:
        """The scenario of a valid point, and its places on the axes.

        Tries the first and the last point, which differ most. Raises ScenarioError where both fail for the same reason, which
        then does not depend on the numeric axes; FieldError where they fail for different reasons.
        """
        first, last = self.places[0], self.places[-1]
        try:
            return self.study.scenario(first), first
        except ScenarioError as error:
            try:
                return self.study.scenario(last), last
            except ScenarioError as other:
                if str(other) == str(error):
                    raise
                raise FieldError((), "points are not valid for different reasons") from None

    def _clusters(self, cluster: Cluster, valid: Numbers) -> tuple[list[Cluster], list[Row | None]]:
        """The clusters of valid points, and the rows of points that are not valid, None for valid ones.

        cluster: of a valid point. valid: its places on the axes.
        """
        fields = [axis.field for axis in self.study.axes]
        links = [axis for axis in self.study.numbers if fields[axis] in NUMBERS]
        of_device = [axis for axis in self.study.numbers if fields[axis] not in NUMBERS]

        @functools.cache
        def wired(places: tuple[int, ...]) -> Cluster | Row:
            """The cluster with the links at these places, or the row of an error."""
            values = [self._value([axis], [place], valid) for axis, place in zip(links, places, strict=True)]
            problem = next((value for value in values if isinstance(value, dict)), None)
            if problem is not None:
                return problem
            return with_numbers(cluster, {fields[axis]: value for axis, value in zip(links, values, strict=True)})

        found: list[Cluster] = []
        problems: list[Row | None] = []
        for point in self.places:
            changed = wired(tuple(point[links].tolist()))
            device = self._value(of_device, point[of_device].tolist(), valid) if of_device else cluster.device
            problem = next((one for one in (changed, device) if isinstance(one, dict)), None)
            problems.append(problem)
            if isinstance(changed, Cluster) and isinstance(device, Device):
                found.append(changed if device is cluster.device else changed.model_copy(update={"device": device}))
        return found, problems

    def _value(self, axes: Sequence[int], places: Sequence[int], valid: Numbers) -> float | Device | Row:
        """The number of a link axis at a place, the device of the device axes at their places, or the row of an error.

        Validation of these numbers depends on no other numeric axis, and otherwise on the cluster and the training only.
        """
        others = [i for i, one in enumerate(self.study.axes) if _affects_validation(one.field) and i not in self.study.numbers]
        key = (*axes, *places, *valid[others].tolist())
        if key not in self.study.known_values:
            changed = valid.copy()
            changed[axes] = places
            try:
                cluster = self.study.scenario(changed).cluster
            except ScaleproofError as error:
                self.study.known_values[key] = failed(error)
            else:
                self.study.known_values[key] = value_of(cluster, self.study.axes[axes[0]].field)
        return self.study.known_values[key]


def throughput_unit(points: pd.DataFrame) -> str:
    """The unit of throughput of a study's points: 'tokens', or 'samples' where not all of them have tokens."""
    return "tokens" if len(points) and points["tokens_per_s"].notna().all() else "samples"


def _affects_validation(field: str) -> bool:
    return field.partition(".")[0] in ("cluster", "training")


def _scaled(row: Row, step_s: float) -> Row:
    """The row for another step time, if nothing else changes."""
    ratio, follows = step_s / row["step_time_s"], {**RESULTS, **TARGET_RESULTS}
    return {name: value if value is None else value * ratio ** follows[name][1] if follows[name][1] else value
            for name, value in row.items()}  # fmt: skip


def _unscaled(run: Run, scenario: Scenario, clusters: Sequence[Cluster], step_s: Times) -> dict[str, Times]:
    """Columns of points that do not follow from their step time only, each of shape (points,): efficiency, where the baseline
    is not one rank on the scenario's device, and MFU, where devices differ."""
    baseline, result = Baseline.of(scenario), dict[str, Times]()
    devices = any(cluster.device is not scenario.cluster.device for cluster in clusters)
    if baseline.ranks > 1 or devices:
        for scaling, column in (("weak", "efficiency"), ("strong", "strong_efficiency")):
            is_own = baseline.is_of(run, scaling)
            baseline_step_s = (
                step_s if is_own else baseline.timed(scaling, lambda count: steps_s(*baseline.job(count), clusters))
            )
            speed_up = run.samples / step_s / (baseline.samples(scaling) / baseline_step_s)
            result[column] = speed_up * baseline.ranks / run.compute_ranks
    if devices and run.mfu is not None and run.peak_flops is not None:
        peaks = np.array([cluster.device.peak_flops[scenario.training.precision] for cluster in clusters])
        result["mfu"] = run.mfu * (run.step_time_s / step_s) * (run.peak_flops / peaks)
    return result
