"""Expected and least step times of many configurations.

The parts of a step time depend on few columns each: layer times on how layers and samples are divided, gradient synchronisation
on which ranks share gradients. Each part is computed once for all configurations that have these columns in common, by the same
code that compiles programs. Configurations of one shape, with the same numbers of stages and chunks and the same schedule, have
the same layers and ranks in each stage; their parts are combined in arrays, whose last axis is configurations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.configurations import Configurations, Numbers, Space, distinct
from scaleproof.simulator.analysis.planner.estimate.gradient_sync import RankSync, SyncTimes
from scaleproof.simulator.analysis.planner.estimate.layer_times import LayerTimes, Place, StageCut
from scaleproof.simulator.analysis.planner.estimate.pipeline_times import (
    CLOSED,
    FOLLOWED,
    LayerGatherTimes,
    StageTimes,
    Table,
    pass_windows,
    stages_of,
    suffix_max,
    suffix_sum,
    windows_without_simulation,
    with_gathers,
)
from scaleproof.simulator.analysis.planner.estimate.transfers import StageTraffic, TransferTimes, traffic_of
from scaleproof.simulator.cluster.collectives.groups import LinkLevel, Op
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.parallelism.stages import WHOLE, ScheduleName
from scaleproof.simulator.strategy.data_parallel.contention import (
    MEMORY_BYTES_PER_BUS_BYTE,
    ContendedResources,
    completes_early,
    delays_s,
    joules_per_bus_byte,
    per_second,
    slowed_by,
)

Times = NDArray[np.float64]

# Lower bounds are multiplied by this: groups may be a little nearer to one another than the one that is timed.
_MARGIN: Final = 0.999
# Share of the estimated contention in lower bounds: collectives are counted by bucket here, by layer in programs.
_LEAST_CONTENTION: Final = 0.8
_LEAST_UNHIDDEN: Final = 0.5


class StepTimes(NamedTuple):
    """Seconds of a step by configuration: expected, and a lower bound of its prediction."""

    expected_s: Times
    least_s: Times


def step_times(configurations: Configurations) -> StepTimes:
    """Step times of all configurations.

    Raises FieldError if a configuration turns out to be invalid, or if the order of its schedule is searched for.
    """
    for schedule in configurations.space.schedules:
        if schedule not in (*CLOSED, *FOLLOWED):
            known = ", ".join((*CLOSED, *FOLLOWED))
            message = f"{schedule} is not estimated, as its order is searched for; choose from {known}"
            raise FieldError(("strategy", "schedule"), message)
    expected_s, least_s = np.empty((2, len(configurations)))
    for rows, placed in configurations.by_used_devices():
        expected_s[rows], least_s[rows] = _step_times(placed)
    return StepTimes(expected_s, least_s)


def _step_times(c: Configurations) -> StepTimes:
    """Step times of some configurations, whose ranks use the same number of devices of each node."""
    expected_s, least_s = np.empty((2, len(c)))
    space, (own, *others) = c.space, _layer_times(c)
    transfers = TransferTimes(own.cluster)
    sync, traffic = SyncTimes(space, own, transfers), traffic_of(own.cluster)
    cuts: dict[tuple[object, ...], StageCut] = {}
    places = ("workers", "tensor", "context", "order") if others else ()
    shaped = c.distinct("stages", "chunks", "schedule", "blocks", *places)
    for number, values in enumerate(c.values(shaped.first)):
        rows = np.flatnonzero(shaped.code == number)
        stages, chunks, schedule = (values[name] for name in ("stages", "chunks", "schedule"))
        nodes = tuple(own.grid(values).kinds_on(own.cluster)[0].tolist()) if others else ()
        if (key := (stages * chunks, values["blocks"], nodes)) not in cuts:
            cuts[key] = StageCut.of(own.base.layers, stages * chunks, space.counted, space.balance(values), nodes)
        shape, layers = Shape(space, stages, chunks, space.schedules[schedule], cuts[key], nodes), own
        if others:
            layers = own.on_nodes(others, np.repeat(nodes, [len(stage) for stage in shape.cut.ranges]))
        some, layer = c.take(rows), layers.code[rows]
        message_s, busy_s = _traffic(some, shape, layers, layer, traffic)
        passes = _passes(shape, some, layers, layer, message_s, transfers)
        alone, shared = _syncs(shape, some, layers, sync)
        for zero in np.unique(some.zero).tolist():
            at = np.flatnonzero(some.zero == zero)
            # bounds as if nothing were shared
            times = StageSteps(shape, layers, passes.take(at), alone.take(at), zero).times()
            busy_s[at] = np.maximum(busy_s[at], _copied_s(shape, some.take(at), layers, zero))
            least_s[rows[at]] = _MARGIN * np.maximum(times.least_s, busy_s[at])
            times = times if shared is alone else StageSteps(shape, layers, passes.take(at), shared.take(at), zero).times()
            expected_s[rows[at]] = np.maximum(times.expected_s, _MARGIN * busy_s[at])
    return StepTimes(expected_s, least_s)


def _layer_times(c: Configurations) -> list[LayerTimes]:
    """The times of layers, on each kind of nodes if the ranks of pipelines are on their own nodes."""
    if c.space.kind is not None:
        return [LayerTimes(c, c.space.kind)]
    return [LayerTimes(c, kind) for kind in range(len(c.space.scenario.cluster.all_devices))]


def _copied_s(shape: Shape, c: Configurations, layers: LayerTimes, zero: int) -> Times:
    """Seconds for which the link between a device and its host is busy in one direction with what is offloaded, at least, by
    configuration; 0 where nothing is."""
    job, workers = replace(layers.base, zero=zero), np.asarray(c.workers * c.context, dtype=np.float64)
    to_host, from_host = np.zeros((2, len(c)))
    if not job.offload:
        return to_host
    stage = [job.layers[i] for i in shape.cut.ranges[0]]
    trained = float(sum(one.trained_parameters for one in stage))
    shards = workers if zero else np.ones(len(c))
    if "optimizer" in job.offload:
        to_host += trained / shards * job.accumulated_bytes * (c.microbatches if zero >= 2 else 1)
    if "parameters" in job.offload:
        copied_bytes = np.array([
            one.trained_parameters * (job.shard_bytes - job.gathered_bytes)
            + one.gathered_elements(job.gathered_bytes) * job.gathered_bytes
            for one in stage
        ], dtype=np.float64)  # fmt: skip
        again, kept = (np.array(list(map(of, stage))) for of in (job.is_gathered_again, job.is_kept_between_passes))
        once = shape.keeps | (kept & (shape.stages > 1))
        passes = np.where(once[:, None], 1, (1 + shape.reshards * again)[:, None] * c.microbatches)
        from_host += copied_bytes @ passes / shards
    if any(one.expert_parameters for one in stage):
        # experts have fewer replicas
        to_host, from_host = np.zeros((2, len(c)))
    busy_s: Times = np.maximum(to_host, from_host) / job.host_link_Bps(c.space.ranks[0])
    return busy_s


def _traffic(c: Configurations, shape: Shape, layers: LayerTimes, layer: Numbers, traffic: StageTraffic) -> tuple[Times, Times]:
    """Expected seconds per byte of a message between stages, and seconds for which the most used link between nodes is busy in
    a step, by configuration."""
    placed = c.distinct("tensor", "context", "workers", "order")
    loads = [traffic.loads(layers.grid(values), shape.stage_of) for values in c.values(placed.first)]
    one_s, all_s, both_s = np.array(loads).T[:, placed.code]
    # in a full pipeline all ranks send at the same time, in an empty one a single stage
    full = (c.microbatches - 1) / (c.microbatches + c.stages - 1)
    lasts = shape.cut.stops[:-1] - 1
    least_bytes = layers.sent_bytes[:, lasts].min(axis=1)[layer] if len(lasts) else 0.0
    return one_s + full * (all_s - one_s), both_s * c.microbatches * least_bytes


class Shape:
    """Stages, chunks and schedule, and the ranks that differ.

    own_stages, stage_counts: of each of `ranks`, its stages, and how many of each kind. timed_ranks: the ranks whose passes are
    timed; equivalent_ranks: for each of `ranks`, the indices among them of those that have equal stages, of which each may be
    the slowest. nodes: kind of the nodes of each of `ranks`. keeps: whether the parameters gathered before a stage's first pass
    are kept for the whole step. overlaps_gather: whether updated parameters are gathered during the next forward pass.
    """

    def __init__(
        self, space: Space, stages: int, chunks: int, schedule: ScheduleName, cut: StageCut, nodes: Sequence[int] = ()
    ) -> None:
        """nodes: kind of the nodes of each stage's ranks, where they differ."""
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
        self.nodes = [nodes[rank] if nodes else 0 for rank in self.ranks]
        counts = [np.bincount(cut.kind_of[own_stages], minlength=len(cut.kinds)) for own_stages in self.own_stages]
        self.stage_counts = np.array(counts)
        # the rank of each stage, and whether the message after each stage but the last goes to another rank
        self.rank_of = np.argsort(self.stage_of, axis=None) // chunks
        self.crosses = self.rank_of[:-1] != self.rank_of[1:]

    def by_rank(self, values: Times) -> Times:
        """Sums over the stages of each rank, from values of stages of each kind."""
        result: Times = self.stage_counts @ values
        return result


