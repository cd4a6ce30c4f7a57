"""Facts: what is known of a calibration beside its points, kept as a row of their table so that fits can be made again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.probe.points import NARROW, Point
from scaleproof.validator.record import provenance as environment

# The row's probe.
_PROBE: Final = "site"


@dataclass(frozen=True)
class CalibrationFacts:
    """on: local, netlab or cluster. nodes: of each rank. precision: of what was computed. base: the description that was
    measured, as its YAML file has it; None for a machine without one. provenance: where, when and with what."""

    on: str = "local"
    nodes: tuple[int, ...] = ()
    precision: str = "fp32"
    base: Mapping[str, Any] | None = None
    provenance: Mapping[str, str] = field(default_factory=dict)

    def point(self) -> Point:
        """The row."""
        told = {"on": self.on, "precision": self.precision, "base": self.base, "provenance": dict(self.provenance)}
        ranks = tuple(range(len(self.nodes)))
        numbers = {str(rank): float(node) for rank, node in enumerate(self.nodes)}
        return Point(_PROBE, json.dumps(told), "", ranks, "", 0.0, "", (), NARROW, 0.0, numbers)

    @classmethod
    def of(cls, points: Sequence[Point], where: str) -> Self:
        """What the table says. where: its name, for messages. Raises InputError where it says nothing."""
        row = next((point for point in points if point.probe == _PROBE), None)
        try:
            told = json.loads(row.what) if row else None
        except ValueError:
            told = None
        if row is None or not isinstance(told, dict):
            raise InputError(f"{where}: nothing tells where its points were measured; give a table that calibrate wrote")
        nodes = tuple(int(row.numbers[str(rank)]) for rank in row.ranks)
        return cls(told["on"], nodes, told["precision"], told["base"], told["provenance"])


def provenance() -> dict[str, str]:
    """Where and when a cluster was measured, and with what."""
    return environment.of_process() | {"scaleproof": _version()}


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("scaleproof")
    except PackageNotFoundError:
        return "not installed"
