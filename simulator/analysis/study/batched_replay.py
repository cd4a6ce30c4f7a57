"""Together: step times of many points whose scenarios differ in numbers of links and devices alone, by one replay.

The program is compiled for all of them at once, its numbers varying from point to point; points for which it would have come
out otherwise, as where another algorithm is faster, are compiled again among themselves. What a point's tasks take is, to the
last bit, what they would take in a program of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.study.intervals import LITTLE, around
from scaleproof.simulator.analysis.study.numeric_axes import Differences
from scaleproof.simulator.cluster.quantities import slowed
from scaleproof.simulator.common.batched import BatchedPoints, NotVaryingError
from scaleproof.simulator.engine import Variation, replay, simulate_steady
from scaleproof.simulator.engine.durations import durations_s, rates
from scaleproof.simulator.program import MAIN_LANE, Kind, Program
from scaleproof.simulator.run.run import slope, slopes
from scaleproof.simulator.run.scaling import STEPS
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import Strategy
from scaleproof.simulator.strategy.job import Job

Times = NDArray[np.float64]

# Programs that hold for fewer points than these save little, so that after some of them the rest is left to be told alone.
_FEW: Final = 3
_MOST_MISSES: Final = 20
# Tasks of all points that are replayed in one go: some 100 bytes each.
_MOST_TASKS: Final = 2_000_000
# A task that ends by no more than rounding after another begins does not overlap it; as in engine.contention.
_ROUNDING: Final = 1e-9


class Points(NamedTuple):
    """Points that were timed together, each of shape (points,). step_s: not a number where points have to be predicted one by
    one. low_s, high_s: between them the step time is with a probability of 90 %, where that was asked for."""

    step_s: Times
    low_s: Times
    high_s: Times


def step_times_s(scenario: Scenario, differences: Differences) -> Times:
    """The step time of each point, shape (points,); not a number where points have to be predicted one by one.

    The scenario stands for all points in all else.
    """
    return timed_together(scenario, differences, intervals=False).step_s


def timed_together(scenario: Scenario, differences: Differences, intervals: bool) -> Points:
    """The same, with an interval around each, if asked for."""
    result = np.full((len(Points._fields), len(differences)), np.nan)
    # an interval in which a number was measured is none of another number
    own = {field.removeprefix("cluster.") for field in differences.links} & set(scenario.cluster.uncertainty)
    if scenario.unevenness.is_random or scenario.unevenness.changes or (intervals and own):
        return Points(*result)
    job = scenario.job(unevenness=scenario.unevenness)
    for some, compiled in _compiled(scenario.strategy, job, differences):
        result[:, some] = compiled.steps_s() / scenario.strategy.program_steps
        if intervals:
            result[:, some] *= compiled.around(scenario)
    return Points(*result)


def baseline_s(strategy: Strategy, job: Job, differences: Differences) -> Times:
    """The step time of a job that another's is compared with, at each point, shape (points,); not a number as above."""
    result = np.full(len(differences), np.nan)
    for some, compiled in _compiled(strategy, job, differences):
        result[some] = compiled.steps_s()
    return result