@dataclass(frozen=True)
class PassTable(Table):
    """Times of passes.

    layer: number of the times of layers. kinds_s: forward and backward pass over a stage of each kind, shape (2, kinds,
    columns). gradients_s: the same of `Job.gradients_s`. within_s: collectives within them, by links, shape (levels, 2, 2,
    kinds, columns); None where there are none. window_s, least_s: seconds of all passes of each of the shape's ranks, expected
    and at least; left_s: from the last gradients of each stage to the end of the rank's last pass; until_back_s: until the
    first backward pass. bound: share of kernel time that is bound by memory. simulated: whether any were simulated pass by
    pass. stages: the times of stages.
    """

    layer: Numbers
    microbatches: Numbers
    per_round: Numbers
    kinds_s: Times
    gradients_s: Times
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
        cls, shape: Shape, layers: LayerTimes, layer: Numbers, microbatches: Numbers, sends: _StageSends, message_s: Times
    ) -> Self:
        """The table of columns with these times of layers and numbers of microbatches. message_s: expected seconds per byte of
        a message between stages that shares links, by column."""
        cut = shape.cut
        both = [cut.sums(running, cut.kinds)[layer].T for running in (layers.forward_s, layers.backward_s)]
        kinds_s, within_s = np.array(both), np.moveaxis(cut.sums(layers.within_s, cut.kinds)[layer], 0, -1)
        forward_s, backward_s = kinds_s[:, cut.kind_of]
        gradients_s = np.moveaxis(cut.sums(layers.gradients_s, cut.kinds)[layer], 0, -1)
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
            layer, microbatches, stages.per_round, kinds_s, gradients_s, within_s if within_s.any() else None, window_s,
            least_s, left_s, until_back_s, layers.bound[layer], bool(windows.simulated.any()), stages,
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


