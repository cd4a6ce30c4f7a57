"""Passes: seconds of both passes over each layer, and what they hand on, for each way to divide layers and samples."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.configurations import Configurations
from scaleproof.simulator.analysis.planner.estimate.factorize import Distinct, Numbers, distinct
from scaleproof.simulator.memory.in_flight import WHOLE
from scaleproof.simulator.model.layers import NOT_COUNTED, Shard, cut_into_stages
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.model_parallel.layer_collectives import crowded_s
from scaleproof.simulator.strategy.plan import Plan

Times = NDArray[np.float64]


@dataclass(frozen=True)
class LayerPassTimes:
    """key: the passes of each configuration. Arrays of shape (keys, layers + 1) are running sums over layers, whose differences
    are those of stages; weights_s: of gradients of weights, which are among backward_s, where some schedule makes them apart,
    else 0. sent_bytes and joining_s, of shape (keys, layers), what is sent behind each layer, and how long it takes to put
    together what comes in parts. jobs: by key. bound: share of kernel time that memory bandwidth bounds, by key."""

    key: Distinct
    forward_s: Times
    backward_s: Times
    weights_s: Times
    sent_bytes: Times
    joining_s: Times
    jobs: list[Job]
    bound: Times

    @cached_property
    def hands_on(self) -> Numbers:
        """Of each layer, a number that is equal for layers that hand on as much as one another."""
        known: dict[bytes, int] = {}
        both = np.concatenate([self.sent_bytes, self.joining_s])
        return np.array([known.setdefault(column.tobytes(), len(known)) for column in np.ascontiguousarray(both.T)])

    @classmethod
    def of(cls, configurations: Configurations) -> LayerPassTimes:
        """Of all configurations."""
        names = [
            "tensor", "context", "expert", "expert_tensor", "stages", "workers", "sequence_parallel", "order", "samples",
            "recompute",
        ]  # fmt: skip
        if any(one.by_stage for one in configurations.space.recompute):
            names.append("chunks")
        if configurations.space.adds:
            names.append("zero")
        told = configurations.distinct(*names)
        found = cls._of(configurations.take(told.first))
        return replace(found, key=found.key.over(told))

    @classmethod
    def _of(cls, c: Configurations) -> LayerPassTimes:
        """What ranks exchange within passes depends on how far apart they are; what they recompute may depend on stages."""
        tensor, context, workers = _strides(c)
        apart = tensor, np.where(c.context > 1, context, 0), np.where(c.expert > 1, workers, 0)
        # expert ranks may be of several axes, whose lengths tell which, where the outermost of them is not the workers
        inner = any(order.index("workers") < max(order.index("tensor"), order.index("context")) for order in c.space.orders)
        folded = np.where(c.expert_tensor > 0, c.workers, 0) if inner else np.zeros_like(c.workers)
        within = c.tensor * c.context * c.stages * c.workers <= c.space.scenario.cluster.node.devices
        degrees = c.tensor, c.context, c.expert, c.expert_tensor, c.sequence_parallel, within.astype(np.int64)
        between = distinct(*degrees, *apart, folded)
        by_stage = np.array([one.by_stage for one in c.space.recompute], dtype=np.bool_)[c.recompute]
        zero = np.where(c.zero >= 2, 2, 0) if c.space.adds else np.zeros_like(c.zero)
        ranks = c.tensor * c.context * c.stages * c.workers
        columns = between.code, c.samples, c.recompute, np.where(by_stage, c.stages * c.chunks, 1), zero, ranks
        key = distinct(*columns)
        made = _Making(c, between)
        for one in np.array(columns)[:, key.first].T.tolist():
            made.add(*one)
        forward_s, backward_s = np.array(made.passes_s).transpose(1, 0, 2)
        sent_bytes, joining_s = np.array(made.sent).transpose(1, 0, 2)
        running = _running(forward_s), _running(backward_s), _running(np.array(made.weights_s))
        return cls(key, *running, sent_bytes, joining_s, made.jobs, np.array(made.bound))


class _Making:
    """Works passes out one after the other, and what several have in common once: what is computed does not depend on how far
    ranks are apart, and what they exchange first not on what they make again."""

    def __init__(self, c: Configurations, between: Distinct) -> None:
        """between: which ranks exchange alike."""
        self._counted = c.space.counted
        self._splits = not WHOLE.issuperset(c.space.schedules)
        self._splits_sends = bool(c.space.kept.get("split_sends", False))
        self._plans, base = (
            [*plans_of(c, between.first)],
            replace(c.space.scenario.job(), recomputed=None, scatter="microbatch"),
        )
        self._shards = [plan.shard for plan in self._plans]
        layers = {shard: c.space.scenario.model.build_layers(shard) for shard in dict.fromkeys(self._shards)}
        self._handed_on = {shard: replace(base, layers=own).handed_on_bytes(1.0) for shard, own in layers.items()}
        own = [plan.exchanging(replace(base, layers=layers[plan.shard])) for plan in self._plans]
        self._jobs = [[replace(job, recompute=recompute) for recompute in c.space.recompute] for job in own]
        self._computing: dict[tuple[Shard, int, int, int, int], Times] = {}
        self._bound: dict[tuple[Shard, int, int], float] = {}
        self._weights: dict[tuple[Shard, int, int], Times] = {}
        self._exchanging: dict[tuple[int, int], Times] = {}
        self._sent: dict[tuple[int, int], tuple[Times, Times]] = {}
        self.jobs: list[Job] = []
        self.passes_s: list[Times] = []
        self.weights_s: list[Times] = []
        self.bound: list[float] = []
        self.sent: list[tuple[Times, Times]] = []

    def add(self, between: int, samples: int, recompute: int, stages: int, zero: int, ranks: int) -> None:
        """The passes of some samples. between: number of ranks that exchange alike. stages: of the model, where what is
        recomputed depends on them. zero: 2 where microbatches scatter gradients, else 0, where that makes a difference. ranks:
        that wait for each other."""
        job, shard = replace(self._jobs[between][recompute], zero=zero, ranks=ranks), self._shards[between]
        if job.recompute.by_stage:
            job = job.recomputing(cut_into_stages(job.layers, stages, self._counted if stages > 1 else NOT_COUNTED))
        # what all layers compute is known for one rank, and longer for the slowest of several
        if (computed := (shard, samples, recompute, stages, zero)) not in self._computing:
            self._computing[computed] = job.computing_s(samples) / job.slowest
        if (shaped := (shard, samples, recompute)) not in self._bound:
            self._bound[shaped] = job.mean_memory_share(samples)
        if (weighed := (shard, samples, zero)) not in self._weights:
            one = replace(job, samples_per_worker=samples)
            self._weights[weighed] = one.weights_s() / job.slowest if self._splits else np.zeros(len(job.layers))
        if (moved := (between, samples)) not in self._sent:
            self._exchanging[moved] = job.exchanges_s(samples)
            output_bytes = self._handed_on[shard] * samples
            self._sent[moved] = _sent(self._plans[between], job, output_bytes, self._splits_sends)
        self.jobs.append(job)
        self.passes_s.append(self._computing[computed] * job.slowest + job.with_again(self._exchanging[moved], samples))
        self.weights_s.append(self._weights[weighed] * job.slowest)
        self.bound.append(self._bound[shaped])
        self.sent.append(self._sent[moved])


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


def plans_of(configurations: Configurations, rows: Numbers) -> Iterator[Plan]:
    """The plans of some configurations, as their scenarios' strategies have them."""
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
        yield Plan(
            workers=workers, stages=stages, chunks=chunks, tensor=tensor, context=context, expert=expert,
            expert_tensor=folded or None, order=space.orders[order], sequence_parallel=bool(sequence),
            microbatches=microbatches, schedule=space.schedules[schedule], bucket_bytes=space.buckets_bytes[bucket],
            first_bucket_bytes=space.buckets_bytes[bucket], **known[key],
        )  # fmt: skip
