"""Rows: what a study's table says of its points. This is what workers do."""

from __future__ import annotations

import functools
import math
import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.baseline import compared
from simulator.errors import FieldError, ScaleproofError, ScenarioError, one_line
from simulator.predict import predict
from simulator.run import Run
from simulator.scenario import Scenario
from simulator.study.study import Numbers, Study
from simulator.study.together import NUMBERS, Points, timed_together, with_numbers

Row = dict[str, Any]


# What is told of every point, beside its axes: kind of number, and how it follows from the step time where all else is alike.
RESULTS: Final[Mapping[str, tuple[type, int]]] = {
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


class Part(NamedTuple):
    """What has come of a task. rows: of points that are done. alone: points that have to be predicted one by one. rest: those
    that time has not sufficed for."""

    rows: list[Row]
    alone: Numbers
    rest: Numbers


def rows(blob: bytes, points: Numbers, intervals: bool, together: bool, enough_s: float = 2.0) -> Part:
    """Rows of a study's points, with their numbers, as many as can be told in about `enough_s`, and one at least.

    blob: the study, pickled. together: whether the points differ in numbers of links alone, and are to be timed together, which
    leaves those alone that have to be.
    """
    study, begun_s, first_s = _unpickled(blob), time.monotonic(), 0.0
    places = study.places(points)
    found = _Alike(study, places, intervals).rows() if together else (_row(study, place, intervals) for place in places)
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
    return Part(done, np.array(alone, dtype=np.int64), points[len(done) + len(alone) :])


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


class _Alike:
    """Points that differ in numbers of links alone."""

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
        numbers, problems = self._numbers(first)
        good = np.array([problem is None for problem in problems])
        times_s = np.full((len(Points._fields), len(self.places)), np.nan)
        times_s[:, good] = timed_together(scenario, {field: values[good] for field, values in numbers.items()}, self.intervals)
        run = predict(scenario, interval=False, remedy=False)
        baseline = _Baseline(run, scenario)
        of_one = told(run)
        for problem, of_point, *its in zip(problems, times_s.T.tolist(), *numbers.values(), strict=True):
            step_s, low_s, high_s = of_point
            if problem is not None:
                yield problem
            elif math.isnan(low_s if self.intervals else step_s):
                yield None
            else:
                row = _scaled(of_one, step_s) | baseline.efficiency(step_s, dict(zip(numbers, its, strict=True)))
                yield row | {"low_s": low_s, "high_s": high_s} if self.intervals else row

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

    def _numbers(self, valid: Numbers) -> tuple[dict[str, NDArray[np.float64]], list[Row | None]]:
        """What each number is at each point, by field, and what is wrong with the point's numbers. valid: places of a point."""
        values: dict[str, NDArray[np.float64]] = {}
        problems: list[Row | None] = [None] * len(self.places)
        for axis in self.study.numbers:
            of_place = {place: self._number(axis, place, valid) for place in np.unique(self.places[:, axis]).tolist()}
            found = [of_place[place] for place in self.places[:, axis].tolist()]
            problems = [one or (other if isinstance(other, dict) else None) for one, other in zip(problems, found, strict=True)]
            values[self.study.axes[axis].field] = np.array([np.nan if isinstance(one, dict) else one for one in found])
        return values, problems

    def _number(self, axis: int, place: int, valid: Numbers) -> float | Row:
        """What an axis' value comes to, or a row with what is wrong with it. No rule ties numbers of links to one another, or
        to more than the cluster that they are in."""
        cluster = [valid[i] for i, one in enumerate(self.study.axes) if _of_cluster(one.field) and i not in self.study.numbers]
        key = (axis, place, tuple(cluster))
        if key not in self.study.known_numbers:
            changed = valid.copy()
            changed[axis] = place
            try:
                scenario = self.study.scenario(changed)
            except ScaleproofError as error:
                self.study.known_numbers[key] = failed(error)
            else:
                self.study.known_numbers[key] = _number_in(scenario, self.study.axes[axis].field)
        return self.study.known_numbers[key]


def _of_cluster(field: str) -> bool:
    return field == "cluster" or field.startswith("cluster.")


def _number_in(scenario: Scenario, field: str) -> float:
    part, name = NUMBERS[field]
    link = scenario.cluster.network if part == "network" else scenario.cluster.node.link
    assert link is not None
    return float(getattr(link, name))


def _scaled(row: Row, step_s: float) -> Row:
    """What a row would say if steps took so long, all else being alike."""
    ratio, follows = step_s / row["step_time_s"], {**RESULTS, **TARGET_RESULTS}
    return {name: value if value is None else value * ratio ** follows[name][1] if follows[name][1] else value
            for name, value in row.items()}  # fmt: skip


class _Baseline:
    """Efficiency of points, against a baseline that may use the links itself."""

    def __init__(self, run: Run, scenario: Scenario) -> None:
        self.run, self.scenario = run, scenario
        efficiency, speed_up = (run.efficiency or {}), (run.speed_up or {})
        ranks = {round(efficiency[scaling] * run.compute_ranks / speed_up[scaling]) for scaling in speed_up}
        self.is_alone = ranks <= {1}

    def efficiency(self, step_s: float, numbers: Mapping[str, float]) -> Row:
        """What differs from how all else follows from the step time: nothing, where the baseline is one rank alone."""
        if self.is_alone:
            return {}
        scenario = self.scenario.model_copy(update={"cluster": with_numbers(self.scenario.cluster, numbers)})
        found = compared(replace(self.run, step_time_s=step_s), scenario).efficiency or {}
        return {"efficiency": found.get("weak"), "strong_efficiency": found.get("strong")}
