"""Contention: how collectives of replicas that run next to a layer's passes slow these passes down.

A collective occupies one processor per channel and moves two to three bytes of memory for each byte on the bus. While it runs,
kernels get what is left, as links are shared out: with a share t taken for C seconds, work W takes W + t·C if it outlasts the
collective, and W / (1 − t) if it does not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from simulator.cluster import Cluster
from simulator.cluster.algorithms import Group, Op, bus_factor
from simulator.cluster.cost import processors_taken
from simulator.strategy.costs import Job
from simulator.strategy.exchange import Crowd

Times = NDArray[np.float64]

# Bytes of memory read and written for each byte that a ring moves: what comes in is read, added to what is there, and written.
# Two for gathers, three for sums; an assumption.
MEMORY_BYTES_PER_BUS_BYTE: Final[dict[Op, float]] = {"all_gather": 2.0, "reduce_scatter": 3.0, "all_reduce": 2.5}


@dataclass(frozen=True)
class Replicas:
    """Which collectives of replicas run next to passes. gathers: next to which passes parameters are gathered ("both" with
    ZeRO's stage 3, "forward" where the next step begins before all are there). sums: the collective that sums gradients next
    to backward passes, None if sums wait. every: microbatches from one sum to the next; gathered_every: the same of gathers."""

    group: Group
    gathers: tuple[bool, bool]
    sums: Op | None
    every: int
    gathered_every: int
    gradient_bytes: int | None


@dataclass(frozen=True)
class Contention:
    """Slows passes down by what replicas exchange next to them."""

    replicas: Replicas
    _crowds: dict[tuple[int, Op], Crowd] = field(default_factory=dict, compare=False, repr=False)

    def seconds(self, computing_s: Times, samples: float, job: Job) -> Times:
        """Seconds by which each layer's passes take longer, shape (2, layers)."""
        if not job.framework.contention or self.replicas.group.size == 1:
            return np.zeros_like(computing_s)
        processors, reached_Bps = processors_taken(job.cluster), memory_Bps(job)
        if processors == 0 or reached_Bps is None:
            return np.zeros_like(computing_s)
        found = job.of_layers(lambda layer: self._moved(layer.parameters, job))
        moved_s, memory_bytes = found[:2], found[2:]
        bound = job.of_layers(lambda layer: (job.memory_share(layer, samples),))[0]
        rate = np.divide(memory_bytes, moved_s, out=np.zeros_like(moved_s), where=moved_s > 0) / reached_Bps
        return slowed_by(taken(processors, rate, bound), moved_s, computing_s)

    def _moved(self, parameters: int, job: Job) -> tuple[float, float, float, float]:
        """Seconds of collectives next to the forward and the backward pass of one microbatch, and the bytes of memory that each
        moves meanwhile."""
        replicas, size = self.replicas, job.element_bytes
        moved_s, memory_bytes = [0.0, 0.0], [0.0, 0.0]

        def add(backward: bool, op: Op, size_bytes: float, every: int) -> None:
            moved_s[backward] += self._crowd(op, job.cluster).seconds(size_bytes) / every
            bus_bytes = size_bytes * bus_factor(op, replicas.group.size)
            memory_bytes[backward] += MEMORY_BYTES_PER_BUS_BYTE[op] * bus_bytes / every

        for backward, gathers in enumerate(replicas.gathers):
            if gathers:
                add(bool(backward), "all_gather", parameters * size, replicas.gathered_every)
        if replicas.sums is not None:
            add(True, replicas.sums, parameters * (replicas.gradient_bytes or size), replicas.every)
        return moved_s[0], moved_s[1], memory_bytes[0], memory_bytes[1]

    def _crowd(self, op: Op, cluster: Cluster) -> Crowd:
        key = id(cluster), op
        if key not in self._crowds:
            self._crowds[key] = Crowd(op, self.replicas.group, cluster)
        return self._crowds[key]


def taken(processors: float, memory: Times, bound: Times) -> Times:
    """Share of a device that collectives take from kernels of which memory bounds the share `bound`. processors, memory: shares
    of each that they use."""
    result: Times = processors * (1 - bound) + np.clip(memory, processors, 0.9) * bound
    return result


def slowed_by(share: Times, moved_s: Times, computing_s: Times) -> Times:
    """Seconds by which work takes longer next to collectives that take a share of the device for `moved_s` seconds."""
    result: Times = np.minimum(share * moved_s, share / (1 - share) * computing_s)
    return result


def memory_Bps(job: Job) -> float | None:
    """Bytes per second that kernels reach; None for a device without kernels."""
    kernels = job.cluster.device.kernels
    return None if kernels is None else job.cluster.device.memory_bandwidth_Bps * kernels.memory_share
