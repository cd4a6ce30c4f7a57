"""The graph of a topology: endpoints, the links between them, and the routes of messages.

Endpoints are numbered from zero: the devices of a node, the nodes of a cluster, or the network cards of its nodes. Each is
attached to a switch by a link of its own, or is itself a vertex of the graph (for example in a torus).
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
# One direction of a link: ("out" or "in", endpoint) for an endpoint's own link, (from, to) for a link of the graph. Both
# directions of a half-duplex link are one channel.
Channel = tuple[Vertex, Vertex]
Routing = Literal["spread", "hashed"]


@dataclass(frozen=True)
class Route:
    """The route of a message.

    shares: part of the message that each channel carries. extra_hops: number of links beyond those of the shortest route
    between any two endpoints.
    """

    shares: Mapping[Channel, float]
    extra_hops: int = 0


@dataclass
class Wiring:
    """The endpoints and links of a topology.

    attached: vertex of each endpoint. access_Bps: bandwidth of each endpoint's own link in one direction, shape (endpoints,);
    None if endpoints are vertices. links: directed graph of the other links, with `capacity_Bps` on its edges; None if there is
    a single switch. routing: spread over all shortest paths, evenly at each switch (adaptive routing, packet spraying), or one
    of them for each pair of endpoints, chosen by a hash (ECMP). fixed_path: vertices from one endpoint to another, if messages
    between them do not take the shortest paths. nearest_hops: links of the graph between the two nearest endpoints.
    """

    attached: Sequence[Vertex]
    access_Bps: NDArray[np.float64] | None
    links: nx.DiGraph[Any] | None = None
    half_duplex: bool = False
    routing: Routing = "spread"
    fixed_path: Callable[[int, int], Sequence[Vertex] | None] = lambda source, target: None
    nearest_hops: int = 0

    def __post_init__(self) -> None:
        self._routes: dict[tuple[Vertex, ...], Mapping[Channel, float]] = {}

    def __len__(self) -> int:
        return len(self.attached)

    @property
    def is_switch(self) -> bool:
        """Whether all endpoints are attached to one switch, so that a message uses only the own links of its two ends."""
        return self.links is None

    def capacity_Bps(self, channel: Channel) -> float:
        """Capacity of a channel in bytes per second."""
        if self.access_Bps is not None and channel[0] in ("out", "in", "both"):
            return self.access_Bps.item(channel[1])  # type: ignore[arg-type]
        assert self.links is not None
        return self.links.edges[channel]["capacity_Bps"]  # type: ignore[no-any-return]

    def unshared_Bps(self, route: Route) -> float:
        """Rate of a message in bytes per second, without other traffic on its route."""
        return min(self.capacity_Bps(channel) / share for channel, share in route.shares.items())

    def route(self, source: int, target: int) -> Route:
        """The route from one endpoint to another."""
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
        """The outgoing channel of an endpoint's own link."""
        return ("both" if self.half_duplex else "out", endpoint)

    def into(self, endpoint: int) -> Channel:
        """The incoming channel of an endpoint's own link."""
        return ("both" if self.half_duplex else "in", endpoint)

    def _channel(self, edge: Channel) -> Channel:
        return min(edge, edge[::-1], key=str) if self.half_duplex else edge

    def link_loads(self, messages: Iterable[tuple[int, int, float]]) -> dict[Channel, float]:
        """Bytes over each link of the graph of the messages (source, target, bytes), without the endpoints' own links."""
        assert self.links is not None
        # messages between the same two vertices take the same paths, unless paths are hashed
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
        if self.routing == "hashed" or self.fixed_path(source, target) is not None:
            return (source, target)
        return (self.attached[source], self.attached[target])

    def _between(self, source: int, target: int) -> Mapping[Channel, float]:
        """Part of a message that each edge of the graph carries from the source's vertex to the target's."""
        key = ("route", *self._route_key(source, target))
        if key not in self._routes:
            path = self.fixed_path(source, target)
            self._routes[key] = self._spread(source, target) if path is None else dict.fromkeys(itertools.pairwise(path), 1.0)
        return self._routes[key]

    def _spread(self, source: int, target: int) -> dict[Channel, float]:
        """Shares over the shortest paths: divided evenly at each vertex, or all to one next vertex, chosen by a hash."""
        begin, end = self.attached[source], self.attached[target]
        if self.routing == "hashed":
            return self._shortest(begin, end, f"{source} {target}")
        # a vertex with one link, such as a leaf switch, has one way to all others
        first, last = list[Channel](), list[Channel]()
        while begin != end and (after := self._only_neighbour(begin)) is not None:
            first.append((begin, after))
            begin = after
        while begin != end and (before := self._only_neighbour(end)) is not None:
            last.append((before, end))
            end = before
        key = ("shortest", begin, end)
        if key not in self._routes:
            self._routes[key] = self._shortest(begin, end)
        return {**dict.fromkeys(first, 1.0), **self._routes[key], **dict.fromkeys(last, 1.0)}

    def _only_neighbour(self, vertex: Vertex) -> Vertex | None:
        """The vertex that a vertex with one link is connected to; None for others."""
        assert self.links is not None
        neighbours = self.links.adj[vertex]
        return next(iter(neighbours)) if len(neighbours) == 1 else None

    def _shortest(self, begin: Vertex, end: Vertex, message: str = "") -> dict[Channel, float]:
        """Shares over the shortest paths between two vertices. message: its name, by which one of the paths is chosen."""
        assert self.links is not None
        at: dict[Vertex, float] = {begin: 1.0}
        shares: dict[Channel, float] = {}
        for level in shortest_path_levels(self.links, begin, end):
            arrived: dict[Vertex, float] = {}
            for vertex, part in at.items():
                # sorted, since the iteration order of sets differs between processes
                successors = sorted(level.intersection(self.links.successors(vertex)), key=str)
                if self.routing == "hashed":
                    successors = [successors[_hash(f"{message} {vertex}") % len(successors)]]
                for successor in successors:
                    shares[vertex, successor] = part / len(successors)
                    arrived[successor] = arrived.get(successor, 0.0) + part / len(successors)
            at = arrived
        return shares


