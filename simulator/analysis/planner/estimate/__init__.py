"""Estimate: step time and memory of many configurations at once, from the costs that programs are compiled of."""

from scaleproof.simulator.analysis.planner.estimate.configurations import Configurations, Space, every
from scaleproof.simulator.analysis.planner.estimate.memory.peak import memory_bytes
from scaleproof.simulator.analysis.planner.estimate.step_times import StepTimes, step_times

__all__ = ["Configurations", "Space", "StepTimes", "every", "memory_bytes", "step_times"]
