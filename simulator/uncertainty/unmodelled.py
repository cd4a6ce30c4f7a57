"""Parts of a scenario whose time is not modelled: what to say of them, and by how much they may prolong a step.

Each is one function of `_PARTS`. The prediction is that without their time; the upper end of its interval includes all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.device.device import optimizer_bytes
from scaleproof.simulator.common.units import format_time_s
from scaleproof.simulator.memory.inputs import MemoryInputs
from scaleproof.simulator.memory.ranks import PipelineRank, rank_kinds
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import Matmul
from scaleproof.simulator.parallelism.stages import WHOLE
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.plan_costs import stage_layers
from scaleproof.simulator.strategy.scenario_job import job_of

# Of pinned memory over PCIe 4.0 x16, of 32 GB/s, as NVIDIA's bandwidthTest reports for A100 nodes.
_PCIE_BPS: Final = 25e9
# Assumption where a cluster states no memory bandwidth of its hosts: less than any server of two processors since 2017 has.
_HOST_BPS: Final = 100e9
# An irrational step, by which numbers of draws are spread evenly.
_GOLDEN: Final = 0.6180339887498949


class Unmodelled(NamedTuple):
    """A part of a step without a modelled time. note: what it is. most_s: its seconds if it overlaps with nothing."""

    note: str
    most_s: float


def unmodelled(scenario: Scenario) -> tuple[Unmodelled, ...]:
    """The parts of a scenario's step whose time is not modelled."""
    found = (part(scenario) for part in _PARTS)
    return tuple(one for one in found if one is not None)


def most_s(scenario: Scenario) -> float:
    """Seconds that all parts without a modelled time take at most in a step."""
    return sum(one.most_s for one in unmodelled(scenario))


def note_on_settings(settings: str) -> str:
    """A remark on settings, as in `field=value`, that use something without a modelled time; empty if none does."""
    return "the time of offload is not modelled" if "training.offload=" in settings else ""


def log_times(scenario: Scenario, step_s: float, draws: int) -> NDArray[np.float64]:
    """Logarithms of the factors by which parts without a modelled time prolong a step, shape (draws,): each time from none to
    the most is equally likely."""
    shares = (np.arange(1, draws + 1) * _GOLDEN) % 1.0
    return np.asarray(np.log1p(shares * most_s(scenario) / step_s))


def _offloading(scenario: Scenario) -> Unmodelled | None:
    """Transfers of offloaded states between devices and hosts, and the optimizer's step on the hosts."""
    training, plan, cluster = scenario.training, scenario.strategy.plan, scenario.cluster
    if not training.offload:
        return None
    setting = MemoryInputs(scenario)
    pcie_Bps, host_Bps = _rates(cluster)
    on_node = min(cluster.node.devices, scenario.strategy.training_ranks)
    seconds = [0.0]
    for kind in rank_kinds(setting):
        sizes, ranks = PipelineRank(setting, kind).static.part, setting.sharing[0]
        moved_bytes = host_bytes = 0.0
        if "optimizer" in training.offload:
            updated = sizes.trained / (ranks if training.zero else 1)
            # gradients to the host, and parameters back
            moved_bytes += updated * (setting.gradient_size + setting.size)
            host_bytes += on_node * optimizer_bytes(updated, training.optimizer, training.precision, training.master)
        if "parameters" in training.offload:
            # a rank's shard before each pass over it
            is_kept = plan.gathering(training.zero) in ("every forward pass", "once a step")
            passes = plan.microbatches * (1 if is_kept else 2)
            moved_bytes += passes * sizes.parameters / ranks * setting.size
        seconds.append(moved_bytes / pcie_Bps + host_bytes / host_Bps)
    stated = "" if cluster.node.memory_bandwidth_Bps else " (assumed)"
    note = (
        f"training.offload: the time of transfers to the host and of the optimizer there is not modelled; the interval "
        f"includes {format_time_s(max(seconds))} a step, from {pcie_Bps / 1e9:.3g} GB/s (assumed) between a GPU and its host "
        f"and {host_Bps / 1e9:.3g} GB/s{stated} of a host's memory"
    )
    return Unmodelled(note, max(seconds))


def _repeated_recomputation(scenario: Scenario) -> Unmodelled | None:
    """Recomputation that passes for the gradients of weights repeat: torch.distributed.pipelining computes these weight
    by weight, and each unpacks the checkpoint of its block again (torch/distributed/pipelining/_backward.py)."""
    if scenario.training.recompute.kind == "none" or scenario.strategy.plan.schedule in WHOLE:
        return None
    plan, job = scenario.strategy.plan, job_of(scenario)
    samples = job.samples_per_worker / plan.microbatches

    def of_layer(layer: Layer) -> tuple[float]:
        weights = sum(isinstance(one, Matmul) and one.weight_gradient for one in layer.operators)
        return (weights * job.layer_passes_s(layer, samples)[2],)

    (layers_s,) = job.where_recomputed(job.of_layers(of_layer))
    stages = stage_layers(scenario.strategy, job)
    repeated_s = plan.microbatches * max(sum(layers_s[i] for one in own for i in stages[one]) for own in plan.stage_of)
    note = (
        "recomputed activations are kept until the gradients of weights; torch.distributed.pipelining keeps their gradients "
        f"alone and recomputes again for each weight, which is not modelled; the interval includes {format_time_s(repeated_s)} "
        "a step"
    )
    return Unmodelled(note, float(repeated_s))


def _rates(cluster: Cluster) -> tuple[float, float]:
    """Bytes per second between a device and its host, no more than between two devices, and of a host's memory."""
    link = cluster.node.link
    pcie_Bps = _PCIE_BPS if link is None else min(_PCIE_BPS, link.bandwidth_Bps)
    return pcie_Bps, cluster.node.memory_bandwidth_Bps or _HOST_BPS


_PARTS: Final[Sequence[Callable[[Scenario], Unmodelled | None]]] = (_offloading, _repeated_recomputation)
