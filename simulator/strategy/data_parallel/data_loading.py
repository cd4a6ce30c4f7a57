"""Data loading: reading, decoding and copying samples concurrently with training, some batches ahead; and its tasks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final, Literal, NamedTuple

import numpy as np

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.host import required_host, with_host
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.program import NO_STREAM, Path, Program, ProgramBuilder, Use
from scaleproof.simulator.scenario.training import Input
from scaleproof.simulator.strategy.job import Job

STORAGE: Final = "storage"
# Between a node or a rank and a part of loading, in names of resources.
_OF: Final = ": "
# Scheduling slots reserved for loading and its waits, before a step's first task.
FIRST_SLOT: Final = 3


class LoadingStage(NamedTuple):
    """A part of data loading. amount: per sample, in the unit of the capacity. capacity: per second, of those who share it.
    field: the scenario's, which the rate is proportional to, or inversely proportional to. value: of the field, in the unit."""

    name: str
    amount: float
    capacity: float
    shared_by: Literal["cluster", "node", "device"]
    field: str
    value: float
    unit: str

    def cure(self, factor: float) -> str:
        """The setting with which the part is at least `factor` times as fast: 'input.cores=118'."""
        if self.unit == "ms":
            return f"{self.field}={_two_digits(self.value / factor, math.floor):.10g} ms"
        if self.unit:
            return f"{self.field}={_two_digits(self.value * factor, math.ceil):.10g} {self.unit}"
        return f"{self.field}={math.ceil(self.value * factor)}"


def stages(input_: Input, cluster: Cluster, nodes: int) -> Iterator[LoadingStage]:
    """The parts of loading that take time. nodes: that read the data set."""
    storage = input_.storage
    read_bytes = 0.0 if storage is None else storage.sample_bytes * (1 - storage.cached_share(nodes))
    if storage is not None and read_bytes:
        bandwidth_Bps = storage.bandwidth_Bps
        field = "input.storage.bandwidth"
        yield LoadingStage(STORAGE, read_bytes, bandwidth_Bps, storage.shared_by, field, bandwidth_Bps / 1e9, "GB/s")
        if storage.latency_s:
            in_flight = "input.storage.in_flight", storage.in_flight, ""
            yield LoadingStage("reads in flight", read_bytes, storage.read_Bps, "node", *in_flight)
    decode_s = input_.decode_s if input_.decode_on == "cores" else 0.0
    on_cores = {"parsing": input_.parse_s, "decoding": decode_s, "augmentation": input_.augment_s}
    if core_s := sum(on_cores.values()):
        name = " and ".join(part for part, seconds in on_cores.items() if seconds)
        yield LoadingStage(name, core_s, input_.cores, "node", "input.cores", input_.cores, "")
    if input_.decode_on == "device":
        yield LoadingStage("decoding on devices", input_.decode_s, 1.0, "device", "input.decode", input_.decode_s * 1e3, "ms")
    if input_.copied_bytes:
        host = required_host(with_host(cluster))
        assert host.link_Bps is not None, "with_host has filled it"
        sharing = min(cluster.node.devices, host.devices_per_link)
        link = "cluster.node.host.link", host.link_Bps / 1e9, "GB/s"
        yield LoadingStage("transfer", input_.copied_bytes, host.link_Bps / sharing, "device", *link)


class BatchLoader:
    """Adds the loading of batches to a program, and its shared resources, such as storage and the cores that decode."""

    def __init__(self, builder: ProgramBuilder, job: Job, samples: int) -> None:
        """samples: of a worker in a step."""
        assert job.input is not None, "the caller has checked it"
        self._builder, self._samples, self._prefetch = builder, samples, job.input.prefetch
        self._stages = list(stages(job.input, job.cluster, job.reading_nodes))
        self._resources: dict[str, int] = {}

    def add(self, rank: int, node: int, each: int, total: int, samples: int | None = None) -> None:
        """Makes a rank class wait for its batch at the beginning of every step; must be called before its compute tasks are
        added.

        each: ranks of the class on each of its nodes; total: on all nodes. samples: size of its batch, that of the loader if
        None. A batch begins to load when the previous one is loaded and a slot is free, that is, `prefetch` steps after an
        earlier batch was used.
        """
        # without prefetch, loading begins with the step
        after = [] if self._prefetch else [self._builder.wait(rank, Phase.INPUT, [])]
        count = self._samples if samples is None else samples
        users = {"cluster": ("", total), "node": (f"node {node}{_OF}", each), "device": (f"rank {rank}{_OF}", 1)}
        loads = []
        for stage in self._stages:
            owner, sharing = users[stage.shared_by]
            path = self._path(owner + stage.name, stage.capacity, sharing)
            loads.append(self._builder.background(rank, stage.amount * count, path, Phase.INPUT, after))
        slot = self._builder.wait(rank, Phase.INPUT, loads)
        for _ in range(self._prefetch - 1):
            previous, slot = slot, self._builder.background(rank, 0.0, Path(0.0, 1.0), Phase.INPUT)
            self._builder.carry(slot, [previous])
        for load in loads:
            self._builder.carry(load, [load, slot] if self._prefetch else [load])

    def _path(self, name: str, capacity: float, count: int) -> Path:
        if name not in self._resources:
            self._resources[name] = self._builder.resource(name, capacity)
        return Path(0.0, capacity, (Use(self._resources[name], count),))


def loading_s(program: Program) -> dict[str, float]:
    """Seconds in which each part of loading loads the samples of a step: of the slowest storage, node or device."""
    loads = np.flatnonzero((program.phase == Phase.INPUT) & (program.stream == NO_STREAM) & (program.amount > 0))
    index, resource, count = program.routes.used(program.route[loads])
    seconds = np.zeros(len(program.resources.names))
    np.add.at(seconds, resource, program.amount[loads][index] * count / program.resources.capacity[resource])
    result: dict[str, float] = {}
    for name, value in zip(program.resources.names, seconds.tolist(), strict=True):
        part = name.rpartition(_OF)[2]
        if value > 0:
            result[part] = max(value, result.get(part, 0.0))
    return result


def _two_digits(value: float, rounded: Callable[[float], int]) -> float:
    """A value rounded to two significant digits, up or down."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return rounded(value / unit) * unit
