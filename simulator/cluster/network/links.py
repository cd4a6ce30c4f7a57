"""Links between devices or nodes, and nodes with their network cards."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationInfo, field_validator, model_validator

from scaleproof.simulator.cluster.host import NodeHost
from scaleproof.simulator.cluster.network.topology import Switch
from scaleproof.simulator.cluster.network.topology_kinds import AnyTopology
from scaleproof.simulator.cluster.network.wiring import Wiring
from scaleproof.simulator.common import catalog, yaml_file
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.spec import Count, Spec
from scaleproof.simulator.common.units import (
    GPU_PRICE,
    Dollars,
    DollarsPerSecond,
    MemoryBytesPerSecond,
    PositiveBytesPerSecond,
    Seconds,
    Watts,
    format_Bps,
    is_per_GPU,
)

if TYPE_CHECKING:
    from scaleproof.simulator.cluster import Cluster


# A name of a kind of link, which a bandwidth with its unit does not match.
_NAME: Final = re.compile(r"[\w.-]+")
# Topologies of the links inside a node that lead through the host.
_HOSTED: Final = ("switch", "pcie_tree", "bridged_pairs", "graph")
# One device or several.
DeviceNumbers = TypeVar("DeviceNumbers", int, NDArray[np.int64])
_YEAR_S: Final = 365.25 * 86400.0


class EndpointLink(Spec):
    """Endpoints whose own link has a different bandwidth."""

    at: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1, max_length=100_000)]
    bandwidth_Bps: PositiveBytesPerSecond = Field(alias="bandwidth")


class Link(Spec):
    """The network between endpoints, which are the devices of a node or the nodes of a cluster.

    bandwidth: rate at which an endpoint can send, and at the same time receive (half duplex: both together), over all its
    links. latency: of a message over the shortest path; the transfer of its bytes follows.
    overhead: time for which a message occupies the host at each end; a host handles one message at a time.
    incast: loss of a receiver's link per sender beyond the first: it carries bandwidth / (1 + incast · (senders − 1)).
    variability: standard deviation of the logarithm of the bandwidth that a flow between two endpoints gets, from step to step.
    exceptions: endpoints whose own link has a different bandwidth.
    """

    bandwidth_Bps: PositiveBytesPerSecond = Field(alias="bandwidth")
    latency_s: Seconds = Field(alias="latency")
    topology: AnyTopology = Switch()
    duplex: Literal["full", "half"] = "full"
    overhead_s: Seconds = Field(0.0, alias="overhead")
    incast: float = Field(0.0, ge=0, le=1000)
    variability: float | None = Field(
        None, ge=0, le=2, description="that of the kind of fabric if absent (scenarios/network/fabrics.yaml)"
    )
    exceptions: tuple[EndpointLink, ...] = ()
    transport: str | None = Field(
        None, description="how NCCL sends messages over a network: an entry of scenarios/collectives/transports.yaml"
    )
    connection_Bps: PositiveBytesPerSecond | None = Field(
        None, alias="connection", description="largest rate of one TCP connection, where the network's provider limits it"
    )
    sockets: str | None = Field(
        None, description="how many TCP connections NCCL opens: an entry of scenarios/network/sockets.yaml; enough if absent"
    )
    state: str | None = Field(
        None,
        description="untuned: a network of which nobody measured that it is fast; an entry of scenarios/network/states.yaml",
    )
    peer_to_peer: bool | None = Field(
        None,
        description="whether devices of a node reach each other's memory, else messages pass the host's; if absent false of "
        "GeForce cards, and of others as NCCL decides: over PCIe under one switch alone",
    )
    in_network_reduction: bool = Field(
        False, description="whether a network's switches reduce and libraries use it (SHARP, by NCCL_COLLNET_ENABLE=1)"
    )
    cores_busy: float = Field(
        0.0, ge=0, description="host cores that are busy while a message moves at full bandwidth (0 if hardware moves it)"
    )

    @model_validator(mode="before")
    @classmethod
    def _named(cls, data: Any) -> Any:
        """Replaces the name of a kind of link, or `{base: NAME, ...}`, by its fields."""
        name = data.get("base") if isinstance(data, dict) else data
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            return data
        known = link_kinds()
        if name not in known:
            close = catalog.nearest(name, list(known)) or list(known)
            raise ValueError(f"no kind of link is called {name!r}; give {catalog.either(close)}, or bandwidth and latency")
        own = {key: value for key, value in data.items() if key != "base"} if isinstance(data, dict) else {}
        return {**known[name], **own}

    @functools.cached_property
    def unit(self) -> Self:
        """The link with a bandwidth of 1 byte per second and no latency, which links of the same shape have in common."""
        return self.model_copy(update={"bandwidth_Bps": 1.0, "latency_s": 0.0})

    @property
    def speed(self) -> tuple[float, bool]:
        """What links inside nodes are compared by: their bandwidth, and whether the driver lets devices reach each other."""
        return self.bandwidth_Bps, self.peer_to_peer is not False

    @property
    def is_uniform(self) -> bool:
        """Whether all pairs of endpoints are connected equally."""
        return self.topology.is_uniform and not self.exceptions

    def check(self, endpoints: int) -> None:
        """Raises FieldError, with the field's path within the link, if the link does not fit this number of endpoints."""
        try:
            self.topology.check(endpoints)
        except FieldError as error:
            raise FieldError(("topology", *error.field), error.message) from None
        if self.in_network_reduction and not self.topology.has_own_links:
            raise FieldError(
                ("in_network_reduction",), f"a {self.topology.kind} has no switches that could reduce; leave it out"
            )
        if self.exceptions and not self.topology.has_own_links:
            message = f"the endpoints of a {self.topology.kind} have no link of their own; describe it as kind: graph"
            raise FieldError(("exceptions",), message)
        if self.peer_to_peer is False and self.topology.kind not in _HOSTED:
            message = f"messages through the host need a topology of {', '.join(_HOSTED)}; {self.topology.kind} joins devices"
            raise FieldError(("peer_to_peer",), message)
        for i, exception in enumerate(self.exceptions):
            if max(exception.at) >= endpoints:
                message = f"there is no endpoint {max(exception.at)}; they are numbered 0 to {endpoints - 1}"
                raise FieldError(("exceptions", i, "at"), message)

    def are_peers(self, endpoints: Collection[int]) -> bool:
        """Whether NCCL lets devices on PCIe access each other's memory, if the driver does: where a switch joins them, but not
        through the host's root complex (ncclTopoCheckP2p, src/graph/paths.cc)."""
        return self.topology.share_switch(endpoints) if self.peer_to_peer is None else self.peer_to_peer

    def wiring(self, endpoints: int, cards: int = 1) -> Wiring:
        """The wiring of `endpoints` endpoints with `cards` network cards each."""
        return _wiring(self.without_latency, endpoints, cards)

    @property
    def without_latency(self) -> Link:
        """The link without the duration of empty messages, which makes no difference to routes."""
        return self.cached(_without_latency)


