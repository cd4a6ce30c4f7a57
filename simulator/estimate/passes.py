"""Passes: seconds of both passes over each layer, and what they hand on, for each way to divide layers and samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simulator.estimate.codes import Distinct, Numbers, distinct
from simulator.estimate.configurations import Configurations
from simulator.memory.flight import WHOLE
from simulator.model.layers import Layer, Shard
from simulator.strategy.costs import Exchanging, Job
from simulator.strategy.exchange import crowded_s
from simulator.strategy.plan import Plan

Times = NDArray[np.float64]


@dataclass(frozen=True)
class Passes:
    """key: the passes of each configuration. Arrays of shape (keys, layers + 1) are running sums over layers, whose differences
    are those of stages; weights_s: of gradients of weights, which are among backward_s, where some schedule makes them apart,
    else 0. sent_bytes and joining_s, of shape (keys, layers), what is sent behind each layer, and how long it takes to put
    together what comes in parts. jobs: by key."""

    key: Distinct
    forward_s: Times
    backward_s: Times
    weights_s: Times
    sent_bytes: Times
    joining_s: Times
    jobs: list[Job]

    @cached_property
    def hands_on(self) -> Numbers:
        """Of each layer, a number that is equal for layers that hand on as much as one another."""
        known: dict[bytes, int] = {}
        both = np.concatenate([self.sent_bytes, self.joining_s])
        return np.array([known.setdefault(column.tobytes(), len(known)) for column in np.ascontiguousarray(both.T)])

    @classmethod
    def of(cls, configurations: Configurations) -> Passes:
        """Of all configurations."""
        told = configurations.distinct(
            "tensor", "context", "expert", "stages", "workers", "sequence_parallel", "order", "samples", "recompute"
        )
        found = cls._of(configurations.take(told.first))
        return replace(found, key=found.key.over(told))

    @classmethod
    def _of(cls, c: Configurations) -> Passes:
        """What ranks exchange within passes depends on how far apart they are."""
        tensor, context, workers = _strides(c)
        apart = tensor, np.where(c.context > 1, context, 0), np.where(c.expert > 1, workers, 0)
        within = c.tensor * c.context * c.stages * c.workers <= c.space.scenario.cluster.node.devices
        degrees = c.tensor, c.context, c.expert, c.sequence_parallel, within.astype(np.int64)
        between = *degrees, *apart
        key = distinct(*between, c.samples, c.recompute)
        made = _Making(c)
        for row in key.first.tolist():
            made.add(row, tuple(int(column[row]) for column in between))
        forward_s, backward_s = np.array(made.passes_s).transpose(1, 0, 2)
        sent_bytes, joining_s = np.array(made.sent).transpose(1, 0, 2)
        running = _running(forward_s), _running(backward_s), _running(np.array(made.weights_s))
        return cls(key, *running, sent_bytes, joining_s, made.jobs)


class _Making:
    """Works passes out one after the other, and what several have in common once: what is computed does not depend on how far
    ranks are apart, and what they exchange not on what they make again but for exchanges."""

    def __init__(self, configurations: Configurations) -> None:
        self._c, self._base = configurations, configurations.space.scenario.job()
        self._splits = not WHOLE.issuperset(configurations.space.schedules)
        self._layers: dict[Shard, Sequence[Layer]] = {}
        self._handed_on: dict[Shard, Times] = {}
        self._computing: dict[tuple[Shard, int, int], Times] = {}
        self._weights: dict[tuple[Shard, int], Times] = {}
        self._exchanges: dict[tuple[int, ...], Exchanging] = {}
        self._exchanging: dict[tuple[int, ...], Times] = {}
        self.jobs: list[Job] = []
        self.passes_s: list[Times] = []
        self.weights_s: list[Times] = []
        self.sent: list[tuple[Times, Times]] = []

    def add(self, row: int, between: tuple[int, ...]) -> None:
        """The passes of a row, whose ranks exchange as those of all rows that have the same `between`."""
        c, plan = self._c, plan_of(self._c, row)
        shard, samples, recompute = plan.shard, int(c.samples[row]), c.space.recompute[c.recompute[row]]
        if shard not in self._layers:
            self._layers[shard] = c.space.scenario.model.build_layers(shard)
            self._handed_on[shard] = replace(self._base, layers=self._layers[shard]).handed_on_bytes(1.0)
        job = replace(self._base, layers=self._layers[shard], samples_per_worker=samples, recompute=recompute)
        if between not in self._exchanges:
            exchange = plan.exchanging(job).exchange
            assert exchange is not None
            self._exchanges[between] = exchange
        job = replace(job, exchange=self._exchanges[between])
        made = shard, samples, int(c.recompute[row])
        if made not in self._computing:
            self._computing[made] = job.computing_s(samples)
        if (shard, samples) not in self._weights:
            self._weights[shard, samples] = job.weights_s() if self._splits else np.zeros(len(job.layers))
        exchanged = *between, samples, int(recompute.kind == "full")
        if exchanged not in self._exchanging:
            self._exchanging[exchanged] = job.exchanging_s(samples)
        self.jobs.append(job)
        self.passes_s.append(self._computing[made] + self._exchanging[exchanged])
        self.weights_s.append(self._weights[shard, samples])
        self.sent.append(_sent(plan, job, self._handed_on[shard] * samples, bool(c.space.kept.get("split_sends", False))))


def _sent(plan: Plan, job: Job, output_bytes: Times, splits: bool) -> tuple[Times, Times]:
    """Bytes that each of a stage's ranks sends behind each layer, and seconds to put parts together, where there are any."""
    if not splits or plan.tensor == 1 or plan.sequence_parallel:
        return output_bytes, np.zeros_like(output_bytes)
    group = plan.grid(job.cluster.node.devices).along("tensor", plan.tensor)
    sizes_bytes, layer = np.unique(output_bytes, return_inverse=True)
    joining_s = [crowded_s("all_gather", size_bytes, group, job.cluster) for size_bytes in sizes_bytes.tolist()]
    return output_bytes / plan.tensor, np.array(joining_s)[layer]


