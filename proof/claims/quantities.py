"""The quantities of claims, computed from a prediction or a measured run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.units import format_bytes, format_time_s
from scaleproof.simulator.memory import memory
from scaleproof.simulator.program import Kind
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import compile_step
from scaleproof.simulator.strategy.scenario_job import job_of

# What a rank keeps for its parameters, and their gradients.
_STATES: Final = ("parameters", "gradients", "master_parameters", "optimizer_states")
# What the names of a node's ways into the network end in.
_WAYS: Final = (" in", " out", " both")

Timed = Callable[[], Run]
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Quantity:
    """A quantity. words: description with unit. text: formats a value. read: value of a scenario and its run, which is computed
    on demand. is_measured: whether measured runs have it too."""

    words: str
    text: Callable[[float], str]
    read: Callable[[Scenario, Timed], float]
    is_measured: bool = True


def _percent(value: float) -> str:
    return f"{value * 100:.3g} %"


def _times(value: float) -> str:
    return f"{value:.3g}"


def _small(value: float) -> str:
    return f"{value:.2g}"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def ratio(value: float) -> str:
    """Text of a ratio."""
    return f"{value:.3g}×" if np.isfinite(value) else "∞" if value > 0 else "–"


def _efficiency(scenario: Scenario, run: Timed) -> float:
    return run().breakdown_s["compute"] / run().step_time_s


def _at_once(scenario: Scenario, run: Timed) -> float:
    return _efficiency(scenario, run) * run().compute_ranks


def _throughput(scenario: Scenario, run: Timed) -> float:
    return run().samples_per_s


def _fitting_throughput(scenario: Scenario, run: Timed) -> float:
    return run().samples_per_s if memory(scenario).fits else 0.0


def _step_time(scenario: Scenario, run: Timed) -> float:
    return run().step_time_s


def _exposed(scenario: Scenario, run: Timed) -> float:
    return run().breakdown_s["exposed_communication"]


def _staleness(scenario: Scenario, run: Timed) -> float:
    servers = run().servers
    if servers is None:
        raise InputError(f"{scenario.name}: staleness is defined for parameter servers; give such a strategy")
    return servers.version_staleness.mean


def _memory(scenario: Scenario, run: Timed) -> float:
    return memory(scenario).worst.total_bytes


def _memory_share(scenario: Scenario, run: Timed) -> float:
    use = memory(scenario)
    return use.worst.total_bytes / use.capacity_bytes if use.capacity_bytes else float("inf")


def _states_share(scenario: Scenario, run: Timed) -> float:
    worst = memory(scenario).worst
    return sum(worst.holders_bytes.get(name, 0.0) for name in _STATES) / worst.total_bytes


def _parameters(scenario: Scenario, run: Timed) -> float:
    return memory(scenario).worst.holders_bytes["parameters"]


def _busiest_link(scenario: Scenario, run: Timed) -> float:
    """Bytes in one direction through the busiest link of a node."""
    program = compile_step(scenario.strategy, job_of(scenario))
    tasks = np.flatnonzero(np.isin(program.kind, (Kind.TRANSFER, Kind.COLLECTIVE)))
    index, resource, per_unit = program.routes.used(program.route[tasks])
    carried_bytes = np.bincount(resource, program.amount[tasks][index] * per_unit, len(program.resources.names))
    is_way = np.array([name.endswith(_WAYS) for name in program.resources.names], dtype=np.bool_)
    return float(carried_bytes[is_way].max(initial=0.0))


def _gradients(scenario: Scenario) -> tuple[Numbers, Numbers, Numbers]:
    """Mean gradients of the workers, their numbers of samples, and the mean over all samples, for a least-squares problem with
    as many dimensions as samples, drawn from the scenario's seed."""
    plan, total = scenario.strategy.plan, scenario.total_samples
    shares = np.array(plan.shares or (scenario.samples_per_worker,) * plan.workers)
    draw = np.random.default_rng(scenario.training.seed)
    samples, targets = draw.standard_normal((total, total)), draw.standard_normal(total)
    each = -targets[:, None] * samples
    parts = np.split(each, np.cumsum(shares)[:-1])
    return np.stack([part.mean(axis=0) for part in parts]), shares, each.mean(axis=0)


def _deviation(average: Numbers, whole: Numbers) -> float:
    return float(np.abs(average - whole).max() / np.abs(whole).max())


def _unweighted_deviation(scenario: Scenario, run: Timed) -> float:
    means, _, whole = _gradients(scenario)
    return _deviation(means.mean(axis=0), whole)


def _weighted_deviation(scenario: Scenario, run: Timed) -> float:
    """Deviation from training in one process: of parameters (measured run), or of the sum of gradients (prediction)."""
    means, shares, whole = _gradients(scenario)
    if (verified := run().verified) is not None:
        return verified.deviation
    return _deviation((means * shares[:, None]).sum(axis=0) / shares.sum(), whole)


KINDS: Final[Mapping[str, Quantity]] = {
    "efficiency": Quantity("scaling efficiency, % of a step in which workers compute", _percent, _efficiency),
    "throughput": Quantity("throughput, samples/s", _rate, _throughput),
    "fitting_throughput": Quantity("throughput of what fits, samples/s", _rate, _fitting_throughput, False),
    "step_time": Quantity("time until every trial has taken a step", format_time_s, _step_time),
    "exposed": Quantity("communication that a step waits for", format_time_s, _exposed),
    "at_once": Quantity("devices that compute at the same time", _times, _at_once),
    "staleness": Quantity("updates by others while a gradient is made", _times, _staleness, False),
    "memory": Quantity("memory of a device", format_bytes, _memory, False),
    "memory_share": Quantity("memory of a device that is needed, % of what it has", _percent, _memory_share, False),
    "states_share": Quantity("memory that is parameters, gradients and optimizer states", _percent, _states_share, False),
    "parameters": Quantity("parameters that a worker holds", format_bytes, _parameters, False),
    "busiest_link": Quantity("sent or received by the busiest node a step", format_bytes, _busiest_link, False),
    "unweighted_deviation": Quantity("off the gradient of all samples, as a share of it", _small, _unweighted_deviation, False),
    "weighted_deviation": Quantity("off the gradient of all samples, as a share of it", _small, _weighted_deviation),
}
