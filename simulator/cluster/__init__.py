"""Clusters: nodes of devices, the links inside a node and the network between nodes."""

from __future__ import annotations

import bisect
import itertools
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from scaleproof.simulator.cluster.collectives.nccl.constants import default_transport, transports
from scaleproof.simulator.cluster.collectives.settings import (
    CollectiveSettings,
    Library,
    Nccl,
    facts_of,
    with_generation,
    without_peers,
)
from scaleproof.simulator.cluster.device.device import Device, Optimizer, Precision, optimizer_bytes
from scaleproof.simulator.cluster.kinds import NodeKind, of_listed_nodes
from scaleproof.simulator.cluster.network.links import Link, Node, without_nics
from scaleproof.simulator.cluster.network.reached import sockets, states
from scaleproof.simulator.cluster.quantities import QUANTITIES, Interval
from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.errors import FieldError, UnitError
from scaleproof.simulator.common.spec import Count, Spec, slower
from scaleproof.simulator.common.units import DollarsPerJoule, KilogramsPerJoule


class Electricity(Spec):
    """Electricity of a site.

    The default carbon intensity is the world's average in 2023: 480 g/kWh (Ember, Global Electricity Review 2024, recalled; its
    data as of July 2024 say 481).
    """

    price_USD_per_J: DollarsPerJoule | None = Field(None, alias="price", description="needed where nodes are owned")
    carbon_kg_per_J: KilogramsPerJoule = Field(480e-3 / 3.6e6, alias="carbon", description="CO2 that its generation emits")


@dataclass(frozen=True)
class Interconnect:
    """A cluster as its messages and collectives use it: equal for clusters on which all of them take the same time."""

    parts: tuple[object, ...]
    cluster: Cluster = field(compare=False, repr=False)


