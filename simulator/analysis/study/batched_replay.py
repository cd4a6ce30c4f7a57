"""Step times of many points whose scenarios differ only in values of links and devices, by one replay.

One program is compiled for all points, with values that vary from point to point; points for which a decision would be
different, such as the choice of an algorithm, are compiled again without the others. Task durations are, to the last bit,
those of a program that is compiled for the point by itself.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.study.numeric_axes import Differences
from scaleproof.simulator.cluster.quantities import slowed
from scaleproof.simulator.common.batched_numbers import BatchedPoints, PlainNumberNeededError
from scaleproof.simulator.engine import Variation, replay, simulate_steady
from scaleproof.simulator.engine.durations import durations_s, rates
from scaleproof.simulator.parallelism import Strategy
from scaleproof.simulator.prediction.steps import STEPS
from scaleproof.simulator.program import MAIN_STREAM, Kind, Program
from scaleproof.simulator.run.breakdown import slope, slopes
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import compile_step
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.scenario_job import job_of
from scaleproof.simulator.uncertainty.error_model import case_of_scenario
from scaleproof.simulator.uncertainty.prediction_interval import linear_response
from scaleproof.simulator.uncertainty.priors import quantity_deviations
from scaleproof.simulator.uncertainty.response import added_seconds, replayed_s

Times = NDArray[np.float64]

# Relative slowdown of a quantity with which its effect on task durations is computed.
_SLOWDOWN: Final = 0.01
# Programs that are valid for fewer points than this save little; after _MOST_MISSES of them the rest is predicted one by one.
_FEW: Final = 3
_MOST_MISSES: Final = 20
# Tasks of all points in one replay, some 100 bytes each.
_MOST_TASKS: Final = 2_000_000
# A task that ends after another begins by no more than rounding does not overlap it; as in engine.contention.
_ROUNDING: Final = 1e-9


class Points(NamedTuple):
    """Step times of points that were replayed together, each of shape (points,).

    step_s: NaN for points that have to be predicted one by one. low_s, high_s: 90 % interval; NaN unless requested.
    """

    step_s: Times
    low_s: Times
    high_s: Times


def step_times_s(scenario: Scenario, differences: Differences) -> Times:
    """Step time of each point in seconds, shape (points,); NaN for points that have to be predicted one by one.

    The points are the scenario with the values in `differences`.
    """
    return timed_together(scenario, differences, intervals=False).step_s


def timed_together(scenario: Scenario, differences: Differences, intervals: bool) -> Points:
    """Step times of the points, as from `step_times_s`, and their 90 % intervals if requested."""
    result = np.full((len(Points._fields), len(differences)), np.nan)
    # a measured interval of a value does not apply to another value
    own = {field.removeprefix("cluster.") for field in differences.links} & set(scenario.cluster.uncertainty)
    if scenario.unevenness.is_random or scenario.unevenness.changes or (intervals and own):
        return Points(*result)
    job = job_of(scenario)
    for points, compiled in _compiled(scenario.strategy, job, differences):
        result[:, points] = compiled.steps_s() / scenario.strategy.program_steps
        if intervals:
            result[:, points] *= compiled.relative_intervals(scenario)
    return Points(*result)


def baseline_s(strategy: Strategy, job: Job, differences: Differences) -> Times:
    """Step time of the baseline's job at each point in seconds, shape (points,); NaN where it has to be predicted by itself."""
    result = np.full(len(differences), np.nan)
    for points, compiled in _compiled(strategy, job, differences):
        result[points] = compiled.steps_s()
    return result