class _StageSends(NamedTuple):
    """Messages after each stage, shape (stages, columns): seconds if alone, 0 where the next stage is on the same rank, and
    after the last; bytes of those to other nodes, else 0."""

    seconds: Times
    bytes_between_nodes: Times


def _stage_sends(
    shape: Shape, layers: LayerTimes, layer: Numbers, places: Sequence[Place], transfers: TransferTimes
) -> _StageSends:
    """The messages of columns with these times of layers and places of ranks."""
    seconds, crossing_bytes = np.zeros((2, shape.cut.count, len(layer)))
    lasts, cluster = shape.cut.stops[:-1] - 1, layers.cluster
    crossing = np.flatnonzero(shape.crosses)
    for column, (number, (stride, senders, stall_s)) in enumerate(zip(layer.tolist(), places, strict=True)):
        if cluster.has_equal_nodes:
            node, device = np.divmod(shape.rank_of * stride, cluster.node.devices)
        else:
            node, device = np.array([cluster.place(rank) for rank in (shape.rank_of * stride).tolist()]).T
        ranks, sizes_bytes = list(zip(node.tolist(), device.tolist(), strict=True)), layers.sent_bytes[number, lasts]
        sent = sizes_bytes.tolist()
        seconds[crossing, column] = layers.joining_s[number, lasts[crossing]] + [
            transfers.message_s(sent[i], ranks[i], ranks[i + 1], senders, stall_s) for i in crossing.tolist()
        ]
        crossing_bytes[:-1, column] = sizes_bytes * (shape.crosses & (node[:-1] != node[1:]))
    return _StageSends(seconds, crossing_bytes)


def _passes(
    shape: Shape, c: Configurations, layers: LayerTimes, layer: Numbers, message_s: Times, transfers: TransferTimes
) -> PassTable:
    """Times of the passes of configurations of a shape. layer: number of the layer times of each configuration. message_s: as
    in `PassTable.of`."""
    placed = c.distinct("tensor", "context", "workers", "order")
    places: dict[Place, int] = {}
    place = np.array([places.setdefault(layers.place(values), len(places)) for values in c.values(placed.first)])[placed.code]
    sent, known = distinct(layers.message[layer], place), list(places)
    sends = _stage_sends(shape, layers, layer[sent.first], [known[i] for i in place[sent.first]], transfers)
    passed = distinct(layer, sent.code, np.unique(message_s, return_inverse=True)[1], c.microbatches)
    first = passed.first
    sends = _StageSends(*(values[:, sent.code[first]] for values in sends))
    return PassTable.of(shape, layers, layer[first], c.microbatches[first], sends, message_s[first]).take(passed.code)


