"""Search for the configurations that are best by prediction, in the order of their lower bounds.

A configuration has up to three bounds, each closer to its prediction and more costly than the one before: that of its estimate;
its replay as if no messages shared links, or the time that its most used link needs, as sharing only lengthens; and its
prediction with shared links, which is its value.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.candidates import Candidates
from scaleproof.simulator.analysis.planner.objectives import Objective
from scaleproof.simulator.analysis.planner.words import layout
from scaleproof.simulator.engine import (
    NEGLIGIBLE,
    NONE,
    Timeline,
    Variation,
    busiest_s,
    replay,
    shares_negligibly,
    simulate_steady,
)
from scaleproof.simulator.predict import timed
from scaleproof.simulator.prediction.accounting import accounted
from scaleproof.simulator.program import Program
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.uncertainty.error_model import memory_error

Times = NDArray[np.float64]
Numbers = NDArray[np.int64]

# A replay takes between a hundredth of a second and some seconds, a prediction with shared links up to ten times as long; a
# plan that needs more of either is reported as not proved.
_MOST_REPLAYS: Final = 300
_MOST_PREDICTIONS: Final = 60
# Number of further configurations that are replayed where none can be proved to be the best.
_MOST_UNPROVED: Final = 60
# Kinds of configurations that are replayed for each that is returned: where links are shared, estimates may be far off.
_REPLAYED_PER_CHOICE: Final = 2
# Number of nodes of networks with different links up to which replays compile them.
_MOST_FOLDED: Final = 256
# Number of riskier configurations that are predicted.
_MOST_RISKIER: Final = 3


@dataclass(frozen=True)
class PlanChoice:
    """A configuration with its prediction.

    row: its row in the candidates. value: of the objective; less is better. memory_bytes: of the rank with the most memory.
    fits_probability: that this fits the device; None where the error of predicted memory is not known.
    """

    row: int
    scenario: Scenario
    run: Run
    value: float
    memory_bytes: float
    fits_probability: float | None

    def __repr__(self) -> str:
        return repr(self.run)


class BoundedSearch:
    """Predicts configurations, and keeps the best of those that differ in bucket size or rank order alone."""

    def __init__(
        self,
        candidates: Candidates,
        objective: Objective,
        memory_bytes: Times,
        top: int,
        report_progress: Callable[[str], None],
    ) -> None:
        self._configurations, self._objective, self._memory_bytes = candidates, objective, memory_bytes
        self._top, self._progress = top, report_progress
        self._best: dict[Hashable, PlanChoice] = {}
        self._exact: dict[int, Run] = {}
        self._nodes = candidates.nodes()
        self.replayed = self.predicted = 0

    def run(self, rows: Numbers, expected_s: Times, lower_bound_s: Times) -> bool:
        """Predicts configurations until none of the rest can be the best; returns False where that would take too many.

        Those expected to be the best come first, to have a value to compare with; then all by increasing lower bound, or the
        next expected ones if too many have lower bounds below that value.
        """
        expected, least = self._values(expected_s), self._values(lower_bound_s)
        by_expected = rows[np.argsort(expected[rows], kind="stable")]
        likely = self._likely(by_expected)
        replayed = sorted((self._replayed(row), row) for row in likely)
        first = self._first(replayed)
        for row in first:
            self._keep(self.prediction(row))
        replayed = [(bound, row) for bound, row in replayed if row not in first]
        left = by_expected[(least[by_expected] < self.best()[0].value) & ~np.isin(by_expected, likely)]
        if len(left) > _MOST_REPLAYS:
            for row in left[:_MOST_UNPROVED].tolist():
                heapq.heappush(replayed, (self._replayed(row), row))
            self._predict_below(np.inf, replayed)
            return False
        for row in left[np.argsort(least[left], kind="stable")].tolist():
            if not self._predict_below(least[row], replayed):
                return False
            if least[row] >= self.best()[0].value:
                return True
            heapq.heappush(replayed, (self._replayed(row), row))
        return self._predict_below(np.inf, replayed)

    def _predict_below(self, limit: float, replayed: list[tuple[float, int]]) -> bool:
        """Predicts the replayed configurations whose bounds are below the limit and below the best value, least first; returns
        False at the limit of predictions. replayed: a heap of bounds and rows."""
        while replayed and replayed[0][0] < min(limit, self.best()[0].value):
            if self.predicted >= _MOST_PREDICTIONS:
                return False
            self._keep(self.prediction(heapq.heappop(replayed)[1]))
        return True

    def _likely(self, rows: Numbers) -> list[int]:
        """The first of each of the first kinds of configurations, and the first with other degrees of model parallelism.

        rows: the best expected ones first.
        """
        kinds = dict[Hashable, int]()
        for row in rows.tolist():
            kinds.setdefault(self._configurations.kind(row), row)
            if len(kinds) == _REPLAYED_PER_CHOICE * self._top:
                break
        return list(dict.fromkeys([*kinds.values(), *self._configurations.first_of_degrees(rows)[:2]]))

    def _first(self, replayed: list[tuple[float, int]]) -> list[int]:
        """The first of the replayed configurations, and the first with other degrees of model parallelism."""
        rows = np.array([row for _, row in replayed])
        return list(dict.fromkeys([*rows[: self._top].tolist(), *self._configurations.first_of_degrees(rows)[:2]]))

    def riskier(self, rows: Numbers, expected_s: Times, lower_bound_s: Times) -> PlanChoice | None:
        """The best of some configurations that fit with a lower probability, if it is better than the best of the search."""
        best, least = self.best()[0].value, self._values(lower_bound_s)
        rows = rows[least[rows] < best]
        rows = rows[np.argsort(self._values(expected_s)[rows], kind="stable")]
        kinds = {self._configurations.kind(row): row for row in rows[::-1].tolist()}
        found: PlanChoice | None = None
        for row in list(kinds.values())[::-1][:_MOST_RISKIER]:
            if least[row] < best:
                choice = self.prediction(row)
                if choice.value < best:
                    found, best = choice, choice.value
        return found

    def _values(self, seconds: Times, rows: Numbers | slice = slice(None)) -> Times:
        """Lower bounds of the objective for steps of these durations, of some rows or all."""
        if self._objective == "time":
            return seconds
        cluster = self._configurations.base.cluster
        least_W = cluster.node.power_W if cluster.node.idle_power_W is None else cluster.node.idle_power_W
        per_s = least_W if self._objective == "energy" else cluster.node_USD_per_s(least_W)
        assert per_s is not None
        return seconds * self._nodes[rows] * per_s

    def _replayed(self, row: int) -> float:
        """A lower bound of the objective: as if nothing were shared, or if the most used resource were busy all the time. Where
        sharing is negligible, it is the prediction, which is kept."""
        self._progress(f"replaying {layout(self._configurations.row(row))}")
        scenario, busy_s, is_exact = self._configurations.scenario(row), 0.0, False
        # equivalent links of large networks are folded for the engine that shares them, which takes longer than the replay
        shares_links = scenario.cluster.is_uniform or scenario.cluster.nodes <= _MOST_FOLDED
        served = self._configurations.is_served(row)

        def simulate(program: Program, steps: int, variation: Variation = NONE) -> Timeline:
            nonlocal busy_s, is_exact
            if served:
                # requests to parameter servers may overtake each other, which replay does not model
                is_exact = True
                return simulate_steady(program, steps, variation)
            timeline = replay.simulate(program, steps, variation)
            if shares_links:
                busy_s = busiest_s(program) / scenario.strategy.program_steps / (1 + NEGLIGIBLE)
                is_exact = not program.resources.tenancies and shares_negligibly(timeline, variation)
            return timeline

        run = accounted(timed(scenario, simulate=simulate, shares_links=shares_links), scenario)
        self.replayed += 1
        if is_exact:
            self._exact[row] = run
        return max(self._value(run), float(self._values(np.array([busy_s]), np.array([row]))[0]))

    def prediction(self, row: int) -> PlanChoice:
        """A configuration with its prediction."""
        self._progress(f"predicting {layout(self._configurations.row(row))}")
        scenario, memory_bytes = self._configurations.scenario(row), float(self._memory_bytes[row])
        run = self._exact.pop(row, None) or accounted(timed(scenario), scenario)
        self.predicted += 1
        error = memory_error(scenario)
        fits = error and error.below(scenario.cluster.device.capacity_bytes / memory_bytes)
        return PlanChoice(row, scenario, run, self._value(run), memory_bytes, fits)

    def _keep(self, choice: PlanChoice) -> None:
        kind = self._configurations.kind(choice.row)
        known = self._best.get(kind)
        if known is None or (choice.value, choice.row) < (known.value, known.row):
            self._best[kind] = choice

    def _value(self, run: Run) -> float:
        """The objective of a run: seconds, US dollars or joules of a step."""
        if self._objective == "time":
            return run.step_time_s
        if self._objective != "energy":
            assert run.cost_USD is not None
            return run.cost_USD["per_step"]
        assert run.energy_J is not None
        return run.energy_J["per_step"] / self._configurations.base.cluster.pue

    def best(self) -> tuple[PlanChoice, ...]:
        """One configuration of each kind that was predicted, the best first."""
        return tuple(sorted(self._best.values(), key=lambda one: (one.value, one.row)))

    def runner_up(self) -> PlanChoice | None:
        """The best configuration whose degrees of model parallelism differ from those of the best."""
        first, *others = self.best()
        degrees = self._configurations.degrees
        return next((one for one in others if degrees[one.row] != degrees[first.row]), None)
