"""Parameters of a cluster that can be varied one by one, as finely as a buyer can choose them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.quantities import QUANTITIES
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.scenario.fields import value_at
from scaleproof.simulator.scenario.schema import Scenario

# prefix of the field of the training precision's peak
_PEAK: Final = "cluster.device.peak"

Slowed = Callable[[Scenario, float], Scenario]


class StepParameter(NamedTuple):
    """One number that a step's time may depend on, or several that vary together: of the cluster, of data loading or of the
    host process.

    path: the scenario's field. slowed: returns a scenario with the parameter slowed down by a factor. quantity: the uncertain
    quantity whose error applies. sign: -1 where a larger value is slower. is_always_listed: whether it is listed even if the
    scenario does not give it.
    """

    name: str
    path: str
    slowed: Slowed
    quantity: str = ""
    sign: int = 1
    is_always_listed: bool = False

    def field(self, scenario: Scenario) -> str:
        """The scenario's field."""
        return f"{_PEAK}.{scenario.training.precision}" if self.path == _PEAK else self.path

    def is_given(self, scenario: Scenario) -> bool:
        """Whether the scenario gives the parameter."""
        try:
            return bool(value_at(scenario, self.field(scenario)).value)
        except InputError:
            return False

    def says(self, scenario: Scenario) -> str:
        """The scenario's value with its unit; "–" if the cluster does not give it."""
        return str(value_at(scenario, self.field(scenario))) if self.is_given(scenario) else "–"

    def idle(self, scenario: Scenario) -> str:
        """Why the parameter has no effect; "" where it may have one."""
        cluster, strategy = scenario.cluster, scenario.strategy
        if self.path.startswith("cluster.network.") and strategy.nodes_needed(cluster) == 1:
            return "all ranks are on one node"
        if self.path.startswith("cluster.node.link.") and not strategy.communicates_in_nodes(cluster):
            return "no two ranks of a node communicate"
        return "" if self.is_given(scenario) else "the cluster does not give it"


def _slow_cluster(slowed: Callable[[Cluster, float], Cluster]) -> Slowed:
    """The same change of a scenario's cluster."""
    return lambda scenario, slowdown: scenario.model_copy(update={"cluster": slowed(scenario.cluster, slowdown)})


def _slow_device(field: str) -> Slowed:
    """A function that slows down one field of the device only."""

    def slowed(cluster: Cluster, slowdown: float) -> Cluster:
        slower = QUANTITIES["device"].slowed(cluster, slowdown).device
        return cluster.model_copy(update={"device": cluster.device.model_copy(update={field: getattr(slower, field)})})

    return _slow_cluster(slowed)


def _slower_launches(cluster: Cluster, slowdown: float) -> Cluster:
    """Slows what the device needs to start kernels, but not its host."""
    kernels = QUANTITIES["device"].slowed(cluster, slowdown).device.kernels
    assert kernels is not None, "the parameter is given"
    assert cluster.device.kernels is not None, "the parameter is given"
    kernels = kernels.model_copy(update={"host_slowdown": cluster.device.kernels.host_slowdown})
    return cluster.model_copy(update={"device": cluster.device.model_copy(update={"kernels": kernels})})


def _slow_fields(part: str, *fields: str, power: int = 1) -> Slowed:
    """A function that multiplies fields of a part of scenarios by the slowdown factor, or divides them by it (power -1)."""

    def changed(parent: Any, path: Sequence[str], factor: float) -> Any:
        if not path:
            return parent.model_copy(update={field: getattr(parent, field) * factor for field in fields})
        return parent.model_copy(update={path[0]: changed(getattr(parent, path[0]), path[1:], factor)})

    return lambda scenario, slowdown: changed(scenario, part.split("."), slowdown**power)


def _quantity(name: str, label: str, path: str = "", always: bool = False) -> StepParameter:
    """The parameter that is all of an uncertain quantity."""
    quantity = QUANTITIES[name]
    sign = 1 if quantity.larger_is_faster else -1
    return StepParameter(label, path or f"cluster.{name}", _slow_cluster(quantity.slowed), name, sign, always)


PARAMETERS: Final = (
    StepParameter("FLOP/s", _PEAK, _slow_device("peak_flops"), "device", is_always_listed=True),
    StepParameter(
        "memory bandwidth",
        "cluster.device.memory_bandwidth",
        _slow_device("memory_bandwidth_Bps"),
        "device",
        is_always_listed=True,
    ),
    StepParameter("kernel launches", "cluster.device.kernels.launch", _slow_cluster(_slower_launches), "device", -1),
    StepParameter("layer overhead", "cluster.device.layer_overhead", _slow_device("layer_overhead_s"), "device", -1),
    StepParameter("measured layers", "cluster.device.measured_layers", _slow_device("measured_layers"), "device", -1),
    _quantity("optimizer", "measured optimizers", "cluster.device.measured_optimizers"),
    StepParameter(
        "host memory bandwidth", "cluster.node.memory_bandwidth", _slow_fields("cluster.node", "memory_bandwidth_Bps", power=-1)
    ),
    # the times of the framework's host process vary together
    StepParameter(
        "host time of a kernel",
        "framework.host.kernel",
        _slow_fields("framework.host", "kernel_s", "collective_s", "microbatch_s", "gradient_s"),
        sign=-1,
    ),
    _quantity("network.bandwidth", "network bandwidth", always=True),
    _quantity("network.latency", "network latency", always=True),
    _quantity("network.overhead", "network overhead"),
    _quantity("node.link.bandwidth", "node link bandwidth", always=True),
    _quantity("node.link.latency", "node link latency", always=True),
    _quantity("node.link.overhead", "node link overhead"),
    _quantity("node.host.link", "link to the host"),
    _quantity("node.host.adam_rate", "Adam on the host"),
    _quantity("collectives", "measured collectives", "cluster.collectives.measured"),
    StepParameter("storage bandwidth", "input.storage.bandwidth", _slow_fields("input.storage", "bandwidth_Bps", power=-1)),
    StepParameter("latency of a read", "input.storage.latency", _slow_fields("input.storage", "latency_s"), sign=-1),
    StepParameter("decoding of a sample", "input.decode", _slow_fields("input", "decode_s"), sign=-1),
    StepParameter("augmentation of a sample", "input.augment", _slow_fields("input", "augment_s"), sign=-1),
)
