"""Wiring: what a topology comes to. Endpoints, the links between them, and the way that messages take.

Endpoints are numbered from zero: the devices of a node, the nodes of a cluster, or the network cards of its nodes. Each is
attached to a switch by a link of its own, or is itself a vertex of the graph (in a torus, say).
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import networkx as nx

Vertex = Hashable
# One direction of one link: of an endpoint's own ("out" or "in", endpoint), or of the graph (from, to); of a half-duplex
# link both directions are one channel.
Channel = tuple[Vertex, Vertex]
Routing = Literal["spread", "hashed"]


@dataclass(frozen=True)
class Route:
    """The way of a message: the part of it that each channel carries, and how many links beyond the shortest way it passes."""

    shares: Mapping[Channel, float]
    further_hops: int = 0


@dataclass
class Wiring:
    """attached: the vertex of each endpoint. access_Bps: each endpoint's own link, each way; None where endpoints are vertices.

    links: directed graph of the other links, with `capacity_Bps` on its edges; None where there is one switch and nothing
    else. routing: spread over all shortest ways, evenly at each switch (adaptive routing, packet spraying), or one of them for
    each pair of endpoints, by a hash (ECMP). way: the vertices that a message passes from one endpoint to another, where the
    shortest ways are not what counts. nearest_hops: links of the graph between the two nearest endpoints.
    """

    attached: Sequence[Vertex]
    access_Bps: NDArray[np.float64] | None
    links: nx.DiGraph[Any] | None = None
    half_duplex: bool = False
    routing: Routing = "spread"
    way: Callable[[int, int], Sequence[Vertex] | None] = lambda source, target: None
    nearest_hops: int = 0

    def __post_init__(self) -> None:
        self._routes: dict[tuple[Vertex, ...], Mapping[Channel, float]] = {}

    def __len__(self) -> int:
        return len(self.attached)

    @property
    def is_switch(self) -> bool:
        """Whether one switch joins all, so that a message uses its two ends' own links alone."""
        return self.links is None

    def capacity_Bps(self, channel: Channel) -> float:
        """What a channel carries."""
        if self.access_Bps is not None and channel[0] in ("out", "in", "both"):
            return self.access_Bps.item(channel[1])  # type: ignore[arg-type]
        assert self.links is not None
        return self.links.edges[channel]["capacity_Bps"]  # type: ignore[no-any-return]

    def alone_Bps(self, route: Route) -> float:
        """The rate of a message that has its way to itself."""
        return min(self.capacity_Bps(channel) / share for channel, share in route.shares.items())

    def route(self, source: int, target: int) -> Route:
        """The way from one endpoint to another."""
        shares: dict[Channel, float] = {}
        if self.access_Bps is not None:
            shares[self.out_of(source)] = 1.0
            shares[self.into(target)] = 1.0
        if self.attached[source] == self.attached[target]:
            return Route(shares)
        between = self._between(source, target)
        for channel, share in between.items():
            shares[self._channel(channel)] = shares.get(self._channel(channel), 0.0) + share
        return Route(shares, round(sum(between.values())) - self.nearest_hops)

    def out_of(self, endpoint: int) -> Channel:
        """An endpoint's own link, outward."""
        return ("both" if self.half_duplex else "out", endpoint)

    def into(self, endpoint: int) -> Channel:
        """An endpoint's own link, inward."""
        return ("both" if self.half_duplex else "in", endpoint)

    def _channel(self, edge: Channel) -> Channel:
        return min(edge, edge[::-1], key=str) if self.half_duplex else edge

    def link_loads(self, messages: Iterable[tuple[int, int, float]]) -> dict[Channel, float]:
        """Bytes over each link of the graph when (source, target, bytes) are sent; endpoints' own links not counted."""
        assert self.links is not None
        # what goes between two vertices takes the same ways whoever sends it, if routes are not hashed
        between: dict[tuple[Vertex, ...], tuple[int, int, float]] = {}
        for source, target, size_bytes in messages:
            if self.attached[source] != self.attached[target]:
                key = self._route_key(source, target)
                between[key] = (source, target, size_bytes + between.get(key, (0, 0, 0.0))[2])
        loads: dict[Channel, float] = {}
        for source, target, size_bytes in between.values():
            for edge, share in self._between(source, target).items():
                channel = self._channel(edge)
                loads[channel] = loads.get(channel, 0.0) + share * size_bytes
        return loads

    def _route_key(self, source: int, target: int) -> tuple[Vertex, ...]:
        if self.routing == "hashed" or self.way(source, target) is not None:
            return (source, target)
        return (self.attached[source], self.attached[target])

    def _between(self, source: int, target: int) -> Mapping[Channel, float]:
        """The part of a message that each edge of the graph carries, from the source's vertex to the target's."""
        key = ("route", *self._route_key(source, target))
        if key not in self._routes:
            way = self.way(source, target)
            given = None if way is None else dict.fromkeys(itertools.pairwise(way), 1.0)
            self._routes[key] = self._spread(source, target) if given is None else given
        return self._routes[key]

    def _spread(self, source: int, target: int) -> dict[Channel, float]:
        """Even parts over the shortest ways, at each vertex anew; or one next vertex, chosen by a hash."""
        assert self.links is not None
        at: dict[Vertex, float] = {self.attached[source]: 1.0}
        shares: dict[Channel, float] = {}
        for ahead in shortest_ways(self.links, self.attached[source], self.attached[target]):
            arrived: dict[Vertex, float] = {}
            for vertex, part in at.items():
                # sorted, since the order in which sets are gone through differs from process to process
                following = sorted(ahead.intersection(self.links.successors(vertex)), key=str)
                if self.routing == "hashed":
                    following = [following[_hash(f"{source} {target} {vertex}") % len(following)]]
                for after in following:
                    shares[vertex, after] = part / len(following)
                    arrived[after] = arrived.get(after, 0.0) + part / len(following)
            at = arrived
        return shares


def _hash(text: str) -> int:
    """The same in every process. No checksum: those are linear, and give flows that follow a pattern ways that follow one."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def shortest_ways(graph: nx.DiGraph[Any], source: Vertex, target: Vertex) -> list[set[Vertex]]:
    """The vertices of all shortest ways by their distance from the source, from distance one to the target.

    Looks from both ends, the smaller side first: in a network of thousands of switches most are never seen.
    """
    ahead, behind = [{source}], [{target}]
    seen: tuple[set[Vertex], set[Vertex]] = ({source}, {target})
    while not ahead[-1] & behind[-1]:
        forward = len(ahead[-1]) <= len(behind[-1])
        side, known = (ahead, seen[0]) if forward else (behind, seen[1])
        near = graph.successors if forward else graph.predecessors
        side.append(set().union(*map(near, side[-1])) - known)
        known |= side[-1]
        if not side[-1]:
            raise ValueError(f"no way leads from {source} to {target}")
    levels = [*ahead, *behind[-2::-1]]
    meeting = len(ahead) - 1
    levels[meeting] = ahead[-1] & behind[-1]
    for i in range(meeting - 1, 0, -1):
        levels[i] = {vertex for vertex in levels[i] if not levels[i + 1].isdisjoint(graph.successors(vertex))}
    for i in range(meeting + 1, len(levels) - 1):
        levels[i] = {vertex for vertex in levels[i] if not levels[i - 1].isdisjoint(graph.predecessors(vertex))}
    return levels[1:]
