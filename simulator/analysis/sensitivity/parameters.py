"""Parameters of a cluster that can be varied one by one, as finely as a buyer can choose them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.quantities import QUANTITIES
from scaleproof.simulator.scenario.fields import value_at
from scaleproof.simulator.scenario.schema import Scenario

# prefix of the field of the training precision's peak
_PEAK: Final = "cluster.device.peak"


class ClusterParameter(NamedTuple):
    """One number of a cluster, or several that vary together.

    path: the scenario's field. slowed: returns a cluster with the parameter slowed down by a factor. quantity: the uncertain
    quantity whose error applies. has: whether a cluster gives the parameter. sign: -1 where a larger value is slower.
    is_always_listed: whether it is listed even if the cluster does not give it.
    """

    name: str
    path: str
    slowed: Callable[[Cluster, float], Cluster]
    quantity: str
    has: Callable[[Cluster], object]
    sign: int = 1
    is_always_listed: bool = False

    def field(self, scenario: Scenario) -> str:
        """The scenario's field."""
        return f"{_PEAK}.{scenario.training.precision}" if self.path == _PEAK else self.path

    def says(self, scenario: Scenario) -> str:
        """The scenario's value with its unit; "–" if the cluster does not give it."""
        return str(value_at(scenario, self.field(scenario))) if self.has(scenario.cluster) else "–"

    def is_listed(self, scenario: Scenario) -> bool:
        """Whether results list the parameter for this scenario."""
        return self.is_always_listed or bool(self.has(scenario.cluster))

    def idle(self, scenario: Scenario) -> str:
        """Why the parameter has no effect; "" where it may have one."""
        cluster, strategy = scenario.cluster, scenario.strategy
        if self.path.startswith("cluster.network.") and strategy.nodes_needed(cluster) == 1:
            return "all ranks are on one node"
        if self.path.startswith("cluster.node.link.") and not strategy.communicates_in_nodes(cluster):
            return "no two ranks of a node communicate"
        return "" if self.has(cluster) else "the cluster does not give it"


def _slow_fields(*fields: str) -> Callable[[Cluster, float], Cluster]:
    """A function that slows down these fields of the device only."""

    def slowed(cluster: Cluster, slowdown: float) -> Cluster:
        slower = QUANTITIES["device"].slowed(cluster, slowdown).device
        device = cluster.device.model_copy(update={field: getattr(slower, field) for field in fields})
        return cluster.model_copy(update={"device": device})

    return slowed


def _slower_hosts(cluster: Cluster, slowdown: float) -> Cluster:
    rate_Bps = cluster.node.memory_bandwidth_Bps
    changed = None if rate_Bps is None else rate_Bps / slowdown
    return cluster.model_copy(update={"node": cluster.node.model_copy(update={"memory_bandwidth_Bps": changed})})


def _of_quantity(name: str, label: str, path: str = "", always: bool = False) -> ClusterParameter:
    quantity = QUANTITIES[name]
    sign = 1 if quantity.larger_is_faster else -1
    return ClusterParameter(label, path or f"cluster.{name}", quantity.slowed, name, quantity.value, sign, always)


CLUSTER_PARAMETERS: Final = (
    ClusterParameter("FLOP/s", _PEAK, _slow_fields("peak_flops"), "device", lambda _: True, 1, True),
    ClusterParameter("memory bandwidth", "cluster.device.memory_bandwidth", _slow_fields("memory_bandwidth_Bps"), "device",
         lambda cluster: cluster.device.memory_bandwidth_Bps, 1, True),
    ClusterParameter("kernel launches", "cluster.device.kernels.launch", _slow_fields("kernels"), "device",
         lambda cluster: cluster.device.kernels is not None and cluster.device.kernels.launch_s, -1),
    ClusterParameter("layer overhead", "cluster.device.layer_overhead", _slow_fields("layer_overhead_s"), "device",
         lambda cluster: cluster.device.layer_overhead_s, -1),
    ClusterParameter("measured layers", "cluster.device.measured_layers", _slow_fields("measured_layers"), "device",
         lambda cluster: cluster.device.measured_layers, -1),
    _of_quantity("optimizer", "measured optimizers", "cluster.device.measured_optimizers"),
    ClusterParameter("host memory bandwidth", "cluster.node.memory_bandwidth", _slower_hosts, "",
         lambda cluster: cluster.node.memory_bandwidth_Bps),
    _of_quantity("network.bandwidth", "network bandwidth", always=True),
    _of_quantity("network.latency", "network latency", always=True),
    _of_quantity("network.overhead", "network overhead"),
    _of_quantity("node.link.bandwidth", "node link bandwidth", always=True),
    _of_quantity("node.link.latency", "node link latency", always=True),
    _of_quantity("node.link.overhead", "node link overhead"),
    ClusterParameter("measured collectives", "cluster.collectives.measured", QUANTITIES["collectives"].slowed, "collectives",
         lambda cluster: cluster.collectives.measured, -1),
)  # fmt: skip
