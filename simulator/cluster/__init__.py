"""What a model trains on: nodes of devices, the links inside a node and the network between nodes."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from scaleproof.simulator.cluster.collectives.settings import CollectiveSettings
from scaleproof.simulator.cluster.device.device import Device, Optimizer, Precision, optimizer_bytes
from scaleproof.simulator.cluster.network.links import Link, Node
from scaleproof.simulator.cluster.quantities import QUANTITIES, Interval
from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.errors import FieldError, UnitError
from scaleproof.simulator.common.spec import Count, Spec


class Cluster(Spec):
    """A cluster as users describe it: `nodes` nodes of alike devices, joined by a network.

    network: what joins the nodes; its bandwidth is that of all network cards of a node together.
    collectives: those that were measured, and who chooses the algorithm of the rest.
    shared_cores: where the nodes are parts of one machine, as namespaces of a network are, and so compute on the same cores.
    uncertainty: by the names of `quantities`, which are mostly paths of fields: network.bandwidth.
    pue: power usage effectiveness, what the site draws over what its nodes draw (ISO/IEC 30134-2).
    """

    name: str = ""
    description: str = ""
    source: str = Field("", description="where the numbers come from")
    nodes: Count = 1
    node: Node
    network: Link | None = Field(None, description="needed when there is more than one node")
    device: Device
    shared_cores: float | None = Field(
        None, gt=0, description="cores' worth of work that all nodes get done together, where they are parts of one machine"
    )
    collectives: CollectiveSettings = CollectiveSettings()
    framework: str | None = Field(
        None, description="name of the framework that scenarios on this cluster use by default, where it supports them"
    )
    pue: Annotated[float, Field(ge=1, le=10)] = 1.0
    uncertainty: dict[str, Interval] = Field(
        default_factory=dict, description="90 % intervals of what was measured, by field; a stated prior holds for the rest"
    )
    provenance: dict[str, str] = Field(default_factory=dict, description="what `calibrate` ran on, when and with what")

    @model_validator(mode="after")
    def _framework_ships(self) -> Self:
        if self.framework is not None and self.framework not in (known := catalog.names("frameworks")):
            raise FieldError(("framework",), f"no framework is called {self.framework!r}; give one of {', '.join(known)}")
        return self

    @model_validator(mode="after")
    def _topologies_fit(self) -> Self:
        """FieldError passes through pydantic, its path from the cluster on."""
        for path, link, endpoints in (
            (("node", "link"), self.node.link, self.node.devices),
            (("network",), self.network, self.nodes),
        ):
            try:
                if link is not None:
                    link.check(endpoints)
            except FieldError as error:
                raise FieldError((*path, *error.field), error.message) from None
        return self

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
        """Seconds a host takes to add one buffer of `size_bytes` to another: two reads and a write of memory."""
        return 3 * size_bytes / self._host_Bps

    def update_s(self, parameters: float, optimizer: Optimizer, precision: Precision) -> float:
        """Seconds a host takes for an optimizer's step: as measured on CPU nodes, else bound by the host's memory."""
        if self.node.memory_bandwidth_Bps is None:
            key = "update", parameters, optimizer, precision
            return self.device.of_each(key, lambda one: (one.optimizer_s(parameters, optimizer, precision),))[0]
        return optimizer_bytes(parameters, optimizer, precision) / self._host_Bps

    @property
    def _host_Bps(self) -> float:
        return self.node.memory_bandwidth_Bps or self.device.memory_bandwidth_Bps

    @property
    def is_uniform(self) -> bool:
        """Whether any two devices of a node, and any two nodes, are joined like any other two."""
        return all(link is None or link.is_uniform for link in (self.node.link, self.network))

    @property
    def devices(self) -> int:
        return self.nodes * self.node.devices


__all__ = ["Cluster", "CollectiveSettings", "Device", "Link", "Node"]
