"""Random networks of a group of cases: their shape, unequal links, background traffic and stragglers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, Final, NamedTuple

from scaleproof.proof.proving.models import Compute, rarer
from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.network.links import EndpointLink
from scaleproof.simulator.cluster.network.topology_kinds import LeafSpine
from scaleproof.simulator.cluster.perturbations import EVEN, Perturbations

_STARS: Final = 1 / 3
_RATES: Final = (0.4, 0.8)
_SLOWDOWNS: Final = (1.3, 2.0)
# Flows of a host's rate that would fill the link between two switches; a ring has one.
_RINGS: Final = (0.7, 2.0)
# Share of a host's link that others take; a link of which little is left loses packets of others.
_TRAFFIC: Final = (0.2, 0.5)


class DrawnNetwork(NamedTuple):
    """name: of its shape. shaped: the cluster with links of this shape. unevenness: of its ranks and links. equal: whether all
    hosts' links carry the same."""

    name: str
    shaped: Callable[[Cluster], Cluster]
    unevenness: Perturbations = EVEN
    equal: bool = True


def drawn_network(random: Random, hosts: int, compute: Compute, seen: Counter[str]) -> DrawnNetwork:
    """A random network of a number of hosts that train; a third of them are stars of equal links. seen: number of earlier draws
    by name."""
    if random.random() < _STARS:
        return star(random, hosts)
    drawn = {"unequal links": _unequal}
    if hosts >= 4:
        drawn["tree"] = _tree
    if compute == "paced":
        # ranks that compute share cores, so that each would have another slowdown
        drawn |= {"traffic": _traffic, "straggler": _straggler}
    return drawn[rarer(random, sorted(drawn), seen)](random, hosts)


def star(random: Random, hosts: int) -> DrawnNetwork:
    """One switch and equal links."""
    return DrawnNetwork("star", lambda cluster: cluster)


def _tree(random: Random, hosts: int) -> DrawnNetwork:
    """Two levels of switches, with less bandwidth between switches than below."""
    per_leaf = 2 if hosts < 8 else 4
    oversubscription = per_leaf * random.uniform(*_RINGS)
    topology = LeafSpine(per_leaf=per_leaf, oversubscription=oversubscription)
    return DrawnNetwork("tree", lambda cluster: _with_network(cluster, topology=topology))


def _unequal(random: Random, hosts: int) -> DrawnNetwork:
    """One host has a slower link than the others."""
    host, rate = random.randrange(hosts), random.uniform(*_RATES)

    def shaped(cluster: Cluster) -> Cluster:
        assert cluster.network is not None
        slower = EndpointLink.model_validate({"at": [host], "bandwidth": f"{rate * cluster.network.bandwidth_Bps} B/s"})
        return _with_network(cluster, exceptions=(slower,))

    return DrawnNetwork("unequal links", shaped, equal=False)


def _traffic(random: Random, hosts: int) -> DrawnNetwork:
    """Somebody else's traffic on the link of one host, in both directions."""
    tenant = {"nodes": [random.randrange(hosts)], "share": round(random.uniform(*_TRAFFIC), 2)}
    others = Perturbations.model_validate({"tenants": [tenant]})
    return DrawnNetwork("traffic", lambda cluster: cluster, others, equal=False)


def _straggler(random: Random, hosts: int) -> DrawnNetwork:
    """One rank computes more slowly than the others."""
    slow = {"ranks": [random.randrange(hosts)], "slowdown": round(random.uniform(*_SLOWDOWNS), 2)}
    return DrawnNetwork("straggler", lambda cluster: cluster, Perturbations.model_validate({"stragglers": [slow]}))


def _with_network(cluster: Cluster, **changes: Any) -> Cluster:
    assert cluster.network is not None
    return cluster.model_copy(update={"network": cluster.network.model_copy(update=changes)})
