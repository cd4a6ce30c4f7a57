"""Seconds of forward and backward pass over each layer, and bytes sent after it, for each way to divide layers and samples."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.configurations import Configurations
from scaleproof.simulator.analysis.planner.estimate.factorize import Distinct, Numbers, distinct
from scaleproof.simulator.cluster.collectives.cost import concurrent_collective
from scaleproof.simulator.model.layers import NOT_COUNTED, Counted, Layer, Shard, cut_into_stages
from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.simulator.parallelism.stages import WHOLE
from scaleproof.simulator.strategy.job import Job, exposed_exchanges_s
from scaleproof.simulator.strategy.plan_costs import with_collectives
from scaleproof.simulator.strategy.scenario_job import job_of

Times = NDArray[np.float64]


@dataclass(frozen=True)
class StageCut:
    """A model cut into stages: layers of each stage, the kind of each stage, and the first stage of each kind."""

    ranges: list[range]
    begins: Numbers
    stops: Numbers
    kind_of: Numbers
    kinds: list[int]

    @classmethod
    def of(cls, layers: Sequence[Layer], count: int, counted: Counted) -> StageCut:
        """Cuts layers into `count` stages of about equal numbers of blocks. Stages of one kind have layers with equal
        signatures."""
        ranges = cut_into_stages(layers, count, counted if count > 1 else NOT_COUNTED)
        known: dict[tuple[str, ...], int] = {}
        kind_of = [known.setdefault(tuple(layers[i].signature for i in stage), len(known)) for stage in ranges]
        begins, stops = (np.array([getattr(stage, end) for stage in ranges]) for end in ("start", "stop"))
        return cls(ranges, begins, stops, np.array(kind_of), [kind_of.index(kind) for kind in range(len(known))])

    @property
    def count(self) -> int:
        """Number of stages."""
        return len(self.ranges)

    def sums(self, running: Times, stages: Sequence[int] | slice = slice(None)) -> Times:
        """Sums over the layers of some stages, shape (..., stages), from running sums, shape (..., layers + 1)."""
        result: Times = running[..., self.stops[stages]] - running[..., self.begins[stages]]
        return result


@dataclass(frozen=True)
class LayerPassTimes:
    """Times of passes, by key.

    key: the key of each configuration. forward_s, backward_s, weights_s: running sums over layers, whose differences are the
    times of stages, shape (keys, layers + 1); weights_s is the part of backward_s that computes gradients of weights, 0 if no
    schedule separates it. within_s: running sums of the collectives within passes, shape (keys, levels, 2, 2, layers + 1), as
    in `Job.with_again`. sent_bytes: message after each layer; joining_s: seconds to assemble it where it is sent in parts,
    shape (keys, layers). jobs: by key. bound: share of kernel time that is bound by memory bandwidth, by key.
    """

    key: Distinct
    forward_s: Times
    backward_s: Times
    weights_s: Times
    within_s: Times
    sent_bytes: Times
    joining_s: Times
    jobs: list[Job]
    bound: Times

    @classmethod
    def of(cls, configurations: Configurations) -> LayerPassTimes:
        """Times of all configurations."""
        names = [
            "tensor", "context", "expert", "expert_tensor", "stages", "workers", "sequence_parallel", "order", "samples",
            "recompute",
        ]  # fmt: skip
        if any(one.depends_on_stage for one in configurations.space.recompute):
            names.append("chunks")
        if configurations.space.adds:
            names.append("zero")
        distinct_rows = configurations.distinct(*names)
        times = cls._of(configurations.take(distinct_rows.first))
        return replace(times, key=times.key.over(distinct_rows))

    @classmethod
    def _of(cls, c: Configurations) -> LayerPassTimes:
        """Times of distinct rows. Collectives within passes depend on the distances between ranks; recomputation may depend on
        stages."""
        tensor, context, workers = _strides(c)
        strides = tensor, np.where(c.context > 1, context, 0), np.where(c.expert > 1, workers, 0)
        # expert ranks may span several axes, whose lengths matter where the outermost of them is not the workers
        inner = any(order.index("workers") < max(order.index("tensor"), order.index("context")) for order in c.space.orders)
        folded = np.where(c.expert_tensor > 0, c.workers, 0) if inner else np.zeros_like(c.workers)
        within = c.tensor * c.context * c.stages * c.workers <= c.space.scenario.cluster.node.devices
        layout = within.astype(np.int64), (c.stages > 1).astype(np.int64)
        degrees = c.tensor, c.context, c.expert, c.expert_tensor, c.sequence_parallel, *layout
        exchange_class = distinct(*degrees, *strides, folded)
        depends_on_stage = np.array([one.depends_on_stage for one in c.space.recompute], dtype=np.bool_)[c.recompute]
        zero = np.where(c.zero >= 2, 2, 0) if c.space.adds else np.zeros_like(c.zero)
        ranks = c.tensor * c.context * c.stages * c.workers
        columns = exchange_class.code, c.samples, c.recompute, np.where(depends_on_stage, c.stages * c.chunks, 1), zero, ranks
        key = distinct(*columns)
        timer = _LayerTimer(c, exchange_class)
        for one in np.array(columns)[:, key.first].T.tolist():
            timer.add(*one)
        forward_s, backward_s = np.array(timer.passes_s).transpose(1, 0, 2)
        sent_bytes, joining_s = np.array(timer.sent).transpose(1, 0, 2)
        running = _running(forward_s), _running(backward_s), _running(np.array(timer.weights_s))
        within_s = _running(np.array(timer.within_s))
        return cls(key, *running, within_s, sent_bytes, joining_s, timer.jobs, np.array(timer.bound))


class _LayerTimer:
    """Times passes one after another, and caches what several have in common: compute does not depend on the distances between
    ranks, nor the first exchange of activations on recomputation."""

    def __init__(self, c: Configurations, exchange_class: Distinct) -> None:
        """exchange_class: configurations with equal collectives within passes."""
        self._counted = c.space.counted
        self._splits = not WHOLE.issuperset(c.space.schedules)
        self._splits_sends = bool(c.space.kept.get("split_sends", False))
        self._plans = list(plans_of(c, exchange_class.first))
        base = replace(job_of(c.space.scenario), recomputed=None, scatter="microbatch")
        self._shards = [plan.shard for plan in self._plans]
        layers = {shard: c.space.scenario.layers(shard) for shard in dict.fromkeys(self._shards)}
        self._output_bytes = {shard: replace(base, layers=own).boundary_bytes(1.0) for shard, own in layers.items()}
        own = [with_collectives(plan, replace(base, layers=layers[plan.shard])) for plan in self._plans]
        self._jobs = [[replace(job, recompute=recompute) for recompute in c.space.recompute] for job in own]
        self._computing: dict[tuple[Shard, int, int, int, int], Times] = {}
        self._bound: dict[tuple[Shard, int, int], float] = {}
        self._weights: dict[tuple[Shard, int, int], Times] = {}
        self._exchanging: dict[tuple[int, int, int], Times] = {}
        self._sent: dict[tuple[int, int], tuple[Times, Times]] = {}
        self.jobs: list[Job] = []
        self.passes_s: list[Times] = []
        self.weights_s: list[Times] = []
        self.within_s: list[Times] = []
        self.bound: list[float] = []
        self.sent: list[tuple[Times, Times]] = []

    def add(self, exchange_class: int, samples: int, recompute: int, stages: int, zero: int, ranks: int) -> None:
        """Adds the passes over some samples.

        exchange_class: class of collectives within passes. stages: of the model, where recomputation depends on them. zero: 2
        where microbatches scatter gradients, else 0, where that makes a difference. ranks: number of ranks that wait for each
        other.
        """
        job, shard = replace(self._jobs[exchange_class][recompute], zero=zero, ranks=ranks), self._shards[exchange_class]
        if job.recompute.depends_on_stage:
            job = job.recomputing(cut_into_stages(job.layers, stages, self._counted if stages > 1 else NOT_COUNTED))
        # compute is cached for one rank, and multiplied for the slowest of several
        if (compute_key := (shard, samples, recompute, stages, zero)) not in self._computing:
            self._computing[compute_key] = job.computing_s(samples) / job.slowest
        if (bound_key := (shard, samples, recompute)) not in self._bound:
            self._bound[bound_key] = job.mean_memory_share(samples)
        if (weights_key := (shard, samples, zero)) not in self._weights:
            one = replace(job, samples_per_worker=samples)
            self._weights[weights_key] = one.weights_s() / job.slowest if self._splits else np.zeros(len(job.layers))
        if (exchanging_key := (exchange_class, samples, recompute)) not in self._exchanging:
            self._exchanging[exchanging_key] = job.within_passes_s(samples)
        if (sent_key := (exchange_class, samples)) not in self._sent:
            output_bytes = self._output_bytes[shard] * samples
            self._sent[sent_key] = _sent(self._plans[exchange_class], job, output_bytes, self._splits_sends)
        self.jobs.append(job)
        within_s = job.with_again(self._exchanging[exchanging_key])
        passes_s = self._computing[compute_key] * job.slowest + exposed_exchanges_s(within_s)
        self.within_s.append(within_s)
        self.passes_s.append(np.maximum(passes_s, job.least_s(samples)))
        self.weights_s.append(self._weights[weights_key] * job.slowest)
        self.bound.append(self._bound[bound_key])
        self.sent.append(self._sent[sent_key])


def _sent(plan: Plan, job: Job, output_bytes: Times, splits: bool) -> tuple[Times, Times]:
    """Bytes that each of a stage's ranks sends after each layer, and seconds to assemble the parts, if it is sent in parts."""
    if not splits or plan.tensor == 1 or plan.sequence_parallel:
        return output_bytes, np.zeros_like(output_bytes)
    group = plan.grid(job.cluster.node.devices).along("tensor", plan.tensor)
    sizes_bytes, layer = np.unique(output_bytes, return_inverse=True)
    gather = concurrent_collective("all_gather", group, job.cluster)
    joining_s = [gather.seconds(size_bytes) for size_bytes in sizes_bytes.tolist()]
    return output_bytes / plan.tensor, np.array(joining_s)[layer]


