"""Passes: seconds of both passes over each layer, and what they hand on, for each way to divide layers and samples."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simulator.estimate.codes import Distinct, distinct
from simulator.estimate.configurations import Configurations
from simulator.model.layers import Layer
from simulator.model.operators import Exchange
from simulator.strategy.costs import Exchanging, Job
from simulator.strategy.exchange import crowded_s
from simulator.strategy.plan import Plan

Times = NDArray[np.float64]


@dataclass(frozen=True)
class Passes:
    """key: the passes of each configuration. Arrays of shape (keys, layers + 1) are running sums over layers, whose differences
    are those of stages; sent_bytes and joining_s, of shape (keys, layers), what is sent behind each layer, and how long it
    takes to put together what comes in parts. jobs: by key."""

    key: Distinct
    forward_s: Times
    backward_s: Times
    sent_bytes: Times
    joining_s: Times
    jobs: list[Job]

    @classmethod
    def of(cls, configurations: Configurations) -> Passes:
        """What ranks exchange within passes depends on how far apart they are."""
        c = configurations
        tensor, context, workers = _strides(c)
        apart = tensor, np.where(c.context > 1, context, 0), np.where(c.expert > 1, workers, 0)
        within = c.tensor * c.context * c.stages * c.workers <= c.space.scenario.cluster.node.devices
        degrees = c.tensor, c.context, c.expert, c.sequence_parallel, within.astype(np.int64)
        between = *degrees, *apart
        key = distinct(*between, c.samples, c.recompute)
        exchanges: dict[tuple[int, ...], _Remembered] = {}
        base, known = c.space.scenario.job(), {}
        jobs, rows, sent = [], [], []
        for row in key.first.tolist():
            plan = plan_of(c, row)
            if plan.shard not in known:
                known[plan.shard] = c.space.scenario.model.build_layers(plan.shard)
            recompute, samples = c.space.recompute[c.recompute[row]], int(c.samples[row])
            job = plan.exchanging(replace(base, layers=known[plan.shard], samples_per_worker=samples, recompute=recompute))
            assert job.exchange is not None
            exchange = exchanges.setdefault(tuple(int(column[row]) for column in between), _Remembered(job.exchange))
            jobs.append(replace(job, exchange=exchange))
            rows.append(jobs[-1].costs())
            sent.append(_sent(plan, jobs[-1], rows[-1].output_bytes, bool(c.space.kept.get("split_sends", False))))
        forward_s = np.array([one.forward_s + one.forward_exchange_s for one in rows])
        backward_s = np.array([one.backward_s + one.backward_exchange_s for one in rows])
        sent_bytes, joining_s = np.array(sent).transpose(1, 0, 2)
        return cls(key, _running(forward_s), _running(backward_s), sent_bytes, joining_s, jobs)


def _sent(plan: Plan, job: Job, output_bytes: Times, splits: bool) -> tuple[Times, Times]:
    """Bytes that each of a stage's ranks sends behind each layer, and seconds to put parts together, where there are any."""
    if not splits or plan.tensor == 1 or plan.sequence_parallel:
        return output_bytes, np.zeros_like(output_bytes)
    group = plan.grid(job.cluster.node.devices).along("tensor", plan.tensor)
    sizes_bytes, layer = np.unique(output_bytes, return_inverse=True)
    joining_s = [crowded_s("all_gather", size_bytes, group, job.cluster) for size_bytes in sizes_bytes.tolist()]
    return output_bytes / plan.tensor, np.array(joining_s)[layer]


class _Remembered:
    """What ranks exchange, worked out once for passes that differ in what they make again."""

    def __init__(self, exchanging: Exchanging) -> None:
        self._exchanging = exchanging
        self._known: dict[tuple[Exchange, str, float], float] = {}

    def seconds(self, exchange: Exchange, layer: Layer, samples: float, job: Job) -> float:
        key = exchange, layer.signature, samples
        if key not in self._known:
            self._known[key] = self._exchanging.seconds(exchange, layer, samples, job)
        return self._known[key]


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
