"""What strategies of other packages are made of; these names stay.

A package defines a class of fields, derived from `Strategy`, and a function that compiles a training step of it, a `Compiler`.
Entry points name both by the kind of the strategy: the class in the group `scaleproof.strategies`, the function in the group
`scaleproof.compilers` (docs/tutorial/add-a-strategy.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from scaleproof.simulator.common.communication import Collective, Communication, Dimension
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.common.spec import Count
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.parallelism import Strategy
from scaleproof.simulator.program import Path, Program
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.layout.resource_map import ResourceMap
from scaleproof.simulator.strategy.step_builder import JobCosts, StepBuilder, backward_s, forward_s

_Fields = TypeVar("_Fields", bound=Strategy)
# A function that compiles one training step of a job, by the fields of a strategy.
Compiler = Callable[[_Fields, Job], Program]

__all__ = [
    "Collective", "Communication", "Compiler", "Count", "Dimension", "FieldError", "Job", "JobCosts", "Layer",
    "Path", "Phase", "Program", "ResourceMap", "StepBuilder", "Strategy", "backward_s", "forward_s",
]  # fmt: skip
