"""Steps: how many a rank takes, those that are not measured among them."""

from __future__ import annotations

from typing import Final

from scaleproof.simulator.scenario.schema import Scenario

# In the first step buffers are sized and pipeline stages exchange shapes, in the second buckets are cut anew.
_MIN_WARMUP_STEPS: Final = 2


def warmup_steps(scenario: Scenario) -> int:
    """Steps before those that are measured."""
    return max(_MIN_WARMUP_STEPS, scenario.training.warmup_steps)


def total_steps(scenario: Scenario) -> int:
    """All that are trained."""
    return warmup_steps(scenario) + scenario.steps
