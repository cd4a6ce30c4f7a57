"""Estimate: expected step time, lower bound and memory of many configurations at once, computed from the costs that programs
have.

docs/background/how-it-estimates.md explains how it works.
"""

from scaleproof.simulator.analysis.planner.estimate.configurations import Configurations, Space, by_lengths, every
from scaleproof.simulator.analysis.planner.estimate.memory import memory_bytes
from scaleproof.simulator.analysis.planner.estimate.mixed_nodes import MixedConfigurations, every_mixed
from scaleproof.simulator.analysis.planner.estimate.step_times import StepTimes, step_times

__all__ = [
    "Configurations",
    "MixedConfigurations",
    "Space",
    "StepTimes",
    "by_lengths",
    "every",
    "every_mixed",
    "memory_bytes",
    "step_times",
]
