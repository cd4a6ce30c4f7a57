"""What a topology is, and the simplest one: a single switch.

The devices inside a node and the nodes of a network are described in the same way: `topology: {kind: ...}` within a link. The
link's bandwidth is always that of one endpoint over all its links, in each direction; the kind determines the other links
(`topology_kinds.py`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import numpy as np
from pydantic import Field

from scaleproof.simulator.cluster.network.wiring import Routing, Vertex, Wiring
from scaleproof.simulator.common.errors import FieldError, InputError
from scaleproof.simulator.common.spec import Spec
from scaleproof.simulator.common.units import Seconds

if TYPE_CHECKING:
    import networkx as nx

# between switches; they need 1 GiB of memory
_MAX_LINKS: Final = 500_000

Edges = Iterator[tuple[Vertex, Vertex, float]]


class Topology(Spec, ABC):
    """How endpoints are connected. hop_latency: of each link that a message passes in addition to those of the shortest route
    between any two endpoints."""

    # Whether some messages pass more links than others, whether some have several shortest paths, and whether a direct link
    # joins every pair, so that some of the endpoints have rings of their own.
    has_longer_routes: ClassVar[bool] = True
    has_several_paths: ClassVar[bool] = True
    joins_all_pairs: ClassVar[bool] = False

    kind: str
    hop_latency_s: Seconds = Field(0.0, alias="hop_latency")
    routing: Routing = Field("spread", description="over all shortest paths, or hashed to one of them (ECMP)")

    @property
    def places(self) -> float:
        """Largest number of endpoints; infinite if the topology grows with them."""
        return math.inf

    def check(self, endpoints: int) -> None:
        """Raises FieldError, with the field's path within the topology, if the endpoints do not fit the topology."""
        if endpoints > self.places:
            raise FieldError((), f"{self.kind} with {self.places:.0f} places for {endpoints}; make it larger")
        if self.hop_latency_s and not self.has_longer_routes:
            message = f"all messages of a {self.kind} take the shortest route; add it to the latency of the link"
            raise FieldError(("hop_latency",), message)
        if self.routing == "hashed" and not self.has_several_paths:
            message = f"a {self.kind} has one path between two endpoints, so there is nothing to hash; leave it out"
            raise FieldError(("routing",), message)

    @property
    def is_uniform(self) -> bool:
        """Whether all pairs of endpoints are connected equally, so that the topology is equivalent to a single switch.

        A tree of switches with at least as much bandwidth up as down is never the bottleneck if messages are spread evenly.
        """
        return False

    @property
    def has_own_links(self) -> bool:
        """Whether each endpoint is attached to a switch by a link of its own."""
        return True

    @property
    def endpoints_are_cards(self) -> bool:
        """Whether the endpoints of a network are the nodes' cards, numbered node by node, instead of the nodes."""
        return False

    @abstractmethod
    def wire(self, endpoints: int, bandwidth_Bps: float, cards: int = 1) -> Wiring:
        """The wiring of `endpoints` endpoints that send `bandwidth_Bps` each. cards: of each node, if the endpoints are
        cards."""

    def through_host(self, wiring: Wiring) -> Wiring:
        """The wiring where messages between devices pass the host's memory: as it is, if all of them pass the host anyway."""
        return wiring

    def share_switch(self, endpoints: Collection[int]) -> bool:
        """Whether one PCIe switch is known to join these devices."""
        return False

    def are_bridged(self, endpoints: Collection[int]) -> bool:
        """Whether NVLink bridges join these devices, while the links of others are PCIe's."""
        return False

    def rings(self, endpoints: int) -> list[list[int]]:
        """Orders of the endpoints in rings, each of which carries an equal part of the data."""
        return [list(range(endpoints))]

    def _switched(self, attached: Sequence[Vertex], bandwidth_Bps: float, edges: Edges) -> Wiring:
        """The wiring of endpoints that are attached to switches. edges: one direction of each link between switches."""
        access_Bps = np.full(len(attached), bandwidth_Bps)
        return Wiring(attached, access_Bps, graph_of(edges), routing=self.routing)


def graph_of(edges: Edges) -> nx.DiGraph[Any]:
    """The graph with both directions of each edge; parallel edges are added up. Raises InputError if it is too large."""
    import networkx as nx

    graph: nx.DiGraph[Any] = nx.DiGraph()
    for number, (left, right, capacity_Bps) in enumerate(edges):
        if number >= _MAX_LINKS:
            raise InputError(f"the topology has more than {_MAX_LINKS} links between switches; give fewer, wider ones")
        for edge in ((left, right), (right, left)):
            parallel_Bps = graph.edges[edge]["capacity_Bps"] if graph.has_edge(*edge) else 0.0
            graph.add_edge(*edge, capacity_Bps=parallel_Bps + capacity_Bps)
    return graph


class Switch(Topology):
    """A single switch that is never the bottleneck: NVSwitch, or a small network."""

    has_longer_routes = False
    has_several_paths = False

    kind: Literal["switch"] = "switch"

    @property
    def is_uniform(self) -> bool:
        """Always true: one switch joins all endpoints."""
        return True

    def wire(self, endpoints: int, bandwidth_Bps: float, cards: int = 1) -> Wiring:
        """The endpoints' own links, without further ones."""
        return Wiring(["switch"] * endpoints, np.full(endpoints, bandwidth_Bps))
