"""The intermediate representation: a strategy compiles to a Program, and an engine times it.

A program holds one training step as a table of tasks, and the step repeats. A task starts when all its dependencies have ended
and the previous task on its stream has ended; the first task of a stream waits for the last one of the previous step.
Equivalent ranks are folded into one rank class when the program is built; how often a task uses a resource accounts for the
ranks that were folded.
"""

from __future__ import annotations

from scaleproof.simulator.program.builder import ProgramBuilder
from scaleproof.simulator.program.costs import Path, PathOf, Prices, SecondsOf
from scaleproof.simulator.program.resources import Resources, ResourceTable, Routes, Rows, Tenancy, Use
from scaleproof.simulator.program.table import (
    ACTIVATIONS_IN_STREAM,
    ACTIVATIONS_OUT_STREAM,
    COLLECTIVE_STREAM,
    MAIN_STREAM,
    NO_STREAM,
    STATES_IN_STREAM,
    STATES_OUT_STREAM,
    Kind,
    Program,
    RankClasses,
    followers,
)

__all__ = [
    "ACTIVATIONS_IN_STREAM", "ACTIVATIONS_OUT_STREAM", "COLLECTIVE_STREAM", "MAIN_STREAM", "NO_STREAM", "STATES_IN_STREAM",
    "STATES_OUT_STREAM", "Kind", "Path", "PathOf", "Prices", "Program", "ProgramBuilder", "RankClasses", "ResourceTable",
    "Resources", "Routes", "Rows", "SecondsOf", "Tenancy", "Use", "followers",
]  # fmt: skip
