"""Tenancy: what a scenario's tenants take of the resources of its program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.program import Program, Tenancy
from scaleproof.simulator.program.perturbations import Tenant
from scaleproof.simulator.scenario.schema import Scenario

_WAYS = ("out", "in", "both")
# which of what is drawn from the seed is a tenant's phase
_PHASE = 2


def with_background_traffic(program: Program, scenario: Scenario) -> Program:
    """The scenario's program with its tenants on the links of nodes to the network. Raises FieldError where no message of it
    passes a link that a tenant is on."""
    tenants = scenario.unevenness.tenants
    if not tenants:
        return program
    tenancies = [one for number, tenant in enumerate(tenants) for one in _of(number, tenant, program, scenario)]
    # what is there all the time, and whoever else is, need not be followed
    capacity, weights = program.resources.capacity.copy(), _weights(program)
    for one in tenancies:
        if one.cycle.is_for_ever and one.share:
            capacity[one.resource] *= 1 - one.share
    left = tuple(
        one._replace(weight=one.weight * float(weights[one.resource]))
        for one in tenancies
        if one.weight or not one.cycle.is_for_ever
    )
    return replace(program, resources=replace(program.resources, capacity=capacity, tenancies=left))


def _of(number: int, tenant: Tenant, program: Program, scenario: Scenario) -> Iterator[Tenancy]:
    names = {name: resource for resource, name in enumerate(program.resources.names)}
    found = False
    for node in range(scenario.cluster.nodes) if tenant.nodes is None else tenant.nodes:
        cycle = tenant.cycle(1.0, scenario.unevenness.drawn_phase(_PHASE, number, node))
        for endpoint in _endpoints(node, scenario):
            for resource in (names[name] for way in _WAYS if (name := f"network {endpoint} {way}") in names):
                found = True
                yield Tenancy(resource, cycle, tenant.share or 0.0, float(tenant.flows or 0))
    if not found:
        which = "any node" if tenant.nodes is None else "node " + ", ".join(map(str, tenant.nodes))
        message = f"no message passes the network link of {which}; name nodes whose ranks talk to those of other nodes"
        raise FieldError(("unevenness", "tenants", number), message)


def _endpoints(node: int, scenario: Scenario) -> Sequence[int]:
    """What the network knows a node by: itself, or its cards, where it tells them apart."""
    network, cards = scenario.cluster.network, scenario.cluster.node.cards_used
    apart = cards if network is not None and network.topology.tells_cards_apart else 1
    return range(node * apart, (node + 1) * apart)


def _weights(program: Program) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Of each resource the largest weight of what uses it, so that a flow of others gets as much as one of ours."""
    task, resource, _ = program.routes.used(program.route)
    weights = np.zeros(len(program.resources.names))
    np.maximum.at(weights, resource, program.weight[task])
    return weights
