"""Contention: how collectives of replicas that run next to a layer's passes slow these passes down.

A collective occupies one processor per channel, moves two to three bytes of memory for each byte on the bus, and draws power
for both. While it runs, kernels get what is left, as links are shared out: with a share t taken for C seconds, work W takes
W + t·C if it outlasts the collective, and W / (1 − t) if it does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.algorithms import Group, Op, bus_factor
from scaleproof.simulator.cluster.collectives.cost import processors_taken
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.strategy.data_parallel.power import PowerBudget, joules_per_bus_byte
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.model_parallel.layer_collectives import ConcurrentCollective, crowd_of

Times = NDArray[np.float64]

# Bytes of memory read and written for each byte that a ring moves: what comes in is read, added to what is there, and written.
# Two for gathers, three for sums; an assumption.
MEMORY_BYTES_PER_BUS_BYTE: Final[dict[Op, float]] = {"all_gather": 2.0, "reduce_scatter": 3.0, "all_reduce": 2.5}
# Share of the memory's bandwidth that collectives take at most.
_MOST_MEMORY: Final = 0.9


@dataclass(frozen=True)
class Replicas:
    """Which collectives of replicas run next to passes.

    group: ranks with the same parameters; experts: ranks with the same experts, where these are others. gathers: of
    parameters, next to the forward and the backward pass of each microbatch, as in ZeRO's stage 3. first_gather: next to the
    first forward pass of a step alone. sums: of gradients next to backward passes, None if they wait. passes: of how many
    microbatches one sum runs next to: 1 where each microbatch sums, all where ranks have several chunks, whose sums run next to
    passes over the others; 0 where the last backward pass alone is left to run next to.
    """

    group: Group
    experts: Group | None
    gathers: tuple[bool, bool]
    first_gather: bool
    sums: Op | None
    passes: int


class Slowed(NamedTuple):
    """Seconds by which each layer's passes take longer, shape (2, layers): each of every microbatch, and in addition the first
    forward and the last backward pass of a step."""

    each_s: Times
    once_s: Times


@dataclass(frozen=True)
class Contention:
    """Slows passes down by what replicas exchange next to them."""

    replicas: Replicas
    _crowds: dict[tuple[int, Op, bool], ConcurrentCollective] = field(default_factory=dict, compare=False, repr=False)

    def slowed(self, computing_s: Times, samples: float, job: Job) -> Slowed:
        """How much longer passes take that take `computing_s` alone, shape (2, layers)."""
        nothing = np.zeros_like(computing_s)
        resources = Resources.of(job)
        if resources is None:
            return Slowed(nothing, nothing)
        bound = job.of_layers(lambda layer: (job.memory_share(layer, samples),))[0]
        found = []
        for moves in (self._each, self._once):
            columns = job.of_layers(lambda layer, moves=moves: moves(layer, job))  # type: ignore[misc]
            moved_s = columns[:2]
            share = resources.taken(*per_second(columns[2:4], columns[4:], moved_s), bound)
            # collectives of a layer run next to passes over its neighbours, so that the bound is that of a whole pass
            own_s, most_s = share * moved_s, (share / (1 - share) * computing_s).sum(axis=1)
            total_s = own_s.sum(axis=1)
            bounded = np.divide(np.minimum(total_s, most_s), total_s, out=np.zeros_like(total_s), where=total_s > 0)
            found.append(own_s * bounded[:, None])
        return Slowed(*found)

    def _each(self, layer: Layer, job: Job) -> Sequence[float]:
        """Seconds of collectives next to the forward and the backward pass of each microbatch over a layer, the bytes of memory
        that they move next to each of both, and the joules that moving takes."""
        forward, backward = self.replicas.gathers
        return self._moved(layer, job, forward, backward, self.replicas.passes)

    def _once(self, layer: Layer, job: Job) -> Sequence[float]:
        """The same of those next to the first forward and the last backward pass alone."""
        return self._moved(layer, job, self.replicas.first_gather, False, 0 if self.replicas.passes else 1)

    def _moved(self, layer: Layer, job: Job, forward: bool, backward: bool, passes: int) -> Sequence[float]:
        """passes: over how many passes a sum is spread; 0 for no sum."""
        replicas, experts = self.replicas, 0 if self.replicas.experts is None else layer.expert_parameters
        moved_s, memory_bytes, moved_J = [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]
        asked: list[tuple[int, Op, int, int]] = [
            (way, "all_gather", job.gathered_bytes, 1) for way, gathers in enumerate((forward, backward)) if gathers
        ]
        if replicas.sums is not None and passes:
            asked.append((1, replicas.sums, job.reduced_bytes, passes))
        for group, parameters in ((replicas.group, layer.parameters - experts), (replicas.experts, experts)):
            if group is None or group.size == 1 or not parameters:
                continue
            for way, op, element_bytes, over in asked:
                size_bytes = float(parameters * element_bytes)
                moved_s[way] += self._crowd(op, group, job.cluster).seconds(size_bytes) / over
                bus_bytes = size_bytes * bus_factor(op, group.size) / over
                memory_bytes[way] += MEMORY_BYTES_PER_BUS_BYTE[op] * bus_bytes
                moved_J[way] += joules_per_bus_byte(MEMORY_BYTES_PER_BUS_BYTE[op]) * bus_bytes
        return *moved_s, *memory_bytes, *moved_J

    def _crowd(self, op: Op, group: Group, cluster: Cluster) -> ConcurrentCollective:
        key = id(cluster), op, group is self.replicas.experts
        if key not in self._crowds:
            self._crowds[key] = crowd_of(op, group, cluster)
        return self._crowds[key]


@dataclass(frozen=True)
class Resources:
    """Resources of a device that collectives and kernels share.

    processors: share that a collective's channels occupy. memory_Bps: bytes per second that kernels reach. power: None where
    power is not shared.
    """

    processors: float
    memory_Bps: float
    power: PowerBudget | None = None

    @classmethod
    def of(cls, job: Job) -> Self | None:
        """The resources of a job's device; None where collectives take nothing from kernels."""
        device, framework = job.cluster.device, job.framework
        processors = processors_taken(job.cluster)
        if not framework.contention or processors == 0 or device.kernels is None:
            return None
        power = PowerBudget.of(device, processors) if framework.power else None
        return cls(processors, device.memory_bandwidth_Bps * device.kernels.memory_share, power)

    def taken(self, memory_Bps: Times, moved_W: Times, bound: Times) -> Times:
        """Share of a device that collectives take from kernels of which memory bounds the share `bound`: of the resource
        of which kernels lose most.

        memory_Bps, moved_W: bytes of memory per second that collectives move, and watts of moving them.
        """
        by_products = np.full_like(moved_W, self.processors)
        by_memory = np.clip(memory_Bps / self.memory_Bps, self.processors, _MOST_MEMORY)
        if self.power is not None:
            lost = self.power.lost(moved_W)
            by_products, by_memory = np.maximum(by_products, lost[0]), np.maximum(by_memory, lost[1])
        result: Times = by_products * (1 - bound) + by_memory * bound
        return result


def per_second(memory_bytes: Times, moved_J: Times, moved_s: Times) -> tuple[Times, Times]:
    """Bytes of memory per second and watts of what is moved in `moved_s` seconds, 0 of nothing."""
    rates = (np.divide(one, moved_s, out=np.zeros_like(moved_s), where=moved_s > 0) for one in (memory_bytes, moved_J))
    memory_Bps, moved_W = rates
    return memory_Bps, moved_W


def slowed_by(share: Times, moved_s: Times, computing_s: Times) -> Times:
    """Seconds by which work takes longer next to collectives that take a share of the device for `moved_s` seconds."""
    result: Times = np.minimum(share * moved_s, share / (1 - share) * computing_s)
    return result
