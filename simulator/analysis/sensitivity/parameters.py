"""Parameters of a cluster that can be varied one by one, as finely as a buyer can choose them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.quantities import QUANTITIES
from scaleproof.simulator.scenario.fields import value_at
from scaleproof.simulator.scenario.schema import Scenario

# times of the framework's host process, which vary together
_HOST_TIMES: Final = ("kernel_s", "collective_s", "microbatch_s", "gradient_s")
# prefix of the field of the training precision's peak
_PEAK: Final = "cluster.device.peak"


class StepParameter(NamedTuple):
    """One number that a step's time may depend on, or several that vary together: of the cluster, of data loading or of the
    host process.

    path: the scenario's field. slowed: returns a scenario with the parameter slowed down by a factor. quantity: the uncertain
    quantity whose error applies. is_whole: whether the parameter is all of that quantity. has: whether a scenario gives the
    parameter. sign: -1 where a larger value is slower. is_always_listed: whether it is listed even if the scenario does not
    give it.
    """

    name: str
    path: str
    slowed: Callable[[Scenario, float], Scenario]
    quantity: str
    has: Callable[[Scenario], object]
    sign: int = 1
    is_always_listed: bool = False
    is_whole: bool = False

    def field(self, scenario: Scenario) -> str:
        """The scenario's field."""
        return f"{_PEAK}.{scenario.training.precision}" if self.path == _PEAK else self.path

    def says(self, scenario: Scenario) -> str:
        """The scenario's value with its unit; "–" if the cluster does not give it."""
        return str(value_at(scenario, self.field(scenario))) if self.has(scenario) else "–"

    def is_listed(self, scenario: Scenario) -> bool:
        """Whether results list the parameter for this scenario."""
        return self.is_always_listed or bool(self.has(scenario))

    def idle(self, scenario: Scenario) -> str:
        """Why the parameter has no effect; "" where it may have one."""
        cluster, strategy = scenario.cluster, scenario.strategy
        if self.path.startswith("cluster.network.") and strategy.nodes_needed(cluster) == 1:
            return "all ranks are on one node"
        if self.path.startswith("cluster.node.link.") and not strategy.communicates_in_nodes(cluster):
            return "no two ranks of a node communicate"
        return "" if self.has(scenario) else "the cluster does not give it"


def _with_cluster(slowed: Callable[[Cluster, float], Cluster]) -> Callable[[Scenario, float], Scenario]:
    """The same change of a scenario's cluster."""
    return lambda scenario, slowdown: scenario.model_copy(update={"cluster": slowed(scenario.cluster, slowdown)})


def _slow_fields(*fields: str) -> Callable[[Scenario, float], Scenario]:
    """A function that slows down these fields of the device only."""

    def slowed(cluster: Cluster, slowdown: float) -> Cluster:
        slower = QUANTITIES["device"].slowed(cluster, slowdown).device
        device = cluster.device.model_copy(update={field: getattr(slower, field) for field in fields})
        return cluster.model_copy(update={"device": device})

    return _with_cluster(slowed)


def _slower_host_memory(cluster: Cluster, slowdown: float) -> Cluster:
    rate_Bps = cluster.node.memory_bandwidth_Bps
    changed = None if rate_Bps is None else rate_Bps / slowdown
    return cluster.model_copy(update={"node": cluster.node.model_copy(update={"memory_bandwidth_Bps": changed})})


def _slower_launches(cluster: Cluster, slowdown: float) -> Cluster:
    """Slows what the device needs to start kernels, but not its host."""
    kernels = QUANTITIES["device"].slowed(cluster, slowdown).device.kernels
    if kernels is None or cluster.device.kernels is None:
        return cluster
    kernels = kernels.model_copy(update={"host_slowdown": cluster.device.kernels.host_slowdown})
    return cluster.model_copy(update={"device": cluster.device.model_copy(update={"kernels": kernels})})


