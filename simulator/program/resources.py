"""Resources that tasks share, and the amounts that each task uses."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.csr import CsrLists
from scaleproof.simulator.common.speed_profile import Cycle

Rows = NDArray[np.int64]


class Use(NamedTuple):
    """A task uses `per_unit` of a resource's capacity per unit of its own rate; folded equivalent ranks multiply it."""

    resource: int
    per_unit: float = 1.0


class Tenancy(NamedTuple):
    """Other users' occupation of a resource while `cycle` is active: a share of its capacity, and in addition unlimited
    activities with this total weight."""

    resource: int
    cycle: Cycle
    share: float
    weight: float


@dataclass(frozen=True)
class Resources:
    """Shared resources: names and capacities in units of rate (cores, bytes per second).

    incast: loss of capacity per additional user: capacity / (1 + incast · (users − 1)), where users is the sum of `per_unit`
    over the resource's activities (folded equivalent ranks count individually). tenancies: occupation by other users.
    """

    names: tuple[str, ...]
    capacity: NDArray[np.float64]
    incast: NDArray[np.float64]
    tenancies: tuple[Tenancy, ...] = ()


class ResourceTable:
    """Resources and routes that are being collected. names, capacities, incasts: of the resources, by number."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.capacities: list[float] = []
        self.incasts: list[float] = []
        self._routes: dict[tuple[Use, ...], int] = {(): 0}

    def add(self, name: str, capacity: float, incast: float = 0.0) -> int:
        """Adds a resource and returns its number."""
        self.names.append(name)
        self.capacities.append(capacity)
        self.incasts.append(incast)
        return len(self.names) - 1

    def route(self, uses: tuple[Use, ...]) -> int:
        """The number of the route with these uses."""
        return self._routes.setdefault(uses, len(self._routes))

    def copy(self) -> ResourceTable:
        """A table with the same resources and routes, to which others can be added."""
        result = ResourceTable()
        result.names, result.capacities, result.incasts = [*self.names], [*self.capacities], [*self.incasts]
        result._routes = {**self._routes}
        return result

    @property
    def capacity(self) -> NDArray[np.float64]:
        """Capacity of each resource."""
        return np.array(self.capacities, dtype=np.float64)

    def built(self) -> tuple[Resources, Routes]:
        """All resources and routes."""
        resources = Resources(tuple(self.names), self.capacity, np.array(self.incasts, dtype=np.float64))
        return resources, Routes.of(list(self._routes))


@dataclass(frozen=True)
class Routes:
    """Sets of resources that tasks use: route r uses the resources of list r, and `per_unit` of each, in the order of the
    lists' values."""

    resources: CsrLists
    per_unit: NDArray[np.float64]

    @classmethod
    def of(cls, routes: Sequence[Sequence[Use]]) -> Routes:
        """The routes with the given uses."""
        per_unit = [use.per_unit for uses in routes for use in uses]
        return cls(
            CsrLists.from_lists([[use.resource for use in uses] for uses in routes]), np.array(per_unit, dtype=np.float64)
        )

    def used(self, route: NDArray[np.integer]) -> tuple[Rows, Rows, NDArray[np.float64]]:
        """Uses of the given routes, one entry per use: index into `route`, number of the resource, and amount per unit of
        rate."""
        uses = CsrLists(self.resources.offsets, np.arange(len(self.per_unit))).take(route)
        return uses.keys(), self.resources.values[uses.values], self.per_unit[uses.values]

    def lists(self) -> list[list[Use]]:
        """The uses of each route."""
        flat = list(map(Use, self.resources.values.tolist(), self.per_unit.tolist()))
        return [flat[a:b] for a, b in itertools.pairwise(self.resources.offsets.tolist())]
