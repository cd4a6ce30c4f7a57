"""Failure rates of a scenario's job, the times of its interruptions, and the cost of its checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from scaleproof.simulator.analysis.goodput.elastic_sizes import ElasticSizes
from scaleproof.simulator.analysis.goodput.failure_history import FailureKinds, FailureMix, NodeSupply
from scaleproof.simulator.analysis.goodput.renewal import InterruptionTimes
from scaleproof.simulator.cluster.network.links import Link
from scaleproof.simulator.cluster.network.topology import Switch
from scaleproof.simulator.cluster.network.topology_kinds import Dragonfly, FatTree, Graph, LeafSpine, RailOptimised
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.units import format_bytes
from scaleproof.simulator.memory import states
from scaleproof.simulator.model.layers import WHOLE
from scaleproof.simulator.scenario.reliability import Reliability
from scaleproof.simulator.scenario.schema import Scenario

# components whose number is proportional to the nodes that train
_OF_NODES: Final = ("gpu", "host", "nic")
# why a job may have none of a component whose failure rate is given
_ABSENT: Final = {
    "gpu": "the cluster computes on its hosts' cores; give host in its place",
    "nic": "the job runs on one node; leave it out",
    "switch": "there are no switches between the job's nodes; leave it out",
}


@dataclass(frozen=True)
class CheckpointCost:
    """Size and times of a checkpoint. size_bytes: of all nodes together. stall_s: training stops. writing_s: writing continues
    while training does. load_s: loading at a restart."""

    size_bytes: float
    stall_s: float
    writing_s: float
    load_s: float


@dataclass(frozen=True)
class FailureRates:
    """Failures, interruptions and checkpoints of a job. counts: number of components of each kind. rates_per_s: failures per
    second of all components of a kind."""

    reliability: Reliability
    counts: dict[str, int]
    rates_per_s: dict[str, float]
    saving: CheckpointCost
    times: InterruptionTimes
    chances: FailureMix
    supply: NodeSupply
    sizes: ElasticSizes

    @property
    def is_optimum(self) -> bool:
        """Whether checkpoints are taken at the optimal interval."""
        checkpoint = self.reliability.checkpoint
        return checkpoint.steps is None and checkpoint.interval_s == "optimum"

    @property
    def in_repair(self) -> float | None:
        """Mean number of nodes in repair if training never waited for nodes: the loss rate times the repair time (Little);
        None where a spare is always available."""
        if self.supply.spares is None:
            return None
        lost: dict[str, int] = self.reliability.nodes_lost.model_dump()
        return sum(rate * lost[name] for name, rate in self.rates_per_s.items()) * self.supply.repair_s


def failure_rates(scenario: Scenario) -> FailureRates:
    """The failures and checkpoints of a scenario. Raises FieldError where `reliability` is missing or does not fit the
    cluster."""
    reliability = scenario.reliability
    if reliability is not None and reliability.mtbf is None:
        message = "missing; give mean times between failures, such as {gpu: 2000 d}, in place of events"
        raise FieldError(("reliability", "mtbf"), message)
    if reliability is None:
        message = (
            "missing; start from one that ships ('scaleproof list reliability'), as --set reliability=llama-3-h100, or give "
            "mtbf, such as {gpu: 2000 d}, and checkpoint, such as {bandwidth: 100 GB/s}"
        )
        raise FieldError(("reliability",), message)
    numbers = counts(scenario)
    rates_per_s = {}
    for name, mtbf_s in reliability.mtbf_s().items():
        if mtbf_s is not None and numbers[name] == 0:
            raise FieldError(("reliability", "mtbf", name), _ABSENT[name])
        if mtbf_s is not None:
            rates_per_s[name] = numbers[name] / mtbf_s
    saving = checkpoint_cost(scenario, reliability, numbers["host"])
    planned = reliability.planned
    times = InterruptionTimes(
        failures_per_s=sum(rates_per_s.values()),
        planned_per_s=1 / planned.every_s if planned else 0.0,
        detection_s=reliability.detection_s,
        restart_s=reliability.reschedule_s + reliability.initialise_s + saving.load_s,
        planned_s=planned.takes_s if planned else 0.0,
        stall_s=saving.stall_s,
        writing_s=saving.writing_s,
        slowdown=reliability.checkpoint.slowdown,
    )
    supply = NodeSupply(reliability.spares, reliability.repair_s or 0.0)
    node = {name: rate for name, rate in rates_per_s.items() if name in _OF_NODES}
    other = {name: rate for name, rate in rates_per_s.items() if name not in _OF_NODES}
    chances = FailureMix(_kinds(reliability, node, numbers["host"]), _kinds(reliability, other))
    return FailureRates(reliability, numbers, rates_per_s, saving, times, chances, supply, ElasticSizes(scenario))


def _kinds(reliability: Reliability, rates_per_s: Mapping[str, float], nodes: int = 1) -> FailureKinds:
    """Failures of some components, for each of `nodes` nodes. rates_per_s: failures per second by component."""
    rates = np.array(list(rates_per_s.values()) or [0.0])
    lost = np.array([getattr(reliability.nodes_lost, name) for name in rates_per_s] or [0])
    return FailureKinds(float(rates.sum()) / nodes, rates / max(rates.sum(), np.finfo(float).tiny), lost)


def checkpoint_cost(scenario: Scenario, reliability: Reliability, nodes: int) -> CheckpointCost:
    """Size and times of a checkpoint of a job on `nodes` nodes. Raises FieldError for one that no memory could have."""
    checkpoint, cluster = reliability.checkpoint, scenario.cluster
    devices = nodes if cluster.node.cores is not None else scenario.strategy.training_ranks
    memory_bytes = devices * cluster.device.memory_bytes
    if checkpoint.size_bytes is not None and checkpoint.size_bytes > memory_bytes:
        given, there = format_bytes(checkpoint.size_bytes), format_bytes(memory_bytes)
        message = f"{given} is more than the memory of all devices, {there}; give less"
        raise FieldError(("reliability", "checkpoint", "size"), message)
    # of the whole model, without replication; adapters are saved alone
    layers = scenario.layers(WHOLE)
    if scenario.training.adapters is not None:
        layers = [layer.without_frozen for layer in layers]
    whole = states(layers, scenario.training.model_copy(update={"zero": 0}))
    size_bytes = checkpoint.size_bytes or whole.parameters + whole.master_parameters + whole.optimizer_states
    rates_Bps = [checkpoint.bandwidth_Bps, checkpoint.node_bandwidth_Bps and nodes * checkpoint.node_bandwidth_Bps]
    writing_s = size_bytes / min(rate_Bps for rate_Bps in rates_Bps if rate_Bps)
    load_s = size_bytes / checkpoint.load_bandwidth_Bps if checkpoint.load_bandwidth_Bps else writing_s
    if checkpoint.copy_bandwidth_Bps is None:
        return CheckpointCost(size_bytes, writing_s, 0.0, load_s)
    return CheckpointCost(size_bytes, size_bytes / (nodes * checkpoint.copy_bandwidth_Bps), writing_s, load_s)


def counts(scenario: Scenario) -> dict[str, int]:
    """The number of components that the scenario's job depends on, by kind."""
    cluster, strategy = scenario.cluster, scenario.strategy
    nodes = strategy.nodes_needed(cluster)
    return {
        "gpu": 0 if cluster.node.cores is not None else strategy.training_ranks,
        "host": nodes,
        "nic": nodes * cluster.node.cards if nodes > 1 else 0,
        "switch": _switches(cluster.network, nodes, cluster.node.cards),
        "job": 1,
    }


def _switches(network: Link | None, nodes: int, cards: int) -> int:
    """Number of switches that connect this many nodes, and all switches of upper levels, which any job's messages may cross."""
    if network is None or nodes == 1:
        return 0
    match network.topology:
        case Switch():
            return 1
        case LeafSpine() as tree:
            return -(-nodes // tree.per_leaf) + tree.spines
        case FatTree() as tree:
            leaves = -(-nodes // tree.per_leaf)
            pods = -(-leaves // tree.leaves_per_pod)
            return leaves + pods * tree.spines_per_pod + (tree.cores if pods > 1 else 0)
        case RailOptimised() as rails:
            return -(-nodes // rails.nodes_per_group) * cards + rails.spines
        case Dragonfly() as routers:
            return -(-nodes // routers.per_router)
        case Graph() as graph:
            return len({vertex for link in graph.links for vertex in link.between if isinstance(vertex, str)})
        case _:
            return 0