def _strides(c: Configurations) -> list[NDArray[np.int64]]:
    """Distances between adjacent ranks along the axes tensor, context and workers, as in `DeviceMesh.stride`."""
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
    return np.pad(np.cumsum(values, axis=-1), [*[(0, 0)] * (values.ndim - 1), (1, 0)])


def plans_of(configurations: Configurations, rows: Numbers) -> Iterator[Plan]:
    """The plans of some configurations, as their scenarios' strategies return them."""
    c, space = configurations.take(rows), configurations.space
    degrees = c.workers, c.stages, c.chunks, c.tensor, c.context, c.expert, c.expert_tensor, c.microbatches
    chosen = c.order, c.sequence_parallel, c.schedule, c.bucket, c.zero
    known: dict[tuple[int, ...], dict[str, Any]] = {}
    names = ("tensor", "context", "expert", "stages", "zero", "sequence_parallel", "workers")
    for workers, stages, chunks, tensor, context, expert, folded, microbatches, order, sequence, schedule, bucket, zero in zip(
        *(column.tolist() for column in (*degrees, *chosen)), strict=True
    ):
        if (key := (tensor, context, expert, stages, zero, sequence, workers)) not in known:
            known[key] = space.options(dict(zip(names, key, strict=True)))
        bucket_bytes, first_bytes = space.buckets_bytes[bucket], known[key]["first_bucket_bytes"]
        options = known[key] | {"first_bucket_bytes": bucket_bytes if first_bytes is None else first_bytes}
        yield Plan(
            workers=workers, stages=stages, chunks=chunks, tensor=tensor, context=context, expert=expert,
            expert_tensor=folded or None, order=space.orders[order], sequence_parallel=bool(sequence),
            microbatches=microbatches, schedule=space.schedules[schedule], bucket_bytes=bucket_bytes, **options,
        )  # fmt: skip
