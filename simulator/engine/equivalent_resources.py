"""Resources that always have the same users: one of them holds these up as much as all do."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from scaleproof.simulator.common.csr import Ragged, in_order
from scaleproof.simulator.program import Program, Routes, Tenancy


def distinct(program: Program) -> Routes:
    """A program's routes, without resources of which another has the same capacity, tenants and uses: network cards of a node
    that every message is spread over, links that only follow one another."""
    routes, resources = program.routes, program.resources
    taken = np.zeros(len(routes.resources), dtype=np.bool_)
    taken[program.route] = True
    route = routes.resources.keys()
    entries = np.flatnonzero(taken[route])
    entries = entries[in_order(routes.resources.values[entries])]
    used, route, per_unit = routes.resources.values[entries], route[entries], routes.per_unit[entries]
    bounds = np.searchsorted(used, np.arange(len(resources.names) + 1)).tolist()
    kinds = zip(resources.capacity.tolist(), resources.incast.tolist(), strict=True)
    taken_by: dict[int, tuple[Tenancy, ...]] = {}
    for one in resources.tenancies:
        taken_by[one.resource] = (*taken_by.get(one.resource, ()), one._replace(resource=0))
    first: dict[tuple[Hashable, ...], int] = {}
    keep = np.zeros(len(resources.names), dtype=np.bool_)
    for resource, (capacity, incast) in enumerate(kinds):
        of_it = slice(bounds[resource], bounds[resource + 1])
        key = (capacity, incast, taken_by.get(resource), route[of_it].tobytes(), per_unit[of_it].tobytes())
        keep[resource] = first.setdefault(key, resource) == resource
    kept = keep[routes.resources.values]
    offsets = np.append(0, np.cumsum(kept))[routes.resources.offsets]
    return Routes(Ragged(offsets, routes.resources.values[kept]), routes.per_unit[kept])