@functools.cache
def link_kinds() -> dict[str, dict[str, Any]]:
    """Fields of the links and networks that scenarios/network/links.yaml names."""
    kinds: dict[str, dict[str, Any]] = yaml_file.shipped(catalog.ROOT / "network" / "links.yaml")["links"]
    return kinds


def _without_latency(link: Link) -> Link:
    return link.model_copy(update={"latency_s": 0.0, "overhead_s": 0.0})


@functools.lru_cache(maxsize=256)
def _wiring(link: Link, endpoints: int, cards: int) -> Wiring:
    per_node = cards if link.topology.endpoints_are_cards else 1
    topology = Switch() if link.is_uniform else link.topology
    wiring = topology.wire(endpoints * per_node, link.bandwidth_Bps / per_node, per_node)
    wiring.half_duplex = link.duplex == "half"
    if link.peer_to_peer is False:
        wiring = topology.through_host(wiring)
    for exception in link.exceptions:
        assert wiring.access_Bps is not None
        for endpoint in exception.at:
            wiring.access_Bps[endpoint * per_node : (endpoint + 1) * per_node] = exception.bandwidth_Bps / per_node
    return wiring


class Purchase(Spec):
    """Price of a node that is owned, with its share of the network and the building, spread evenly over its years of use."""

    price_USD: Dollars = Field(alias="price")
    years: Annotated[float, Field(gt=0, le=100)]

    @property
    def USD_per_s(self) -> float:
        """Depreciation in US dollars per second."""
        return self.price_USD / (self.years * _YEAR_S)


