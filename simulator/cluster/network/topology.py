"""Topologies as users name them, and the graphs they come to.

One form for devices inside a node and for nodes in a network: `topology: {kind: ...}` within a link. The link's bandwidth is
always what one endpoint can send, and receive, over all its links together; a kind says how the rest is joined.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import numpy as np
from pydantic import Field, field_validator

from scaleproof.simulator.cluster.network.wiring import Routing, Vertex, Wiring
from scaleproof.simulator.common.errors import FieldError, InputError
from scaleproof.simulator.common.spec import Count, Spec
from scaleproof.simulator.common.units import PositiveBytesPerSecond, Seconds

if TYPE_CHECKING:
    import networkx as nx

# between switches; as many take 1 GiB
_MOST_LINKS: Final = 500_000

Edges = Iterator[tuple[Vertex, Vertex, float]]


class Topology(Spec, ABC):
    """How endpoints are joined. hop_latency: of each link that a message passes beyond the shortest way there is."""

    kind: str
    hop_latency_s: Seconds = Field(0.0, alias="hop_latency")
    routing: Routing = Field("spread", description="over all shortest ways, or hashed to one of them (ECMP)")

    @property
    def places(self) -> float:
        """The most endpoints that fit; infinite where it grows with them."""
        return math.inf

    def check(self, endpoints: int) -> None:
        """Raises FieldError, its path from the topology on, where the endpoints do not fit it."""
        if endpoints > self.places:
            raise FieldError((), f"{self.kind} with {self.places:.0f} places for {endpoints}; make it larger")

    @property
    def is_uniform(self) -> bool:
        """Whether any two endpoints are joined like any other two, so that one switch says the same.

        A tree of switches that has no less bandwidth upward than downward never limits, if messages are spread evenly.
        """
        return False

    @property
    def has_own_links(self) -> bool:
        """Whether each endpoint is attached to a switch by a link of its own."""
        return True

    @property
    def tells_cards_apart(self) -> bool:
        """Whether in a network the endpoints are the nodes' cards, numbered node by node, and not the nodes."""
        return False

    @abstractmethod
    def wire(self, endpoints: int, bandwidth_Bps: float, cards: int = 1) -> Wiring:
        """The wiring of `endpoints` endpoints that send `bandwidth_Bps` each; `cards`: endpoints of a node, if told apart."""

    def rings(self, endpoints: int) -> list[list[int]]:
        """Orders in which rings pass through the endpoints, each with an equal part of the data."""
        return [list(range(endpoints))]

    def _switched(self, attached: Sequence[Vertex], bandwidth_Bps: float, edges: Edges) -> Wiring:
        """Endpoints with a link each to a switch; `edges` are one way of each link between switches."""
        access_Bps = np.full(len(attached), bandwidth_Bps)
        return Wiring(attached, access_Bps, _graph(edges), routing=self.routing)


def _graph(edges: Edges) -> nx.DiGraph[Any]:
    """Both directions of each edge; parallel ones add up. Raises InputError where there are more than fit into memory."""
    import networkx as nx

    graph: nx.DiGraph[Any] = nx.DiGraph()
    for number, (one, other, capacity_Bps) in enumerate(edges):
        if number >= _MOST_LINKS:
            raise InputError(f"the topology has more than {_MOST_LINKS} links between switches; give fewer, wider ones")
        for edge in ((one, other), (other, one)):
            before_Bps = graph.edges[edge]["capacity_Bps"] if graph.has_edge(*edge) else 0.0
            graph.add_edge(*edge, capacity_Bps=before_Bps + capacity_Bps)
    return graph


class Switch(Topology):
    """One switch that never limits: NVSwitch, or a small network."""

    kind: Literal["switch"] = "switch"

    @property
    def is_uniform(self) -> bool:
        return True

    def wire(self, endpoints: int, bandwidth_Bps: float, cards: int = 1) -> Wiring:
        return Wiring(["switch"] * endpoints, np.full(endpoints, bandwidth_Bps))


