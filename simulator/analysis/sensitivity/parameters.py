"""Knobs: numbers of a cluster that can be turned one by one, as finely as a buyer can choose them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.quantities import QUANTITIES
from scaleproof.simulator.scenario.fields import value_at
from scaleproof.simulator.scenario.schema import Scenario

# where the peak of the training precision stands
_PEAK: Final = "cluster.device.peak"


class Knob(NamedTuple):
    """One number, or several that are turned together.

    at: the field that a scenario says it in. slowed: the cluster, so many times as slow in this. quantity: whose error it has.
    sign: −1 where more is slower. is_always_told: also where a cluster says nothing of it.
    """

    name: str
    at: str
    slowed: Callable[[Cluster, float], Cluster]
    quantity: str
    has: Callable[[Cluster], object]
    sign: int = 1
    is_always_told: bool = False

    def field(self, scenario: Scenario) -> str:
        return f"{_PEAK}.{scenario.training.precision}" if self.at == _PEAK else self.at

    def says(self, scenario: Scenario) -> str:
        """What the scenario says there, for people."""
        return str(value_at(scenario, self.field(scenario))) if self.has(scenario.cluster) else "–"

    def is_told(self, scenario: Scenario) -> bool:
        return self.is_always_told or bool(self.has(scenario.cluster))

    def idle(self, scenario: Scenario) -> str:
        """Why nothing can follow from it; "" where something may."""
        cluster, strategy = scenario.cluster, scenario.strategy
        if self.at.startswith("cluster.network.") and strategy.nodes_needed(cluster) == 1:
            return "all ranks are on one node"
        if self.at.startswith("cluster.node.link.") and not strategy.talks_in_nodes(cluster):
            return "no two ranks of a node talk"
        return "" if self.has(cluster) else "the cluster has none"


def _of_device(*fields: str) -> Callable[[Cluster, float], Cluster]:
    """Slows these fields of the device, and leaves the others as they are."""

    def slowed(cluster: Cluster, slowness: float) -> Cluster:
        slower = QUANTITIES["device"].slowed(cluster, slowness).device
        device = cluster.device.model_copy(update={field: getattr(slower, field) for field in fields})
        return cluster.model_copy(update={"device": device})

    return slowed


def _slower_hosts(cluster: Cluster, slowness: float) -> Cluster:
    rate_Bps = cluster.node.memory_bandwidth_Bps
    changed = None if rate_Bps is None else rate_Bps / slowness
    return cluster.model_copy(update={"node": cluster.node.model_copy(update={"memory_bandwidth_Bps": changed})})


def _of_quantity(name: str, words: str, at: str = "", always: bool = False) -> Knob:
    quantity = QUANTITIES[name]
    sign = 1 if quantity.larger_is_faster else -1
    return Knob(words, at or f"cluster.{name}", quantity.slowed, name, quantity.value, sign, always)


KNOBS: Final = (
    Knob("FLOP/s", _PEAK, _of_device("peak_flops"), "device", lambda _: True, 1, True),
    Knob("memory bandwidth", "cluster.device.memory_bandwidth", _of_device("memory_bandwidth_Bps"), "device",
         lambda cluster: cluster.device.memory_bandwidth_Bps, 1, True),
    Knob("kernel launches", "cluster.device.kernels.launch", _of_device("kernels"), "device",
         lambda cluster: cluster.device.kernels is not None and cluster.device.kernels.launch_s, -1),
    Knob("time a layer takes anyway", "cluster.device.layer_overhead", _of_device("layer_overhead_s"), "device",
         lambda cluster: cluster.device.layer_overhead_s, -1),
    Knob("measured layers", "cluster.device.measured_layers", _of_device("measured_layers"), "device",
         lambda cluster: cluster.device.measured_layers, -1),
    _of_quantity("optimizer", "measured optimizers", "cluster.device.measured_optimizers"),
    Knob("host memory bandwidth", "cluster.node.memory_bandwidth", _slower_hosts, "",
         lambda cluster: cluster.node.memory_bandwidth_Bps),
    _of_quantity("network.bandwidth", "network bandwidth", always=True),
    _of_quantity("network.latency", "network latency", always=True),
    _of_quantity("network.overhead", "network overhead"),
    _of_quantity("node.link.bandwidth", "node link bandwidth", always=True),
    _of_quantity("node.link.latency", "node link latency", always=True),
    _of_quantity("node.link.overhead", "node link overhead"),
    _of_quantity("collectives", "measured collectives", "cluster.collectives.measured"),
)  # fmt: skip