@dataclass(frozen=True)
class SyncTable(Table):
    """Times of gradient synchronisation of a stage of each kind, as in `StageSync`, shape (kinds, columns).

    averages: whether several ranks have the same parameters. optimizer_s, least_optimizer_s: expected and at least, shape
    (ranks, columns). copied_s, level: as in `RankSync`. next_to_s: seconds of collectives during the forward and the backward
    passes over a stage, shape (2, kinds, columns), and moved_bytes, moved_J: memory traffic and energy of them: of each
    microbatch from ZeRO's stage 2 on, else of a step. resources: that collectives take from passes, None if nothing, or if it
    differs between ranks.
    """

    sums_s: Times
    last_s: Times
    gathers_s: Times
    again_s: Times
    opening_s: Times
    after_s: Times
    begin: Numbers
    stop: Numbers
    averages: NDArray[np.bool_]
    optimizer_s: Times
    least_optimizer_s: Times
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
            sums_s, last_s, gathers_s, again_s, opening_s, after_s, begin, stop, np.asarray(c.workers * c.context > 1),
            *_optimizer_s(shape, layers, c, parameters), np.array([one.copied_s for one in ranks]),
            np.array([one.level for one in ranks], dtype=np.int64), next_to_s, moved_bytes, moved_J,
            ContendedResources.of_job(layers.base) if len(layers.bases) == 1 else None,
        )  # fmt: skip


