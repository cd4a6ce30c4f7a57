"""Elasticities of a scenario's throughput by finite differences, with replay in place of events where both agree.

Where contention for shared resources hardly lengthens a step, the two engines' times differ by a constant factor, so that their
elasticities are equal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.sensitivity.parameters import StepParameter
from scaleproof.simulator.engine import replay, simulate_steady
from scaleproof.simulator.engine.durations import durations_s
from scaleproof.simulator.predict import timed
from scaleproof.simulator.prediction.steps import Simulate, is_transient
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.scenario_job import program_of
from scaleproof.simulator.uncertainty.draws import interval, normal_draws
from scaleproof.simulator.uncertainty.priors import quantity_deviations
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


def _long(scenario: Scenario) -> Scenario:
    """The scenario as a long run, if it has a given number of steps of asynchronous ranks: the order of events of a short run
    changes with any parameter, while the mean over phases of a long one changes little."""
    if not is_transient(scenario):
        return scenario
    return type(scenario)(**{name: getattr(scenario, name) for name in scenario.model_fields_set - {"steps"}})


class FiniteDifferences:
    """Elasticities of one scenario's throughput. run: the scenario's predicted run."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.run, self._program = timed(scenario), program_of(scenario)
        self._own_s = durations_s(self._program)
        varies = scenario.unevenness.is_random or scenario.unevenness.changes
        self.is_replayed = self._program.is_static and not varies and self._replay_agrees()
        self.step = STEP if self._program.is_static else _EVENTS_STEP

    def _replay_agrees(self) -> bool:
        alone_s = float(replayed_s(self._program, self._own_s[:, None])[0]) / self.scenario.strategy.program_steps
        return abs(alone_s / self.run.step_time_s - 1) <= _REPLAY_TOLERANCE

    def samples_per_s(self, scenario: Scenario) -> float:
        """Throughput of a variant of the scenario, comparable with `own_samples_per_s`."""
        simulate: Simulate = replay.simulate if self.is_replayed else simulate_steady
        # draws would hide the effect of small changes
        return timed(_long(scenario), simulate=simulate, draws=False).samples_per_s

    @cached_property
    def own_samples_per_s(self) -> float:
        """Throughput of the scenario itself, in samples per second, by the engine that times its variants."""
        is_as_predicted = self._program.is_static and not self.is_replayed
        return self.run.samples_per_s if is_as_predicted else self.samples_per_s(self.scenario)

    def elasticity(self, parameter: StepParameter) -> Estimate:
        """The elasticity of the throughput with respect to a parameter, by central differences of the logarithms, and its 90 %
        interval, where it is known."""
        longer_s = self._longer_s(parameter) if self.is_replayed else None
        if longer_s is not None:
            return self._replayed_elasticity(parameter, *longer_s)
        slower, faster = (
            math.log(self.samples_per_s(parameter.slowed(self.scenario, math.exp(step)))) for step in (self.step, -self.step)
        )
        return _rounded(parameter.sign * (faster - slower) / (2 * self.step)), None, None

    def tolerance(self, parameter: StepParameter) -> str | None:
        """The value of a parameter, as text, at which throughput is lower by the share `COST`, by bisection with replay.

        None if it is not known; "any" if even a thousandth of the speed costs less.
        """
        if not self.is_replayed:
            return None
        low, high = 0.0, math.log(_MOST_SLOWDOWN)
        least_s = float(replayed_s(self._program, self._own_s[:, None])[0]) / (1 - COST)
        lasting_s = self._slowed_s(parameter, high)
        if lasting_s is None or lasting_s < least_s:
            return None if lasting_s is None else "any"
        while high - low > _BISECTION:
            middle = (low + high) / 2
            lasting_s = self._slowed_s(parameter, middle)
            if lasting_s is None:
                return None
            low, high = (middle, high) if lasting_s < least_s else (low, middle)
        return parameter.says(parameter.slowed(self.scenario, math.exp(high)))

    def _slowed_s(self, parameter: StepParameter, step: float) -> float | None:
        """Step time with a parameter slower by exp(step), by replay; None if the program's tasks change."""
        longer_s = self._grown_s(parameter, step)
        return None if longer_s is None else float(replayed_s(self._program, (self._own_s + longer_s)[:, None])[0])

    def _replayed_elasticity(self, parameter: StepParameter, slower_s: Times, faster_s: Times) -> Estimate:
        """The elasticity, and its interval from draws of the uncertain quantities, by one replay.

        slower_s, faster_s: as `_longer_s` returns them.
        """
        if not slower_s.any():
            return 0.0, 0.0, 0.0
        seconds, slowdown = self._own_s[:, None], np.ones(1)
        if 2 * _DRAWS * len(self._program) <= _MAX_REPLAYED:
            seconds, slowdown = self._drawn_s, self._slowdowns.get(parameter.quantity, slowdown)
        durations = [seconds + longer_s[:, None] * slowdown for longer_s in (slower_s, faster_s)]
        log_times = np.log(replayed_s(self._program, np.hstack(durations)))
        value, *drawn = parameter.sign * np.subtract(*np.split(log_times, 2)) / (2 * STEP)
        if not drawn:
            return _rounded(value), None, None
        low, high = interval(drawn)
        return _rounded(value), _rounded(low), _rounded(high)

    def _longer_s(self, parameter: StepParameter) -> tuple[Times, Times] | None:
        """Additional seconds of each task with the parameter slower, and with it faster; None if the program's tasks change."""
        if parameter.is_whole and parameter.quantity in self._task_quantities:
            more_s = self._response.more_s.get(parameter.quantity, np.zeros(len(self._program)))
            return more_s * math.expm1(STEP), more_s * math.expm1(-STEP)
        slower_s = self._grown_s(parameter, STEP)
        faster_s = slower_s if slower_s is None or not slower_s.any() else self._grown_s(parameter, -STEP)
        return None if slower_s is None or faster_s is None else (slower_s, faster_s)

    def _grown_s(self, parameter: StepParameter, step: float) -> Times | None:
        slower = parameter.slowed(self.scenario, math.exp(step))
        return added_seconds(self._program, program_of(slower), self._own_s)

    @cached_property
    def _response(self) -> Response:
        return response_of_scenario(self.scenario)

    @cached_property
    def _task_quantities(self) -> set[str]:
        """Uncertain quantities whose effect on each task's duration is known."""
        return {
            name
            for name in quantity_deviations(self.scenario)
            if name in self._response.more_s or name not in self._response.shares
        }

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