class Node(Spec):
    """A machine.

    installed: number of GPUs, or of processes on a CPU node (YAML: `devices`). used: number of them that ranks use, one each.
    link: between the devices of the node (NVLink, PCIe, or the loopback interface).
    cores: effective number of cores that all ranks share, if ranks compute on the host's cores.
    """

    installed: Count = Field(1, alias="devices")
    used: Count | None = Field(
        None,
        description="number of devices of each node that ranks use; if absent all, or fewer if then no tensor-, context- or "
        "expert-parallel group straddles nodes and the cluster has nodes enough",
    )
    cards: Count = Field(1, description="number of network cards; a message uses one of them")
    link: Link | None = Field(None, description="needed when there is more than one device")
    cores: float | None = Field(None, gt=0)
    memory_bandwidth_Bps: MemoryBytesPerSecond | None = Field(
        None,
        alias="memory_bandwidth",
        description="of the host, for parameter servers and offloaded states; that of the device, or assumed, if absent",
    )
    host: NodeHost | None = Field(None, description="memory and rates for training.offload; rates are assumed if absent")
    power_W: Watts | None = Field(None, alias="power", description="of the whole node in training")
    idle_power_W: Watts | None = Field(None, alias="idle_power", description="while its ranks wait; power if absent")
    price_USD_per_s: DollarsPerSecond | None = Field(
        None, alias="price", description="of renting the whole node, with electricity; also given by GPU: 2.50 USD/GPU-hour"
    )
    purchase: Purchase | None = Field(None, description="of a node that is owned, in place of price; needs electricity prices")

    @field_validator("price_USD_per_s", mode="before")
    @classmethod
    def _price_is_of_the_node(cls, value: object, info: ValidationInfo) -> object:
        """Replaces a price of a GPU by that of all GPUs of the node. Raises UnitError."""
        if not is_per_GPU(value):
            return value
        return f"{GPU_PRICE.parse(value) * info.data.get('installed', 1) * 3600!r} USD/h"

    @model_validator(mode="after")
    def _used_are_installed(self) -> Self:
        if self.used is not None and self.used > self.installed:
            raise ValueError(f"used: {self.used} of {self.installed} devices; give at most {self.installed}, or leave it out")
        return self

    @model_validator(mode="after")
    def _has_one_price(self) -> Self:
        if self.price_USD_per_s is not None and self.purchase is not None:
            raise ValueError("purchase: a node is rented (price) or owned (purchase); leave one of both out")
        return self

    @model_validator(mode="after")
    def _powers_fit(self) -> Self:
        if self.idle_power_W is not None and self.power_W is None:
            raise ValueError("idle_power: goes with power; give what the node draws while it trains as well")
        if (self.idle_power_W or 0.0) > (self.power_W or 0.0):
            raise ValueError("idle_power: more than power; a node that waits draws at most as much as one that trains")
        return self

    @property
    def devices(self) -> int:
        """Number of devices that ranks use: rank r is on node r // devices."""
        return self.installed if self.used is None else self.used

    @functools.cached_property
    def unit(self) -> Self:
        """The node with links of unit bandwidth between its devices."""
        return self if self.link is None else self.model_copy(update={"link": self.link.unit})

    @property
    def cards_used(self) -> int:
        """Number of network cards, at most one per device. A device uses the nearest one."""
        return min(self.cards, self.installed)

    def card_of(self, device: DeviceNumbers) -> DeviceNumbers:
        """The network card nearest to a device."""
        return device * self.cards_used // self.installed


_NICS: Final = re.compile(r"\s*(\d{1,6})\s*[x×*].*")
# Rate of each network card in NVIDIA's DGX of a GPU generation: DGX-1 and DGX-2 with 100 Gbit/s, DGX A100 with 200, DGX H100
# and DGX B200 with 400 (data sheets, recalled); MI300X in Azure's ND series with 400.
_CARD_Bps: Final = {"volta": 12.5e9, "ampere": 25e9, "hopper": 50e9, "blackwell": 50e9, "cdna": 50e9}


def without_nics(cluster: Any) -> Any:
    """YAML of a cluster in which `network: {nics: 8 x 400 Gbit/s}` is the bandwidth of a node and the number of its cards.

    Raises FieldError, with the field's path within the cluster.
    """
    network, node = (cluster.get(part) if isinstance(cluster, dict) else None for part in ("network", "node"))
    if not isinstance(network, dict) or "nics" not in network:
        return cluster
    nics, rest = network["nics"], {key: value for key, value in network.items() if key != "nics"}
    match = _NICS.fullmatch(str(nics))
    if match is None:
        message = f"expected the number of network cards and the rate of each, such as '8 x 400 Gbit/s', got {str(nics)[:40]!r}"
        raise FieldError(("network", "nics"), message)
    if "bandwidth" in rest:
        raise FieldError(("network", "nics"), "is the bandwidth of a node, which is also given; leave one of both out")
    cards = int(match[1])
    node = node if isinstance(node, dict) else {}
    if node.get("cards", cards) != cards:
        raise FieldError(("node", "cards"), f"is {node['cards']}, but network.nics has {cards}; leave cards out")
    return cluster | {"network": rest | {"bandwidth": nics}, "node": node | {"cards": cards}}


def one_card_warning(cluster: Cluster) -> str:
    """A warning if the bandwidth of nodes with several GPUs is at most that of one network card of such nodes; "" otherwise.

    Clusters whose nodes have one card are not warned about if they give a source, or the number of cards.
    """
    node, network, kernels = cluster.node, cluster.network, cluster.device.kernels
    card_Bps = _CARD_Bps.get(kernels.generation, 0.0) if kernels is not None else 0.0
    if network is None or cluster.nodes == 1 or node.installed == 1 or network.bandwidth_Bps > card_Bps:
        return ""
    if node.cards == 1 and (cluster.source or "cards" in node.model_fields_set):
        return ""
    cards = node.cards if node.cards > 1 else node.installed
    rate, usual = format_Bps(network.bandwidth_Bps), format_Bps(card_Bps)
    return (
        f"cluster.network.bandwidth: {rate} for a node of {node.installed} {cluster.device.name} is at most one network card "
        f"({usual} each in such nodes); for {cards} of them, write network.nics: {cards} x {rate}"
    )