def _optimizer_s(shape: Shape, layers: LayerTimes, c: Configurations, parameters: Times) -> tuple[Times, Times]:
    """Seconds of each rank's optimizer step, expected and at least. parameters: replicated ones and experts, by kind and
    configuration."""
    job, ranks = layers.base, np.asarray(c.workers * c.context, dtype=np.float64)
    replicas, experts = shape.by_rank(parameters[0]), shape.by_rank(parameters[1])
    updated = replicas / np.where(c.zero > 0, ranks, 1) + experts / np.where(c.zero > 0, _expert_replicas(c), 1)
    kinds = (shape.cut.ranges[kind] for kind in shape.cut.kinds)
    tensors = shape.by_rank(np.array([[sum(len(job.layers[i].tensors) for i in own)] for own in kinds]))
    if "optimizer" in job.offload:
        of_step_s = job.host_optimizer_s(updated, c.space.ranks[0])
        # ranks of other stages may use the host at other times
        alone_s = of_step_s if shape.stages == 1 else job.host_optimizer_s(updated, 1)
    else:
        stages = [[job.layers[i] for i in shape.cut.ranges[kind]] for kind in shape.cut.kinds]
        by_kind_s = []
        for one in layers.bases:
            layers_s = np.array([[one.orthogonalising_s(stage)] for stage in stages])
            by_kind_s.append(one.device_optimizer_s(updated) + shape.by_rank(layers_s) / np.where(c.zero > 0, ranks, 1))
        of_step_s = by_kind_s[0] if len(by_kind_s) == 1 else np.array(by_kind_s)[shape.nodes, np.arange(len(shape.nodes))]
        alone_s = of_step_s
    seconds: Times = of_step_s + job.gradient_host_s(tensors, ranks)
    seconds += np.where(c.zero == 1, replace(job, zero=1).broadcasts_s(tensors, ranks), 0.0)
    if shape.stages == 1:
        on_stage = c.workers * c.context * c.tensor
        nodes = -(-on_stage // layers.cluster.node.devices)
        if not layers.cluster.has_equal_nodes:
            nodes = np.array([layers.cluster.nodes_of(of_stage) for of_stage in on_stage.tolist()])
        seconds += np.where(ranks > 1, job.framework.step_stall_s(nodes), 0.0)
    return seconds, seconds - of_step_s + alone_s


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
    stages = np.bincount(shape.cut.kind_of, minlength=parameters.shape[1])
    limit_bytes = kept.get("first_bucket_bytes") or np.array(c.space.buckets_bytes)[c.bucket]
    early = completes_early(stages @ parameters.sum(axis=0) * job.reduced_bytes, limit_bytes)
    sums = ((c.zero >= 2) | (bool(kept.get("overlap", False)) & ~sums_whole & early)).astype(np.float64)
    # gathers once a step are neglected
    gathers = (c.zero == 3) * (0.0 if shape.keeps else 1.0)
    step = (c.zero == 1) * float(shape.overlaps_gather)
    scatters = (c.zero > 1) | ((c.zero == 1) & (not job.framework.zero_1.owns_tensors))
    ranks = c.workers * c.context
    gathered = np.array([one.gathered_elements(job.gathered_bytes) for one in job.layers], dtype=np.float64)
    again = shape.reshards * gathered @ list(map(job.is_gathered_again, job.layers)) / max(1.0, gathered.sum())

    def moved(per_bus_byte: Mapping[Op, float]) -> Times:
        """Amount of all collectives, by the amount for each byte on the bus."""
        by_sum = np.where(scatters, per_bus_byte["reduce_scatter"], 2 * per_bus_byte["all_reduce"])
        by_gather = per_bus_byte["all_gather"] * job.gathered_bytes * (gathers * (1 + again) + step)
        result: Times = parameters.sum(axis=0) * (ranks - 1) / ranks * (sums * by_sum * job.reduced_bytes + by_gather)
        return result

    joules: dict[Op, float] = {op: joules_per_bus_byte(moves) for op, moves in MEMORY_BYTES_PER_BUS_BYTE.items()}
    next_to_s = np.array([gathers * gathers_s + step * after_s, sums * sums_s + gathers * again_s])
    return next_to_s, moved(MEMORY_BYTES_PER_BUS_BYTE), moved(joules)


def _syncs(shape: Shape, c: Configurations, layers: LayerTimes, sync: SyncTimes) -> tuple[SyncTable, SyncTable]:
    """Times of the gradient synchronisation of configurations of a shape: as if groups of different stages shared no links, and
    with that; the same table where none share any."""
    synced = c.distinct("tensor", "context", "expert", "expert_tensor", "workers", "zero", "bucket", "order")
    ranks, some = [sync.ranks(values, shape.cut) for values in c.values(synced.first)], c.take(synced.first)
    alone = SyncTable.of(shape, layers, some, ranks, False).take(synced.code)
    if all(one.sharing <= 1 for one in ranks):
        return alone, alone
    return alone, SyncTable.of(shape, layers, some, ranks, True).take(synced.code)


class _LinkDelays(NamedTuple):
    """Additional seconds of the passes over a stage, and of the collectives of replicas next to its forward and its backward
    pass, that share links."""

    passes_s: Times
    forward_s: Times
    backward_s: Times


class StageSteps:
    """Steps of configurations of a shape with one ZeRO stage. p, s: the columns of each in the tables of passes and of gradient
    synchronisation."""

    def __init__(self, shape: Shape, layers: LayerTimes, passes: PassTable, sync: SyncTable, zero: int) -> None:
        self.shape, self.layers, self.zero, self.passes, self.sync = shape, layers, zero, passes, sync
        self.framework, self.kinds = layers.base.framework, range(len(shape.cut.kinds))
        self.sums_whole = zero == 1 and self.framework.zero_1.sums_whole
        passed_s = self.passes.kinds_s.sum(axis=0)
        self.own_s = shape.by_rank(passed_s)
        # seconds of the backward pass over the unit whose gradients are complete first
        running_s, layer = layers.backward_s, self.passes.layer
        self.first_passed_s = running_s[layer, self.sync.stop] - running_s[layer, self.sync.begin]
        self.least_contention = 0.0 if layers.cluster.kinds else _LEAST_CONTENTION
        self.links = self._on_links()
        self.slowed_s = self._slowed_s() if self.sync.resources or self.links else None

    def times(self) -> StepTimes:
        """Expected and least step times."""
        shape, sync, passes = self.shape, self.sync, self.passes
        gathers_layers = self.zero == 3 and not shape.keeps
        windows_s, has_contention = self._windows_s()
        after_first_s = self._after_first_s()
        expected_s, least_s = np.zeros((2, len(self.passes.layer)))
        for rank, window_s in enumerate(windows_s):
            exposure = self._exposed_of_layers(rank) if gathers_layers else self._exposed(rank, after_first_s)
            exposed_s, least_exposed_s, collectives_s = exposure
            if rank > 0 and not self.layers.cluster.has_equal_places:
                # its group may be nearer to one another than rank 0's, whose sums are those in the table
                least_exposed_s, collectives_s = 0.0, 0.0
            once_s, least_once_s = self._gradients_s(rank)
            rank_s = sync.optimizer_s[rank] + window_s + exposed_s + once_s
            least_rank_s = passes.least_s[rank] + least_exposed_s + least_once_s
            if self.slowed_s is not None and not (gathers_layers and shape.stages == 1):
                contended_s, least_contended_s = self._contended_s(rank, window_s)
                rank_s += np.where(has_contention, 0.0, contended_s)
                # collectives of devices of several kinds take other times next to passes than alone
                least_rank_s = least_rank_s + self.least_contention * least_contended_s
            least_rank_s = np.maximum(least_rank_s, collectives_s) + sync.least_optimizer_s[rank]
            expected_s = np.maximum(expected_s, rank_s + sync.copied_s if rank == 0 else rank_s)
            least_s = np.maximum(least_s, least_rank_s)
        return StepTimes(np.maximum(expected_s, least_s), least_s)

    def _of_pass(self, moved_s: Times) -> Times:
        """Seconds of the collectives next to one pass."""
        return moved_s / self.passes.microbatches if self.zero < 2 and self.shape.chunks > 1 else moved_s

    def _slowed_s(self) -> Times:
        """Seconds by which passes over a stage of each kind take longer next to collectives: of each microbatch from ZeRO's
        stage 2 on and with several chunks, else of a step; shape (kinds, configurations)."""
        passes, sync = self.passes, self.sync
        slowed_s = np.zeros_like(sync.sums_s) if self.links is None else self.links.passes_s
        if sync.resources is None:
            return slowed_s
        moved_s = sync.next_to_s.sum(axis=0)
        share = sync.resources.taken(*per_second(sync.moved_bytes, sync.moved_J, moved_s), passes.bound)
        computing_s = passes.kinds_s.sum(axis=0) if self.zero == 3 else passes.kinds_s[1]
        return slowed_s + slowed_by(share, self._of_pass(moved_s), computing_s)

    def _on_links(self) -> _LinkDelays | None:
        """Delays of passes over a stage of each kind, and of the collectives next to them, that share links, each of shape
        (kinds, configurations); None where no pass contains collectives."""
        passes, sync = self.passes, self.sync
        if passes.within_s is None or not self.framework.link_contention or not sync.next_to_s.any():
            return None
        of_node_s, of_network_s = passes.within_s
        within_s, exposed_s = np.where(sync.level == LinkLevel.NETWORK, of_network_s, of_node_s)
        next_s = self._of_pass(sync.next_to_s) - [sync.opening_s, sync.last_s]
        passed_s = np.array([np.zeros_like(self.first_passed_s), self.first_passed_s])
        next_s = np.maximum(np.minimum(next_s, passes.kinds_s - passed_s), 0.0)
        longer_s, delayed_s = delays_s(next_s, within_s, exposed_s, passes.kinds_s)
        return _LinkDelays(longer_s.sum(axis=0), *delayed_s)

    def _longer(self, links: _LinkDelays) -> tuple[Times, Times, Times]:
        """Factors on gathers before a forward and before a backward pass over a stage, and on sums, which share links."""
        moved_s = self.sync.next_to_s
        forward, backward = 1 + np.divide(np.array(links[1:]), moved_s, out=np.zeros_like(moved_s), where=moved_s > 0)
        return forward, backward, backward

    def _contended_s(self, rank: int, window_s: Times) -> tuple[Times, Times]:
        """Seconds by which a rank ends its passes later because collectives slow them down, expected and at least. window_s:
        expected duration of the passes, waiting included."""
        assert self.slowed_s is not None
        own_s: Times = self.shape.stage_counts[rank] @ self.slowed_s
        if self.zero < 2 and self.shape.chunks == 1:
            # the last microbatch returns through all stages, one after another
            counts = np.bincount(self.shape.cut.kind_of, minlength=len(self.kinds))
            return counts @ self.slowed_s, own_s
        share = own_s / self.own_s[rank]
        # compute waits for gathers part of the time, which hides part of the contention
        waiting = _LEAST_UNHIDDEN if self.zero >= 2 else 1.0
        return window_s * share, waiting * self.passes.microbatches * self.own_s[rank] * share

    def _gradients_s(self, rank: int) -> tuple[Times, Times]:
        """Seconds by which a rank ends its passes later since the last one copies gradients into buckets and the first makes
        gradients to which others add, expected and at least."""
        (made_s, bucketed_s), of_cut = self.passes.gradients_s, self.shape.cut.kind_of
        counts, own = np.bincount(of_cut, minlength=len(self.kinds)), self.shape.stage_counts[rank]
        bucketed_s, all_made_s = bucketed_s * self.sync.averages, counts @ made_s
        # the last microbatch returns through all stages, one after another; the first through the last one before any other
        first_s = np.where(self.passes.microbatches == 1, all_made_s, made_s[of_cut[-1]])
        return first_s + (counts if self.shape.chunks == 1 else own) @ bucketed_s, all_made_s + own @ bucketed_s

    def _after_first_s(self) -> Times:
        """Seconds of a pass over a stage of each kind that remain once the gradients of its first unit are complete, with which
        sums overlap, shape (kinds, configurations). None remain where sums wait for the whole pass, as they do where gradients
        of weights are computed separately."""
        sums_after = self.sums_whole or not self.shape.kept.get("overlap", False)
        if self.shape.splits or (self.zero < 2 and sums_after):
            return np.zeros_like(self.first_passed_s)
        left_s: Times = self.passes.kinds_s[1] - self.first_passed_s
        return left_s if self.slowed_s is None else left_s + self.slowed_s

    def _exposed(self, rank: int, after_first_s: Times) -> tuple[Times | float, Times | float, Times | float]:
        """Seconds of gradient synchronisation after a rank's passes, expected and at least, and least seconds of the step given
        its sums."""
        shape, passes, sync, counts = self.shape, self.passes, self.sync, self.shape.stage_counts[rank]
        kinds = shape.cut.kind_of[shape.own_stages[rank]].tolist()
        final = kinds[0]
        least_exposed_s = exposed_s = np.maximum(sync.last_s[final], sync.sums_s[final] - after_first_s[final])
        if self.links is not None:
            exposed_s = np.maximum(exposed_s, sync.sums_s[final] + self.links.backward_s[final] - after_first_s[final])
        for chunk in range(1, len(kinds)):
            # of consecutive stages of one kind the first and the last, as the end times between them are linear if passes are
            if not passes.simulated and chunk < len(kinds) - 1 and kinds[chunk - 1] == kinds[chunk] == kinds[chunk + 1]:
                continue
            # sums of a rank run one after another: from ZeRO's stage 2 on, those of each microbatch of a round
            before_s, own_s = np.bincount(kinds[:chunk], minlength=len(self.kinds)) @ sync.sums_s, sync.sums_s[kinds[chunk]]
            ended_s = (before_s * passes.per_round if self.zero >= 2 else before_s) + own_s
            exposed_s = np.maximum(exposed_s, ended_s - after_first_s[kinds[chunk]] - passes.left_s[rank, chunk])
        if self.zero == 0:
            return exposed_s, least_exposed_s, 0.0
        after_s: Times | float = counts @ sync.after_s if self.zero < 3 else 0.0
        collectives_s: Times | float = 0.0
        if self.zero >= 2:
            # sums begin once a microbatch has returned to the rank
            collectives_s = passes.microbatches * (counts @ sync.sums_s) + passes.until_back_s[rank] + after_s
        if shape.overlaps_gather:
            hidden_s = counts @ passes.kinds_s[0]
            return exposed_s + np.maximum(0.0, after_s - hidden_s), least_exposed_s, collectives_s
        return exposed_s + after_s, least_exposed_s + after_s, collectives_s

    def _exposed_of_layers(self, rank: int) -> tuple[Times | float, Times | float, Times | float]:
        """The same for ranks that gather layers before each pass over them."""
        shape, sync = self.shape, self.sync
        last_s = sync.last_s[int(shape.cut.kind_of[shape.own_stages[rank, 0]])]
        moved_s = sync.sums_s + sync.gathers_s + sync.again_s
        collectives_s = self.passes.microbatches * (shape.stage_counts[rank] @ moved_s)
        # the time of a rank that is alone in its pipeline includes its last sum
        return last_s if shape.stages > 1 else 0.0, last_s, collectives_s

    def _windows_s(self) -> tuple[Sequence[Times], NDArray[np.bool_]]:
        """Expected seconds of the passes of each rank, gathers of parameters included, and which configurations' contention
        they include."""
        passes, shape = self.passes, self.shape
        none: NDArray[np.bool_] = np.zeros(len(self.passes.layer), dtype=np.bool_)
        if self.zero < 3:
            return list(passes.window_s), none
        if shape.keeps:
            return list(passes.window_s + self._first_wait_s()), none
        if shape.stages == 1:
            return [self._alone_s()], none
        longer = np.flatnonzero(self._is_prolonged())
        if len(longer):
            passes.window_s[:, longer] = self._gathering_s(longer)
            none[longer] = True
        return list(passes.window_s), none

    def _is_prolonged(self) -> NDArray[np.bool_]:
        """Which configurations' passes are prolonged by gathers, which follow the sums of the pass before."""
        sync, layers = self.sync, self.shape.cut.stops - self.shape.cut.begins
        if self.shape.splits or (layers != layers[0]).any():
            return np.ones(len(self.passes.layer), dtype=np.bool_)
        waits_s = np.array([sync.gathers_s, sync.sums_s + sync.again_s])
        return np.asarray((waits_s > self.passes.kinds_s).any(axis=(0, 1)), dtype=np.bool_)

    def _gathering_s(self, at: Numbers) -> Times:
        """Expected seconds of the passes of each rank of some configurations, where layers are gathered before each pass over
        them."""
        shape, sync, kind_of = self.shape, self.sync, self.shape.cut.kind_of
        by_kind_s = [sync.gathers_s, sync.again_s, sync.sums_s, sync.last_s]
        if self.links is not None:
            longer = self._longer(self.links)
            by_kind_s = [*(share * one for share, one in zip(longer, by_kind_s, strict=False)), sync.last_s]
        gathers_s, again_s, sums_s, last_s = (one[kind_of][:, at] for one in by_kind_s)
        layers, stages = (shape.cut.stops - shape.cut.begins)[:, None], self.passes.stages.take(at)
        if self.slowed_s is not None:
            stages = stages.slower(1 + (self.slowed_s / self.passes.kinds_s.sum(axis=0))[kind_of][:, at])
        waits = self.framework.waits_for_scatters
        stages = with_gathers(stages, LayerGatherTimes(gathers_s, again_s, sums_s, last_s, layers, waits))
        window_s, _ = windows_without_simulation(shape.schedule, shape.timed_ranks, stages)
        return np.array([window_s[ranks].max(axis=0) for ranks in shape.equivalent_ranks])

    def _first_wait_s(self) -> Times:
        """Seconds by which the first pass of a step is longer for the gather of parameters that are kept afterwards: the gather
        of its first layer, or of all layers if the passes over those before the last do not hide it. Later stages gather while
        they wait for it."""
        kind, sync = int(self.shape.cut.kind_of[0]), self.sync
        passed_s = self.passes.kinds_s[0, kind] * (1 - 1 / len(self.shape.cut.ranges[0]))
        result: Times = np.maximum(sync.opening_s[kind], sync.gathers_s[kind] - passed_s)
        return result

    def _alone_s(self) -> Times:
        """Seconds of a step before the optimizer, for ranks with all layers. Collectives are divided among layers like
        the parameters that they move."""
        passes, sync = self.passes, self.sync
        running_s = self.layers.forward_s, self.layers.backward_s
        layers_s = np.array([np.diff(one[passes.layer], axis=1).T for one in running_s])
        if self.slowed_s is not None:
            layers_s *= 1 + self.slowed_s[0] / passes.kinds_s[:, 0].sum(axis=0)
        collectives_s = [sync.gathers_s[0], sync.again_s[0], sync.sums_s[0]]
        if self.links is not None:
            longer = self._longer(self.links)
            collectives_s = [share[0] * one_s for share, one_s in zip(longer, collectives_s, strict=True)]
        own, gathered_bytes = self.layers.base.layers, self.layers.base.gathered_bytes
        gathered = np.array([layer.gathered_elements(gathered_bytes) for layer in own], dtype=np.float64)
        again = gathered * list(map(self.layers.base.is_gathered_again, own))
        trained = np.array([layer.trained_parameters for layer in own], dtype=np.float64)
        parts = [one / max(1.0, one.sum()) for one in (gathered, again, trained)]
        moved_s = [part[:, None] * one_s for part, one_s in zip(parts, collectives_s, strict=True)]
        return one_rank_s(layers_s, moved_s, passes.microbatches, self.framework.waits_for_scatters)


def one_rank_s(works_s: Times, collectives_s: Sequence[Times], microbatches: Numbers, waits_for_sums: bool = False) -> Times:
    """Seconds of a step of a rank that is alone in its pipeline. works_s: forward and backward passes; collectives_s: gathers
    before each of both, and sums after the backward pass; all of shape (layers, configurations). waits_for_sums: whether a pass
    waits for the sum of the layer before."""
    forward_s, backward_s = works_s
    gathers_s, again_s, sums_s = collectives_s
    none_s = np.zeros_like(sums_s)
    layers = [*zip(forward_s, gathers_s, none_s, strict=True), *zip(backward_s[::-1], again_s[::-1], sums_s[::-1], strict=True)]
    end_s, before_s, moved_s, last_s, whole_s = np.zeros((5, len(microbatches)))
    for _ in range(2):
        one_s = whole_s
        for work_s, gather_s, sum_s in layers:
            gathered_s = np.maximum(moved_s, before_s) + gather_s
            # gathers ahead of time precede the sum of the layer before
            moved_s = np.where(last_s > 0, np.maximum(gathered_s, end_s) + last_s, gathered_s)
            begin_s = np.maximum(end_s, moved_s if waits_for_sums else gathered_s)
            end_s, before_s, last_s = begin_s + work_s, end_s, sum_s
        whole_s = np.maximum(end_s, moved_s) + last_s
    result: Times = one_s + (microbatches - 1) * (whole_s - one_s)
    return result
