"""Tables of a shape: times of passes, and times of gradient synchronisation. A configuration combines a row of either.

Configurations of one shape have the same numbers of stages and chunks and the same schedule. Arrays have rows last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.closed_forms import CLOSED, StageTimes, suffix_max, suffix_sum
from scaleproof.simulator.analysis.planner.estimate.configurations import Configurations
from scaleproof.simulator.analysis.planner.estimate.factorize import Numbers, taken
from scaleproof.simulator.analysis.planner.estimate.gradient_sync import SyncTimes
from scaleproof.simulator.analysis.planner.estimate.layer_times import LayerPassTimes, StageCut
from scaleproof.simulator.analysis.planner.estimate.pipeline_times import pass_windows, stages_of
from scaleproof.simulator.analysis.planner.estimate.transfer_times import StageMessages
from scaleproof.simulator.cluster.collectives.groups import Op
from scaleproof.simulator.parallelism.stages import WHOLE, ScheduleName
from scaleproof.simulator.strategy.data_parallel.contention import (
    MEMORY_BYTES_PER_BUS_BYTE,
    ContendedResources,
    joules_per_bus_byte,
)
from scaleproof.simulator.strategy.job import Job

Times = NDArray[np.float64]
# Stages, chunks, and the index of a schedule.
ShapeKey = tuple[int, int, int]


class _Sum(NamedTuple):
    """A sum of gradients for one stage of a rank. kind: of the stage; before: how many stages of each kind the rank sums after
    it."""

    chunk: int
    kind: int
    before: Numbers


class ConfigurationShape:
    """A shape with the rows of both of its tables, of passes and of gradient synchronisation.

    codes: of each row of the first table, its layer times, its placement and its traffic between stages. own_stages,
    stage_counts: of each of `ranks`, its stages, and how many of each kind. timed_ranks: the ranks whose passes are timed;
    equivalent_ranks: for each of `ranks`, the indices among them of those that have equal stages, of which each may be the
    slowest.
    """

    def __init__(
        self,
        key: ShapeKey,
        pass_rows: Configurations,
        sync_rows: Configurations,
        codes: Numbers,
        cut: StageCut,
        messages: StageMessages,
    ) -> None:
        self.pass_rows, self.sync_rows, self.cut = pass_rows, sync_rows, cut
        self.pass_code, self.placement_code, self.traffic_code = codes
        self.stages, self.chunks, schedule = key
        self.kept = pass_rows.space.kept_over(self.stages)
        # whether the parameters gathered before a stage's first pass are kept for the whole step
        self.keeps = self.stages > 1 and not self.kept.get("reshard", True)
        self.is_uniform = pass_rows.space.scenario.cluster.is_uniform
        self.framework = framework = pass_rows.space.scenario.framework
        self.sums_whole_in_zero_1, self.waits_for_scatters = framework.zero_1.sums_whole, framework.waits_for_scatters
        self.schedule: ScheduleName = pass_rows.space.schedules[schedule] if self.stages > 1 else "1f1b"
        self.splits = self.schedule not in WHOLE
        stage_of = stages_of(self.schedule, self.stages, self.chunks)
        kinds = [tuple(row) for row in cut.kind_of[stage_of].tolist()]
        # of ranks with equal stages, the first has the longest way to the last rank and back
        self.ranks = sorted({*(kinds.index(kind) for kind in kinds), self.stages - 1})
        self.timed_ranks, self.equivalent_ranks = self.ranks, [[at] for at in range(len(self.ranks))]
        if self.schedule not in CLOSED:
            # the last has the least work left to hide its sums
            self.ranks = sorted({*self.ranks, *(self.stages - 1 - kinds[::-1].index(kind) for kind in kinds)})
            self.timed_ranks = list(range(self.stages))
            self.equivalent_ranks = [[i for i, kind in enumerate(kinds) if kind == kinds[rank]] for rank in self.ranks]
        self.own_stages = stage_of[self.ranks]
        counts = [np.bincount(cut.kind_of[own_stages], minlength=len(cut.kinds)) for own_stages in self.own_stages]
        self.stage_counts = np.array(counts)
        rank_of = np.argsort(stage_of, axis=None) // self.chunks
        self.routes = np.zeros((int(self.placement_code.max()) + 1, cut.count - 1), dtype=np.int64)
        for place in np.flatnonzero(np.bincount(self.placement_code)).tolist():
            self.routes[place] = messages.request(place, rank_of)
        self.crosses = rank_of[:-1] != rank_of[1:]
        self._messages = messages

    @property
    def leaves_node(self) -> NDArray[np.bool_]:
        """Whether the message after each stage but the last goes to another node, shape (stages - 1, rows)."""
        routes = taken(self.routes.T, self.placement_code, axis=1)
        result: NDArray[np.bool_] = self.crosses[:, None] & self._messages.leaves_node[routes]
        return result

    def sums(self, rank: int, include_all: bool) -> Iterator[_Sum]:
        """Sums that may be a rank's last, in addition to that of its first stage. rank: index in `ranks`.

        Of consecutive stages of one kind these are the first and the last, as the end times between them are linear, unless
        `include_all`.
        """
        kinds = self.cut.kind_of[self.own_stages[rank]].tolist()
        for i in range(1, len(kinds)):
            if include_all or i == len(kinds) - 1 or not kinds[i - 1] == kinds[i] == kinds[i + 1]:
                yield _Sum(i, kinds[i], np.bincount(kinds[:i], minlength=len(self.cut.kinds)))

    @property
    def kind_layers(self) -> list[range]:
        """Layers of a stage of each kind."""
        return [self.cut.ranges[kind] for kind in self.cut.kinds]

    def sum_whole(self, zero: Numbers) -> NDArray[np.bool_]:
        """Whether ranks sum whole gradients after the backward pass, as `Job.sums_whole`, by stage of ZeRO."""
        result: NDArray[np.bool_] = (zero == 1) & self.sums_whole_in_zero_1
        return result


class PassTable:
    """Times of passes.

    kinds_s: forward and backward pass over a stage of each kind, shape (2, kinds, rows). window_s, least_s: seconds of all
    passes of each of the shape's ranks, expected and at least; left_s: from the last gradients of each stage to the end of the
    rank's last pass; simulated: whether any row was simulated pass by pass. begins: index of each row's first element in
    `backward_s`, the running sums over layers. within_s: collectives within passes, by links, shape (levels, 2, 2, kinds,
    rows); None where there are none.
    """

    def __init__(
        self, shape: ConfigurationShape, passes: LayerPassTimes, sent_s: Times, size_of: Numbers, message_s: Times
    ) -> None:
        """sent_s: messages by route and size. size_of: index of the size of the message after each layer, by key of passes.
        message_s: of `StageTraffic`, by code."""
        self.shape, cut = shape, shape.cut
        both = [cut.sums(running, cut.kinds).T for running in (passes.forward_s, passes.backward_s)]
        self.kinds_s = taken(np.array(both), shape.pass_code, axis=2)
        within_s = cut.sums(passes.within_s, cut.kinds)
        self.within_s = taken(np.moveaxis(within_s, 0, -1), shape.pass_code, axis=4) if within_s.any() else None
        self.microbatches = shape.pass_rows.microbatches
        self.bound = passes.bound[shape.pass_code]
        self.backward_s = passes.backward_s.ravel()
        self.begins = shape.pass_code * passes.backward_s.shape[1]
        self._passes = passes
        self.stages = self._stages(sent_s, size_of)
        self.per_round = self.stages.per_round
        windows = pass_windows(shape.schedule, shape.timed_ranks, self.stages)
        least_s, shared = windows.least_s, self._sharing(message_s)
        if (shared.send_s > self.stages.send_s).any():
            windows = pass_windows(shape.schedule, shape.timed_ranks, shared)
        self.window_s = np.array([windows.window_s[ranks].max(axis=0) for ranks in shape.equivalent_ranks])
        index = [shape.timed_ranks.index(rank) for rank in shape.ranks]
        self.least_s, self.left_s = least_s[index], windows.left_s[index]
        self.simulated = bool(windows.simulated.any())
        # stages below the first trained layer do not wait for gradients, so that only the ranks' own work is sure
        self.waits = shape.stages == 1 or all(layer.has_backward for layer in passes.jobs[0].layers)
        if not self.waits:
            self.least_s = self.microbatches * (shape.stage_counts @ self.kinds_s.sum(axis=0))

    def _stages(self, sent_s: Times, size_of: Numbers) -> StageTimes:
        shape, passes, code, cut = self.shape, self._passes, self.shape.pass_code, self.shape.cut
        forward_s, backward_s = self.kinds_s[:, cut.kind_of]
        send_s, lasts = np.zeros_like(forward_s), cut.stops[:-1] - 1
        if cut.count > 1:
            sends_s = sent_s[taken(shape.routes.T, shape.placement_code, axis=1), taken(size_of.T[lasts], code, axis=1)]
            send_s[:-1] = shape.crosses[:, None] * (sends_s + taken(passes.joining_s.T[lasts], code, axis=1))
        weights_s = cut.sums(passes.weights_s)[code].T if shape.splits else 0.0
        overlap = bool(shape.kept.get("overlap_sends", False))
        stages = StageTimes(forward_s, backward_s, send_s, self.microbatches, shape.stages, overlap, weights_s)
        return stages if shape.stages == 1 else self._with_host(stages)

    def _sharing(self, message_s: Times) -> StageTimes:
        """Times of stages with messages between nodes that share links with those of all other ranks."""
        shape, lasts = self.shape, self.shape.cut.stops[:-1] - 1
        sent_bytes = taken(self._passes.sent_bytes.T[lasts], shape.pass_code, axis=1)
        send_s = self.stages.send_s.copy()
        shared_s = message_s[shape.traffic_code] * sent_bytes
        np.maximum(send_s[:-1], shape.leaves_node * shared_s, out=send_s[:-1])
        return replace(self.stages, send_s=send_s)

    def _with_host(self, stages: StageTimes) -> StageTimes:
        """Times of stages with those of the host, as in programs."""
        framework = self.shape.framework
        host, scale = framework.host.stage, framework.host_scale
        forward_s, backward_s = stages.forward_s + scale * host.forward_s, stages.backward_s + scale * host.backward_s
        forward_s[-1] += scale * host.loss_s
        if not self.shape.splits:
            return replace(stages, forward_s=forward_s, backward_s=backward_s)
        divided_s = np.full_like(backward_s, scale * (host.inputs_s + host.weights_s - host.backward_s))
        weights_s = stages.weights_s + np.full_like(backward_s, scale * host.weights_s)
        divided_s[0], weights_s[0] = 0.0, weights_s[0] + scale * (host.backward_s - host.weights_s)
        return replace(stages, forward_s=forward_s, backward_s=backward_s + divided_s, weights_s=weights_s, divided_s=divided_s)

    @property
    def parts(self) -> Times:
        """Share of each layer in the parameters that forward passes gather, that backward passes gather, and whose gradients
        are summed, shape (3, layers)."""
        layers = self._passes.jobs[0].layers
        gathered = np.array([layer.parameters for layer in layers], dtype=np.float64)
        trained = np.array([layer.trained_parameters for layer in layers], dtype=np.float64)
        again = gathered * [layer.has_backward for layer in layers]
        return np.array([gathered / gathered.sum(), again / again.sum(), trained / trained.sum()])

    @cached_property
    def layers_s(self) -> Times:
        """Seconds of forward and backward pass over each layer, shape (2, layers, rows)."""
        running_s = self._passes.forward_s, self._passes.backward_s
        return np.array([np.diff(one[self.shape.pass_code], axis=1).T for one in running_s])

    @cached_property
    def until_back_s(self) -> Times:
        """Seconds until the first backward pass of each rank begins: a microbatch's way to the last stage and back, or all
        forward passes before it if these take longer."""
        stages, schedule, own = self.stages, self.shape.schedule, self.shape.own_stages
        first, last, received_s = own[:, 0], own[:, -1], stages.received[0]
        if not self.waits:
            return np.zeros((len(own), len(self.microbatches)))
        way_s = suffix_sum(stages.forward_s + stages.send_s)[first]
        way_s += suffix_sum(stages.inputs_s + stages.send_s)[last] - stages.inputs_s[last]
        if schedule not in CLOSED:
            all_s = stages.microbatches * received_s[own].sum(axis=1)
            longest_s: Times = np.maximum(way_s, all_s * (schedule == "looped_bfs"))
            return longest_s
        forwards_s: Times = stages.per_round * received_s[own[:, :-1]].sum(axis=1) + received_s[last]
        if schedule == "gpipe" and stages.ranks > 1:
            forwards_s = way_s + (stages.microbatches - 1) * suffix_max(received_s)[first]
        result: Times = np.maximum(way_s, forwards_s)
        return result


class SyncTable:
    """Times of gradient synchronisation, of a stage of each kind, shape (kinds, rows).

    sums_s: all sums of a pass, last_s: the last of them. gathers_s, again_s: gathers before a forward and before a backward
    pass, opening_s: the first of a forward pass; after_s: gathers after the step. begin, stop: layers of the unit whose
    gradients are complete first. optimizer_s: shape (ranks, rows).
    """

    def __init__(
        self, shape: ConfigurationShape, passes: LayerPassTimes, sync_times: SyncTimes, shares_links: bool = False
    ) -> None:
        """shares_links: whether the groups of all stages share links."""
        c, kinds = shape.sync_rows, np.arange(len(shape.cut.kinds))[:, None]
        found = sync_times.by_field[:, sync_times.place + kinds] * (sync_times.sharing if shares_links else 1.0)
        self.sums_s, self.last_s = np.where((c.zero > 0) & ~shape.sum_whole(c.zero), found[2:4], found[:2])
        self.gathers_s, self.again_s, self.opening_s, self.after_s = found[4:]
        # parameters that are not freed after the forward pass are not gathered again
        self.again_s = self.again_s * bool(shape.kept.get("reshard", True))
        self.begin, self.stop = sync_times.layers[:, sync_times.own + kinds]
        self.copied_s, self.level = sync_times.copied_s, sync_times.level
        parameters = sync_times.parameters[:, sync_times.own + kinds]
        replicas, experts = shape.stage_counts @ parameters[0], shape.stage_counts @ parameters[1]
        shared = c.zero > 0
        updated = replicas / np.where(shared, c.workers * c.context, 1)
        updated += experts / np.where(shared, _expert_replicas(c), 1)
        job = passes.jobs[0]
        tensors: Times = shape.stage_counts @ np.array(
            [sum(len(job.layers[i].tensors) for i in one) for one in shape.kind_layers]
        )
        ranks: Times = np.asarray(c.workers * c.context, dtype=np.float64)
        self.optimizer_s = job.optimizer_s(updated) + job.gradient_host_s(tensors[:, None], ranks)
        self.optimizer_s += np.where(c.zero == 1, replace(job, zero=1).broadcasts_s(tensors[:, None], ranks), 0.0)
        if shape.stages == 1:
            nodes = -(-c.workers * c.context * c.tensor // job.cluster.node.devices)
            self.optimizer_s += np.where(ranks > 1, job.framework.step_stall_s(nodes), 0.0)
        self._contend(shape, job, parameters.sum(axis=0))

    def _contend(self, shape: ConfigurationShape, job: Job, parameters: Times) -> None:
        """Sets what collectives take from overlapping passes. parameters: by kind and row.

        next_to_s, moved_bytes, moved_J: seconds of collectives during the forward and the backward passes over a stage of each
        kind, and memory traffic and energy of them: of each microbatch from ZeRO's stage 2 on, else of a step.
        """
        c, kept = shape.sync_rows, shape.kept
        size, gradient_size = job.gathered_bytes, job.reduced_bytes
        sums = ((c.zero >= 2) | (bool(kept.get("overlap", False)) & ~shape.sum_whole(c.zero))).astype(np.float64)
        # gathers once a step are neglected
        gathers = (c.zero == 3) * (0.0 if shape.keeps else 1.0)
        step = (c.zero == 1) * float(bool(kept.get("overlap_gather", False)))
        forward_s = gathers * self.gathers_s + step * self.after_s
        self.next_to_s = np.array([forward_s, sums * self.sums_s + gathers * self.again_s])
        self.resources = ContendedResources.of(job)
        if self.resources is None:
            return
        ranks = c.workers * c.context
        scatters = (c.zero > 1) | ((c.zero == 1) & (not job.framework.zero_1.owns_tensors))

        def moved(per_bus_byte: Mapping[Op, float]) -> Times:
            """Amount of all collectives, by the amount for each byte on the bus."""
            by_sum = np.where(scatters, per_bus_byte["reduce_scatter"], 2 * per_bus_byte["all_reduce"])
            by_gather = per_bus_byte["all_gather"] * size * (gathers * (1 + bool(kept.get("reshard", True))) + step)
            result: Times = parameters * (ranks - 1) / ranks * (sums * by_sum * gradient_size + by_gather)
            return result

        joules: dict[Op, float] = {op: joules_per_bus_byte(moves) for op, moves in MEMORY_BYTES_PER_BUS_BYTE.items()}
        self.moved_bytes, self.moved_J = moved(MEMORY_BYTES_PER_BUS_BYTE), moved(joules)


def _expert_replicas(c: Configurations) -> Numbers:
    """Number of ranks with the same experts, as in `Plan.expert_replicas`."""
    among_workers = np.maximum(1, c.workers // c.expert) * c.context
    folds = np.maximum(1, c.tensor // np.maximum(1, c.expert_tensor))
    folded: Numbers = np.maximum(1, c.workers * c.context * folds // c.expert)
    return np.where(c.expert_tensor > 0, folded, among_workers)
