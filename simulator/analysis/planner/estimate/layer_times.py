"""Seconds of forward and backward pass over each layer, and bytes sent after it, for each way to divide layers and samples."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.configurations import Configurations, Numbers, Values
from scaleproof.simulator.cluster.collectives.cost import concurrent_collective
from scaleproof.simulator.model.layers import NOT_COUNTED, Counted, Layer, Shard
from scaleproof.simulator.parallelism.mesh import DeviceMesh
from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.simulator.parallelism.stages import WHOLE, Balance, cut_by_blocks
from scaleproof.simulator.strategy.job import Job, exposed_exchanges_s
from scaleproof.simulator.strategy.layout.worker_classes import worker_classes
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
    def of(
        cls, layers: Sequence[Layer], count: int, counted: Counted, balance: Balance = "layers", nodes: Sequence[int] = ()
    ) -> StageCut:
        """Cuts layers into `count` stages of about equal numbers of blocks, or the numbers that `balance` gives. Stages of one
        kind have layers with equal signatures. nodes: kind of each stage's nodes, where they differ."""
        ranges = cut_by_blocks(layers, count, balance, counted if count > 1 else NOT_COUNTED)
        known: dict[tuple[object, ...], int] = {}
        labels = [(nodes[number] if nodes else 0, *(layers[i].signature for i in stage)) for number, stage in enumerate(ranges)]
        kind_of = [known.setdefault(label, len(known)) for label in labels]
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


class Place(NamedTuple):
    """Where stages are: distance between ranks with consecutive stages, ranks of a node that have the same stage and send at
    the same time, and additional seconds of their messages between nodes."""

    stride: int
    senders: int
    stall_s: float

    @classmethod
    def of(cls, plan: Plan, job: Job) -> Place:
        """The place of a plan's ranks."""
        grid, cluster = plan.grid_on(job.cluster), job.cluster
        # if the stride is a node or more, every stage is on another node
        stride = min(grid.stride("stages"), grid.devices) if cluster.has_equal_places else grid.stride("stages")
        senders = worker_classes(plan, job)[0].each * grid.on_first_node(grid.members(0, 0))
        return cls(stride, senders, job.framework.stall_s(grid.nodes))


