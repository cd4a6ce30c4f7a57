"""All that is predicted of a scenario, as texts that are equal where the predictions are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from scaleproof.simulator.analysis.elastic import elastic
from scaleproof.simulator.analysis.goodput import goodput
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.run.totals import Estimate, TrainingTotals
from scaleproof.simulator.scenario.schema import Scenario

# Fields of results that repeat the scenario.
_REPEATED: Final = ("scenario", "strategy", "framework", "framework_is_default", "spans", "rank_names")


def _written(result: Any) -> str:
    return repr({name: value for name, value in vars(result).items() if name not in _REPEATED})


def _step(scenario: Scenario) -> str:
    """Times, scaling, FLOPs, memory, energy and cost, and totals of training on a number of tokens."""
    run = predict(scenario, interval=False, remedy=False)
    return _written(run) + (_totals(run, scenario) if run.tokens else "")


def _totals(run: Run, scenario: Scenario) -> str:
    step_s = Estimate(value=run.step_time_s, low=run.step_time_s, high=run.step_time_s)
    bills = run.cost_USD, run.energy_J
    return _written(TrainingTotals.of(1e9, run.tokens, run.ranks, step_s, bills, scenario.cluster.electricity.carbon_kg_per_J))


def _interval(scenario: Scenario) -> str:
    """The prediction interval, its causes and the distribution of single steps; what helps if memory does not suffice."""
    return _written(predict(scenario))


def _reliability(scenario: Scenario) -> str:
    """Goodput, and the timeline of hosts that come and go."""
    if scenario.reliability is None:
        return ""
    if scenario.reliability.events:
        return _written(elastic(scenario))
    return _written(goodput(scenario, days=20, samples=50))


# The cheapest first.
KINDS: Final[tuple[Callable[[Scenario], str], ...]] = (_step, _reliability, _interval)
