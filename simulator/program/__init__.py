"""Program: what a strategy compiles to and an engine times. Columns, not objects.

One training step as a table of tasks, repeated step after step. A task runs when every task it depends on has ended and the
task before it in its lane has ended, the last of the previous step included. Alike ranks are folded into one rank class when
the program is built; what they share is told by how often a task uses a resource.
"""

from __future__ import annotations

from scaleproof.simulator.program.builder import Path, ProgramBuilder
from scaleproof.simulator.program.resources import Resources, Routes, Rows, Tenancy, Use
from scaleproof.simulator.program.table import COLLECTIVE_LANE, MAIN_LANE, NO_LANE, Kind, Program, RankClasses, followers

__all__ = [
    "COLLECTIVE_LANE", "MAIN_LANE", "NO_LANE", "Kind", "Path", "Program", "ProgramBuilder", "RankClasses", "Resources",
    "Routes", "Rows", "Tenancy", "Use", "followers",
]  # fmt: skip
