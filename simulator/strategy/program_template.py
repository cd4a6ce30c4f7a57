"""Program templates: a compiled program whose numbers can be recomputed for other clusters.

The tasks of a program and their order depend on the plan and the model; durations and sizes depend on the cluster. A program is
therefore compiled once and refilled for clusters that differ in numbers only.

While a program is compiled, a TemplateRecorder records the queries for its numbers: paths from the resource map, times from the
job. Refilling re-evaluates these queries; the result is bitwise equal to a new compilation.
"""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.cost import library_of
from scaleproof.simulator.cluster.perturbations import Perturbations
from scaleproof.simulator.common.batched_numbers import numbers, put
from scaleproof.simulator.frameworks.framework import ShardCopies
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.simulator.program import Path, Program, ProgramBuilder, Resources, Routes, Rows
from scaleproof.simulator.program.pass_communication import PassCommunication
from scaleproof.simulator.strategy.job import Costs, Job
from scaleproof.simulator.strategy.layout.link_loads import NetworkShape, network_shape
from scaleproof.simulator.strategy.layout.resource_map import LinkClasses, ResourceMap
from scaleproof.simulator.strategy.model_parallel.layer_collectives import pass_communication
from scaleproof.simulator.strategy.pipeline.schedules import PassTimes
from scaleproof.simulator.strategy.plan_costs import pass_times

# Number of cached templates, and tasks of the largest of them, about 200 bytes each.
_MAX_TEMPLATES: Final = 8
_MAX_TASKS: Final = 20_000
# Clusters whose transfers a template caches: one, and two variants of it with slower parts.
_MAX_CLUSTERS: Final = 3
# Columns of transfers; compute tasks overwrite the last three.
_COLUMNS: Final = ("max_rate", "weight", "amount", "route", "latency_s")
_COMPUTE_COLUMNS: Final = _COLUMNS[2:]

# Bytes of a transfer, and their path.
SizeAndPath = tuple[float, Path]


class JobCosts:
    """A job, and the costs of its workers' microbatches."""

    def __init__(self, job: Job, microbatches: int) -> None:
        self.job, self.microbatches = job, microbatches
        self._costs: dict[int, Costs] = {}

    def of(self, samples: int) -> Job:
        """The job of a worker with this number of samples per step."""
        return self.job if samples == self.job.samples_per_worker else replace(self.job, samples_per_worker=samples)

    def costs(self, samples: int) -> Costs:
        """Costs of a microbatch of a worker with this number of samples per step."""
        if samples not in self._costs:
            self._costs[samples] = self.of(samples).costs(self.microbatches)
        return self._costs[samples]


# Seconds of work, and of collectives within it, of some tasks: scalars, or arrays with one entry per task.
Times = Callable[[JobCosts], tuple[ArrayLike, ArrayLike]]
# Shares by which some transfers take longer than their path alone, one for each.
ShareOf = Callable[[JobCosts], Any]


class TemplateRecorder:
    """Queries a resource map for paths during compilation, and records the queries in order.

    results: size and path of each query, by number. Tasks that are not recorded have the same numbers in every refill.
    """

    def __init__(self, resource_map: ResourceMap) -> None:
        self._resource_map = resource_map
        self.results: list[SizeAndPath] = []
        self.queries: list[Callable[[ResourceMap], SizeAndPath | int]] = []
        self.transfers: list[tuple[Rows, Rows]] = []
        self.times_of: list[tuple[Rows, Rows, Times]] = []
        self.delays: list[tuple[Rows, ShareOf]] = []

    def rank(self, add: Callable[[ResourceMap], int]) -> int:
        """Adds a rank class and returns its number."""
        self.queries.append(add)
        return add(self._resource_map)

    def query(self, path: Callable[[ResourceMap], SizeAndPath]) -> int:
        """Evaluates a query and returns its number."""
        self.queries.append(path)
        self.results.append(path(self._resource_map))
        return len(self.results) - 1

    def record_transfers(self, rows: ArrayLike, numbers: ArrayLike) -> None:
        """Records that tasks have the size and path of these queries; arguments broadcast together."""
        row, number = np.broadcast_arrays(rows, numbers)
        self.transfers.append((row.ravel(), number.ravel()))

    def record_times(self, rows: ArrayLike, ranks: ArrayLike, times_of_costs: Times) -> None:
        """Records the times of compute tasks on these rank classes."""
        row, rank = np.broadcast_arrays(rows, ranks)
        self.times_of.append((row, rank, times_of_costs))

    def record_delays(self, rows: Rows, share_of_costs: ShareOf) -> None:
        """Records that transfers take longer than their path alone by a share that depends on costs."""
        self.delays.append((rows, share_of_costs))


