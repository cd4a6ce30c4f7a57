"""Setting: what a scenario's failures and checkpoints come to: rates, times and bytes of its job."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scaleproof.simulator.analysis.goodput import components
from scaleproof.simulator.analysis.goodput.elastic_sizes import ElasticSizes
from scaleproof.simulator.analysis.goodput.failure_history import Chances, Supply
from scaleproof.simulator.analysis.goodput.renewal import Times
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.units import format_bytes
from scaleproof.simulator.memory import states
from scaleproof.simulator.scenario.reliability import COMPONENTS, Reliability
from scaleproof.simulator.scenario.schema import Scenario

# their number goes with the nodes that train
_OF_NODES = ("gpu", "host", "nic")


@dataclass(frozen=True)
class Saving:
    """A checkpoint. size_bytes: of all nodes together. load_s: of loading it at a restart."""

    size_bytes: float
    stall_s: float
    writing_s: float
    load_s: float


@dataclass(frozen=True)
class FailureRates:
    """counts: of each component that may fail; rates_per_s: of failures of all of them together, by component."""

    scenario: Scenario
    reliability: Reliability
    counts: dict[str, int]
    rates_per_s: dict[str, float]
    saving: Saving
    times: Times
    chances: Chances
    supply: Supply
    sizes: ElasticSizes

    @property
    def in_repair(self) -> float | None:
        """Nodes in repair on average if training never waited for any: as many as are lost in the time of a repair (Little)."""
        if self.supply.spares is None:
            return None
        lost: dict[str, int] = self.reliability.nodes_lost.model_dump()
        return sum(rate * lost[name] for name, rate in self.rates_per_s.items()) * self.supply.repair_s


def setting(scenario: Scenario) -> FailureRates:
    """Raises FieldError where the scenario says nothing of reliability, or what does not fit its cluster."""
    reliability = scenario.reliability
    if reliability is None:
        message = (
            "missing; give mtbf, such as {gpu: 2000 d}, and checkpoint, such as {bandwidth: 100 GB/s}; "
            "scaleproof show llama3-405b-54-days has an example"
        )
        raise FieldError(("reliability",), message)
    counts = components.counts(scenario)
    components.check(scenario, counts)
    between_s = reliability.mtbf.by_component()
    rates_per_s = {name: counts[name] / seconds for name, seconds in between_s.items() if seconds is not None}
    saving = _saving(scenario, reliability, counts["host"])
    planned = reliability.planned
    times = Times(
        failures_per_s=sum(rates_per_s.values()),
        planned_per_s=1 / planned.every_s if planned else 0.0,
        detection_s=reliability.detection_s,
        restart_s=reliability.reschedule_s + reliability.initialise_s + saving.load_s,
        planned_s=planned.takes_s if planned else 0.0,
        stall_s=saving.stall_s,
        writing_s=saving.writing_s,
        slowdown=reliability.checkpoint.slowdown,
    )
    supply = Supply(reliability.spares, reliability.repair_s or 0.0)
    chances = _chances(reliability, rates_per_s, counts["host"])
    return FailureRates(scenario, reliability, counts, rates_per_s, saving, times, chances, supply, ElasticSizes(scenario))


def _chances(reliability: Reliability, rates_per_s: dict[str, float], nodes: int) -> Chances:
    kinds = [
        [name for name in COMPONENTS if name in rates_per_s and (name in _OF_NODES) == of_nodes] for of_nodes in (True, False)
    ]
    rates = [np.array([rates_per_s[name] for name in names] or [0.0]) for names in kinds]
    shares = [rate / max(rate.sum(), np.finfo(float).tiny) for rate in rates]
    lost = [np.array([getattr(reliability.nodes_lost, name) for name in names] or [0]) for names in kinds]
    return Chances(float(rates[0].sum()) / nodes, float(rates[1].sum()), *shares, *lost)


def _saving(scenario: Scenario, reliability: Reliability, nodes: int) -> Saving:
    checkpoint = reliability.checkpoint
    size_bytes = checkpoint.size_bytes or _states_bytes(scenario)
    _check_size(scenario, checkpoint.size_bytes or 0.0)
    rates_Bps = [checkpoint.bandwidth_Bps, checkpoint.node_bandwidth_Bps and nodes * checkpoint.node_bandwidth_Bps]
    writing_s = size_bytes / min(rate_Bps for rate_Bps in rates_Bps if rate_Bps)
    load_s = size_bytes / checkpoint.load_bandwidth_Bps if checkpoint.load_bandwidth_Bps else writing_s
    if checkpoint.copy_bandwidth_Bps is None:
        return Saving(size_bytes, writing_s, 0.0, load_s)
    return Saving(size_bytes, size_bytes / (nodes * checkpoint.copy_bandwidth_Bps), writing_s, load_s)


def _states_bytes(scenario: Scenario) -> float:
    """Of the whole model, once: parameters, master copies and optimizer states."""
    held = states(scenario.model.build_layers(), scenario.training.model_copy(update={"zero": 0}))
    return held.parameters + held.master_parameters + held.optimizer_states


def _check_size(scenario: Scenario, size_bytes: float) -> None:
    """Raises FieldError for a checkpoint of more than there is to be saved."""
    cluster, strategy = scenario.cluster, scenario.strategy
    places = strategy.nodes_needed(cluster) if cluster.node.cores is not None else strategy.training_ranks
    held_bytes = places * cluster.device.memory_bytes
    if size_bytes > held_bytes:
        message = f"{format_bytes(size_bytes)} is more than the memory of all devices, {format_bytes(held_bytes)}; give less"
        raise FieldError(("reliability", "checkpoint", "size"), message)
