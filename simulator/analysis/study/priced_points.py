"""Points of a study that differ in numbers of the cluster: one program, priced on each cluster and replayed for all of them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.quantities import slowed
from scaleproof.simulator.engine import Variation, simulate_steady, simulate_steady_together
from scaleproof.simulator.engine.durations import durations_s
from scaleproof.simulator.parallelism import Strategy
from scaleproof.simulator.prediction.steps import STEPS
from scaleproof.simulator.program import Program
from scaleproof.simulator.run.breakdown import slope, slopes
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import compile_step, priced
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.scenario_job import job_of
from scaleproof.simulator.uncertainty.error_model import SLOWED_AS, case_of_scenario
from scaleproof.simulator.uncertainty.linear_response import linear_response
from scaleproof.simulator.uncertainty.priors import quantity_deviations
from scaleproof.simulator.uncertainty.response import added_seconds, replayed_s

Times = NDArray[np.float64]

# Relative slowdown of a quantity with which its effect on task durations is computed.
_SLOWDOWN: Final = 0.01
# Tasks of all points in one replay, some 100 bytes each.
_MOST_TASKS: Final = 500_000


class Points(NamedTuple):
    """Step times of points, each of shape (points,).

    step_s: NaN for points that have to be predicted one by one. low_s, high_s: 90 % interval; NaN unless requested.
    """

    step_s: Times
    low_s: Times
    high_s: Times


def timed_together(scenario: Scenario, clusters: Sequence[Cluster], intervals: bool) -> Points:
    """Step times of a scenario on clusters that differ from its own in numbers, and their 90 % intervals if requested."""
    result = np.full((len(Points._fields), len(clusters)), np.nan)
    if scenario.unevenness.is_random or scenario.unevenness.changes:
        return Points(*result)
    for points, some in _replayable(scenario.strategy, job_of(scenario), clusters):
        result[:, points] = some.steps_s() / scenario.strategy.program_steps
        if intervals:
            result[:, points] *= some.relative_intervals(scenario)
    return Points(*result)


def steps_s(strategy: Strategy, job: Job, clusters: Sequence[Cluster]) -> Times:
    """Seconds of a program of a job on each of some clusters, shape (clusters,); NaN where it has to be predicted by itself."""
    result = np.full(len(clusters), np.nan)
    for points, some in _replayable(strategy, job, clusters):
        result[points] = some.steps_s()
    return result


def _replayable(strategy: Strategy, job: Job, clusters: Sequence[Cluster]) -> Iterator[tuple[slice, _Priced]]:
    """The points, in groups that one replay can time; none if the program's tasks have no fixed order."""
    program = compile_step(strategy, replace(job, cluster=clusters[0]))
    if not program.is_static or program.resources.tenancies:
        return
    count = max(1, _MOST_TASKS // len(program))
    for begin in range(0, len(clusters), count):
        points = slice(begin, min(begin + count, len(clusters)))
        yield points, _Priced(strategy, job, program, clusters[points])


class _Priced:
    """A program at the prices of several clusters."""

    def __init__(self, strategy: Strategy, job: Job, program: Program, clusters: Sequence[Cluster]) -> None:
        self._strategy, self._job, self._program, self._clusters = strategy, job, program, clusters
        self._programs = [self._at(cluster) for cluster in clusters]

    def _at(self, cluster: Cluster) -> Program:
        return priced(self._strategy, replace(self._job, cluster=cluster), self._program)

    def steps_s(self) -> Times:
        """Seconds of a steady step on each cluster. Those whose tasks may share resources are simulated by themselves."""
        same = np.array([_has_same_tasks(self._program, program) for program in self._programs])
        result = np.full(len(same), np.nan)
        start_s = self._program.ranks.late_s
        if same.any():
            programs = [program for program, is_same in zip(self._programs, same, strict=True) if is_same]
            try:
                timelines = simulate_steady_together(programs, STEPS, start_s)
                result[same] = slopes(np.stack([timeline.step_ends_s() for timeline in timelines]))
            except ValueError:
                # on some cluster requests overtake each other: its order of tasks is different
                return result
        for point in np.flatnonzero(~same).tolist():
            timeline = simulate_steady(self._programs[point], STEPS, Variation(start_s=start_s))
            result[point] = slope(timeline.step_ends_s())
        return result

    def relative_intervals(self, scenario: Scenario) -> Times:
        """Factors of the step times, 1, and of their 90 % intervals, shape (3, clusters); NaN where intervals have to be
        computed point by point."""
        seconds = np.stack([durations_s(program) for program in self._programs], axis=1)

        @functools.cache
        def more_s(name: str) -> Times:
            """Derivative of the tasks' seconds with respect to a quantity's slowdown factor, shape (tasks, clusters)."""
            columns = []
            for number, (cluster, program) in enumerate(zip(self._clusters, self._programs, strict=True)):
                slower = self._at(slowed(cluster, {SLOWED_AS.get(name, name): 1 + _SLOWDOWN}))
                longer_s = added_seconds(program, slower, seconds[:, number])
                if longer_s is None:
                    raise ValueError("the program on a slower cluster differs in more than durations")
                columns.append(longer_s / _SLOWDOWN)
            return np.stack(columns, axis=1)

        def slower_s(slowdowns: Mapping[str, float | Times]) -> Times:
            longer_s = (more_s(name) * (slowdown - 1) for name, slowdown in slowdowns.items())
            return replayed_s(self._program, sum(longer_s, seconds))

        try:
            names, first_s = quantity_deviations(scenario), slower_s({})
            response = linear_response(first_s, slower_s, names, scenario.cluster, case_of_scenario(scenario))
            response = replace(response, priors=response.priors.on_each(self._clusters))
            others = response.priors.names[1:]
            low, high = response.bent_intervals(
                lambda factors: factors[0] * slower_s(dict(zip(others, factors[1:], strict=True))) / first_s
            )
        except ValueError:
            # on some cluster requests overtake each other, or tasks change
            return np.full((len(Points._fields), 1), np.nan)
        return np.stack([np.ones_like(low), low, high])


def _has_same_tasks(program: Program, other: Program) -> bool:
    """Whether one replay can time two programs: they have the same tasks, and servers that update for as long."""
    return other.dependencies is program.dependencies and np.array_equal(other.update_s, program.update_s)
