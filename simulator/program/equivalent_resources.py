"""Removal of equivalent resources: of resources that always have the same users, one limits these as much as all do."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from scaleproof.simulator.common.csr import CsrLists, in_order
from scaleproof.simulator.program import Program, Routes, Tenancy


def distinct(program: Program) -> Routes:
    """A program's routes with one resource of each group that has the same capacity, tenants and uses, such as the network
    cards of a node over which each message is spread, or links in series."""
    routes, resources = program.routes, program.resources
    is_used = np.zeros(len(routes.resources), dtype=np.bool_)
    is_used[program.route] = True
    route = routes.resources.keys()
    entries = np.flatnonzero(is_used[route])
    entries = entries[in_order(routes.resources.values[entries])]
    used, route, per_unit = routes.resources.values[entries], route[entries], routes.per_unit[entries]
    bounds = np.searchsorted(used, np.arange(len(resources.names) + 1)).tolist()
    kinds = zip(resources.capacity.tolist(), resources.incast.tolist(), strict=True)
    tenancies: dict[int, tuple[Tenancy, ...]] = {}
    for tenancy in resources.tenancies:
        tenancies[tenancy.resource] = (*tenancies.get(tenancy.resource, ()), tenancy._replace(resource=0))
    first: dict[tuple[Hashable, ...], int] = {}
    keep = np.zeros(len(resources.names), dtype=np.bool_)
    for resource, (capacity, incast) in enumerate(kinds):
        uses = slice(bounds[resource], bounds[resource + 1])
        key = (capacity, incast, tenancies.get(resource), route[uses].tobytes(), per_unit[uses].tobytes())
        keep[resource] = first.setdefault(key, resource) == resource
    kept = keep[routes.resources.values]
    offsets = np.append(0, np.cumsum(kept))[routes.resources.offsets]
    return Routes(CsrLists(offsets, routes.resources.values[kept]), routes.per_unit[kept])
