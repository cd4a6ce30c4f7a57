"""Step builder: adds the tasks of a job's ranks to a program, with the job's costs on the links of its cluster."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Self

from scaleproof.simulator.cluster.collectives.groups import Group, Op, passed_bytes
from scaleproof.simulator.common.communication import UNLABELLED, Communication, Dimension
from scaleproof.simulator.common.parameter_server import SYNCHRONOUS, ConsistencyModel, WorkQuota
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.frameworks.framework import ShardCopies
from scaleproof.simulator.parallelism.mesh import RankClass
from scaleproof.simulator.program import Program, ProgramBuilder, ResourceTable
from scaleproof.simulator.program.costs import PassCommunication
from scaleproof.simulator.strategy.data_parallel.data_loading import BatchLoader
from scaleproof.simulator.strategy.job import Costs, Job
from scaleproof.simulator.strategy.layout.resource_map import LinkClasses, ResourceMap


@dataclass(frozen=True)
class JobCosts:
    """Costs of a job on its cluster: the argument of durations that are functions. Its links are the argument of paths.

    microbatches: of each worker. link_classes: links that stand for equivalent ones.
    """

    job: Job
    microbatches: int = 1
    link_classes: LinkClasses | None = None
    _layers: dict[tuple[int, int], Costs] = field(default_factory=dict, init=False, compare=False, repr=False)

    def job_with(self, samples: int, kind: int = 0) -> Job:
        """The job of a worker with this number of samples per step on a kind of nodes."""
        cluster = self.job.cluster.with_device_of(kind)
        if samples == self.job.samples_per_worker and cluster is self.job.cluster:
            return self.job
        return replace(self.job, samples_per_worker=samples, cluster=cluster)

    def layers(self, samples: int | None = None, kind: int = 0) -> Costs:
        """Costs of the layers for a microbatch of a worker with this number of samples per step, the job's if None, on a kind
        of nodes."""
        key = self.job.samples_per_worker if samples is None else samples, kind
        if key not in self._layers:
            self._layers[key] = self.job_with(*key).costs(self.microbatches)
        return self._layers[key]

    @property
    def paths_depend_on(self) -> Hashable:
        """What paths depend on: the device only where it copies the shards of what collectives move."""
        cluster = self.job.cluster
        return cluster.interconnect, cluster.device if self.job.shard_copies != ShardCopies() else None

    def links(self, resources: ResourceTable) -> ResourceMap:
        """The links of the cluster."""
        return ResourceMap(self.job.cluster, resources, self.link_classes)

    def in_passes(self) -> Callable[[], PassCommunication] | None:
        """The collectives within the passes; None without any."""
        return None

    def at(self, job: Job) -> Self | None:
        """The costs of another job on the same number of devices; None if its tasks would be other ones."""
        return replace(self, job=job if job.layers is self.job.layers else replace(job, layers=self.job.layers))


def forward_s(costs: JobCosts) -> float:
    """Seconds of a forward pass over all layers."""
    return float(costs.layers().forward_s.sum())


def backward_s(costs: JobCosts) -> float:
    """Seconds of a backward pass over all layers."""
    return float(costs.layers().backward_s.sum())


class StepBuilder(ProgramBuilder):
    """Collects the tasks of a job's ranks."""

    def __init__(
        self, job: Job, consistency: ConsistencyModel = SYNCHRONOUS, units: WorkQuota | None = None, samples: int | None = None
    ) -> None:
        """samples: that a worker loads for each step of the program, the job's if None."""
        super().__init__(consistency, units)
        self.job = job
        self._places: dict[int, tuple[int, int]] = {}
        loaded = job.samples_per_worker if samples is None else samples
        self._loader = None if job.input is None else BatchLoader(self, job, loaded)

    def add_rank(
        self, name: str, rank: int, node: int,
        each: int = 1, multiplicity: int = 1, is_server: bool = False, members: Sequence[int] = (),
    ) -> int:  # fmt: skip
        """Adds a class of ranks with the speed and the start time of its first rank, `rank`; returns its number.

        each: ranks of the class on `node`; multiplicity: on all nodes. members: ranks of the model-parallel group of `rank`;
        the class is as slow and as late as the slowest and latest of them.
        """
        unevenness, group = self.job.unevenness, members or (rank,)
        paces = tuple(map(unevenness.pace, group))
        computes = is_server or not self.job.is_emulated
        number = self.rank(
            name,
            multiplicity=multiplicity,
            is_server=is_server,
            uses=partial(ResourceMap.compute_uses, node=node, each=each, multiplicity=multiplicity, computes=computes),
            slowdown=max(map(unevenness.slowdown, group)),
            late_s=max(map(unevenness.late_s, group)),
            model_parallel_size=len(group),
            paces=paces if any(paces) else (),
        )
        self._places[number] = node, self.job.cluster.place(rank)[1]
        return number

    def add_class(self, ranks: RankClass, is_server: bool = False) -> int:
        """Adds a class of workers or servers, named after their number or after a single one of them; returns its number."""
        name = ranks.name("server" if is_server else "worker")
        return self.add_rank(name, ranks.rank, ranks.node, ranks.each, ranks.ranks, is_server)

    def load(self, rank: int, node: int, each: int = 1, total: int = 1, samples: int | None = None) -> None:
        """Makes a rank class wait for its batch at the beginning of every step, if loading takes time; see
        `BatchLoader.add`."""
        if self._loader is not None:
            self._loader.add(rank, node, each, total, samples)

    def message(
        self, source: int, target: int, size_bytes: float, phase: Phase, after: Sequence[int],
        labels: Communication = UNLABELLED,
    ) -> int:  # fmt: skip
        """Adds a message between two rank classes of one rank each, which the links carry without a library."""
        ends = self._places[source], self._places[target]
        path = partial(ResourceMap.message, source=ends[0], target=ends[1], size_bytes=size_bytes)
        return self.transfer(source, target, size_bytes, path, phase, after, labels=labels)

    def collective_of(
        self, op: Op, group: Group, size_bytes: float, members: Sequence[int], nodes: Sequence[int], after: Sequence[int],
        dimension: Dimension, layers: range | None = None,
    ) -> int:  # fmt: skip
        """Adds a collective of `size_bytes` over a group of ranks. members: their classes. nodes: those that are modelled of
        the group's nodes. layers: whose gradients or parameters it moves."""
        path = partial(ResourceMap.concurrent_collectives, calls=[(op, group, size_bytes, nodes)])
        labels = Communication.of(dimension, op, size_bytes, layers)
        moved_bytes = passed_bytes(op, group, size_bytes)
        return self.collective(members, moved_bytes, path, Phase.SYNCHRONISE, after, labels=labels)

    def priced(self) -> Program:
        """The program with all tasks added so far, at the prices of the job."""
        return self.build(JobCosts(self.job))