def _compiled(strategy: Strategy, job: Job, differences: Differences) -> Iterator[tuple[NDArray[np.int64], _Compiled]]:
    """Programs with the indices of the points that they are valid for, as long as these are not too few."""
    left, misses = np.arange(len(differences)), 0
    program = compile_step(strategy, job)
    most = max(_FEW, _MOST_TASKS // len(program))
    try:
        while program.is_static and len(left) and misses < _MOST_MISSES:
            batch = left[:most]
            compiled = _Compiled(strategy, job, differences.take(batch))
            program, agrees = compiled.program, compiled.batch.agrees
            yield batch[agrees], compiled
            left = np.concatenate([batch[~agrees], left[most:]])
            misses += int(agrees.sum() < _FEW)
    except PlainNumberNeededError:
        # some value has to be a plain number: the remaining points are predicted one by one
        pass


class _Compiled:
    """Points that are compiled together. batch: knows for which points the program is valid. program: of
    these points."""

    def __init__(self, strategy: Strategy, job: Job, differences: Differences) -> None:
        self._strategy, self._job, self._differences = strategy, job, differences
        self.batch = BatchedPoints(len(differences))
        self.program = _of_points(self._program(self.batch, differences, {}), self.batch.agrees)

    def _program(self, batch: BatchedPoints, differences: Differences, slowdowns: Mapping[str, float]) -> Program:
        cluster = slowed(differences.varying(self._job.cluster, batch), slowdowns)
        return compile_step(self._strategy, replace(self._job, cluster=cluster))

    def steps_s(self) -> Times:
        """Seconds of a steady step of the program at each of its points, or of one where nothing in it varies; NaN where a
        point has to be predicted by itself."""
        return _steps_s(self.program)

    def relative_intervals(self, scenario: Scenario) -> Times:
        """Factors of the step times, 1, and of their 90 % intervals, shape (3, points of the program); NaN where intervals have
        to be computed point by point."""
        differences = self._differences.take(self.batch.agrees)
        seconds = durations_s(self.program).reshape(len(self.program), -1)

        @functools.cache
        def more_s(name: str) -> Times:
            """Derivative of the tasks' seconds with respect to a quantity's slowdown factor, shape (tasks, points)."""
            batch = BatchedPoints(len(differences))
            longer_s = added_seconds(self.program, self._program(batch, differences, {name: 1 + _SLOWDOWN}))
            if longer_s is None or not batch.agrees.all():
                raise PlainNumberNeededError("the program of slower points differs in more than durations")
            return longer_s.reshape(len(seconds), -1) / _SLOWDOWN

        def slower_s(slowdowns: Mapping[str, float | Times]) -> Times:
            longer_s = (more_s(name) * (slowdown - 1) for name, slowdown in slowdowns.items())
            return replayed_s(self.program, sum(longer_s, seconds))

        try:
            names, first_s = quantity_deviations(scenario), slower_s({})
            response = linear_response(first_s, slower_s, names, scenario.cluster, case_of_scenario(scenario))
            others = response.priors.names[1:]
            low, high = response.bent_intervals(
                lambda factors: factors[0] * slower_s(dict(zip(others, factors[1:], strict=True))) / first_s
            )
        except (ValueError, PlainNumberNeededError):
            # at some point requests overtake each other, or the slower cluster cannot be compiled for all points together
            return np.full((len(Points._fields), 1), np.nan)
        return np.stack([np.ones_like(low), low, high])


def _of_points(program: Program, points: NDArray[np.bool_] | int) -> Program:
    """The program of some of its points, or of one of them."""

    def taken(part: Any) -> dict[str, Any]:
        columns = ((one.name, getattr(part, one.name)) for one in fields(part))
        return {name: column[:, points] for name, column in columns if isinstance(column, np.ndarray) and column.ndim == 2}

    return replace(program, resources=replace(program.resources, **taken(program.resources)), **taken(program))


def _steps_s(program: Program) -> Times:
    """Seconds of a steady step at each point, shape (points,); points with possible contention are simulated separately."""
    seconds = durations_s(program)
    if seconds.ndim == 1:
        # nothing varies: all points have the same step time
        seconds = seconds[:, None]
    variation = Variation(start_s=program.ranks.late_s, samples=seconds.shape[1])
    try:
        times = list(replay.replay(program, STEPS, seconds, variation))
    except ValueError:
        # at some point requests overtake each other: its order of tasks is different
        return np.full(seconds.shape[1], np.nan)
    training = (program.stream == MAIN_STREAM) & ~program.ranks.is_server[program.rank]
    steps_s = slopes(np.stack([end_s[training].max(axis=0) for _, end_s in times], axis=-1))
    for point in np.flatnonzero(_may_share(program, times)).tolist():
        steps_s[point] = slope(simulate_steady(_of_points(program, point), STEPS).step_ends_s())
    return steps_s


def _may_share(program: Program, times: list[tuple[Times, Times]]) -> NDArray[np.bool_]:
    """Points at which the demand for some resource may exceed its capacity, as a mask of shape (points,).

    A conservative form of the test in `engine.contention`, for all points at once.
    """
    task, resource, per_unit = program.routes.used(program.route)
    rate, resources = rates(program), program.resources
    share = (rate[task].T * per_unit / resources.capacity[resource].T).T
    count = len(resources.names)
    wanted = np.zeros((count, *share.shape[1:]))
    np.add.at(wanted, resource, share)
    users = np.bincount(resource, per_unit, count)
    short = (wanted.T * (1 + resources.incast * np.maximum(0.0, users - 1))).T > 1 + _ROUNDING
    result = np.zeros(times[0][0].shape[1], dtype=np.bool_)
    for number in np.flatnonzero(short.any(axis=tuple(range(1, short.ndim)))).tolist():
        result |= short[number] & _overlap(program, task[resource == number], times)
    return result


def _overlap(program: Program, tasks: NDArray[np.int64], times: list[tuple[Times, Times]]) -> NDArray[np.bool_]:
    """Points at which two of these tasks overlap in time, within a step or across two steps, as a mask of shape (points,)."""
    if (program.kind[tasks] == Kind.SERVE).any():
        # the times of requests do not show when a server works
        return np.ones(times[0][0].shape[1], dtype=np.bool_)
    latency_s = program.latency_s[tasks].reshape(len(tasks), -1)
    begin_s = np.concatenate([start_s[tasks] + latency_s for start_s, _ in times])
    end_s = np.concatenate([end_s[tasks] for _, end_s in times])
    end_s -= _ROUNDING * (end_s - begin_s)
    order = np.argsort(begin_s, axis=0)
    begins_s, ends_s = (np.take_along_axis(column, order, axis=0) for column in (begin_s, end_s))
    # a task may end before one that began earlier
    latest_s = np.maximum.accumulate(ends_s, axis=0)
    return np.asarray((latest_s[:-1] > begins_s[1:]).any(axis=0))
