"""Times of configurations of one shape: with the same numbers of stages and chunks and the same schedule, and so with the same
layers and ranks in each stage. Passes and gradient synchronisation are timed once for all that have them in common, as columns
of two tables; a configuration combines a column of either. Columns are the last axis of arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.configurations import Configurations, Numbers, Space, distinct
from scaleproof.simulator.analysis.planner.estimate.gradient_sync import RankSync, SyncTimes
from scaleproof.simulator.analysis.planner.estimate.layer_times import LayerTimes, Place, StageCut
from scaleproof.simulator.analysis.planner.estimate.pipeline_times import (
    CLOSED,
    StageTimes,
    pass_windows,
    stages_of,
    suffix_max,
    suffix_sum,
)
from scaleproof.simulator.analysis.planner.estimate.transfers import TransferTimes
from scaleproof.simulator.cluster.collectives.groups import Op
from scaleproof.simulator.parallelism.stages import WHOLE, ScheduleName
from scaleproof.simulator.strategy.data_parallel.contention import (
    MEMORY_BYTES_PER_BUS_BYTE,
    ContendedResources,
    joules_per_bus_byte,
)

Times = NDArray[np.float64]


class Shape:
    """Stages, chunks and schedule, and the ranks that differ.

    own_stages, stage_counts: of each of `ranks`, its stages, and how many of each kind. timed_ranks: the ranks whose passes are
    timed; equivalent_ranks: for each of `ranks`, the indices among them of those that have equal stages, of which each may be
    the slowest. keeps: whether the parameters gathered before a stage's first pass are kept for the whole step.
    overlaps_gather: whether updated parameters are gathered during the next forward pass.
    """

    def __init__(self, space: Space, stages: int, chunks: int, schedule: ScheduleName, cut: StageCut) -> None:
        self.cut, self.stages, self.chunks = cut, stages, chunks
        self.schedule: ScheduleName = schedule if stages > 1 else "1f1b"
        self.splits = self.schedule not in WHOLE
        self.kept, self.reshards = space.kept, space.reshards(stages)
        self.keeps = stages > 1 and not self.reshards
        self.overlaps_gather = bool(space.kept["overlap_gather"])
        self.stage_of = stages_of(self.schedule, stages, chunks)
        kinds = [tuple(row) for row in cut.kind_of[self.stage_of].tolist()]
        # of ranks with equal stages, the first has the longest way to the last rank and back
        self.ranks = sorted({*(kinds.index(kind) for kind in kinds), stages - 1})
        self.timed_ranks, self.equivalent_ranks = self.ranks, [[at] for at in range(len(self.ranks))]
        if self.schedule not in CLOSED:
            # the last has the least work left to hide its sums
            self.ranks = sorted({*self.ranks, *(stages - 1 - kinds[::-1].index(kind) for kind in kinds)})
            self.timed_ranks = list(range(stages))
            self.equivalent_ranks = [[i for i, kind in enumerate(kinds) if kind == kinds[rank]] for rank in self.ranks]
        self.own_stages = self.stage_of[self.ranks]
        counts = [np.bincount(cut.kind_of[own_stages], minlength=len(cut.kinds)) for own_stages in self.own_stages]
        self.stage_counts = np.array(counts)
        # the rank of each stage, and whether the message after each stage but the last goes to another rank
        self.rank_of = np.argsort(self.stage_of, axis=None) // chunks
        self.crosses = self.rank_of[:-1] != self.rank_of[1:]

    def by_rank(self, values: Times) -> Times:
        """Sums over the stages of each rank, from values of stages of each kind."""
        result: Times = self.stage_counts @ values
        return result


@dataclass
class _Table:
    """Arrays with columns last."""

    def take(self, columns: Numbers) -> Self:
        """Some of the columns."""
        arrays = {one.name: value for one in fields(self) if isinstance(value := getattr(self, one.name), np.ndarray)}
        some: dict[str, Any] = {name: value[..., columns] for name, value in arrays.items()}
        return replace(self, **some)


@dataclass
class PassTable(_Table):
    """Times of passes.

    layer: number of the times of layers. kinds_s: forward and backward pass over a stage of each kind, shape (2, kinds,
    columns). within_s: collectives within them, by links, shape (levels, 2, 2, kinds, columns); None where there are none.
    window_s, least_s: seconds of all passes of each of the shape's ranks, expected and at least; left_s: from the last
    gradients of each stage to the end of the rank's last pass; until_back_s: until the first backward pass. bound: share of
    kernel time that is bound by memory. simulated: whether any were simulated pass by pass. stages: of all columns before any
    are taken.
    """

    layer: Numbers
    microbatches: Numbers
    per_round: Numbers
    kinds_s: Times
    within_s: Times | None
    window_s: Times
    least_s: Times
    left_s: Times
    until_back_s: Times
    bound: Times
    simulated: bool
    stages: StageTimes

    @classmethod
    def of(
        cls, shape: Shape, layers: LayerTimes, layer: Numbers, microbatches: Numbers, sends: StageSends, message_s: Times
    ) -> Self:
        """The table of columns with these times of layers and numbers of microbatches. message_s: expected seconds per byte of
        a message between stages that shares links, by column."""
        cut = shape.cut
        both = [cut.sums(running, cut.kinds)[layer].T for running in (layers.forward_s, layers.backward_s)]
        kinds_s, within_s = np.array(both), np.moveaxis(cut.sums(layers.within_s, cut.kinds)[layer], 0, -1)
        forward_s, backward_s = kinds_s[:, cut.kind_of]
        overlap = bool(shape.kept.get("overlap_sends", False))
        weights_s = cut.sums(layers.weights_s)[layer].T if shape.splits else 0.0
        stages = StageTimes(forward_s, backward_s, sends.seconds, microbatches, shape.stages, overlap, weights_s)
        stages = stages if shape.stages == 1 else _with_host(stages, layers, shape)
        windows = pass_windows(shape.schedule, shape.timed_ranks, stages)
        least_s, shared_s = windows.least_s, np.maximum(sends.seconds, message_s * sends.bytes_between_nodes)
        if (shared_s > sends.seconds).any():
            windows = pass_windows(shape.schedule, shape.timed_ranks, replace(stages, send_s=shared_s))
        window_s = np.array([windows.window_s[ranks].max(axis=0) for ranks in shape.equivalent_ranks])
        index = [shape.timed_ranks.index(rank) for rank in shape.ranks]
        least_s, left_s, until_back_s = least_s[index], windows.left_s[index], _until_back_s(shape, stages)
        # stages below the first trained layer do not wait for gradients, so that only the ranks' own work is sure
        if shape.stages > 1 and not all(one.has_backward for one in layers.base.layers):
            least_s, until_back_s = microbatches * shape.by_rank(kinds_s.sum(axis=0)), np.zeros_like(least_s)
        return cls(
            layer, microbatches, stages.per_round, kinds_s, within_s if within_s.any() else None, window_s, least_s, left_s,
            until_back_s, layers.bound[layer], bool(windows.simulated.any()), stages,
        )  # fmt: skip


def _with_host(stages: StageTimes, layers: LayerTimes, shape: Shape) -> StageTimes:
    """Times of stages with those of the host, as in programs."""
    host, scale = layers.base.framework.host.stage, layers.base.framework.host_scale
    forward_s, backward_s = stages.forward_s + scale * host.forward_s, stages.backward_s + scale * host.backward_s
    forward_s[-1] += scale * host.loss_s
    if not shape.splits:
        return replace(stages, forward_s=forward_s, backward_s=backward_s)
    divided_s = np.full_like(backward_s, scale * (host.inputs_s + host.weights_s - host.backward_s))
    weights_s = stages.weights_s + np.full_like(backward_s, scale * host.weights_s)
    divided_s[0], weights_s[0] = 0.0, weights_s[0] + scale * (host.backward_s - host.weights_s)
    return replace(stages, forward_s=forward_s, backward_s=backward_s + divided_s, weights_s=weights_s, divided_s=divided_s)


def _until_back_s(shape: Shape, stages: StageTimes) -> Times:
    """Seconds until the first backward pass of each rank begins: a microbatch's way to the last stage and back, or all forward
    passes before it if these take longer."""
    first, last, received_s = shape.own_stages[:, 0], shape.own_stages[:, -1], stages.received[0]
    way_s = suffix_sum(stages.forward_s + stages.send_s)[first]
    way_s += suffix_sum(stages.inputs_s + stages.send_s)[last] - stages.inputs_s[last]
    if shape.schedule not in CLOSED:
        all_s = stages.microbatches * received_s[shape.own_stages].sum(axis=1)
        longest_s: Times = np.maximum(way_s, all_s * (shape.schedule == "looped_bfs"))
        return longest_s
    forwards_s: Times = stages.per_round * received_s[shape.own_stages[:, :-1]].sum(axis=1) + received_s[last]
    if shape.schedule == "gpipe" and stages.ranks > 1:
        forwards_s = way_s + (stages.microbatches - 1) * suffix_max(received_s)[first]
    result: Times = np.maximum(way_s, forwards_s)
    return result


@dataclass
class StageSends(_Table):
    """Messages after each stage, shape (stages, columns): seconds if alone, 0 where the next stage is on the same rank, and
    after the last; bytes of those to other nodes, else 0."""

    seconds: Times
    bytes_between_nodes: Times

    @classmethod
    def of(cls, shape: Shape, layers: LayerTimes, layer: Numbers, places: Sequence[Place], transfers: TransferTimes) -> Self:
        """The messages of columns with these times of layers and places of ranks."""
        seconds, crossing_bytes = np.zeros((2, shape.cut.count, len(layer)))
        lasts, devices = shape.cut.stops[:-1] - 1, layers.base.cluster.node.devices
        crossing = np.flatnonzero(shape.crosses)
        for column, (number, (stride, senders, stall_s)) in enumerate(zip(layer.tolist(), places, strict=True)):
            node, device = np.divmod(shape.rank_of * stride, devices)
            ranks, sizes_bytes = list(zip(node.tolist(), device.tolist(), strict=True)), layers.sent_bytes[number, lasts]
            sent = sizes_bytes.tolist()
            seconds[crossing, column] = layers.joining_s[number, lasts[crossing]] + [
                transfers.message_s(sent[i], ranks[i], ranks[i + 1], senders, stall_s) for i in crossing.tolist()
            ]
            crossing_bytes[:-1, column] = sizes_bytes * (shape.crosses & (node[:-1] != node[1:]))
        return cls(seconds, crossing_bytes)


@dataclass
class SyncTable(_Table):
    """Times of gradient synchronisation of a stage of each kind, as in `StageSync`, shape (kinds, columns).

    optimizer_s: shape (ranks, columns). copied_s, level: as in `RankSync`. next_to_s: seconds of collectives during the
    forward and the backward passes over a stage, shape (2, kinds, columns), and moved_bytes, moved_J: memory traffic and energy
    of them: of each microbatch from ZeRO's stage 2 on, else of a step. resources: that collectives take from passes, None if
    nothing.
    """

    sums_s: Times
    last_s: Times
    gathers_s: Times
    again_s: Times
    opening_s: Times
    after_s: Times
    begin: Numbers
    stop: Numbers
    optimizer_s: Times
    copied_s: Times
    level: Numbers
    next_to_s: Times
    moved_bytes: Times
    moved_J: Times
    resources: ContendedResources | None

    @classmethod
    def of(cls, shape: Shape, layers: LayerTimes, c: Configurations, ranks: Sequence[RankSync], shares_links: bool) -> Self:
        """The table of some configurations. shares_links: whether the groups of all stages share links."""
        found = np.array([one.kinds for one in ranks], dtype=np.float64).transpose(2, 1, 0)
        seconds, (begin, stop), parameters = found[:6], found[6:8].astype(np.int64), found[8:]
        if shares_links:
            seconds = seconds * np.array([one.sharing for one in ranks])
        sums_s, last_s, gathers_s, again_s, opening_s, after_s = seconds
        # parameters that are not freed after the forward pass are not gathered again
        again_s = again_s * shape.reshards
        next_to_s, moved_bytes, moved_J = _next_to_passes(shape, layers, c, (sums_s, gathers_s, again_s, after_s), parameters)
        return cls(
            sums_s, last_s, gathers_s, again_s, opening_s, after_s, begin, stop,
            _optimizer_s(shape, layers, c, parameters), np.array([one.copied_s for one in ranks]),
            np.array([one.level for one in ranks], dtype=np.int64), next_to_s, moved_bytes, moved_J,
            ContendedResources.of(layers.base),
        )  # fmt: skip


def _optimizer_s(shape: Shape, layers: LayerTimes, c: Configurations, parameters: Times) -> Times:
    """Seconds of each rank's optimizer step. parameters: replicated ones and experts, by kind and configuration."""
    job, ranks = layers.base, np.asarray(c.workers * c.context, dtype=np.float64)
    replicas, experts = shape.by_rank(parameters[0]), shape.by_rank(parameters[1])
    updated = replicas / np.where(c.zero > 0, ranks, 1) + experts / np.where(c.zero > 0, _expert_replicas(c), 1)
    kinds = (shape.cut.ranges[kind] for kind in shape.cut.kinds)
    tensors = shape.by_rank(np.array([[sum(len(job.layers[i].tensors) for i in own)] for own in kinds]))
    seconds: Times = job.optimizer_s(updated) + job.gradient_host_s(tensors, ranks)
    seconds += np.where(c.zero == 1, replace(job, zero=1).broadcasts_s(tensors, ranks), 0.0)
    if shape.stages == 1:
        nodes = -(-c.workers * c.context * c.tensor // job.cluster.node.devices)
        seconds += np.where(ranks > 1, job.framework.step_stall_s(nodes), 0.0)
    return seconds


def _expert_replicas(c: Configurations) -> Numbers:
    """Number of ranks with the same experts, as in `Plan.expert_replicas`."""
    among_workers = np.maximum(1, c.workers // c.expert) * c.context
    folds = np.maximum(1, c.tensor // np.maximum(1, c.expert_tensor))
    folded: Numbers = np.maximum(1, c.workers * c.context * folds // c.expert)
    return np.where(c.expert_tensor > 0, folded, among_workers)


def _next_to_passes(
    shape: Shape, layers: LayerTimes, c: Configurations, seconds: tuple[Times, Times, Times, Times], parameters: Times
) -> tuple[Times, Times, Times]:
    """Seconds, bytes of memory and joules of the collectives next to passes, as in `SyncTable`. seconds: of sums, gathers
    before forward and backward passes, and gathers after the step."""
    job, kept, (sums_s, gathers_s, again_s, after_s) = layers.base, shape.kept, seconds
    sums_whole = (c.zero == 1) & job.framework.zero_1.sums_whole
    sums = ((c.zero >= 2) | (bool(kept.get("overlap", False)) & ~sums_whole)).astype(np.float64)
    # gathers once a step are neglected
    gathers = (c.zero == 3) * (0.0 if shape.keeps else 1.0)
    step = (c.zero == 1) * float(shape.overlaps_gather)
    scatters = (c.zero > 1) | ((c.zero == 1) & (not job.framework.zero_1.owns_tensors))
    ranks = c.workers * c.context

    def moved(per_bus_byte: Mapping[Op, float]) -> Times:
        """Amount of all collectives, by the amount for each byte on the bus."""
        by_sum = np.where(scatters, per_bus_byte["reduce_scatter"], 2 * per_bus_byte["all_reduce"])
        by_gather = per_bus_byte["all_gather"] * job.gathered_bytes * (gathers * (1 + shape.reshards) + step)
        result: Times = parameters.sum(axis=0) * (ranks - 1) / ranks * (sums * by_sum * job.reduced_bytes + by_gather)
        return result

    joules: dict[Op, float] = {op: joules_per_bus_byte(moves) for op, moves in MEMORY_BYTES_PER_BUS_BYTE.items()}
    next_to_s = np.array([gathers * gathers_s + step * after_s, sums * sums_s + gathers * again_s])
    return next_to_s, moved(MEMORY_BYTES_PER_BUS_BYTE), moved(joules)


def tables(
    shape: Shape, c: Configurations, layers: LayerTimes, layer: Numbers, message_s: Times, transfers: TransferTimes,
    sync: SyncTimes,
) -> tuple[PassTable, Numbers, list[SyncTable], Numbers]:  # fmt: skip
    """The tables of configurations of a shape, and the columns of each configuration; the second table once as if groups of
    different stages shared no links, and if they do, again with that.

    layer: number of the layer times of each configuration. message_s: as in `PassTable.of`.
    """
    placed = c.distinct("tensor", "context", "workers", "order")
    places: dict[Place, int] = {}
    place = np.array([places.setdefault(layers.place(values), len(places)) for values in c.values(placed.first)])[placed.code]
    sent, known = distinct(layers.message[layer], place), list(places)
    sends = StageSends.of(shape, layers, layer[sent.first], [known[i] for i in place[sent.first]], transfers)
    # equal messages count once
    same = np.unique(np.vstack([sends.seconds, sends.bytes_between_nodes]), axis=1, return_inverse=True)[1]
    _, traffic = np.unique(message_s, return_inverse=True)
    p = distinct(layer, same.reshape(-1)[sent.code], traffic, c.microbatches)
    own = sends.take(sent.code[p.first])
    passes = PassTable.of(shape, layers, layer[p.first], c.microbatches[p.first], own, message_s[p.first])
    s = c.distinct("tensor", "context", "expert", "expert_tensor", "workers", "zero", "bucket", "order")
    ranks = [sync.ranks(values, shape.cut) for values in c.values(s.first)]
    shares = [False, *[True] * any(one.sharing > 1 for one in ranks)]
    some = c.take(s.first)
    return passes, p.code, [SyncTable.of(shape, layers, some, ranks, one) for one in shares], s.code