def _slower_host(scenario: Scenario, slowdown: float) -> Scenario:
    host = scenario.framework.host
    slower = host.model_copy(update={name: getattr(host, name) * slowdown for name in _HOST_TIMES})
    return scenario.model_copy(update={"framework": scenario.framework.model_copy(update={"host": slower})})


def _slower_input(**factors: int) -> Callable[[Scenario, float], Scenario]:
    """A function that changes fields of data loading by a power of the slowdown."""

    def slowed(scenario: Scenario, slowdown: float) -> Scenario:
        assert scenario.input is not None
        changed = {name: getattr(scenario.input, name) * slowdown**power for name, power in factors.items()}
        return scenario.model_copy(update={"input": scenario.input.model_copy(update=changed)})

    return slowed


def _slower_storage(scenario: Scenario, slowdown: float) -> Scenario:
    assert scenario.input is not None
    assert scenario.input.storage is not None
    rate_Bps = scenario.input.storage.bandwidth_Bps / slowdown
    storage = scenario.input.storage.model_copy(update={"bandwidth_Bps": rate_Bps})
    return scenario.model_copy(update={"input": scenario.input.model_copy(update={"storage": storage})})


def _of_quantity(name: str, label: str, path: str = "", always: bool = False) -> StepParameter:
    quantity = QUANTITIES[name]
    sign = 1 if quantity.larger_is_faster else -1
    slowed = _with_cluster(quantity.slowed)
    return StepParameter(
        label, path or f"cluster.{name}", slowed, name, lambda scenario: quantity.value(scenario.cluster), sign, always, True
    )


PARAMETERS: Final = (
    StepParameter("FLOP/s", _PEAK, _slow_fields("peak_flops"), "device", lambda _: True, 1, True),
    StepParameter("memory bandwidth", "cluster.device.memory_bandwidth", _slow_fields("memory_bandwidth_Bps"), "device",
         lambda scenario: scenario.cluster.device.memory_bandwidth_Bps, 1, True),
    StepParameter("kernel launches", "cluster.device.kernels.launch", _with_cluster(_slower_launches), "device",
         lambda scenario: scenario.cluster.device.kernels is not None and scenario.cluster.device.kernels.launch_s, -1),
    StepParameter("layer overhead", "cluster.device.layer_overhead", _slow_fields("layer_overhead_s"), "device",
         lambda scenario: scenario.cluster.device.layer_overhead_s, -1),
    StepParameter("measured layers", "cluster.device.measured_layers", _slow_fields("measured_layers"), "device",
         lambda scenario: scenario.cluster.device.measured_layers, -1),
    _of_quantity("optimizer", "measured optimizers", "cluster.device.measured_optimizers"),
    StepParameter("host memory bandwidth", "cluster.node.memory_bandwidth", _with_cluster(_slower_host_memory), "",
         lambda scenario: scenario.cluster.node.memory_bandwidth_Bps),
    StepParameter("host time of a kernel", "framework.host.kernel", _slower_host, "",
         lambda scenario: scenario.framework.host.kernel_s, -1),
    _of_quantity("network.bandwidth", "network bandwidth", always=True),
    _of_quantity("network.latency", "network latency", always=True),
    _of_quantity("network.overhead", "network overhead"),
    _of_quantity("node.link.bandwidth", "node link bandwidth", always=True),
    _of_quantity("node.link.latency", "node link latency", always=True),
    _of_quantity("node.link.overhead", "node link overhead"),
    StepParameter("measured collectives", "cluster.collectives.measured", _with_cluster(QUANTITIES["collectives"].slowed),
         "collectives", lambda scenario: scenario.cluster.collectives.measured, -1, is_whole=True),
    StepParameter("storage bandwidth", "input.storage.bandwidth", _slower_storage, "",
         lambda scenario: scenario.input is not None and scenario.input.storage),
    StepParameter("decoding of a sample", "input.decode", _slower_input(decode_s=1), "",
         lambda scenario: scenario.input is not None and scenario.input.decode_s, -1),
)  # fmt: skip
