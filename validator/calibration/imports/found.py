"""Result of an import: points, the machines they were measured on, and notes on what was left out or assumed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scaleproof.validator.calibration.imports.reading import ImportNotes

if TYPE_CHECKING:
    from scaleproof.validator.probe.points import Point


@dataclass(frozen=True)
class Machines:
    """The measured machines. gpu: name given by the driver. nodes: their number. devices: per node. 0 or "" if unknown."""

    gpu: str = ""
    nodes: int = 0
    devices: int = 0


@dataclass
class ImportResult:
    """tool: that wrote the files. files: their paths. machines: the largest that was measured on."""

    tool: str
    files: Sequence[str]
    machines: Machines
    points: list[Point]
    notes: ImportNotes = field(default_factory=ImportNotes)


def ranks_text(ranks: int) -> str:
    """The first `ranks` ranks as text: 'ranks 0-7'."""
    return f"ranks 0-{ranks - 1}" if ranks > 1 else "rank 0"


def group_text(ranks: int, nodes: int) -> str:
    """Class of a collective's group: '4 ranks on 4 nodes'."""
    return f"{ranks} ranks on {nodes} nodes"
