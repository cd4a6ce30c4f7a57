"""Links and nodes: what devices and nodes are joined by."""

from __future__ import annotations

import functools
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from scaleproof.simulator.cluster.network.topology import AnyTopology, Switch
from scaleproof.simulator.cluster.network.wiring import Wiring
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.spec import Count, Spec
from scaleproof.simulator.common.units import BytesPerSecond, DollarsPerSecond, PositiveBytesPerSecond, Seconds, Watts


class UnlikeLink(Spec):
    """Endpoints whose own link has another bandwidth than the rest."""

    at: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1, max_length=100_000)]
    bandwidth_Bps: PositiveBytesPerSecond = Field(alias="bandwidth")


class Link(Spec):
    """What joins endpoints: the devices of a node, or the nodes of a cluster.

    bandwidth: what one endpoint can send, and at the same time receive (half duplex: both together), over all its links.
    latency: of a message over the shortest way there is; then it takes its size over its share of the bandwidth.
    overhead: time for which a message occupies the host at either end, which handles its messages one after another.
    incast: what a receiver's link loses for each sender beyond the first: it carries bandwidth / (1 + incast · (senders − 1)).
    unlike: endpoints whose link differs.
    """

    bandwidth_Bps: PositiveBytesPerSecond = Field(alias="bandwidth")
    latency_s: Seconds = Field(alias="latency")
    topology: AnyTopology = Switch()
    duplex: Literal["full", "half"] = "full"
    overhead_s: Seconds = Field(0.0, alias="overhead")
    incast: float = Field(0.0, ge=0, le=1000)
    unlike: tuple[UnlikeLink, ...] = ()
    cores_busy: float = Field(
        0.0, ge=0, description="host cores kept busy while one message moves at full bandwidth (0 where hardware moves it)"
    )

    @property
    def is_uniform(self) -> bool:
        """Whether any two endpoints are joined like any other two."""
        return self.topology.is_uniform and not self.unlike

    def check(self, endpoints: int) -> None:
        """Raises FieldError, its path from the link on, where the topology does not fit so many endpoints."""
        try:
            self.topology.check(endpoints)
        except FieldError as error:
            raise FieldError(("topology", *error.field), error.message) from None
        if self.unlike and not self.topology.has_own_links:
            message = f"the endpoints of a {self.topology.kind} have no link of their own; describe it as kind: graph"
            raise FieldError(("unlike",), message)
        for i, unlike in enumerate(self.unlike):
            if max(unlike.at) >= endpoints:
                message = f"there is no endpoint {max(unlike.at)}; they are numbered 0 to {endpoints - 1}"
                raise FieldError(("unlike", i, "at"), message)

    def wiring(self, endpoints: int, cards: int = 1) -> Wiring:
        """The wiring of `endpoints` endpoints of `cards` network cards each."""
        return _wiring(self, endpoints, cards)


@functools.lru_cache(maxsize=64)
def _wiring(link: Link, endpoints: int, cards: int) -> Wiring:
    apart = cards if link.topology.tells_cards_apart else 1
    topology = Switch() if link.is_uniform else link.topology
    wiring = topology.wire(endpoints * apart, link.bandwidth_Bps / apart, apart)
    wiring.half_duplex = link.duplex == "half"
    for unlike in link.unlike:
        assert wiring.access_Bps is not None
        for endpoint in unlike.at:
            wiring.access_Bps[endpoint * apart : (endpoint + 1) * apart] = unlike.bandwidth_Bps / apart
    return wiring


class Node(Spec):
    """One machine.

    devices: how many ranks compute on it without sharing (GPUs), or how many processes it hosts (CPU nodes).
    link: from one device to the others inside the node (NVLink, PCIe, or the loopback interface).
    cores: given where ranks compute on the host's cores: how many cores' worth of work all of them together get done.
    power: what the whole node draws while it trains. idle_power: while its ranks wait; as much as otherwise, if absent.
    price: of renting the whole node.
    """

    devices: Count = 1
    cards: Count = Field(1, description="network cards; one message moves over one of them")
    link: Link | None = Field(None, description="needed when there is more than one device")
    cores: float | None = Field(None, gt=0)
    memory_bandwidth_Bps: BytesPerSecond | None = Field(
        None, alias="memory_bandwidth", description="of the host, where parameter servers work; the device's if absent"
    )
    power_W: Watts | None = Field(None, alias="power", description="of the whole node while it trains")
    idle_power_W: Watts | None = Field(None, alias="idle_power", description="while its ranks wait; power if absent")
    price_USD_per_s: DollarsPerSecond | None = Field(None, alias="price", description="of the whole node")

    @model_validator(mode="after")
    def _powers_fit(self) -> Self:
        if self.idle_power_W is not None and self.power_W is None:
            raise ValueError("idle_power: goes with power; give what the node draws while it trains as well")
        if (self.idle_power_W or 0.0) > (self.power_W or 0.0):
            raise ValueError("idle_power: more than power; a node that waits draws at most as much as one that trains")
        return self

    @property
    def cards_used(self) -> int:
        """Further cards serve the same devices."""
        return min(self.cards, self.devices)
