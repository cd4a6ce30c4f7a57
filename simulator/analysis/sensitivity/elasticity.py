"""Turns: what becomes of a scenario's throughput as knobs are turned a little, by replay where that tells it as well as events.

Where sharing hardly lengthens a step, replay's elasticities are those of events: both times have the same factor between them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.sensitivity.parameters import Knob
from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.quantities import QUANTITIES
from scaleproof.simulator.engine import Timeline, Variation, replay, simulate_steady
from scaleproof.simulator.engine.durations import durations_s
from scaleproof.simulator.predict import timed
from scaleproof.simulator.program import Program
from scaleproof.simulator.run.steps import Simulate
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.uncertainty.pairwise import JointDraws
from scaleproof.simulator.uncertainty.prediction_interval import (
    Response,
    doubtful,
    grown_s,
    normal_draws,
    replayed_s,
    responding,
)

Times = NDArray[np.float64]

# A number is taken so much lower and higher, as a share of it; where events time the steps, whose order changes with it, by
# more.
STEP: Final = 0.02
_EVENTS_STEP: Final = 0.1
_DRAWS: Final = 24
_QUANTILES: Final = (0.05, 0.95)
# By this share of the step replay may leave out what tasks share.
_CLOSE: Final = 2e-3
# Seconds of tasks that are replayed for an interval: each takes 0.2 us on a 2-core virtual machine.
_MOST_REPLAYED: Final = 1_000_000


class Turned(NamedTuple):
    """An elasticity, and between what it is with a probability of 90 %, where that is known."""

    value: float
    low: float | None = None
    high: float | None = None


class FiniteDifferences:
    """Of one scenario; run: what is predicted of it."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        kept: list[Program] = []

        def simulate(program: Program, steps: int, variation: Variation) -> Timeline:
            kept.append(program)
            return simulate_steady(program, steps, variation)

        self.run = timed(scenario, simulate=simulate)
        self._program = kept[-1]
        self._own_s = durations_s(self._program)
        varies = scenario.unevenness.is_random or scenario.unevenness.changes
        self.is_replayed = self._program.is_static and not varies and self._is_close()
        self.step = STEP if self._program.is_static else _EVENTS_STEP

    def _is_close(self) -> bool:
        alone_s = float(replayed_s(self._program, self._own_s[:, None])[0]) / self.scenario.strategy.program_steps
        return abs(alone_s / self.run.step_time_s - 1) <= _CLOSE

    def samples_per_s(self, scenario: Scenario) -> float:
        """The throughput of a scenario like this one, to be held against `own_samples_per_s`."""
        simulate: Simulate = replay.simulate if self.is_replayed else simulate_steady
        return timed(scenario, simulate=simulate).samples_per_s

    @cached_property
    def own_samples_per_s(self) -> float:
        """This one's own."""
        return self.samples_per_s(self.scenario) if self.is_replayed else self.run.samples_per_s

    def turned(self, knob: Knob) -> Turned:
        """The elasticity of the throughput to a knob, by central differences of the logarithms."""
        longer_s = self._longer_s(knob) if self.is_replayed else None
        if longer_s is not None:
            return self._replayed(knob, *longer_s)
        slower, faster = (
            math.log(self.samples_per_s(self._on(knob.slowed(self.scenario.cluster, math.exp(step)))))
            for step in (self.step, -self.step)
        )
        return Turned(_rounded(knob.sign * (faster - slower) / (2 * self.step)))

    def _replayed(self, knob: Knob, slower_s: Times, faster_s: Times) -> Turned:
        """By one replay of the prediction and of all draws. slower_s, faster_s: as `_longer_s` tells them."""
        if not slower_s.any():
            return Turned(0.0, 0.0, 0.0)
        seconds, slowness = self._own_s[:, None], np.ones(1)
        if 2 * _DRAWS * len(self._program) <= _MOST_REPLAYED:
            seconds, slowness = self._drawn_s, self._slownesses.get(knob.quantity, slowness)
        each = [seconds + longer_s[:, None] * slowness for longer_s in (slower_s, faster_s)]
        times_s = np.log(replayed_s(self._program, np.hstack(each)))
        value, *drawn = knob.sign * np.subtract(*np.split(times_s, 2)) / (2 * STEP)
        if not drawn:
            return Turned(_rounded(value))
        low, high = np.quantile(drawn, _QUANTILES, method="hazen").tolist()
        return Turned(_rounded(value), _rounded(low), _rounded(high))

    def _longer_s(self, knob: Knob) -> tuple[Times, Times] | None:
        """How much longer each task takes where the knob is slower, and where it is faster; None where tasks do not tell."""
        quantity = QUANTITIES.get(knob.quantity)
        if quantity is not None and knob.slowed is quantity.slowed and knob.quantity in self._known:
            more_s = self._answer.more_s.get(knob.quantity, np.zeros(len(self._program)))
            return more_s * math.expm1(STEP), more_s * math.expm1(-STEP)
        slower_s = self._grown_s(knob, STEP)
        faster_s = slower_s if slower_s is None or not slower_s.any() else self._grown_s(knob, -STEP)
        return None if slower_s is None or faster_s is None else (slower_s, faster_s)

    def _grown_s(self, knob: Knob, step: float) -> Times | None:
        cluster = knob.slowed(self.scenario.cluster, math.exp(step))
        job = self.scenario.job(unevenness=self.scenario.unevenness)
        return grown_s(self._program, self.scenario.strategy.compile(replace(job, cluster=cluster)))

    def _on(self, cluster: Cluster) -> Scenario:
        return self.scenario.model_copy(update={"cluster": cluster})

    @cached_property
    def _answer(self) -> Response:
        return responding(self.scenario, self._program, least=0.0)

    @cached_property
    def _known(self) -> set[str]:
        """Quantities of which it is known how tasks follow from them, if they do."""
        return {name for name in doubtful(self.scenario) if name not in self._answer.whole}

    @cached_property
    def _slownesses(self) -> Mapping[str, Times]:
        """By quantity: as the cluster says, and then of each draw."""
        together = JointDraws(self.scenario, self.scenario, (self._answer.names, ()))
        drawn, _ = together.slownesses(normal_draws(_DRAWS, np.zeros(len(together))))
        return {name: np.append(1.0, slownesses) for name, slownesses in drawn.items()}

    @cached_property
    def _drawn_s(self) -> Times:
        """Seconds of each task, as predicted, and then for each draw."""
        seconds = np.repeat(self._own_s[:, None], 1 + _DRAWS, axis=1)
        for name, more_s in self._answer.more_s.items():
            seconds += np.outer(more_s, self._slownesses[name] - 1)
        return seconds


def _rounded(value: float) -> float:
    """What does not follow from a number follows from it by no more than rounding."""
    return round(float(value), 9) + 0.0
