"""Memory: peak bytes of a rank in a training step, by holder (parameters, gradients, activations, buffers, ...)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

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
    if scenario.cluster.kinds:
        kinds = MemoryUse(tuple(_by_kind(scenario)), None, capacity_bytes(scenario))
        return replace(kinds, capacity_bytes=kinds.worst.capacity_bytes or kinds.capacity_bytes)
    inputs = MemoryInputs(scenario)
    return MemoryUse(ranks(inputs), server(inputs), capacity_bytes(scenario))


def _by_kind(scenario: Scenario) -> Iterator[RankMemory]:
    """The peak memory of ranks on each kind of nodes that has any."""
    cluster, plan = scenario.cluster, scenario.strategy.plan
    mesh = plan.grid(cluster.node.devices)
    for kind in range(len(cluster.kinds) + 1):
        places = [
            (worker, stage) for worker in range(plan.workers) for stage in range(plan.stages)
            if cluster.kind_of(mesh.place(worker, stage)[0]) == kind
        ]  # fmt: skip
        if not places:
            continue
        own = scenario.model_copy(update={"cluster": cluster.with_device_of(kind)})
        samples = max(plan.samples_of(worker, scenario.samples_per_worker) for worker, _ in places)
        stages, device = {stage for _, stage in places}, own.cluster.device
        for stage, rank in enumerate(ranks(MemoryInputs(own, samples))):
            if stage in stages:
                yield replace(rank, name=f"{rank.name} on {device.name}", capacity_bytes=device.capacity_bytes)


def capacity_bytes(scenario: Scenario) -> float:
    """Bytes that a rank can allocate: of its device, or its share of the machine's memory if ranks compute on CPU cores."""
    cluster, strategy = scenario.cluster, scenario.strategy
    if cluster.node.cores is None:
        return cluster.device.capacity_bytes
    return cluster.device.capacity_bytes / min(strategy.training_ranks, cluster.node.devices)