def _hash(text: str) -> int:
    """A hash that is the same in every process. A checksum is linear and would map patterns of flows to patterns of paths."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def shortest_path_levels(graph: nx.DiGraph[Any], source: Vertex, target: Vertex) -> list[set[Vertex]]:
    """Vertices on the shortest paths by their distance from the source, from distance one to the target.

    A bidirectional search that expands the smaller side: in a network of thousands of switches most are never visited. Raises
    ValueError if there is no path.
    """
    from_source, from_target = [{source}], [{target}]
    visited: tuple[set[Vertex], set[Vertex]] = ({source}, {target})
    while not from_source[-1] & from_target[-1]:
        forward = len(from_source[-1]) <= len(from_target[-1])
        side, side_visited = (from_source, visited[0]) if forward else (from_target, visited[1])
        neighbours = graph.successors if forward else graph.predecessors
        side.append(set().union(*map(neighbours, side[-1])) - side_visited)
        side_visited |= side[-1]
        if not side[-1]:
            raise ValueError(f"no path leads from {source} to {target}")
    levels = [*from_source, *from_target[-2::-1]]
    meeting = len(from_source) - 1
    levels[meeting] = from_source[-1] & from_target[-1]
    for i in range(meeting - 1, 0, -1):
        levels[i] = {vertex for vertex in levels[i] if not levels[i + 1].isdisjoint(graph.successors(vertex))}
    for i in range(meeting + 1, len(levels) - 1):
        levels[i] = {vertex for vertex in levels[i] if not levels[i - 1].isdisjoint(graph.predecessors(vertex))}
    return levels[1:]
