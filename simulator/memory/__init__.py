"""Memory: peak bytes of a rank in a training step, by holder (parameters, gradients, activations, buffers, ...)."""

from __future__ import annotations

from scaleproof.simulator.captured.strategy import CapturedStrategy
from scaleproof.simulator.memory.inputs import MemoryInputs
from scaleproof.simulator.memory.ranks import ranks, server
from scaleproof.simulator.memory.result import HOLDERS, MemoryUse, RankMemory
from scaleproof.simulator.memory.static import states
from scaleproof.simulator.scenario.schema import Scenario

__all__ = ["HOLDERS", "MemoryUse", "RankMemory", "capacity_bytes", "memory", "states"]


def memory(scenario: Scenario) -> MemoryUse:
    """The peak memory of each kind of rank of a scenario, and its capacity."""
    if isinstance(scenario.strategy, CapturedStrategy):
        # the allocator's own package imports this one
        from scaleproof.simulator.memory.captured import classes_memory

        scale = scenario.framework.memory.scale
        classes = tuple(one.rank_memory(scale) for one in classes_memory(scenario))
        return MemoryUse(classes, None, capacity_bytes(scenario))
    inputs = MemoryInputs(scenario)
    return MemoryUse(ranks(inputs), server(inputs), capacity_bytes(scenario))


def capacity_bytes(scenario: Scenario) -> float:
    """Bytes that a rank can allocate: of its device, or its share of the machine's memory if ranks compute on CPU cores."""
    cluster, strategy = scenario.cluster, scenario.strategy
    if cluster.node.cores is None:
        return cluster.device.capacity_bytes
    return cluster.device.capacity_bytes / min(strategy.training_ranks, cluster.node.devices)
