"""Frameworks: what training software does beyond a model's mathematics, as data that ships in scenarios/frameworks/."""

from simulator.frameworks.execution import Execution, Work
from simulator.frameworks.framework import ABLATIONS, IDEAL, Framework
from simulator.frameworks.library import shipped
from simulator.frameworks.memory import Loss, MemoryBehaviour

__all__ = ["ABLATIONS", "IDEAL", "Execution", "Framework", "Loss", "MemoryBehaviour", "Work", "shipped"]