class Direct(Topology):
    """Endpoints that are joined with one another, and pass on what is not theirs."""

    @property
    def has_own_links(self) -> bool:
        return False

    def _direct(self, endpoints: int, edges: Edges) -> Wiring:
        return Wiring(range(endpoints), None, _graph(edges), routing=self.routing, nearest_hops=1)


class Mesh(Direct):
    """Every pair joined directly, as NVLink joins four GPUs, or Infinity Fabric eight, without a switch."""

    kind: Literal["mesh"] = "mesh"

    def wire(self, endpoints: int, bandwidth_Bps: float, cards: int = 1) -> Wiring:
        each_Bps = bandwidth_Bps / max(1, endpoints - 1)
        return self._direct(endpoints, ((a, b, each_Bps) for a, b in itertools.combinations(range(endpoints), 2)))

    def rings(self, endpoints: int) -> list[list[int]]:
        """Rings in both directions that share no link (Walecki's zigzag, in Lucas 1892); of four endpoints all rings there are,
        which use every link equally."""
        if endpoints <= 4:
            return [[0, *rest] for rest in itertools.permutations(range(1, endpoints))]
        turn = endpoints - 1
        offsets = [(i + 1) // 2 * (1 if i % 2 else -1) for i in range(turn)]
        ways = [[*((first + offset) % turn for offset in offsets), turn] for first in range(turn // 2)]
        return [order for way in ways for order in (way, way[::-1])]


class HybridCubeMesh(Direct):
    """DGX-1: two quads of GPUs, every pair of a quad joined, and each GPU with its twin in the other quad.

    links: of each GPU. Four (P100): one for every such pair. Six (V100): two for the eight pairs along one ring (NVIDIA's
    white paper on DGX-1 with Tesla V100, WP-08437).
    """

    kind: Literal["hybrid_cube_mesh"] = "hybrid_cube_mesh"
    links: Literal[4, 6] = 4

    @property
    def places(self) -> float:
        return 8

    def wire(self, endpoints: int, bandwidth_Bps: float, cards: int = 1) -> Wiring:
        # each of the rings below passes every link there is of its own
        link_Bps = bandwidth_Bps / self.links
        edges = ((a, b, link_Bps) for ring in self._ways() for a, b in zip(ring, [*ring[1:], ring[0]], strict=True))
        return self._direct(endpoints, ((a, b, each) for a, b, each in edges if max(a, b) < endpoints))

    def _ways(self) -> list[list[int]]:
        """Rings that together pass each link once."""
        doubled = [[0, 3, 2, 1, 5, 6, 7, 4]] if self.links == 6 else []
        return [[0, 1, 2, 3, 7, 6, 5, 4], [0, 2, 6, 4, 7, 5, 1, 3], *doubled]

    def rings(self, endpoints: int) -> list[list[int]]:
        if endpoints < self.places:
            return super().rings(endpoints)
        return [order for way in self._ways() for order in (way, way[::-1])]


class PcieTree(Topology):
    """Devices under PCIe switches, switches under the sockets of a host, sockets joined with one another."""

    kind: Literal["pcie_tree"] = "pcie_tree"
    per_switch: Count = 2
    switches_per_socket: Count = 2
    between_sockets_Bps: PositiveBytesPerSecond = Field(alias="between_sockets", description="one way, of each pair of sockets")

    def wire(self, endpoints: int, bandwidth_Bps: float, cards: int = 1) -> Wiring:
        switches = -(-endpoints // self.per_switch)
        sockets = -(-switches // self.switches_per_socket)
        up = ((f"switch {i}", f"socket {i // self.switches_per_socket}", bandwidth_Bps) for i in range(switches))
        pairs = itertools.combinations(range(sockets), 2)
        across = ((f"socket {a}", f"socket {b}", self.between_sockets_Bps) for a, b in pairs)
        attached = [f"switch {i // self.per_switch}" for i in range(endpoints)]
        return self._switched(attached, bandwidth_Bps, itertools.chain(up, across))


class SwitchTree(Topology):
    """Switches in levels. oversubscription: bandwidth down over bandwidth up of those that endpoints are attached to."""

    oversubscription: float = Field(1.0, gt=0, le=1000)

    @property
    def is_uniform(self) -> bool:
        return self.oversubscription <= 1 and self.routing == "spread" and self.hop_latency_s == 0

    def _apart(self, alike: int) -> int:
        """How many of `alike` switches messages tell apart: spread over all of them evenly they use them as one."""
        return alike if self.routing == "hashed" else 1


class LeafSpine(SwitchTree):
    """Leaf switches of `per_leaf` endpoints, each joined with every spine."""

    kind: Literal["leaf_spine"] = "leaf_spine"
    per_leaf: Count
    spines: Count = 1

    def wire(self, endpoints: int, bandwidth_Bps: float, cards: int = 1) -> Wiring:
        leaves = range(-(-endpoints // self.per_leaf))
        spines = self._apart(self.spines)
        up_Bps = self.per_leaf * bandwidth_Bps / self.oversubscription / spines
        edges = ((f"leaf {leaf}", f"spine {spine}", up_Bps) for leaf in leaves for spine in range(spines))
        return self._switched([f"leaf {i // self.per_leaf}" for i in range(endpoints)], bandwidth_Bps, edges)


class FatTree(SwitchTree):
    """Three levels: leaves, the spines of their pod, cores; each switch joined with all of the next level in its pod, spines
    with all cores. pod_oversubscription: down over up of a pod's spines."""

    kind: Literal["fat_tree"] = "fat_tree"
    per_leaf: Count
    leaves_per_pod: Count
    spines_per_pod: Count = 1
    cores: Count = 1
    pod_oversubscription: float = Field(1.0, gt=0, le=1000)

    @property
    def is_uniform(self) -> bool:
        return super().is_uniform and self.pod_oversubscription <= 1

    def wire(self, endpoints: int, bandwidth_Bps: float, cards: int = 1) -> Wiring:
        leaf_up_Bps = self.per_leaf * bandwidth_Bps / self.oversubscription
        pod_up_Bps = leaf_up_Bps * self.leaves_per_pod / self.pod_oversubscription
        leaves = -(-endpoints // self.per_leaf)
        pods = -(-leaves // self.leaves_per_pod)
        spines, cores = range(self._apart(self.spines_per_pod)), range(self._apart(self.cores))

        def edges() -> Edges:
            for leaf, spine in itertools.product(range(leaves), spines):
                pod = leaf // self.leaves_per_pod
                yield f"leaf {leaf}", f"pod {pod} spine {spine}", leaf_up_Bps / len(spines)
            for pod, spine, core in itertools.product(range(pods), spines, cores):
                yield f"pod {pod} spine {spine}", f"core {core}", pod_up_Bps / len(spines) / len(cores)

        return self._switched([f"leaf {i // self.per_leaf}" for i in range(endpoints)], bandwidth_Bps, edges())


class RailOptimised(SwitchTree):
    """Card c of every node of a group on the group's rail switch c; rail switches joined by spines.

    Messages between rails change inside the node first.
    """

    kind: Literal["rail_optimised"] = "rail_optimised"
    nodes_per_group: Count
    spines: Count = 1

    @property
    def tells_cards_apart(self) -> bool:
        return True

    def wire(self, endpoints: int, bandwidth_Bps: float, cards: int = 1) -> Wiring:
        attached = [f"group {i // cards // self.nodes_per_group} rail {i % cards}" for i in range(endpoints)]
        spines = self._apart(self.spines)
        up_Bps = self.nodes_per_group * bandwidth_Bps / self.oversubscription / spines
        rails = dict.fromkeys(attached)
        return self._switched(
            attached, bandwidth_Bps, ((rail, f"spine {spine}", up_Bps) for rail in rails for spine in range(spines))
        )


class Torus(Direct):
    """A grid whose rows close to rings, in as many dimensions as are given; neighbours joined directly."""

    kind: Literal["torus"] = "torus"
    dimensions: Annotated[tuple[Count, ...], Field(min_length=1, max_length=8)]

    @field_validator("dimensions")
    @classmethod
    def _buildable(cls, dimensions: tuple[int, ...]) -> tuple[int, ...]:
        if math.prod(dimensions) > 1_000_000 or max(dimensions) < 2:
            raise ValueError("a torus has between 2 and 1000000 places; give sizes such as [4, 4, 4]")
        return dimensions

    @property
    def places(self) -> float:
        return math.prod(self.dimensions)

    def wire(self, endpoints: int, bandwidth_Bps: float, cards: int = 1) -> Wiring:
        long = [axis for axis, size in enumerate(self.dimensions) if size > 1]
        link_Bps = bandwidth_Bps / (2 * len(long))

        def edges() -> Edges:
            for at in itertools.product(*map(range, self.dimensions)):
                for axis in long:
                    after = (*at[:axis], (at[axis] + 1) % self.dimensions[axis], *at[axis + 1 :])
                    yield self._number(at), self._number(after), link_Bps

        return self._direct(endpoints, edges())

    def _number(self, at: Sequence[int]) -> int:
        """Places are numbered along the last dimension first."""
        return int(np.ravel_multi_index(tuple(at), self.dimensions))

    def rings(self, endpoints: int) -> list[list[int]]:
        """Row after row, every other one backwards, so that each message goes to a neighbour (where all sizes are odd, all but
        the last); and the same backwards."""
        if endpoints < self.places:
            return super().rings(endpoints)
        # an even number of rows ends where it began
        axes = sorted(range(len(self.dimensions)), key=lambda axis: self.dimensions[axis] % 2)
        way: list[tuple[int, ...]] = [()]
        for size in (self.dimensions[axis] for axis in axes):
            turns = [range(size), range(size - 1, -1, -1)]
            way = [(*at, i) for row, at in enumerate(way) for i in turns[row % 2]]
        order = [self._number([at[axes.index(axis)] for axis in range(len(axes))]) for at in way]
        return [order, order[::-1]]


class Dragonfly(Topology):
    """Groups of routers, joined with all others of their group (`local`), and one link between any two groups (`global`).

    The links of a group to others are dealt out to its routers in turn (Kim et al. 2008). Messages pass one link
    between groups (minimal routing).
    """

    kind: Literal["dragonfly"] = "dragonfly"
    per_router: Count
    routers_per_group: Count
    groups: Annotated[int, Field(gt=0, le=10_000)]
    local_Bps: PositiveBytesPerSecond = Field(alias="local")
    global_Bps: PositiveBytesPerSecond = Field(alias="global")

    @property
    def places(self) -> float:
        return self.per_router * self.routers_per_group * self.groups

    def wire(self, endpoints: int, bandwidth_Bps: float, cards: int = 1) -> Wiring:
        def edges() -> Edges:
            for group in range(self.groups):
                for a, b in itertools.combinations(range(self.routers_per_group), 2):
                    yield f"group {group} router {a}", f"group {group} router {b}", self.local_Bps
            for a, b in itertools.combinations(range(self.groups), 2):
                yield self._gateway(a, b), self._gateway(b, a), self.global_Bps

        places = [divmod(i // self.per_router, self.routers_per_group) for i in range(endpoints)]
        attached = [f"group {group} router {router}" for group, router in places]
        wiring = self._switched(attached, bandwidth_Bps, edges())

        def way(source: int, target: int) -> list[str] | None:
            one, other = places[source][0], places[target][0]
            if one == other:
                return None
            return list(
                dict.fromkeys([attached[source], self._gateway(one, other), self._gateway(other, one), attached[target]])
            )

        wiring.way = way
        return wiring

    def _gateway(self, group: int, other: int) -> str:
        """The router of a group that has the link to another group."""
        return f"group {group} router {(other - group - 1) % self.groups % self.routers_per_group}"


class GraphLink(Spec):
    """A link between two vertices: numbers are endpoints, words are switches. Each direction has this bandwidth."""

    between: tuple[int | str, int | str]
    bandwidth_Bps: PositiveBytesPerSecond = Field(alias="bandwidth")


class Graph(Direct):
    """Links given one by one. routes: ways, as vertices, for pairs whose messages shall not take the shortest."""

    kind: Literal["graph"] = "graph"
    links: Annotated[tuple[GraphLink, ...], Field(min_length=1, max_length=100_000)]
    routes: Annotated[tuple[Annotated[tuple[int | str, ...], Field(min_length=2)], ...], Field(max_length=100_000)] = ()

    def check(self, endpoints: int) -> None:
        import networkx as nx

        for i, link in enumerate(self.links):
            if link.between[0] == link.between[1]:
                raise FieldError(("links", i), f"it joins {link.between[0]} with itself; leave it out")
            for vertex in link.between:
                if isinstance(vertex, int) and not 0 <= vertex < endpoints:
                    raise FieldError(("links", i), f"there is no endpoint {vertex}; they are numbered 0 to {endpoints - 1}")
        links = self._links()
        if bare := [endpoint for endpoint in range(endpoints) if endpoint not in links]:
            raise FieldError(("links",), f"endpoint {bare[0]} has no link; add one")
        reached = nx.node_connected_component(links.to_undirected(), 0)
        if apart := [endpoint for endpoint in range(endpoints) if endpoint not in reached]:
            several = ", ".join(map(str, apart[:5])) + (", …" if len(apart) > 5 else "")
            raise FieldError(("links",), f"no way leads from endpoint 0 to {several}; add links that join them")
        ways: set[tuple[int | str, int | str]] = set()
        for i, way in enumerate(self.routes):
            self._check_way(("routes", i), way, links)
            if (way[0], way[-1]) in ways:
                raise FieldError(("routes", i), f"a second route from {way[0]} to {way[-1]}; keep one")
            ways.add((way[0], way[-1]))

    @staticmethod
    def _check_way(field: tuple[str, int], way: tuple[int | str, ...], links: nx.DiGraph[Any]) -> None:
        if not (isinstance(way[0], int) and isinstance(way[-1], int) and way[0] != way[-1]):
            raise FieldError(field, "a route leads from one endpoint, a number, to another")
        if len(set(way)) < len(way):
            raise FieldError(field, "a route passes no place twice; take the circle out")
        for step in itertools.pairwise(way):
            if not links.has_edge(*step):
                raise FieldError(field, f"no link joins {step[0]} and {step[1]}; add it, or another route")

    def _links(self) -> nx.DiGraph[Any]:
        return _graph((*link.between, link.bandwidth_Bps) for link in self.links)

    def wire(self, endpoints: int, bandwidth_Bps: float, cards: int = 1) -> Wiring:
        ways: dict[tuple[Any, Any], Sequence[Vertex]] = {(way[-1], way[0]): way[::-1] for way in self.routes}
        ways |= {(way[0], way[-1]): way for way in self.routes}
        joined = any(isinstance(a, int) and isinstance(b, int) for a, b in (link.between for link in self.links))
        wiring = self._direct(endpoints, ((*link.between, link.bandwidth_Bps) for link in self.links))
        wiring.way = lambda source, target: ways.get((source, target))
        wiring.nearest_hops = 1 if joined else 2
        return wiring


AnyTopology = Annotated[
    Switch | Mesh | HybridCubeMesh | PcieTree | LeafSpine | FatTree | RailOptimised | Torus | Dragonfly | Graph,
    Field(discriminator="kind"),
]
