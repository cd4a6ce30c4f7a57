"""Uses of links and cores by messages and collectives, the weights of these, and what the communication library adds."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from typing import NamedTuple, cast

from scaleproof.simulator.cluster import Cluster, Node
from scaleproof.simulator.cluster.collectives.cost import chosen_nccl, timing_constants
from scaleproof.simulator.cluster.collectives.groups import Group, Op
from scaleproof.simulator.cluster.collectives.link_traffic import network_loads
from scaleproof.simulator.cluster.collectives.nccl.timing import point_to_point
from scaleproof.simulator.cluster.collectives.settings import MeasuredCollective
from scaleproof.simulator.cluster.network.links import Link
from scaleproof.simulator.cluster.network.wiring import Channel, Vertex
from scaleproof.simulator.program import Path, Use


def library_path(path: Path, cluster: Cluster, crosses: bool, size_bytes: float) -> Path:
    """Path of a message sent by the library. path: by the links alone. crosses: whether the message leaves its node.

    With NCCL or RCCL it has the latency and the rate of a sendrecv of that size, with the protocol's overhead on the links, and
    is never faster than the links. Other libraries are as fast as the links.
    """
    nccl = chosen_nccl(cluster)
    if nccl is None:
        return path
    sendrecv = point_to_point(nccl, timing_constants(cluster, nccl), crosses, size_bytes, path.latency_s)
    uses = tuple(Use(use.resource, use.per_unit / sendrecv.share) for use in path.uses)
    max_Bps = min(path.max_Bps * sendrecv.share, sendrecv.most_Bps)
    latency_s = sendrecv.latency_s + sendrecv.chunks_s(size_bytes / max_Bps)
    return Path(latency_s, max_Bps, uses, path.weight)


def merged(uses: tuple[Use, ...]) -> tuple[Use, ...]:
    """Merges uses of the same resource: both ends of a message may be on cores that all nodes share."""
    total: dict[int, float] = {}
    for resource, per_unit in uses:
        total[resource] = total.get(resource, 0.0) + per_unit
    return tuple(itertools.starmap(Use, total.items()))


def with_pauses(uses: tuple[Use, ...], link: Link, max_Bps: float) -> tuple[Use, ...]:
    """Uses of links by a collective in which two ranks take turns, with the time in which it lets the links idle.

    It does so at any rate of the links, at most as long as if one direction followed the other. max_Bps: rate of each rank's
    bytes. If that is more than the links carry, it was measured between nodes without exceptional links.
    """
    slowest_Bps = min([link.bandwidth_Bps, *(one.bandwidth_Bps for one in link.exceptions)])
    moved_Bps = max_Bps * max((use.per_unit for use in uses), default=0.0)
    carried_Bps = slowest_Bps if moved_Bps <= slowest_Bps else link.bandwidth_Bps
    pauses = min(2.0, max(1.0, carried_Bps / moved_Bps)) if moved_Bps else 1.0
    return tuple(Use(use.resource, use.per_unit * pauses) for use in uses)


def incast(link: Link, channel: Channel) -> float:
    """Incast of a link at a channel: of channels that lead into an endpoint, else 0."""
    return link.incast if channel[0] in ("in", "both") else 0.0


def core_weight(link: Link | MeasuredCollective) -> float:
    """Weight of a transfer: bytes per second moved by one core, where cores move them, so that they share cores fairly with
    compute."""
    return link.bandwidth_Bps / link.cores_busy if link.cores_busy else 1.0


class CollectiveLoad(NamedTuple):
    """A collective whose link loads, shares of its size on the network's channels, are to be computed; arguments of
    `network_loads`. node, network: with links of unit bandwidth, since loads do not depend on it."""

    algorithm: str
    op: Op
    group: Group
    node: Node
    network: Link
    rotates: bool

    @property
    def by_channel(self) -> Mapping[Channel, float]:
        """Share of the collective's size on each channel of the network."""
        return network_loads(*self)

    @property
    def endpoints_per_node(self) -> int:
        """Number of network endpoints on a node."""
        return self.node.cards_used if self.network.topology.endpoints_are_cards else 1


@functools.lru_cache(maxsize=256)
def modelled_loads(load: CollectiveLoad, nodes: tuple[int, ...]) -> Mapping[Channel, float]:
    """Loads of the links of the modelled nodes. If other nodes are folded into them, each link has the maximum load of its
    equivalents: an approximation, which overestimates contention, for algorithms that do not load all nodes equally, such as
    halving and doubling among nodes that are not a power of two."""
    folded, loads, endpoints_per_node = len(nodes) < load.group.nodes, load.by_channel, load.endpoints_per_node
    busiest = _busiest_endpoints(load) if folded else {}
    directions = ("both",) if load.network.duplex == "half" else ("out", "in")
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
        key = direction, cast(int, end) % load.endpoints_per_node
        result[key] = max(share, result.get(key, 0.0))
    return result