class _Transfers(NamedTuple):
    """Numbers that depend on a cluster's links. of: the parts of the cluster that they depend on. builder: has the rank classes
    and resources. columns: of the program, by name."""

    of: tuple[object, ...]
    builder: ProgramBuilder
    columns: dict[str, NDArray[Any]]
    resources: Resources
    routes: Routes


def in_passes(job: Job, microbatches: int) -> Callable[[], PassCommunication]:
    """Function for the collectives within the passes of a job."""
    return partial(pass_communication, job, microbatches)


class ProgramTemplate:
    """A compiled program that can be refilled for other jobs with the same TemplateKey."""

    def __init__(self, program: Program, recorder: TemplateRecorder, microbatches: int, link_classes: LinkClasses) -> None:
        self.program, self._microbatches, self._link_classes = program, microbatches, link_classes
        self._queries, self._times_of, self._delays = recorder.queries, recorder.times_of, recorder.delays
        self._rows, self._numbers = (
            np.concatenate([np.zeros(0, dtype=np.int64), *(pair[side] for pair in recorder.transfers)]) for side in (0, 1)
        )
        self._transfers: list[_Transfers] = []

    def fill(self, job: Job) -> Program:
        """The program of another job with the same key."""
        transfers, costs = self._transfers_on(job.cluster), JobCosts(job, self._microbatches)
        columns: dict[str, Any] = transfers.columns | {name: transfers.columns[name].copy() for name in _COMPUTE_COLUMNS}
        for rows, ranks, times_of_costs in self._times_of:
            work_s, exchange_s = times_of_costs(costs)
            results = transfers.builder.compute_columns(ranks, work_s) | {"latency_s": exchange_s}
            for name, values in results.items():
                array = np.asarray(values)
                one_each = array if array.shape == rows.shape else np.broadcast_to(array, rows.shape)
                columns[name] = put(columns[name], rows, one_each)
        columns["latency_s"] = delayed_s(columns, self._delays, costs)
        return replace(
            self.program, resources=transfers.resources, routes=transfers.routes, in_passes=in_passes(job, self._microbatches),
            **columns,
        )  # fmt: skip

    def _transfers_on(self, cluster: Cluster) -> _Transfers:
        """Transfers on a cluster. Those of the latest clusters are cached by identity of the parts that they depend on."""
        of = cluster.network, cluster.node, cluster.nodes, cluster.collectives, cluster.shared_cores, cluster.device.name
        same = (transfers for transfers in self._transfers if all(map(operator.is_, of, transfers.of)))
        transfers = next(same, None) or self._query(cluster, of)
        self._transfers = [*(one for one in self._transfers if one is not transfers), transfers][-_MAX_CLUSTERS:]
        return transfers

    def _query(self, cluster: Cluster, of: tuple[object, ...]) -> _Transfers:
        builder = ProgramBuilder()
        resource_map = ResourceMap(cluster, builder, self._link_classes)
        results = [one for one in (query(resource_map) for query in self._queries) if not isinstance(one, int)]
        kinds = [builder.path_columns(path, size_bytes) for size_bytes, path in results]
        columns = {name: getattr(self.program, name) for name in _COLUMNS}
        for name, column in columns.items():
            values = numbers([kind[name] for kind in kinds], column.dtype.type)
            columns[name] = put(column.copy(), self._rows, values[self._numbers])
        empty = builder.build()
        return _Transfers(of, builder, columns, empty.resources, empty.routes)


