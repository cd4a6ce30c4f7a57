"""Tenants of a lab: background traffic that occupies the shares of hosts' links that a scenario gives."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.network.links import EndpointLink
from scaleproof.simulator.cluster.perturbations import Perturbations
from scaleproof.validator.netlab.lab import Netlab
from scaleproof.validator.netlab.traffic import background_traffic

# Rate of the link of the host that all tenants' traffic comes from, relative to that traffic, so that none of it is lost there.
_ROOM: Final = 1.25


def with_neighbour(cluster: Cluster, unevenness: Perturbations) -> Cluster:
    """The cluster with one more host, with which tenants exchange their traffic; without tenants the cluster itself."""
    network, shares = cluster.network, shares_of_links(unevenness, cluster.nodes)
    if network is None or not shares:
        return cluster
    rates_Bps = dict.fromkeys(range(cluster.nodes), network.bandwidth_Bps)
    rates_Bps |= {host: one.bandwidth_Bps for one in network.exceptions for host in one.at}
    traffic_Bps = sum(share * rates_Bps[host] for host, share in shares.items())
    rate_Bps = max(network.bandwidth_Bps, _ROOM * traffic_Bps)
    link = EndpointLink.model_validate({"at": [cluster.nodes], "bandwidth": f"{rate_Bps} B/s"})
    network = network.model_copy(update={"exceptions": (*network.exceptions, link)})
    return cluster.model_copy(update={"nodes": cluster.nodes + 1, "network": network})


def shares_of_links(unevenness: Perturbations, hosts: int) -> dict[int, float]:
    """The share of each host's link that all tenants together occupy; a tenant takes its share of what earlier ones leave."""
    left: dict[int, float] = {}
    for tenant in unevenness.tenants:
        for host in range(hosts) if tenant.nodes is None else set(tenant.nodes):
            if host < hosts:
                left[host] = left.get(host, 1.0) * (1 - (tenant.share or 0.0))
    return {host: 1 - part for host, part in left.items() if not math.isclose(part, 1)}


@contextmanager
def tenants_traffic(lab: Netlab, unevenness: Perturbations) -> Iterator[None]:
    """Traffic of all tenants between their hosts and the last host of the lab, see `with_neighbour`, within the context. Raises
    RunError where the lab is not up."""
    neighbour = lab.hosts - 1
    with ExitStack() as stack:
        for host, share in shares_of_links(unevenness, neighbour).items():
            stack.enter_context(background_traffic(lab, host, neighbour, share * lab.capacity_Bps(host)))
        yield
