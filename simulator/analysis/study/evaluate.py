"""Rows: what a study's table says of its points. This is what workers do."""

from __future__ import annotations

import functools
import math
import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.study.batched_replay import baseline_s, timed_together
from scaleproof.simulator.analysis.study.numeric_axes import NUMBERS, Differences, value_of
from scaleproof.simulator.analysis.study.study import Numbers, Study
from scaleproof.simulator.cluster import Device
from scaleproof.simulator.common.errors import FieldError, ScaleproofError, ScenarioError, one_line
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.run.scaling import Baseline
from scaleproof.simulator.scenario.schema import Scenario

Row = dict[str, Any]
Times = NDArray[np.float64]


# What is told of every point, beside its axes: kind of number, and how it follows from the step time where all else is alike.
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
# The same where the study's scenario models convergence.
TARGET_RESULTS: Final[Mapping[str, tuple[type, int]]] = {"time_to_target_s": (float, 1)}


class TaskResult(NamedTuple):
    """What has come of a task. rows: of points that are done. alone: points that have to be predicted one by one. rest: those
    that time has not sufficed for."""

    rows: list[Row]
    alone: Numbers
    rest: Numbers


def rows(blob: bytes, points: Numbers, intervals: bool, together: bool, enough_s: float = 2.0) -> TaskResult:
    """Rows of a study's points, with their numbers, as many as can be told in about `enough_s`, and one at least.

    blob: the study, pickled. together: whether the points differ in numbers alone, and are to be timed together, which leaves
    those alone that have to be.
    """
    study, begun_s, first_s = _unpickled(blob), time.monotonic(), 0.0
    places = study.places(points)
    found = (
        _BatchablePoints(study, places, intervals).rows() if together else (_row(study, place, intervals) for place in places)
    )
    done: list[Row] = []
    alone: list[int] = []
    for point, row in zip(points.tolist(), found, strict=True):
        if row is None:
            alone.append(point)
        else:
            done.append({"point": point, **row})
        took_s = time.monotonic() - begun_s
        # what it takes to begin is not to be taken again and again
        first_s = first_s or took_s
        if took_s > max(enough_s, 2 * first_s):
            break
    return TaskResult(done, np.array(alone, dtype=np.int64), points[len(done) + len(alone) :])


@functools.lru_cache(maxsize=2)
def _unpickled(blob: bytes) -> Study:
    study: Study = pickle.loads(blob)  # noqa: S301 (our own process made it)
    return study


def failed(error: Exception) -> Row:
    """A point's row where there is nothing but an error to tell."""
    problems = str(error).splitlines()
    return {"error": " | ".join(problems) if isinstance(error, ScaleproofError) and problems else one_line(error)}


def _row(study: Study, places: Sequence[int], intervals: bool) -> Row:
    """Of one point by itself."""
    try:
        return told(predict(study.scenario(places), interval=intervals, remedy=False))
    except Exception as error:
        # whatever it is, it is this point's: the others go on
        return failed(error)