def delayed_s(
    columns: Mapping[str, NDArray[Any]], delays: Sequence[tuple[Rows, ShareOf]], costs: JobCosts
) -> NDArray[np.float64]:
    """The column of latencies, with those of some transfers longer by a share of the transfers' seconds."""
    result = columns["latency_s"]
    for rows, share_of_costs in delays:
        shares = numbers(share_of_costs(costs), np.float64)
        if not shares.any():
            continue
        parts = [shares, *(values[rows] for values in (result, columns["amount"], columns["max_rate"]))]
        if max(part.ndim for part in parts) > 1:
            parts = [part[:, None] if part.ndim == 1 else part for part in parts]
        share, latency_s, amount, max_rate = parts
        result = put(result, rows, latency_s + share * (latency_s + amount / max_rate))
    return result


class TemplateKey(NamedTuple):
    """Everything that determines a program except the numbers of the cluster.

    layers: identity of the list of layers. sums_whole, owns_tensors, waits_for_scatters, shard_copies, is_emulated: as in
    `Job`. stall_s: seconds for which messages of a pipeline stall. network: shape of a network where pairs of nodes differ.
    """

    plan: Plan
    ranges: tuple[range, ...]
    layers: int
    samples_per_worker: int
    precision: str
    reduced_bytes: int
    zero: int
    sums_whole: bool
    owns_tensors: bool
    waits_for_scatters: bool
    shard_copies: ShardCopies
    stall_s: float
    unevenness: Perturbations
    pass_times: PassTimes
    devices: int
    cards: int
    is_uniform: bool
    network: NetworkShape | None
    library: str
    shares_links: bool
    is_emulated: bool

    @classmethod
    def of(cls, plan: Plan, job: Job, ranges: Sequence[range]) -> TemplateKey:
        """The key of a plan's programs for a job. ranges: layers of each stage."""
        cluster, node = job.cluster, job.cluster.node
        stall_s = job.framework.stall_s(plan.grid(node.devices).nodes)
        shape = None if cluster.is_uniform or cluster.network is None else network_shape(node, cluster.network)
        return cls(
            plan, tuple(ranges), id(job.layers), job.samples_per_worker, job.precision, job.reduced_bytes, job.zero,
            job.sums_whole, job.owns_tensors, job.waits_for_scatters, job.shard_copies, stall_s,
            job.unevenness, pass_times(plan, job), node.devices, node.cards_used, cluster.is_uniform, shape,
            library_of(cluster), job.shares_links, job.is_emulated,
        )  # fmt: skip


class _CachedTemplate(NamedTuple):
    # referenced so that no other object gets the same id
    layers: Sequence[Layer]
    template: ProgramTemplate


_TEMPLATES: Final[OrderedDict[TemplateKey, _CachedTemplate]] = OrderedDict()


def from_template(
    plan: Plan, job: Job, ranges: Sequence[range], record: Callable[[Plan, Job, Sequence[range]], ProgramTemplate]
) -> Program:
    """The program of a job: a cached template with the same key, refilled; else a new one, which `record` compiles."""
    key = TemplateKey.of(plan, job, ranges)
    if key in _TEMPLATES:
        _TEMPLATES.move_to_end(key)
        return _TEMPLATES[key].template.fill(job)
    template = record(plan, job, ranges)
    # not cached if it is too large, or if its numbers vary between points
    if len(template.program) <= _MAX_TASKS and all(getattr(template.program, name).ndim == 1 for name in _COLUMNS):
        _TEMPLATES[key] = _CachedTemplate(job.layers, template)
        if len(_TEMPLATES) > _MAX_TEMPLATES:
            _TEMPLATES.popitem(last=False)
    return template.program
