"""What an import found: points, on what machines, and what had to be left out or assumed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scaleproof.validator.calibration.imports.reading import ImportNotes

if TYPE_CHECKING:
    from scaleproof.validator.probe.points import Point


@dataclass(frozen=True)
class Machines:
    """Whose numbers they are. gpu: as the driver calls it. nodes: how many. devices: of each node. 0 where unknown."""

    gpu: str = ""
    nodes: int = 0
    devices: int = 0


@dataclass
class ImportResult:
    """tool: whose output was read. files: which. machines: the largest that was measured on."""

    tool: str
    files: Sequence[str]
    machines: Machines
    points: list[Point]
    notes: ImportNotes = field(default_factory=ImportNotes)


def ranks_text(ranks: int) -> str:
    """'ranks 0-7': the first so many."""
    return f"ranks 0-{ranks - 1}" if ranks > 1 else "rank 0"


def group_text(ranks: int, nodes: int) -> str:
    """'4 ranks on 4 nodes': the class of a collective's group."""
    return f"{ranks} ranks on {nodes} nodes"
