"""The number of steps that ranks take, warm-up steps included."""

from __future__ import annotations

from typing import Final

from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import ParameterServer

# In the first step buffers are sized and pipeline stages exchange shapes, in the second DDP rebuilds its buckets.
_MIN_WARMUP_STEPS: Final = 2


def warmup_steps(scenario: Scenario) -> int:
    """Number of steps before the measured ones."""
    return max(_MIN_WARMUP_STEPS, scenario.training.warmup_steps)


def total_steps(scenario: Scenario) -> int:
    """Number of all trained steps; with units of work, the most steps that a worker may take."""
    return warmup_steps(scenario) + measured_steps(scenario)


def measured_steps(scenario: Scenario) -> int:
    """Number of steps after the warm-up; with units of work, the most that a worker may take."""
    strategy = scenario.strategy
    if not isinstance(strategy, ParameterServer) or strategy.units is None:
        return scenario.steps
    return strategy.units if strategy.assignment == "dynamic" else -(-strategy.units // strategy.workers)


def steps_of_worker(scenario: Scenario, worker: int) -> int:
    """Number of all steps of a worker; with fixed units of work, the first workers have one more if they cannot be equal."""
    strategy = scenario.strategy
    if not isinstance(strategy, ParameterServer) or strategy.units is None or strategy.assignment == "dynamic":
        return total_steps(scenario)
    share, more = divmod(strategy.units, strategy.workers)
    return warmup_steps(scenario) + share + (worker < more)
