"""Memory: the bytes that a rank holds at the peak of a training step, by what holds them."""

from __future__ import annotations

from simulator.memory.activations import kept, segments, size_bytes, working_elements
from simulator.memory.ranks import ranks
from simulator.memory.result import HOLDERS, Memory, RankMemory
from simulator.memory.servers import server
from simulator.memory.setting import Setting
from simulator.memory.states import States, states
from simulator.scenario import Scenario

__all__ = [
    "HOLDERS", "Memory", "RankMemory", "States", "kept", "memory", "segments", "size_bytes", "states",
    "working_elements",
]  # fmt: skip


def memory(scenario: Scenario) -> Memory:
    """Bytes that each rank of `scenario` allocates."""
    setting = Setting(scenario)
    return Memory(ranks(setting), server(setting), _capacity_bytes(scenario))


def _capacity_bytes(scenario: Scenario) -> float:
    """Of a device; where ranks compute on a machine's cores, a rank's part of its memory."""
    cluster, strategy = scenario.cluster, scenario.strategy
    if cluster.node.cores is None:
        return cluster.device.memory_bytes
    return cluster.device.memory_bytes / min(strategy.training_ranks, cluster.node.devices)