class Cluster(Spec):
    """A cluster as users describe it: `nodes` nodes of identical devices, joined by a network, unless `kinds` names others.

    network: links between nodes; the bandwidth is that of all network cards of a node together. YAML may give the cards in its
    place, `nics: 8 x 400 Gbit/s`, which are the bandwidth 3200 Gbit/s and node.cards 8.
    collectives: measured collectives, and the library that chooses the algorithm of the others.
    shared_cores: cores that all nodes compute on if they are parts of one machine, such as network namespaces.
    uncertainty: 90 % intervals by the names in `quantities`, which are mostly paths of fields: network.bandwidth.
    electricity: its price, which owned nodes need, and the CO2 that its generation emits.
    pue: power usage effectiveness, power of the site over power of its nodes (ISO/IEC 30134-2).
    """

    name: str = ""
    description: str = ""
    source: str = Field("", description="source of the numbers")
    nodes: Count = 1
    node: Node
    network: Link | None = Field(None, description="needed when there is more than one node")
    device: Device
    kinds: tuple[NodeKind, ...] = Field(
        (), description="nodes with other or fewer devices; `nodes` as a list of kinds gives them"
    )
    links: tuple[Link, ...] = Field(
        (), description="inside the nodes of each kind, for plans that leave some out; node.link is the slowest of them"
    )
    shared_cores: float | None = Field(
        None, gt=0, description="effective number of cores that all nodes share, if they are parts of one machine"
    )
    collectives: CollectiveSettings = CollectiveSettings()
    framework: str | None = Field(
        None, description="name of the framework that scenarios on this cluster use by default, where it supports them"
    )
    pue: Annotated[float, Field(ge=1, le=10)] = 1.0
    electricity: Electricity = Electricity()
    uncertainty: dict[str, Interval] = Field(
        default_factory=dict, description="90 % intervals of measured quantities, by field; the others have a prior"
    )
    model_error: float = Field(
        1.0, gt=0, le=100, description="factor on the errors of published predictions, as runs of this cluster teach it to fit"
    )
    model_error_nodes: int | None = Field(
        None, ge=1, description="nodes of the largest of these runs; on more nodes a factor below 1 approaches 1"
    )
    provenance: dict[str, str] = Field(default_factory=dict, description="machine, time and software of the calibration")

    @model_validator(mode="before")
    @classmethod
    def _nics_are_bandwidth(cls, data: Any) -> Any:
        return without_nics(data)

    @model_validator(mode="before")
    @classmethod
    def _nccl_knows_the_device(cls, data: Any) -> Any:
        return with_generation(without_peers(of_listed_nodes(data)))

    @model_validator(mode="after")
    def _owned_nodes_have_costs(self) -> Self:
        if self.node.purchase is not None and self.electricity.price_USD_per_J is None:
            raise FieldError(("electricity", "price"), "missing for nodes that are owned; give one, such as 0.12 USD/kWh")
        if self.node.purchase is not None and self.node.power_W is None:
            raise FieldError(
                ("node", "power"), "missing for nodes that are owned; give that of a node in training, as in 10.2 kW"
            )
        return self

    @model_validator(mode="after")
    def _framework_ships(self) -> Self:
        if self.framework is not None and self.framework not in (known := catalog.names("frameworks")):
            raise FieldError(("framework",), f"no framework is called {self.framework!r}; give one of {', '.join(known)}")
        return self

    @model_validator(mode="after")
    def _transport_ships(self) -> Self:
        """Raises FieldError for names of networks that do not ship, and for fields of networks inside nodes."""
        if self.node.link is not None and self.node.link.in_network_reduction:
            message = "is for networks; inside nodes NCCL uses NVSwitch where collectives.nccl.nvls is true"
            raise FieldError(("node", "link", "in_network_reduction"), message)
        facts = self.nccl_facts
        if self.node.link is not None and self.node.link.peer_to_peer is False and facts and facts.interconnect == "nvlink":
            message = "NVLink joins these devices, so they reach each other's memory; leave it out, or give"
            raise FieldError(("node", "link", "peer_to_peer"), f"{message} collectives.nccl.interconnect: pcie")
        if self.network is not None and self.network.peer_to_peer is not None:
            raise FieldError(("network", "peer_to_peer"), "is for the links inside a node; give node.link.peer_to_peer")
        named = {"transport": transports(), "sockets": tuple(sockets()), "state": tuple(filter(None, states()))}
        for field_, known in named.items():
            for place, link in (("network",), self.network), (("node", "link"), self.node.link):
                name = None if link is None else getattr(link, field_)
                if name is not None and place != ("network",):
                    raise FieldError((*place, field_), f"links inside a node have none; give network.{field_}")
                if name is not None and name not in known:
                    message = (
                        f"no {field_} {'are' if field_.endswith('s') else 'is'} called {name!r}; give one of {', '.join(known)}"
                    )
                    raise FieldError((*place, field_), message)
        return self

    @model_validator(mode="after")
    def _topologies_fit(self) -> Self:
        """Raises FieldError (pydantic lets it pass) with the field's path within the cluster."""
        for path, link, endpoints in (
            (("node", "link"), self.node.link, self.node.installed),
            (("network",), self.network, self.nodes),
        ):
            try:
                if link is not None:
                    link.check(endpoints)
            except FieldError as error:
                raise FieldError((*path, *error.field), error.message) from None
        return self

    @model_validator(mode="after")
    def _kinds_are_of_nodes(self) -> Self:
        if self.kinds and len(self._kind_by_node) != sum(len(kind.nodes) for kind in self.kinds):
            raise FieldError(("kinds",), "a node has two kinds; name each node once")
        if self.kinds and max(self._kind_by_node) >= self.nodes:
            raise FieldError(("kinds",), f"there is no node {max(self._kind_by_node)}; they are numbered 0 to {self.nodes - 1}")
        for number, kind in enumerate(self.kinds):
            if (kind.devices or 1) > self.node.installed:
                message = f"{kind.devices} devices, but node.devices, the largest number of any node, is {self.node.installed}"
                raise FieldError(("kinds", number, "devices"), f"{message}; give at most that")
        return self

    @cached_property
    def _kind_by_node(self) -> dict[int, int]:
        return {node: number for number, kind in enumerate(self.kinds, start=1) for node in kind.nodes}

    def kind_of(self, node: int) -> int:
        """Number of the kind of a node: 0 with the cluster's own device, else its place in `kinds`, from 1 on."""
        return self._kind_by_node.get(node, 0)

    @property
    def all_devices(self) -> list[Device]:
        """The device of each kind of nodes."""
        return [self.device, *(kind.device for kind in self.kinds)]

    def with_device_of(self, kind: int) -> Self:
        """The cluster as if all nodes had the device of a kind, and as many of them."""
        return self if not self.kinds else self.cached(_by_kind)[kind]  # type: ignore[return-value]

    @property
    def has_equal_nodes(self) -> bool:
        """Whether ranks use the same number of devices on all nodes."""
        return all(kind.devices is None for kind in self.kinds)

    @property
    def has_equal_places(self) -> bool:
        """Whether all nodes have the same number of devices, and all pairs of nodes, and of a node's devices, are connected
        equally."""
        return self.is_uniform and self.has_equal_nodes

    def devices_of(self, node: int) -> int:
        """Number of devices of a node that ranks use."""
        kind = self.kind_of(node)
        own = self.kinds[kind - 1].devices if kind else None
        return min(own or self.node.devices, self.node.devices)

    @cached_property
    def _first_ranks(self) -> list[int]:
        """The first rank on each node, and the number of all ranks."""
        return [*itertools.accumulate(map(self.devices_of, range(self.nodes)), initial=0)]

    def place(self, rank: int) -> tuple[int, int]:
        """Node and device of a rank; ranks fill nodes in order."""
        if self.has_equal_nodes:
            return divmod(rank, self.node.devices)
        node = bisect.bisect_right(self._first_ranks, rank, hi=self.nodes) - 1
        return node, rank - self._first_ranks[node]

    def nodes_of(self, ranks: int) -> int:
        """Number of nodes that the first `ranks` ranks occupy, with nodes of node.devices added for more ranks than devices."""
        if self.has_equal_nodes:
            return -(-ranks // self.node.devices)
        added = -(-max(0, ranks - self.devices) // self.node.devices)
        return added + bisect.bisect_left(self._first_ranks, min(ranks, self.devices))

    def full_nodes(self, nodes: int) -> float:
        """Number of nodes of node.devices devices that cost as much as the first `nodes` nodes: those with fewer count less, in
        proportion."""
        return nodes if self.has_equal_nodes else sum(map(self.devices_of, range(nodes))) / self.node.devices

    def device_numbers(self, ranks: int) -> tuple[int, ...]:
        """Numbers of the devices of the first `ranks` ranks, of which each node has node.devices, whether it has that many
        devices or fewer; empty if all have them, since numbers are those of the ranks then."""
        if self.has_equal_nodes:
            return ()
        return tuple(node * self.node.devices + device for node, device in map(self.place, range(ranks)))

    @model_validator(mode="after")
    def _intervals_fit(self) -> Self:
        for name in self.uncertainty:
            if name not in QUANTITIES:
                raise FieldError(("uncertainty", name), f"no such quantity; give one of {', '.join(QUANTITIES)}")
            try:
                QUANTITIES[name].check(self)
            except (UnitError, ValueError) as error:
                raise FieldError(("uncertainty", name), str(error)) from None
        return self

    def sum_s(self, size_bytes: float) -> float:
        """Seconds in which a host adds one buffer of `size_bytes` to another: two reads and one write of memory."""
        return 3 * size_bytes / self._host_Bps

    def update_s(self, parameters: float, optimizer: Optimizer, precision: Precision) -> float:
        """Seconds of one optimizer step on a host: as measured on CPU nodes, otherwise bound by the host's memory bandwidth."""
        if self.node.memory_bandwidth_Bps is None:
            return self.device.optimizer_s(parameters, optimizer, precision)
        return optimizer_bytes(parameters, optimizer, precision) / self._host_Bps

    @property
    def has_costs(self) -> bool:
        """Whether the cost of a node is known."""
        return self.node.price_USD_per_s is not None or self.node.purchase is not None

    def node_USD_per_s(self, power_W: float | None) -> float | None:
        """US dollars per second of a node that draws this mean power: its rent, or depreciation and electricity of the site."""
        node = self.node
        if node.purchase is None:
            return node.price_USD_per_s
        assert power_W is not None
        assert self.electricity.price_USD_per_J is not None
        return node.purchase.USD_per_s + self.pue * power_W * self.electricity.price_USD_per_J

    @property
    def _host_Bps(self) -> float:
        return self.node.memory_bandwidth_Bps or self.device.memory_bandwidth_Bps

    @property
    def computes_on_processors(self) -> bool:
        """Whether ranks compute on CPU cores."""
        kernels = self.device.kernels
        return self.node.cores is not None or (kernels is not None and kernels.generation == "cpu")

    @cached_property
    def interconnect(self) -> Interconnect:
        """What messages and collectives depend on: a device's speed only where it copies what collectives move."""
        device = self.device if self.computes_on_processors else self.device.name
        return Interconnect((self.network, self.node, self.nodes, self.collectives, self.shared_cores, device), self)

    @cached_property
    def library(self) -> Library:
        """The library that chooses the algorithms of collectives."""
        if self.collectives.library is not None:
            return self.collectives.library
        if self.nccl_facts:
            return "nccl"
        return "gloo" if self.node.cores is not None else "fastest"

    @property
    def nccl_facts(self) -> Nccl | None:
        """Parameters of NCCL's or RCCL's model: its own, else those for its device's name; None if they are unknown."""
        return self.collectives.nccl or facts_of(self.device.name)

    @cached_property
    def nccl(self) -> Nccl | None:
        """Parameters of NCCL's model if NCCL or RCCL is the library, else None. Raises FieldError if they are unknown."""
        if self.library != "nccl":
            return None
        if self.nccl_facts is None:
            message = f"NCCL's model does not know {self.device.name}; give collectives.nccl, or another library"
            raise FieldError(("cluster", "collectives", "library"), message)
        return self.nccl_facts

    @cached_property
    def transport(self) -> str:
        """Name of the transport between nodes: the network's own, else the usual one of such a network."""
        return self.network.transport or default_transport(self.network, self.node) if self.network else "infiniband"

    def reached(self, most_Bps: float | None = None, connections: int | None = None) -> Self:
        """The cluster with its network at the rate at which it carries messages: as its state slows it, and no faster than
        TCP connections.

        most_Bps: largest rate of a node over TCP, for software that uses nothing else. connections: of a node to the next,
        where it opens others than NCCL by itself.
        """
        network = self.network
        if network is None:
            return self
        transport, opened = self.transport if most_Bps is None else "sockets", sockets().get(network.sockets or "")
        reached = slower(network, states()[network.state].value, "bandwidth_Bps", "exceptions")
        limits = [reached.bandwidth_Bps, most_Bps or math.inf]
        if transport == "sockets":
            rate_Bps = network.connection_Bps or (opened or sockets()["default"]).rate_Bps
            limits.append(rate_Bps * (connections or (2 * self.node.cards_used * opened.connections if opened else math.inf)))
        if most_Bps is None and min(limits) == network.bandwidth_Bps:
            return self
        own = {"transport": transport, "bandwidth_Bps": min(limits), "state": None, "sockets": None}
        return self.model_copy(update={"network": reached.model_copy(update=own)})

    @property
    def is_uniform(self) -> bool:
        """Whether all pairs of devices of a node are connected equally, and all pairs of nodes."""
        return all(link is None or link.is_uniform for link in (self.node.link, self.network))

    @property
    def devices(self) -> int:
        """Number of devices of all nodes that ranks can use."""
        return self.nodes * self.node.devices if self.has_equal_nodes else self._first_ranks[-1]

    @property
    def gives_used(self) -> bool:
        """Whether the number of used devices of each node is given, and not chosen for a job."""
        return "used" in self.node.model_fields_set and self.node.used is not None

    @property
    def unplaced(self) -> Self:
        """The cluster without a number of used devices that was chosen for a job."""
        return self if self.gives_used else self.using(None)

    def using(self, devices: int | None) -> Self:
        """The cluster where ranks use this number of devices of each node, None for all, chosen for a job."""
        return self.defaulted({"node": self.node.defaulted({"used": devices})})

    def with_nodes(self, nodes: int) -> Self:
        """The cluster with at least `nodes` nodes. Raises FieldError where its topology has no room for them."""
        return self if nodes <= self.nodes else self.rebuilt(nodes=nodes)


def _by_kind(cluster: Cluster) -> list[Cluster]:
    kinds = [
        {"device": one.device, "node": cluster.node.defaulted({"used": cluster.devices_of(one.nodes[0])})}
        for one in cluster.kinds
    ]
    return [cluster.model_copy(update={"kinds": (), **changed}) for changed in ({}, *kinds)]


__all__ = ["Cluster", "CollectiveSettings", "Device", "Link", "Node"]
