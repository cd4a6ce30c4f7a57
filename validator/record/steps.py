"""The number of steps that ranks take, warm-up steps included."""

from __future__ import annotations

from typing import Final

from scaleproof.simulator.common.parameter_server import WorkQuota
from scaleproof.simulator.parallelism import ParameterServer
from scaleproof.simulator.scenario.schema import Scenario

# In the first step buffers are sized and pipeline stages exchange shapes, in the second DDP rebuilds its buckets.
_MIN_WARMUP_STEPS: Final = 2


def warmup_steps(scenario: Scenario) -> int:
    """Number of steps before the measured ones."""
    return max(_MIN_WARMUP_STEPS, scenario.training.warmup_steps)


def total_steps(scenario: Scenario) -> int:
    """Number of all trained steps; with units of work, the most steps that a worker may take."""
    return steps_of_worker(scenario, 0)


def measured_steps(scenario: Scenario, worker: int = 0) -> int:
    """Number of steps of a worker after the warm-up; with units of work, the most that it may take.

    The first worker has no fewer than others.
    """
    quota = quota_of(scenario)
    return scenario.steps if quota is None else quota.most_steps(worker, scenario.strategy.workers)


def steps_of_worker(scenario: Scenario, worker: int) -> int:
    """Number of all steps of a worker; with units of work that workers share, the most that it may take."""
    return warmup_steps(scenario) + measured_steps(scenario, worker)


def quota_of(scenario: Scenario) -> WorkQuota | None:
    """The units of work that a scenario's workers take; None if they take steps."""
    strategy = scenario.strategy
    return strategy.quota if isinstance(strategy, ParameterServer) else None
