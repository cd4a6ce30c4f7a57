"""Background traffic: what a scenario's tenants use of the resources of its program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from scaleproof.simulator.cluster.perturbations import Tenant
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.program import Program, Tenancy
from scaleproof.simulator.scenario.schema import Scenario

_DIRECTIONS = ("out", "in", "both")
# index of the tenants' phases among the random streams of the seed
_PHASE = 2


def with_background_traffic(program: Program, scenario: Scenario) -> Program:
    """The scenario's program with its tenants' traffic on the links between nodes and the network.

    Raises FieldError if no message of the program uses any link of a tenant.
    """
    tenants = enumerate(scenario.unevenness.tenants)
    tenancies = [tenancy for number, tenant in tenants for tenancy in _tenancies(number, tenant, program, scenario)]
    # a constant share only lowers the capacity, and need not be simulated
    capacity, weights = program.resources.capacity.copy(), _weights(program)
    for tenancy in tenancies:
        if tenancy.cycle.is_for_ever and tenancy.share:
            capacity[tenancy.resource] *= 1 - tenancy.share
    simulated = tuple(
        tenancy._replace(weight=tenancy.weight * float(weights[tenancy.resource]))
        for tenancy in tenancies
        if tenancy.weight or not tenancy.cycle.is_for_ever
    )
    return replace(program, resources=replace(program.resources, capacity=capacity, tenancies=simulated))


def _tenancies(number: int, tenant: Tenant, program: Program, scenario: Scenario) -> Iterator[Tenancy]:
    """What one tenant uses of each resource. Raises FieldError if it uses none."""
    names = {name: resource for resource, name in enumerate(program.resources.names)}
    uses_any = False
    for node in range(scenario.cluster.nodes) if tenant.nodes is None else tenant.nodes:
        cycle = tenant.cycle(1.0, scenario.unevenness.drawn_phase(_PHASE, number, node))
        for endpoint in _endpoints(node, scenario):
            for resource in (names[name] for direction in _DIRECTIONS if (name := f"network {endpoint} {direction}") in names):
                uses_any = True
                yield Tenancy(resource, cycle, tenant.share or 0.0, float(tenant.flows or 0))
    if not uses_any:
        nodes = "any node" if tenant.nodes is None else "node " + ", ".join(map(str, tenant.nodes))
        message = f"no message uses the network link of {nodes}; name nodes whose ranks communicate with other nodes"
        raise FieldError(("unevenness", "tenants", number), message)


def _endpoints(node: int, scenario: Scenario) -> Sequence[int]:
    """The network endpoints of a node: its cards if the topology distinguishes them, else the node itself."""
    network, cards = scenario.cluster.network, scenario.cluster.node.cards_used
    endpoints = cards if network is not None and network.topology.endpoints_are_cards else 1
    return range(node * endpoints, (node + 1) * endpoints)


def _weights(program: Program) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The largest weight of a task that uses each resource, shape (resources,); background flows get this weight per flow."""
    task, resource, _ = program.routes.used(program.route)
    weights = np.zeros(len(program.resources.names))
    np.maximum.at(weights, resource, program.weight[task])
    return weights
