"""Memory: peak bytes of a rank in a training step, by holder (parameters, gradients, activations, buffers, ...)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from scaleproof.simulator.captured.strategy import CapturedStrategy
from scaleproof.simulator.cluster.host import required_host
from scaleproof.simulator.memory.inputs import MemoryInputs
from scaleproof.simulator.memory.ranks import ranks, server
from scaleproof.simulator.memory.result import HOLDERS, HostUse, MemoryUse, RankMemory
from scaleproof.simulator.memory.static import states
from scaleproof.simulator.parallelism import ParameterServer
from scaleproof.simulator.parallelism.parameter_server import sent_tables
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.scenario_job import job_of

__all__ = ["HOLDERS", "HostUse", "MemoryUse", "RankMemory", "capacity_bytes", "memory", "states"]


def memory(scenario: Scenario) -> MemoryUse:
    """The peak memory of each kind of rank of a scenario, and its capacity."""
    if isinstance(scenario.strategy, CapturedStrategy):
        # the allocator's own package imports this one
        from scaleproof.simulator.memory.captured import classes_memory

        scale = scenario.framework.memory.scale
        classes = tuple(one.rank_memory(scale) for one in classes_memory(scenario))
        return MemoryUse(classes, None, capacity_bytes(scenario))
    if scenario.cluster.kinds:
        found = tuple(_by_kind(scenario))
        use = MemoryUse(found, None, capacity_bytes(scenario), _host_use(scenario, found))
        return replace(use, capacity_bytes=use.worst.capacity_bytes or use.capacity_bytes)
    inputs = MemoryInputs(scenario)
    found, of_server = ranks(inputs), server(inputs)
    host = _host_use(scenario, found) if of_server is None else _server_use(scenario, found, of_server)
    return MemoryUse(found, of_server, capacity_bytes(scenario), host)


def _server_use(scenario: Scenario, kinds: Sequence[RankMemory], of_server: RankMemory) -> HostUse | None:
    """What servers, and workers that compute on processors, need of the memory of a node with servers; None if its capacity is
    not known, and servers have no more than workers."""
    cluster, strategy, devices = scenario.cluster, scenario.strategy, scenario.cluster.node.devices
    assert isinstance(strategy, ParameterServer), "others have no servers of their own"
    needed_bytes, own = float(of_server.total_bytes), cluster.node.host
    if not strategy.is_dedicated(cluster):
        needed_bytes *= -(-strategy.servers // -(-strategy.workers // devices))
        if cluster.computes_on_processors:
            needed_bytes += min(strategy.workers, devices) * max(kind.total_bytes for kind in kinds)
    given = own is not None and own.memory_bytes is not None
    if not (given or cluster.computes_on_processors or sent_tables(job_of(scenario).layers, strategy.sparse)):
        return None
    capacity_bytes, field = own.memory_bytes if own is not None and given else None, "cluster.node.host.memory"
    if not given and cluster.computes_on_processors:
        devices = devices if cluster.node.cores is None else 1
        capacity_bytes, field = devices * cluster.device.capacity_bytes, "cluster.device.memory"
    option, remedy = f"strategy.servers={strategy.servers}", "give more servers, or more memory"
    return HostUse(needed_bytes, capacity_bytes, "memory", field, option, remedy)


def _host_use(scenario: Scenario, kinds: Sequence[RankMemory]) -> HostUse | None:
    """What the ranks of a node keep on their host; None if nothing."""
    stores_rows = scenario.strategy.plan.stores_rows_on_hosts
    if not (scenario.training.offload or stores_rows):
        return None
    node, host = scenario.cluster.node, required_host(scenario.cluster)
    needed_bytes = min(node.devices, scenario.strategy.training_ranks) * max(kind.host_bytes for kind in kinds)
    if scenario.training.offload_to == "nvme" and host.nvme is not None:
        return HostUse(needed_bytes, host.nvme.capacity_bytes, "drives", "cluster.node.host.nvme.capacity")
    option = "training.offload" if scenario.training.offload else "strategy.tables.on"
    return HostUse(needed_bytes, host.memory_bytes, "host memory", "cluster.node.host.memory", option)


def _by_kind(scenario: Scenario) -> Iterator[RankMemory]:
    """The peak memory of ranks on each kind of nodes that has any."""
    cluster, plan = scenario.cluster, scenario.strategy.plan
    kinds = plan.grid_on(cluster).kinds_on(cluster)
    for kind in range(len(cluster.kinds) + 1):
        places = np.argwhere(kinds == kind).tolist()
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
