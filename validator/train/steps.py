"""The number of steps that ranks take, warm-up steps included."""

from __future__ import annotations

from typing import Final

from scaleproof.simulator.scenario.schema import Scenario

# In the first step buffers are sized and pipeline stages exchange shapes, in the second DDP rebuilds its buckets.
_MIN_WARMUP_STEPS: Final = 2


def warmup_steps(scenario: Scenario) -> int:
    """Number of steps before the measured ones."""
    return max(_MIN_WARMUP_STEPS, scenario.training.warmup_steps)


def total_steps(scenario: Scenario) -> int:
    """Number of all trained steps."""
    return warmup_steps(scenario) + scenario.steps
