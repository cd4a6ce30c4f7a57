"""Topologies with several links or switches, by the names that users give, and their graphs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import numpy as np
from pydantic import Field, field_validator

from scaleproof.simulator.cluster.network.topology import Edges, Switch, Topology, graph_of
from scaleproof.simulator.cluster.network.wiring import Vertex, Wiring
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.spec import Count, Spec
from scaleproof.simulator.common.units import PositiveBytesPerSecond

if TYPE_CHECKING:
    import networkx as nx


class Direct(Topology):
    """Endpoints that are connected to one another and forward messages for others."""

    @property
    def has_own_links(self) -> bool:
        """Always false: links lead to other endpoints."""
        return False

    def _direct(self, endpoints: int, edges: Edges) -> Wiring:
        return Wiring(range(endpoints), None, graph_of(edges), routing=self.routing, nearest_hops=1)


# Seven rings of eight endpoints that use each link once in each direction (Tillson 1980: all even numbers from 8 on have such).
_RINGS_OF_EIGHT: Final = ("07641235", "05746213", "04375261", "03271654", "06342517", "02473156", "01453672")


class Mesh(Direct):
    """A direct link between every pair, like NVLink between four GPUs or Infinity Fabric between eight, without a switch."""

    has_longer_routes = False
    has_several_paths = False
    joins_all_pairs = True

    kind: Literal["mesh"] = "mesh"

    def wire(self, endpoints: int, bandwidth_Bps: float, cards: int = 1) -> Wiring:
        """A link between every pair, each with an equal part of an endpoint's bandwidth."""
        link_Bps = bandwidth_Bps / max(1, endpoints - 1)
        return self._direct(endpoints, ((a, b, link_Bps) for a, b in itertools.combinations(range(endpoints), 2)))

    def rings(self, endpoints: int) -> list[list[int]]:
        """Rings in both directions that share no link (Walecki's zigzag, in Lucas 1892); for up to four endpoints all rings,
        and for eight as many as use every link equally."""
        if endpoints == 8:
            return [[int(place) for place in ring] for ring in _RINGS_OF_EIGHT]
        if endpoints <= 4:
            return [[0, *rest] for rest in itertools.permutations(range(1, endpoints))]
        last = endpoints - 1
        offsets = [(i + 1) // 2 * (1 if i % 2 else -1) for i in range(last)]
        orders = [[*((first + offset) % last for offset in offsets), last] for first in range(last // 2)]
        return _both_directions(orders)


class HybridCubeMesh(Direct):
    """DGX-1: two quads of GPUs with a link between all pairs of a quad and between each GPU and its counterpart in the other
    quad.

    links: number of links of each GPU. Four (P100): one for every such pair. Six (V100): two for the eight pairs along one ring
    (NVIDIA's white paper on DGX-1 with Tesla V100, WP-08437).
    """

    kind: Literal["hybrid_cube_mesh"] = "hybrid_cube_mesh"
    links: Literal[4, 6] = 4

    @property
    def places(self) -> float:
        """The eight GPUs of a DGX-1."""
        return 8

    def wire(self, endpoints: int, bandwidth_Bps: float, cards: int = 1) -> Wiring:
        """The links among the first `endpoints` GPUs, each with an equal part of a GPU's bandwidth."""
        link_Bps = bandwidth_Bps / self.links
        edges = ((a, b, link_Bps) for ring in self._orders() for a, b in zip(ring, [*ring[1:], ring[0]], strict=True))
        return self._direct(endpoints, ((a, b, rate_Bps) for a, b, rate_Bps in edges if max(a, b) < endpoints))

    def _orders(self) -> list[list[int]]:
        """Rings that together use each link exactly once."""
        doubled = [[0, 3, 2, 1, 5, 6, 7, 4]] if self.links == 6 else []
        return [[0, 1, 2, 3, 7, 6, 5, 4], [0, 2, 6, 4, 7, 5, 1, 3], *doubled]

    def rings(self, endpoints: int) -> list[list[int]]:
        """Both directions of the rings that use each link once; of fewer than eight GPUs, one ring in their order."""
        if endpoints < self.places:
            return super().rings(endpoints)
        return _both_directions(self._orders())


def _both_directions(orders: list[list[int]]) -> list[list[int]]:
    return [ring for order in orders for ring in (order, order[::-1])]


class PcieTree(Topology):
    """Devices attached to PCIe switches, switches attached to the sockets of a host, and links between all sockets."""

    has_several_paths = False

    kind: Literal["pcie_tree"] = "pcie_tree"
    per_switch: Count = 2
    switches_per_socket: Count = 2
    between_sockets_Bps: PositiveBytesPerSecond = Field(
        alias="between_sockets", description="bandwidth between two sockets in one direction"
    )

    def wire(self, endpoints: int, bandwidth_Bps: float, cards: int = 1) -> Wiring:
        """Links of devices and of switches with `bandwidth_Bps`, and links between all sockets."""
        switches = -(-endpoints // self.per_switch)
        sockets = -(-switches // self.switches_per_socket)
        up = ((f"switch {i}", f"socket {i // self.switches_per_socket}", bandwidth_Bps) for i in range(switches))
        pairs = itertools.combinations(range(sockets), 2)
        across = ((f"socket {a}", f"socket {b}", self.between_sockets_Bps) for a, b in pairs)
        attached = [f"switch {i // self.per_switch}" for i in range(endpoints)]
        return self._switched(attached, bandwidth_Bps, itertools.chain(up, across))

    def share_switch(self, endpoints: Collection[int]) -> bool:
        """Whether all devices are under one switch."""
        return len({endpoint // self.per_switch for endpoint in endpoints}) == 1

    def through_host(self, wiring: Wiring) -> Wiring:
        """Messages climb to the socket of the sender also where one switch joins both ends."""
        assert wiring.links is not None
        assert wiring.access_Bps is not None
        above = list(wiring.attached)
        slots = [f"slot {i}" for i in range(len(above))]
        for slot, switch, access_Bps in zip(slots, above, wiring.access_Bps.tolist(), strict=True):
            for edge in ((slot, switch), (switch, slot)):
                wiring.links.add_edge(*edge, capacity_Bps=access_Bps)
        sockets = [f"socket {i // self.per_switch // self.switches_per_socket}" for i in range(len(above))]

        def fixed_path(source: int, target: int) -> list[Vertex]:
            across = dict.fromkeys([sockets[source], sockets[target]])
            return [slots[source], above[source], *across, above[target], slots[target]]

        wiring.attached, wiring.fixed_path, wiring.nearest_hops = slots, fixed_path, 4
        return wiring


class BridgedPairs(Direct):
    """Devices on PCIe slots of the host, each two neighbours joined by a bridge, such as NVLink's of RTX 3090.

    bridge: bandwidth of a bridge in each direction. The link's bandwidth is that of a slot.
    """

    has_several_paths = False

    kind: Literal["bridged_pairs"] = "bridged_pairs"
    bridge_Bps: PositiveBytesPerSecond = Field(alias="bridge", description="bandwidth of a bridge in each direction")

    def wire(self, endpoints: int, bandwidth_Bps: float, cards: int = 1) -> Wiring:
        """Bridges between neighbours, and links of all devices to the host."""
        bridges = ((i, i + 1, self.bridge_Bps) for i in range(0, endpoints - 1, 2))
        return self._direct(endpoints, itertools.chain(bridges, ((i, "host", bandwidth_Bps) for i in range(endpoints))))

    def rings(self, endpoints: int) -> list[list[int]]:
        """The order of the devices in both directions, since each slot serves one neighbour alone."""
        return _both_directions([list(range(endpoints))])

    def are_bridged(self, endpoints: Collection[int]) -> bool:
        """Whether all devices are of one pair."""
        return len({endpoint // 2 for endpoint in endpoints}) == 1


class SwitchTree(Topology):
    """Switches in levels. oversubscription: bandwidth down over bandwidth up of the switches that endpoints are attached to."""

    oversubscription: float = Field(1.0, gt=0, le=1000)

    @property
    def is_uniform(self) -> bool:
        """Whether uplinks never limit messages: without oversubscription, spread evenly, and without latency of hops."""
        return self.oversubscription <= 1 and self.routing == "spread" and self.hop_latency_s == 0

    def _distinct(self, switches: int) -> int:
        """Number of vertices for equivalent switches: one if messages are spread evenly over all of them."""
        return switches if self.routing == "hashed" else 1


class LeafSpine(SwitchTree):
    """Leaf switches with `per_leaf` endpoints, each connected to every spine switch."""

    kind: Literal["leaf_spine"] = "leaf_spine"
    per_leaf: Count
    spines: Count = 1

    def wire(self, endpoints: int, bandwidth_Bps: float, cards: int = 1) -> Wiring:
        """Own links of endpoints, and links between all leaves and all spines."""
        leaves = range(-(-endpoints // self.per_leaf))
        spines = self._distinct(self.spines)
        up_Bps = self.per_leaf * bandwidth_Bps / self.oversubscription / spines
        edges = ((f"leaf {leaf}", f"spine {spine}", up_Bps) for leaf in leaves for spine in range(spines))
        return self._switched([f"leaf {i // self.per_leaf}" for i in range(endpoints)], bandwidth_Bps, edges)


class FatTree(SwitchTree):
    """Three levels: leaf switches, spine switches of their pod, core switches. Each leaf is connected to all spines of its pod,
    each spine to all cores. pod_oversubscription: bandwidth down over bandwidth up of a pod's spines."""

    kind: Literal["fat_tree"] = "fat_tree"
    per_leaf: Count
    leaves_per_pod: Count
    spines_per_pod: Count = 1
    cores: Count = 1
    pod_oversubscription: float = Field(1.0, gt=0, le=1000)

    @property
    def is_uniform(self) -> bool:
        """Whether uplinks of leaves and of pods never limit messages."""
        return super().is_uniform and self.pod_oversubscription <= 1

    def wire(self, endpoints: int, bandwidth_Bps: float, cards: int = 1) -> Wiring:
        """Own links of endpoints, links of leaves to their pod's spines, and links of spines to all cores."""
        leaf_up_Bps = self.per_leaf * bandwidth_Bps / self.oversubscription
        pod_up_Bps = leaf_up_Bps * self.leaves_per_pod / self.pod_oversubscription
        leaves = -(-endpoints // self.per_leaf)
        pods = -(-leaves // self.leaves_per_pod)
        spines, cores = range(self._distinct(self.spines_per_pod)), range(self._distinct(self.cores))

        def edges() -> Edges:
            for leaf, spine in itertools.product(range(leaves), spines):
                pod = leaf // self.leaves_per_pod
                yield f"leaf {leaf}", f"pod {pod} spine {spine}", leaf_up_Bps / len(spines)
            for pod, spine, core in itertools.product(range(pods), spines, cores):
                yield f"pod {pod} spine {spine}", f"core {core}", pod_up_Bps / len(spines) / len(cores)

        return self._switched([f"leaf {i // self.per_leaf}" for i in range(endpoints)], bandwidth_Bps, edges())


class RailOptimised(SwitchTree):
    """Card c of every node of a group is attached to the group's rail switch c; spines connect the rail switches.

    Messages to another rail change the rail inside the node first.
    """

    kind: Literal["rail_optimised"] = "rail_optimised"
    nodes_per_group: Count
    spines: Count = 1

    @property
    def endpoints_are_cards(self) -> bool:
        """Always true: each card of a node is attached to the switch of its own rail."""
        return True

    def wire(self, endpoints: int, bandwidth_Bps: float, cards: int = 1) -> Wiring:
        """Own links of cards to the switches of their rails, and links of these to all spines."""
        attached = [f"group {i // cards // self.nodes_per_group} rail {i % cards}" for i in range(endpoints)]
        spines = self._distinct(self.spines)
        up_Bps = self.nodes_per_group * bandwidth_Bps / self.oversubscription / spines
        rails = dict.fromkeys(attached)
        return self._switched(
            attached, bandwidth_Bps, ((rail, f"spine {spine}", up_Bps) for rail in rails for spine in range(spines))
        )


class Torus(Direct):
    """A grid with a ring along each dimension and direct links between neighbours. dimensions: sizes of the grid."""

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
        """Number of places of the grid."""
        return math.prod(self.dimensions)

    def wire(self, endpoints: int, bandwidth_Bps: float, cards: int = 1) -> Wiring:
        """Links to both neighbours along each dimension, each with an equal part of an endpoint's bandwidth."""
        axes = [axis for axis, size in enumerate(self.dimensions) if size > 1]
        link_Bps = bandwidth_Bps / (2 * len(axes))

        def edges() -> Edges:
            for position in itertools.product(*map(range, self.dimensions)):
                for axis in axes:
                    neighbour = (*position[:axis], (position[axis] + 1) % self.dimensions[axis], *position[axis + 1 :])
                    yield self._number(position), self._number(neighbour), link_Bps

        return self._direct(endpoints, edges())

    def _number(self, position: Sequence[int]) -> int:
        """The endpoint at a position; endpoints are numbered along the last dimension first."""
        return int(np.ravel_multi_index(tuple(position), self.dimensions))

    def rings(self, endpoints: int) -> list[list[int]]:
        """A ring in both directions: row by row, every other row backwards, so that each message goes to a neighbour (all but
        the last one if all sizes are odd)."""
        if endpoints < self.places:
            return super().rings(endpoints)
        # even dimensions first: an even number of rows ends next to its begin
        axes = sorted(range(len(self.dimensions)), key=lambda axis: self.dimensions[axis] % 2)
        path: list[tuple[int, ...]] = [()]
        for size in (self.dimensions[axis] for axis in axes):
            directions = [range(size), range(size - 1, -1, -1)]
            path = [(*position, i) for row, position in enumerate(path) for i in directions[row % 2]]
        order = [self._number([position[axes.index(axis)] for axis in range(len(axes))]) for position in path]
        return _both_directions([order])


class Dragonfly(Topology):
    """Groups of routers with a link between all routers of a group (`local`) and one link between any two groups (`global`).

    The global links of a group are assigned to its routers in turn (Kim et al. 2008). Messages pass at most one global link
    (minimal routing).
    """

    has_several_paths = False

    kind: Literal["dragonfly"] = "dragonfly"
    per_router: Count
    routers_per_group: Count
    groups: Annotated[int, Field(gt=0, le=10_000)]
    local_Bps: PositiveBytesPerSecond = Field(alias="local")
    global_Bps: PositiveBytesPerSecond = Field(alias="global")

    @property
    def places(self) -> float:
        """Number of endpoints of all groups."""
        return self.per_router * self.routers_per_group * self.groups

    def wire(self, endpoints: int, bandwidth_Bps: float, cards: int = 1) -> Wiring:
        """Own links of endpoints, local and global links, and the minimal route between groups."""

        def edges() -> Edges:
            for group in range(self.groups):
                for a, b in itertools.combinations(range(self.routers_per_group), 2):
                    yield f"group {group} router {a}", f"group {group} router {b}", self.local_Bps
            for a, b in itertools.combinations(range(self.groups), 2):
                yield self._gateway(a, b), self._gateway(b, a), self.global_Bps

        places = [divmod(i // self.per_router, self.routers_per_group) for i in range(endpoints)]
        attached = [f"group {group} router {router}" for group, router in places]
        wiring = self._switched(attached, bandwidth_Bps, edges())

        def fixed_path(source: int, target: int) -> list[str] | None:
            a, b = places[source][0], places[target][0]
            if a == b:
                return None
            return list(dict.fromkeys([attached[source], self._gateway(a, b), self._gateway(b, a), attached[target]]))

        wiring.fixed_path = fixed_path
        return wiring

    def _gateway(self, group: int, other: int) -> str:
        """The router of a group with the link to another group."""
        return f"group {group} router {(other - group - 1) % self.groups % self.routers_per_group}"


class GraphLink(Spec):
    """A link between two vertices, which are endpoints (numbers) or switches (names). bandwidth: of each direction."""

    between: tuple[int | str, int | str]
    bandwidth_Bps: PositiveBytesPerSecond = Field(alias="bandwidth")


class Graph(Direct):
    """A topology given link by link. routes: vertices of the paths between pairs that do not use the shortest paths."""

    kind: Literal["graph"] = "graph"
    links: Annotated[tuple[GraphLink, ...], Field(min_length=1, max_length=100_000)]
    routes: Annotated[tuple[Annotated[tuple[int | str, ...], Field(min_length=2)], ...], Field(max_length=100_000)] = ()

    def check(self, endpoints: int) -> None:
        """Checks that links and routes join all endpoints; raises FieldError."""
        import networkx as nx

        for i, link in enumerate(self.links):
            if link.between[0] == link.between[1]:
                raise FieldError(("links", i), f"it connects {link.between[0]} to itself; leave it out")
            for vertex in link.between:
                if isinstance(vertex, int) and not 0 <= vertex < endpoints:
                    raise FieldError(("links", i), f"there is no endpoint {vertex}; they are numbered 0 to {endpoints - 1}")
        links = self._links()
        if unconnected := [endpoint for endpoint in range(endpoints) if endpoint not in links]:
            raise FieldError(("links",), f"endpoint {unconnected[0]} has no link; add one")
        reached = nx.node_connected_component(links.to_undirected(), 0)
        if unreachable := [endpoint for endpoint in range(endpoints) if endpoint not in reached]:
            listed = ", ".join(map(str, unreachable[:5])) + (", …" if len(unreachable) > 5 else "")
            raise FieldError(("links",), f"no path leads from endpoint 0 to {listed}; add links that connect them")
        pairs: set[tuple[int | str, int | str]] = set()
        for i, route in enumerate(self.routes):
            self._check_route(("routes", i), route, links)
            if (route[0], route[-1]) in pairs:
                raise FieldError(("routes", i), f"a second route from {route[0]} to {route[-1]}; keep one")
            pairs.add((route[0], route[-1]))

    @staticmethod
    def _check_route(field: tuple[str, int], route: tuple[int | str, ...], links: nx.DiGraph[Any]) -> None:
        if not (isinstance(route[0], int) and isinstance(route[-1], int) and route[0] != route[-1]):
            raise FieldError(field, "a route leads from one endpoint, a number, to another")
        if len(set(route)) < len(route):
            raise FieldError(field, "a route passes a vertex twice; remove the cycle")
        for step in itertools.pairwise(route):
            if not links.has_edge(*step):
                raise FieldError(field, f"no link joins {step[0]} and {step[1]}; add it, or another route")

    def _links(self) -> nx.DiGraph[Any]:
        return graph_of((*link.between, link.bandwidth_Bps) for link in self.links)

    def wire(self, endpoints: int, bandwidth_Bps: float, cards: int = 1) -> Wiring:
        """The given links, and the given routes in both directions."""
        routes: dict[tuple[Any, Any], Sequence[Vertex]] = {(route[-1], route[0]): route[::-1] for route in self.routes}
        routes |= {(route[0], route[-1]): route for route in self.routes}
        adjacent = any(isinstance(a, int) and isinstance(b, int) for a, b in (link.between for link in self.links))
        wiring = self._direct(endpoints, ((*link.between, link.bandwidth_Bps) for link in self.links))
        wiring.fixed_path = lambda source, target: routes.get((source, target))
        wiring.nearest_hops = 1 if adjacent else 2
        return wiring


AnyTopology = Annotated[
    Switch | Mesh | HybridCubeMesh | PcieTree | BridgedPairs | LeafSpine | FatTree | RailOptimised | Torus | Dragonfly | Graph,
    Field(discriminator="kind"),
]
