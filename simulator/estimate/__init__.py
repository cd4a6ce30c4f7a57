"""Estimate: step time and memory of many configurations at once, from the costs that programs are compiled of."""

from simulator.estimate.configurations import Configurations, Space, every
from simulator.estimate.memory import memory_bytes
from simulator.estimate.times import StepTimes, step_times

__all__ = ["Configurations", "Space", "StepTimes", "every", "memory_bytes", "step_times"]