class LayerTimes:
    """Times of passes by the number of a way to divide layers and samples, of which each configuration has a `code`.

    forward_s, backward_s, weights_s: running sums over layers, whose differences are the times of stages, shape (numbers,
    layers + 1); weights_s is the part of backward_s that computes gradients of weights, 0 if no schedule separates it.
    gradients_s: running sums of `Job.gradients_s`, shape (numbers, 2, layers + 1).
    within_s: running sums of the collectives within passes, shape (numbers, levels, 2, 2, layers + 1), as in
    `Job.with_again`. sent_bytes: message after each layer; joining_s: seconds to assemble it where it is sent in parts, shape
    (numbers, layers); message: equal where both are equal, shape (numbers,). bound: share of kernel time that is bound by
    memory bandwidth, shape (numbers,). base: a job with the layers of the first configuration, on nodes with the devices of one
    kind; bases: of each kind of nodes. cluster: with its own nodes.
    """

    def __init__(self, c: Configurations, kind: int = 0) -> None:
        """kind: of the nodes whose devices all ranks have."""
        self._space = space = c.space
        self._splits = not WHOLE.issuperset(space.schedules)
        (first,) = c.values(np.zeros(1, dtype=np.int64))
        layers = space.scenario.layers(space.plan(first).shard)
        self._whole = replace(job_of(space.scenario), layers=layers, recomputed=None, scatter="microbatch")
        self.cluster = self._whole.cluster
        self.base = replace(self._whole, cluster=self.cluster.with_device_of(kind))
        self.bases = [self.base]
        self._known: dict[Any, Any] = {}
        self._numbers: dict[tuple[object, ...], int] = {}
        self._rows: list[tuple[Times, Times, Times, Times, Times, Times, float]] = []
        names = ["tensor", "context", "expert", "expert_tensor", "stages", "workers", "sequence_parallel", "order", "samples"]
        names += [
            "recompute",
            *["chunks", "blocks"] * any(one.depends_on_stage for one in space.recompute),
            *["zero"] * space.adds,
            *["schedule"] * self._splits,
            *["microbatches", "chunks"] * bool(space.kept.get("overlap_experts")),
        ]
        distinct = c.distinct(*names)
        numbers = [self._number(values) for values in c.values(distinct.first)]
        self.code = np.array(numbers, dtype=np.int64)[distinct.code]
        passes_s, weights_s, gradients_s, within_s, self.sent_bytes, self.joining_s, self.bound = map(
            np.array, zip(*self._rows, strict=True)
        )
        self.message = np.unique(np.hstack([self.sent_bytes, self.joining_s]), axis=0, return_inverse=True)[1].reshape(-1)
        self.forward_s, self.backward_s = _running(passes_s[:, 0]), _running(passes_s[:, 1])
        self.weights_s, self.gradients_s, self.within_s = _running(weights_s), _running(gradients_s), _running(within_s)

    def on_nodes(self, others: Sequence[LayerTimes], kind_of_layer: Numbers) -> LayerTimes:
        """The times of layers on nodes of different kinds. others: times of the same configurations on the other kinds, in the
        order of kinds. kind_of_layer: kind of the nodes that have each layer."""
        every = [self, *others]
        result, at = copy(self), np.arange(len(kind_of_layer))
        for name in ("forward_s", "backward_s", "weights_s", "gradients_s", "within_s"):
            by_kind = np.array([np.diff(getattr(one, name), axis=-1) for one in every])
            setattr(result, name, _running(np.moveaxis(by_kind[kind_of_layer, ..., at], 0, -1)))
        result.bases = [one.base for one in every]
        return result

    def job(self, shard: Shard) -> Job:
        """The job with layers that are divided so."""
        if shard not in self._known:
            self._known[shard] = replace(self.base, layers=self._space.scenario.layers(shard))
        job: Job = self._known[shard]
        return job

    def grid(self, values: Values) -> DeviceMesh:
        """The mesh of a configuration's ranks."""
        cluster, order = self.cluster, self._space.orders[values["order"]]
        sizes: dict[str, Any] = {name: values[name] for name in ("workers", "stages", "tensor", "context", "expert")}
        ranks = values["workers"] * values["stages"] * values["tensor"] * values["context"]
        return DeviceMesh(
            **sizes, devices=cluster.node.devices, order=order, expert_tensor=values["expert_tensor"] or None,
            device_numbers=cluster.device_numbers(ranks),
        )  # fmt: skip

    def place(self, values: Values) -> Place:
        """The place of a configuration's ranks."""
        key = "place", *(values[name] for name in ("tensor", "context", "workers", "stages", "order"))
        if key not in self._known:
            self._known[key] = Place.of(self._space.plan(values), self._whole)
        place: Place = self._known[key]
        return place

    def _number(self, values: Values) -> int:
        """The number of the passes of a configuration."""
        space, grid = self._space, self.grid(values)
        tensor, context, expert, folded = (values[name] for name in ("tensor", "context", "expert", "expert_tensor"))
        recompute = space.recompute[values["recompute"]]
        # expert ranks may span several axes, whose lengths matter where the outermost of them is not the workers
        inner = any(order.index("workers") < max(order.index("tensor"), order.index("context")) for order in space.orders)
        ranks = grid.model_parallel_size * grid.workers * grid.stages
        # collectives within passes depend on the distances between ranks
        exchanging = (
            tensor, context, expert, folded, values["sequence_parallel"], ranks <= grid.devices, grid.stages > 1,
            grid.stride("tensor"), grid.stride("context") if context > 1 else 0, grid.stride("workers") if expert > 1 else 0,
            grid.workers if folded and inner else 0,
            *self._paired(values), grid.stages > 1 and space.schedules[values["schedule"]] not in WHOLE,
        )  # fmt: skip
        stages, blocks = grid.stages * values["chunks"], values["blocks"]
        stages, blocks = (stages, blocks) if recompute.depends_on_stage else (1, 0)
        zero = 2 if space.adds and values["zero"] >= 2 else 0
        key = *exchanging, values["samples"], values["recompute"], stages, blocks, zero, ranks
        if key not in self._numbers:
            self._numbers[key] = len(self._rows)
            self._rows.append(self._passes(values, exchanging, stages, zero, ranks))
        return self._numbers[key]

    def _paired(self, values: Values) -> tuple[int, int]:
        """Microbatches and chunks of a configuration if all-to-alls overlap with other microbatches, else zeros."""
        if values["expert"] == 1 or not self._space.options(values).get("overlap_experts"):
            return 0, 0
        return values["microbatches"], values["chunks"]

    def _passes(
        self, values: Values, exchanging: tuple[int, ...], stages: int, zero: int, ranks: int
    ) -> tuple[Times, Times, Times, Times, Times, Times, float]:
        """Passes over some samples. stages: of the model, where recomputation depends on them. zero: 2 where microbatches
        scatter gradients, else 0, where that makes a difference. ranks: number of ranks that wait for each other.

        What several have in common is cached: compute does not depend on the distances between ranks, nor the first exchange of
        activations on recomputation.
        """
        samples, known = values["samples"], self._known
        if ("job", exchanging) not in known:
            plan = self._space.plan(values)
            whole = with_collectives(plan, replace(self._whole, layers=self.job(plan.shard).layers))
            known["job", exchanging] = plan, replace(whole, cluster=self.base.cluster)
        plan, exchanged = known["job", exchanging]
        job: Job = replace(exchanged, recompute=self._space.recompute[values["recompute"]], zero=zero, ranks=ranks)
        if job.recompute.depends_on_stage:
            counted = self._space.counted if stages > 1 else NOT_COUNTED
            job = job.recomputing(cut_by_blocks(job.layers, stages, self._space.balance(values), counted))
        computing = (
            "computing",
            plan.shard,
            samples,
            values["recompute"],
            stages,
            values["blocks"] if stages > 1 else 0,
            zero,
            job.pipelined_ranks,
            job.splits_backward,
        )
        if computing not in known:
            # compute is cached for one rank, and multiplied for the slowest of several
            one = replace(job, samples_per_worker=samples)
            weights_s = one.weights_s() / job.slowest_pass if self._splits else np.zeros(len(job.layers))
            of_rank_s = job.computing_s(samples), job.gradients_s(samples)
            known[computing] = *(one_s / job.slowest_pass for one_s in of_rank_s), weights_s, job.mean_memory_share(samples)
        computing_s, gradients_s, weights_s, bound = known[computing]
        if (moving := ("within", exchanging, samples, values["recompute"])) not in known:
            known[moving] = job.within_passes_s(samples)
        if (sent := ("sent", exchanging, samples)) not in known:
            known[sent] = self._sent(plan, job.boundary_bytes(samples))
        within_s, (sent_bytes, joining_s) = job.with_again(known[moving]), known[sent]
        passes_s = computing_s * job.slowest_pass + exposed_exchanges_s(within_s)
        weights_s, gradients_s = weights_s * job.slowest_pass, gradients_s * job.slowest_pass
        return np.maximum(passes_s, job.least_s(samples)), weights_s, gradients_s, within_s, sent_bytes, joining_s, bound

    def _sent(self, plan: Plan, output_bytes: Times) -> tuple[Times, Times]:
        """Bytes that each of a stage's ranks sends after each layer, and seconds to assemble them, if sent in parts."""
        if not self._space.kept.get("split_sends", False) or plan.tensor == 1 or plan.sequence_parallel:
            return output_bytes, np.zeros_like(output_bytes)
        cluster = self.base.cluster
        group = plan.grid_on(self.cluster).along("tensor", plan.tensor)
        sizes_bytes, layer = np.unique(output_bytes, return_inverse=True)
        gather = concurrent_collective("all_gather", group, cluster)
        joining_s = [gather(size_bytes) for size_bytes in sizes_bytes.tolist()]
        return output_bytes / plan.tensor, np.array(joining_s)[layer]


def _running(values: Times) -> Times:
    return np.pad(np.cumsum(values, axis=-1), [*[(0, 0)] * (values.ndim - 1), (1, 0)])