def _compiled(strategy: Strategy, job: Job, differences: Differences) -> Iterator[tuple[NDArray[np.int64], _Compiled]]:
    """Points that a program holds for, and that program, as long as there are many of them."""
    left, misses = np.arange(len(differences)), 0
    program = strategy.compile(job)
    most = max(_FEW, _MOST_TASKS // len(program))
    try:
        while program.is_static and len(left) and misses < _MOST_MISSES:
            some = left[:most]
            compiled = _Compiled(strategy, job, differences.take(some))
            program, alike = compiled.program, compiled.crowd.agrees
            yield some[alike], compiled
            left = np.concatenate([some[~alike], left[most:]])
            misses += int(alike.sum() < _FEW)
    except NotVaryingError:
        # one of them has to be timed by itself, and is told apart there
        pass


class _Compiled:
    """Points that are compiled together. crowd: which of them the program holds for; program: of those."""

    def __init__(self, strategy: Strategy, job: Job, differences: Differences) -> None:
        self._strategy, self._job, self._differences = strategy, job, differences
        self.crowd = BatchedPoints(len(differences))
        self.program = _of_points(self._program(self.crowd, differences, {}), self.crowd.agrees)

    def _program(self, crowd: BatchedPoints, differences: Differences, slownesses: Mapping[str, float]) -> Program:
        cluster = slowed(differences.varying(self._job.cluster, crowd), slownesses)
        return self._strategy.compile(replace(self._job, cluster=cluster))

    def steps_s(self) -> Times:
        """Of the program at each of its points, or once where nothing in it varies; not a number as above."""
        return _steps_s(self.program)

    def around(self, scenario: Scenario) -> Times:
        """What to multiply step times with, for themselves and for where their intervals begin and end, shape (3, points) of
        those that the program holds for; not a number where that has to be told point by point."""
        differences = self._differences.take(self.crowd.agrees)

        def slower(name: str) -> Program | None:
            crowd = BatchedPoints(len(differences))
            changed = self._program(crowd, differences, {name: 1 + LITTLE})
            return changed if crowd.agrees.all() else None

        try:
            found = around(scenario, self.program, slower)
        except (ValueError, NotVaryingError):
            # at one of them requests overtake others, or what is slower has to be compiled for each by itself
            found = None
        result = np.full((len(Points._fields), len(differences)), np.nan)
        if found is not None:
            result[:] = np.ones_like(found.low), found.low, found.high
        return result


def _of_points(program: Program, which: NDArray[np.bool_] | int) -> Program:
    """The program of some of its points, or of one alone."""

    def taken(part: Any) -> dict[str, Any]:
        columns = ((one.name, getattr(part, one.name)) for one in fields(part))
        return {name: column[:, which] for name, column in columns if isinstance(column, np.ndarray) and column.ndim == 2}

    return replace(program, resources=replace(program.resources, **taken(program.resources)), **taken(program))


def _steps_s(program: Program) -> Times:
    """Seconds of a steady step at each point; where tasks may share what they use, timed by itself."""
    seconds = durations_s(program)
    if seconds.ndim == 1:
        # nothing in it varies: one point tells for all
        seconds = seconds[:, None]
    variation = Variation(start_s=program.ranks.late_s, samples=seconds.shape[1])
    try:
        times = list(replay.replay(program, STEPS, seconds, variation))
    except ValueError:
        # at one of them requests overtake others, which has to be told of that one alone
        return np.full(seconds.shape[1], np.nan)
    training = (program.lane == MAIN_LANE) & ~program.ranks.is_server[program.rank]
    steps_s = slopes(np.stack([end_s[training].max(axis=0) for _, end_s in times], axis=-1))
    for point in np.flatnonzero(_may_share(program, times)).tolist():
        steps_s[point] = slope(simulate_steady(_of_points(program, point), STEPS).step_ends_s())
    return steps_s


def _may_share(program: Program, times: list[tuple[Times, Times]]) -> NDArray[np.bool_]:
    """At which points some resource is wanted by more tasks at a time than it can carry, or may be; shape (points,).

    Coarser than `engine.contention`, which decides; here for all points at once.
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
    for one in np.flatnonzero(short.any(axis=tuple(range(1, short.ndim)))).tolist():
        result |= short[one] & _overlap(program, task[resource == one], times)
    return result


def _overlap(program: Program, tasks: NDArray[np.int64], times: list[tuple[Times, Times]]) -> NDArray[np.bool_]:
    """At which points two of some tasks use what they use at the same time, in one step or over two, shape (points,)."""
    if (program.kind[tasks] == Kind.SERVE).any():
        # when a server works, its requests' times do not tell
        return np.ones(times[0][0].shape[1], dtype=np.bool_)
    latency_s = program.latency_s[tasks].reshape(len(tasks), -1)
    begin_s = np.concatenate([start_s[tasks] + latency_s for start_s, _ in times])
    end_s = np.concatenate([end_s[tasks] for _, end_s in times])
    end_s -= _ROUNDING * (end_s - begin_s)
    order = np.argsort(begin_s, axis=0)
    begins_s, ends_s = (np.take_along_axis(each, order, axis=0) for each in (begin_s, end_s))
    # an end may come before one that began earlier
    latest_s = np.maximum.accumulate(ends_s, axis=0)
    return np.asarray((latest_s[:-1] > begins_s[1:]).any(axis=0))