def _strides(c: Configurations) -> list[NDArray[np.int64]]:
    """From a rank to the next along the axes of tensor, context and workers, as `Grid.stride` has it."""
    sizes = {"tensor": c.tensor, "context": c.context, "workers": c.workers, "stages": c.stages}
    result = []
    for axis in ("tensor", "context", "workers"):
        inner = [
            math.prod((sizes[one] for one in order[: order.index(axis)]), start=np.ones_like(c.tensor))
            for order in c.space.orders
        ]
        result.append(np.choose(c.order, inner) if len(inner) > 1 else inner[0])
    return result


def _running(values: Times) -> Times:
    return np.pad(np.cumsum(values, axis=1), [(0, 0), (1, 0)])


def plan_of(configurations: Configurations, row: int) -> Plan:
    """The plan of one configuration, as its scenario's strategy has it."""
    c, space = configurations, configurations.space
    tensor, context, stages, sequence = (int(column[row]) for column in (c.tensor, c.context, c.stages, c.sequence_parallel))
    bucket_bytes = space.buckets_bytes[c.bucket[row]]
    options = space.options(tensor, context, stages, int(c.zero[row]), sequence)
    return Plan(
        workers=int(c.workers[row]), stages=stages, chunks=int(c.chunks[row]), tensor=tensor, context=context,
        expert=int(c.expert[row]), order=space.orders[c.order[row]], sequence_parallel=bool(sequence),
        microbatches=int(c.microbatches[row]), schedule=space.schedules[c.schedule[row]], bucket_bytes=bucket_bytes,
        first_bucket_bytes=bucket_bytes, **options,
    )  # fmt: skip
