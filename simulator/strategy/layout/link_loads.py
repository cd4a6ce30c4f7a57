"""Link loads of a collective: shares of its size on the network's channels, independent of their bandwidth."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, cast

from scaleproof.simulator.cluster import Node
from scaleproof.simulator.cluster.collectives.groups import Group, Op
from scaleproof.simulator.cluster.collectives.link_traffic import network_loads, unit
from scaleproof.simulator.cluster.network.links import Link
from scaleproof.simulator.cluster.network.wiring import Channel, Vertex


@dataclass(frozen=True, eq=False)
class NetworkShape:
    """Nodes and network without bandwidths; loads are the same for all clusters with the same shape."""

    node: Node
    network: Link

    @functools.cached_property
    def endpoints_per_node(self) -> int:
        """Number of network endpoints on a node."""
        return self.node.cards_used if self.network.topology.endpoints_are_cards else 1


def network_shape(node: Node, network: Link) -> NetworkShape:
    """The shape of a node and a network; equal shapes are the same object, which is fast to compare."""
    return _shared_shape(node.model_copy(update={"link": node.link and unit(node.link)}), unit(network))


_shared_shape = functools.lru_cache(maxsize=64)(NetworkShape)


class CollectiveLoad(NamedTuple):
    """A collective whose link loads are to be computed; arguments of `network_loads`."""

    algorithm: str
    op: Op
    group: Group
    shape: NetworkShape
    rotates: bool

    @property
    def by_channel(self) -> Mapping[Channel, float]:
        """Share of the collective's size on each channel of the network."""
        return network_loads(self.algorithm, self.op, self.group, self.shape.node, self.shape.network, self.rotates)


@functools.lru_cache(maxsize=256)
def modelled_loads(load: CollectiveLoad, nodes: tuple[int, ...]) -> Mapping[Channel, float]:
    """Loads of the links of the modelled nodes. If other nodes are folded into them, each link has the maximum load of its
    equivalents: an approximation, which overestimates contention, for algorithms that do not load all nodes equally, such as
    halving and doubling among nodes that are not a power of two."""
    folded, loads, endpoints_per_node = len(nodes) < load.group.nodes, load.by_channel, load.shape.endpoints_per_node
    busiest = _busiest_endpoints(load) if folded else {}
    directions = ("both",) if load.shape.network.duplex == "half" else ("out", "in")
    result: dict[Channel, float] = {}
    for node, card, direction in itertools.product(nodes, range(endpoints_per_node), directions):
        channel = direction, node * endpoints_per_node + card
        if share := busiest.get((direction, card), 0.0) if folded else loads.get(channel, 0.0):
            result[channel] = share
    return result


@functools.lru_cache(maxsize=256)
def _busiest_endpoints(load: CollectiveLoad) -> Mapping[tuple[Vertex, int], float]:
    """Maximum load of an endpoint of any node, by direction and endpoint number on the node."""
    result: dict[tuple[Vertex, int], float] = {}
    for (direction, end), share in load.by_channel.items():
        key = direction, cast(int, end) % load.shape.endpoints_per_node
        result[key] = max(share, result.get(key, 0.0))
    return result
