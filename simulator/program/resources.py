"""Resources: what tasks share, and which of it each uses."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.csr import Ragged
from scaleproof.simulator.program.speed_profile import Cycle

Rows = NDArray[np.int64]


class Use(NamedTuple):
    """A task uses `per_unit` of a resource's capacity for each unit of its own rate (alike ranks count as many)."""

    resource: int
    per_unit: float = 1.0


class Tenancy(NamedTuple):
    """What somebody else takes of a resource while `cycle` is on: a share of its capacity, and as much besides as activities
    of this weight together that have no limit."""

    resource: int
    cycle: Cycle
    share: float
    weight: float


@dataclass(frozen=True)
class Resources:
    """What tasks share: names, and capacity in units of rate (cores, bytes per second).

    incast: how much of its capacity a resource loses for each user beyond the first: capacity / (1 + incast · (users − 1)),
    where users is the sum of what its activities use per unit of their rates (folded alike ranks count as many).
    tenancies: what others take of them meanwhile.
    """

    names: tuple[str, ...]
    capacity: NDArray[np.float64]
    incast: NDArray[np.float64]
    tenancies: tuple[Tenancy, ...] = ()


@dataclass(frozen=True)
class Routes:
    """Sets of resources that tasks use: route r uses those of `resources`' list r, `per_unit` (as long as its values) each."""

    resources: Ragged
    per_unit: NDArray[np.float64]

    @classmethod
    def of(cls, routes: Sequence[Sequence[Use]]) -> Routes:
        per_unit = [use.per_unit for uses in routes for use in uses]
        return cls(Ragged.of([[use.resource for use in uses] for uses in routes]), np.array(per_unit, dtype=np.float64))

    def used(self, route: NDArray[np.integer]) -> tuple[Rows, Rows, NDArray[np.float64]]:
        """What those use that take these routes: which of them, the resource, and how much per unit; an entry for each use."""
        uses = Ragged(self.resources.offsets, np.arange(len(self.per_unit))).take(route)
        return uses.keys(), self.resources.values[uses.values], self.per_unit[uses.values]

    def lists(self) -> list[list[Use]]:
        """What each route uses."""
        flat = list(map(Use, self.resources.values.tolist(), self.per_unit.tolist()))
        return [flat[a:b] for a, b in itertools.pairwise(self.resources.offsets.tolist())]