def told(run: Run) -> Row:
    """What a table says of a run."""
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
    """Points that differ in numbers of links and devices alone."""

    def __init__(self, study: Study, places: Numbers, intervals: bool) -> None:
        self.study = study
        self.places = places
        self.intervals = intervals

    def rows(self) -> Iterator[Row | None]:
        """In the order of the points; None for those that are not told together."""
        done = 0
        try:
            for row in self._rows():
                yield row
                done += 1
        except Exception as error:
            # whatever it is, it is for each of them to say, but where it is not about their numbers
            yield from (failed(error) if isinstance(error, ScenarioError) else None for _ in self.places[done:])

    def _rows(self) -> Iterator[Row | None]:
        """Raises ScenarioError for what is wrong with all points."""
        scenario, first = self._valid()
        differences, problems = self._differences(first)
        times = timed_together(scenario, differences, self.intervals)
        of_one = told(run := predict(scenario, interval=False, remedy=False))
        columns = {"low_s": times.low_s, "high_s": times.high_s} if self.intervals else {}
        columns |= _unscaled(run, scenario, differences, times.step_s)
        cells = zip(*(column.tolist() for column in (times.step_s, *columns.values())), strict=True)
        for problem in problems:
            if problem is not None:
                yield problem
                continue
            step_s, *own = next(cells)
            is_told = not any(map(math.isnan, (step_s, *own)))
            yield _scaled(of_one, step_s) | dict(zip(columns, own, strict=True)) if is_told else None

    def _valid(self) -> tuple[Scenario, Numbers]:
        """The scenario of one of the points that is valid, and where that stands. Raises ScenarioError where neither of the two
        that differ most is, for the same reason, which is not about their numbers then; FieldError where for unlike reasons."""
        first, last = self.places[0], self.places[-1]
        try:
            return self.study.scenario(first), first
        except ScenarioError as error:
            try:
                return self.study.scenario(last), last
            except ScenarioError as other:
                if str(other) == str(error):
                    raise
                raise FieldError((), "points are not valid for unlike reasons") from None

    def _differences(self, valid: Numbers) -> tuple[Differences, list[Row | None]]:
        """In what points differ that are valid, and what is wrong with others. valid: places of a point."""
        fields = [axis.field for axis in self.study.axes]
        links = [axis for axis in self.study.numbers if fields[axis] in NUMBERS]
        of_device = [axis for axis in self.study.numbers if fields[axis] not in NUMBERS]
        problems: list[Row | None] = [None] * len(self.places)
        found: list[tuple[list[Any], Numbers]] = []
        for axes in [*([axis] for axis in links), *([of_device] if of_device else [])]:
            several, at = np.unique(self.places[:, axes], axis=0, return_inverse=True)
            values = [self._value(axes, places, valid) for places in several.tolist()]
            wrong = [value if isinstance(value, dict) else None for value in values]
            problems = [one or wrong[place] for one, place in zip(problems, at.ravel().tolist(), strict=True)]
            found.append((values, at.ravel()))
        good = np.array([problem is None for problem in problems])
        columns = {
            fields[axis]: np.array([np.nan if isinstance(one, dict) else one for one in values])[at[good]]
            for axis, (values, at) in zip(links, found, strict=False)
        }
        if not of_device:
            return Differences(columns), problems
        values, at = found[-1]
        used, device = np.unique(at[good], return_inverse=True)
        return Differences(columns, [values[one] for one in used.tolist()], device), problems

    def _value(self, axes: Sequence[int], places: Sequence[int], valid: Numbers) -> float | Device | Row:
        """The number that an axis' value comes to, the device of all that are of one, or a row with what is wrong with it. No
        rule ties numbers of links to one another, or to more than the cluster and the training that they are in."""
        others = [i for i, one in enumerate(self.study.axes) if _ties(one.field) and i not in self.study.numbers]
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


def _ties(field: str) -> bool:
    return field.partition(".")[0] in ("cluster", "training")


def _scaled(row: Row, step_s: float) -> Row:
    """What a row would say if steps took so long, all else being alike."""
    ratio, follows = step_s / row["step_time_s"], {**RESULTS, **TARGET_RESULTS}
    return {name: value if value is None else value * ratio ** follows[name][1] if follows[name][1] else value
            for name, value in row.items()}  # fmt: skip


def _unscaled(run: Run, scenario: Scenario, differences: Differences, step_s: Times) -> dict[str, Times]:
    """What of points follows not from their step time alone, by column, shape (points,): efficiency, where the baseline is not
    one rank alone on the scenario's device, and MFU, where devices differ."""
    baseline, result = Baseline.of(scenario), dict[str, Times]()
    if baseline.ranks > 1 or differences.devices:
        for scaling, column in (("weak", "efficiency"), ("strong", "strong_efficiency")):
            itself = baseline.is_of(run, scaling)
            against_s = (
                step_s if itself else baseline.timed(scaling, lambda count: baseline_s(*baseline.job(count), differences))
            )
            speed_up = run.samples / step_s / (baseline.samples(scaling) / against_s)
            result[column] = speed_up * baseline.ranks / run.compute_ranks
    if differences.device is not None and run.mfu is not None and run.peak_flops is not None:
        peaks = np.array([device.peak_flops[scenario.training.precision] for device in differences.devices])
        result["mfu"] = run.mfu * (run.step_time_s / step_s) * (run.peak_flops / peaks[differences.device])
    return result
