"""Facts about a calibration other than its points, stored as a row of their table so that fits can be repeated."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.probe.points import NARROW, Point
from scaleproof.validator.record import provenance as environment

# Probe of the row.
_PROBE: Final = "site"


@dataclass(frozen=True)
class CalibrationFacts:
    """on: local, netlab or cluster. nodes: of each rank. precision: of the computations. base: data of the YAML file that
    describes the measured cluster; None for a machine without one. provenance: where, when and with what it was measured."""

    on: str = "local"
    nodes: tuple[int, ...] = ()
    precision: str = "fp32"
    base: Mapping[str, Any] | None = None
    provenance: Mapping[str, str] = field(default_factory=dict)

    def point(self) -> Point:
        """The facts as a row of the table."""
        texts = {"on": self.on, "precision": self.precision, "base": self.base, "provenance": dict(self.provenance)}
        ranks = tuple(range(len(self.nodes)))
        numbers = {str(rank): float(node) for rank, node in enumerate(self.nodes)}
        return Point(_PROBE, json.dumps(texts), "", ranks, "", 0.0, "", (), NARROW, 0.0, numbers)

    @classmethod
    def of(cls, points: Sequence[Point], where: str) -> Self:
        """The facts in a table. where: name of the table, for messages. Raises InputError if it has none."""
        row = next((point for point in points if point.probe == _PROBE), None)
        try:
            texts = json.loads(row.what) if row else None
        except ValueError:
            texts = None
        if row is None or not isinstance(texts, dict):
            raise InputError(f"{where}: no row says where its points were measured; give a table that calibrate wrote")
        nodes = tuple(int(row.numbers[str(rank)]) for rank in row.ranks)
        return cls(texts["on"], nodes, texts["precision"], texts["base"], texts["provenance"])


def provenance() -> dict[str, str]:
    """Where, when and with what a cluster is measured."""
    return environment.of_process() | {"scaleproof": _version()}


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("scaleproof")
    except PackageNotFoundError:
        return "not installed"
