"""More of any resource makes no step slower, and no step is shorter than its communication."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from scaleproof.simulator.cluster import Cluster, Device
from scaleproof.simulator.cluster.quantities import QUANTITIES
from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from tests.metamorphic.drawn import BLOCKS, drawn, seeds
from tests.metamorphic.explained import bound

# The last leaves communication and the host's work alone.
FACTORS: Final = (1.03, 1.5, 4.0, 100.0)
TOLERANCE: Final = 1e-3
# Scenarios of a test, of which few run in the quick suite.
SCENARIOS: Final = 10

Faster = Callable[[Cluster, float], Cluster]


def _quantity(name: str) -> Faster:
    """Improves a link's field, given by the name of its quantity, by a factor."""
    return lambda cluster, factor: QUANTITIES[name].slowed(cluster, 1 / factor)


def _device(change: Callable[[Device, float], Device]) -> Faster:
    def faster(cluster: Cluster, factor: float) -> Cluster:
        return cluster.model_copy(update={"device": change(cluster.device, factor)})

    return faster


def _peak(device: Device, factor: float) -> Device:
    return device.model_copy(update={"peak_flops": {name: rate * factor for name, rate in device.peak_flops.items()}})


def _memory_bandwidth(device: Device, factor: float) -> Device:
    return device.model_copy(update={"memory_bandwidth_Bps": device.memory_bandwidth_Bps * factor})


def _host_memory(cluster: Cluster, factor: float) -> Cluster:
    before_Bps = cluster.node.memory_bandwidth_Bps
    after_Bps = None if before_Bps is None else before_Bps * factor
    return cluster.model_copy(update={"node": cluster.node.model_copy(update={"memory_bandwidth_Bps": after_Bps})})


RESOURCES: Final[dict[str, Faster]] = {
    "network bandwidth": _quantity("network.bandwidth"),
    "network latency": _quantity("network.latency"),
    "link bandwidth": _quantity("node.link.bandwidth"),
    "link latency": _quantity("node.link.latency"),
    "peak rate": _device(_peak),
    "memory bandwidth": _device(_memory_bandwidth),
    "host memory bandwidth": _host_memory,
}


def slowdowns(scenario: Scenario, resource: str) -> dict[float, float]:
    """Relative growth of the step time with more of a resource, by the factor; without factors that change nothing."""
    before_s, growth = timed(scenario).step_time_s, {}
    for factor in FACTORS:
        cluster = RESOURCES[resource](scenario.cluster, factor)
        if cluster != scenario.cluster:
            growth[factor] = timed(scenario.copied(cluster=cluster)).step_time_s / before_s - 1
    return growth


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("resource", RESOURCES)
def test_more_of_a_resource_makes_no_step_slower(resource: str, block: int) -> None:
    for seed in seeds(block, SCENARIOS):
        fields = drawn(seed)
        growth = slowdowns(load(fields), resource)
        assert max(growth.values(), default=0.0) <= bound("more of a resource", fields, TOLERANCE), (seed, growth, fields)
