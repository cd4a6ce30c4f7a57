"""Elasticities of a scenario's throughput by finite differences, with replay in place of events where both agree.

Where contention for shared resources hardly lengthens a step, the two engines' times differ by a constant factor, so that their
elasticities are equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.sensitivity.parameters import StepParameter
from scaleproof.simulator.analysis.study.axes import StudyAxis
from scaleproof.simulator.analysis.study.evaluate import Row, row_of, table
from scaleproof.simulator.analysis.study.grid import Variants
from scaleproof.simulator.engine import replay, simulate_steady
from scaleproof.simulator.engine.durations import durations_s
from scaleproof.simulator.predict import timed
from scaleproof.simulator.prediction.steps import Simulate, is_transient
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.scenario_job import program_of
from scaleproof.simulator.uncertainty.draws import interval, normal_draws
from scaleproof.simulator.uncertainty.response import Response, added_seconds, replayed_s, response_of_scenario

Times = NDArray[np.float64]
# an elasticity, and the ends of its 90 % interval
Estimate = tuple[float, float | None, float | None]

# Relative change of a parameter, in log space; larger where events time the steps, as their order changes with the parameter.
STEP: Final = 0.02
_EVENTS_STEP: Final = 0.1
_DRAWS: Final = 24
# Loss of throughput up to which a parameter may be slower, the largest slowdown that is tried, and the tolerance in log space.
COST: Final = 0.05
_MOST_SLOWDOWN: Final = 1e3
_BISECTION: Final = 5e-3
# Replay is used if it differs from the predicted step time, which includes contention, by no more than this share.
_REPLAY_TOLERANCE: Final = 2e-3
# Task durations replayed for an interval at most: each takes 0.2 us on a 2-core virtual machine.
_MAX_REPLAYED: Final = 1_000_000


class FiniteDifferences:
    """Elasticities of one scenario's throughput. run: the scenario's predicted run. step: relative change of parameters, in log
    space."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.run, self._program = timed(scenario), program_of(scenario)
        self._seconds = durations_s(self._program)
        replayed_step_s = self._replayed_s(self._seconds) / scenario.strategy.program_steps
        varies = scenario.unevenness.is_random or scenario.unevenness.changes
        agrees = abs(replayed_step_s / self.run.step_time_s - 1) <= _REPLAY_TOLERANCE
        self.is_replayed = self._program.is_static and not varies and agrees
        self.step = STEP if self._program.is_static else _EVENTS_STEP

    def _replayed_s(self, seconds: Times) -> float:
        """Seconds of a step whose tasks last this long, shape (tasks,)."""
        return float(replayed_s(self._program, seconds[:, None])[0])

    def rows(self, variants: Sequence[Callable[[], Scenario]]) -> list[Row]:
        """The predictions of variants of the scenario, as a study, by the engine that times all of them."""
        simulate: Simulate = replay.simulate if self.is_replayed else simulate_steady

        def results(scenario: Scenario) -> Row:
            if is_transient(scenario):
                # the order of events of a short run changes with any parameter; the mean over phases of a long one hardly does
                long = scenario.model_fields_set - {"steps"}
                scenario = type(scenario)(**{name: getattr(scenario, name) for name in long})
            # draws would hide the effect of small changes
            return row_of(timed(scenario, simulate=simulate, draws=False))

        axis = StudyAxis.named_values("variant", {str(number): build for number, build in enumerate(variants)})
        return table(Variants((axis,), lambda build: build()), results)

    def elasticities(self, parameters: Sequence[StepParameter]) -> dict[str, Estimate]:
        """Elasticities of the throughput with respect to parameters by name, by central differences of the logarithms, and
        their 90 % intervals, where they are known."""
        found = {one.name: self._replayed_elasticity(one) for one in parameters}
        others, ends = [one for one in parameters if found[one.name] is None], (math.exp(self.step), math.exp(-self.step))
        rows = iter(self.rows([partial(one.slowed, self.scenario, slowdown) for one in others for slowdown in ends]))
        return {one.name: found[one.name] or self._difference(one, next(rows), next(rows)) for one in parameters}

    def _difference(self, parameter: StepParameter, slower: Row, faster: Row) -> Estimate:
        log_ratio = math.log(faster["samples_per_s"] / slower["samples_per_s"])
        return _rounded(parameter.sign * log_ratio / (2 * self.step)), None, None

    def tolerance(self, parameter: StepParameter) -> str | None:
        """The value of a parameter, as text, at which throughput is lower by the share `COST`, by bisection with replay.

        None if it is not known; "any" if even a thousandth of the speed costs less.
        """
        if not self.is_replayed:
            return None
        longest_s = self._replayed_s(self._seconds) / (1 - COST)
        most = math.log(_MOST_SLOWDOWN)
        low, step, high = 0.0, most, 2 * most
        while high - low > _BISECTION and low < most:
            longer_s = self._longer_s(parameter, step)
            if longer_s is None:
                return None
            low, high = (step, high) if self._replayed_s(self._seconds + longer_s) < longest_s else (low, step)
            step = (low + high) / 2
        return "any" if low >= most else parameter.says(parameter.slowed(self.scenario, math.exp(high)))

    def _longer_s(self, parameter: StepParameter, step: float) -> Times | None:
        """Additional seconds of each task with a parameter slower by exp(step); None if the program's tasks change."""
        slower = parameter.slowed(self.scenario, math.exp(step))
        return added_seconds(self._program, program_of(slower), self._seconds)

    def _replayed_elasticity(self, parameter: StepParameter) -> Estimate | None:
        """The elasticity, and its interval from draws of the uncertain quantities, by one replay; None where replay does not
        apply."""
        if not self.is_replayed:
            return None
        slower_s, faster_s = self._longer_s(parameter, STEP), self._longer_s(parameter, -STEP)
        if slower_s is None or faster_s is None:
            return None
        if not slower_s.any():
            return 0.0, 0.0, 0.0
        seconds, slowdown = self._seconds[:, None], np.ones(1)
        if 2 * _DRAWS * len(self._program) <= _MAX_REPLAYED:
            seconds, slowdown = self._drawn_s, self._slowdowns.get(parameter.quantity, slowdown)
        durations = [seconds + longer_s[:, None] * slowdown for longer_s in (slower_s, faster_s)]
        log_times = np.log(replayed_s(self._program, np.hstack(durations)))
        value, *drawn = parameter.sign * np.subtract(*np.split(log_times, 2)) / (2 * STEP)
        if not drawn:
            return _rounded(value), None, None
        low, high = interval(drawn)
        return _rounded(value), _rounded(low), _rounded(high)

    @cached_property
    def _response(self) -> Response:
        return response_of_scenario(self.scenario)

    @cached_property
    def _slowdowns(self) -> Mapping[str, Times]:
        """Slowdown factors by quantity, shape (1 + draws,): 1 for the cluster as given, then each draw."""
        priors = self._response.priors
        drawn = priors.factors(normal_draws(_DRAWS, np.zeros(len(priors.names))))
        return dict(zip(priors.names, np.hstack([np.ones((len(drawn), 1)), drawn]), strict=True))

    @cached_property
    def _drawn_s(self) -> Times:
        """Seconds of each task, as predicted and for each draw, shape (tasks, 1 + draws)."""
        slowdowns = [self._slowdowns[name] - 1 for name in self._response.more_s]
        return self._response.durations_s(np.array(slowdowns).reshape(-1, 1 + _DRAWS))


def _rounded(value: float) -> float:
    """The value without floating-point noise, so that an elasticity of zero is exactly zero."""
    return round(float(value), 9) + 0.0
