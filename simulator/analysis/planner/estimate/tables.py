"""Tables of a shape: times of passes, and times of gradient synchronisation. A configuration combines a row of either."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.communication.gradient_sync import SyncTimes
from scaleproof.simulator.analysis.planner.estimate.configurations import Configurations
from scaleproof.simulator.analysis.planner.estimate.factorize import Numbers, taken
from scaleproof.simulator.analysis.planner.estimate.layer_times import LayerPassTimes
from scaleproof.simulator.analysis.planner.estimate.pipeline.closed_forms import (
    CLOSED,
    StageTimes,
    per_round,
    received,
    suffix_max,
)
from scaleproof.simulator.analysis.planner.estimate.pipeline.expected_time import PassWindows
from scaleproof.simulator.analysis.planner.estimate.shapes import ConfigurationShape
from scaleproof.simulator.cluster.collectives.algorithms import Op
from scaleproof.simulator.strategy.data_parallel.contention import MEMORY_BYTES_PER_BUS_BYTE, Resources
from scaleproof.simulator.strategy.data_parallel.power import joules_per_bus_byte
from scaleproof.simulator.strategy.job import Job

Times = NDArray[np.float64]


class PassTable:
    """Times of passes.

    kinds_s: forward and backward pass over a stage of each kind, shape (2, kinds, rows). expected: times of all passes of a
    step. begins: index of each row's first element in `backward_s`, the running sums over layers.
    """

    def __init__(self, shape: ConfigurationShape, passes: LayerPassTimes, seconds: Times, size_of: Numbers) -> None:
        cut, self._own_stages, self._schedule = shape.cut, shape.own_stages, shape.schedule
        begins, stops = cut.begins[cut.kinds], cut.stops[cut.kinds]
        both = [(running[:, stops] - running[:, begins]).T for running in (passes.forward_s, passes.backward_s)]
        self.kinds_s = taken(np.array(both), shape.pass_code, axis=2)
        self.microbatches = shape.pass_rows.microbatches
        self.bound = passes.bound[shape.pass_code]
        self.backward_s = passes.backward_s.ravel()
        self.begins = shape.pass_code * passes.backward_s.shape[1]
        self._running_s = passes.forward_s, passes.backward_s
        self._code = shape.pass_code
        self._layers = passes.jobs[0].layers
        self.stages = self._stages(shape, passes, seconds, size_of)
        self.per_round = per_round(self.stages)
        self.expected = PassWindows.of(shape.schedule, shape.stage_of, shape.timed_ranks, self.stages)
        self._timed_index, self._equivalent_ranks = shape.timed_index, shape.equivalent_ranks

    def _stages(self, shape: ConfigurationShape, passes: LayerPassTimes, seconds: Times, size_of: Numbers) -> StageTimes:
        equivalence, code, cut = shape.equivalent_stages(passes.sent_class), shape.pass_code, shape.cut
        first = equivalence.first
        forward_s, backward_s = self.kinds_s[:, cut.kind_of[first]]
        send_s, inner = np.zeros_like(forward_s), np.flatnonzero(first < cut.count - 1)
        if len(inner):
            at, lasts = first[inner], cut.stops[first[inner]] - 1
            sends_s = seconds[taken(shape.routes.T[at], shape.placement_code, axis=1), taken(size_of.T[lasts], code, axis=1)]
            send_s[inner] = shape.crosses[at, None] * (sends_s + taken(passes.joining_s.T[lasts], code, axis=1))
        # nothing is sent after the last stage, so its row stands for the absent message before the first
        receive_s = send_s[equivalence.representative[first - 1]]
        overlap = bool(shape.kept.get("overlap_sends", False))
        weights_s: Times | float = 0.0
        if shape.splits:
            weights_s = passes.weights_s[code, cut.stops[first, None]] - passes.weights_s[code, cut.begins[first, None]]
        return StageTimes(forward_s, backward_s, receive_s, send_s, self.microbatches, equivalence, overlap, weights_s)

    @cached_property
    def least_s(self) -> Times:
        """Least seconds of the passes of each of the shape's ranks. `follow` must have run."""
        return self.expected.least_s[self._timed_index]

    @cached_property
    def window_s(self) -> Times:
        """Expected seconds of the passes of each of the shape's ranks. `follow` must have run."""
        return np.array([self.expected.window_s[ranks].max(axis=0) for ranks in self._equivalent_ranks])

    @cached_property
    def left_s(self) -> Times:
        """Seconds from the last gradients of each stage of each of the shape's ranks to the end of the rank's last pass."""
        assert self.expected.left_s is not None
        return self.expected.left_s[self._timed_index]

    @property
    def parts(self) -> Times:
        """Share of all parameters, by layer."""
        parameters = np.array([layer.parameters for layer in self._layers], dtype=np.float64)
        result: Times = parameters / parameters.sum()
        return result

    @cached_property
    def layers_s(self) -> Times:
        """Seconds of forward and backward pass over each layer, shape (2, layers, rows)."""
        return np.array([np.diff(running[self._code], axis=1).T for running in self._running_s])

    @cached_property
    def until_back_s(self) -> Times:
        """Seconds until the first backward pass of each rank begins: a microbatch's way to the last stage and back, or all
        forward passes before it if these take longer."""
        stages, equivalence, own_stages = self.stages, self.stages.equivalence, self._own_stages
        count, first, last, received_s = len(equivalence), own_stages[:, 0], own_stages[:, -1], received(stages)[0]
        way_s = equivalence.between(first, count) @ (stages.forward_s + stages.send_s)
        way_s += (
            equivalence.between(last, count) @ (stages.inputs_s + stages.send_s)
            - stages.inputs_s[equivalence.representative[last]]
        )
        if self._schedule not in CLOSED:
            all_s = stages.microbatches * (equivalence.between(own_stages, own_stages + 1).sum(axis=1) @ received_s)
            longest_s: Times = np.maximum(way_s, all_s * (self._schedule == "looped_bfs"))
            return longest_s
        own = equivalence.between(own_stages[:, :-1], own_stages[:, :-1] + 1).sum(axis=1)
        forwards_s: Times = self.per_round * (own @ received_s) + received_s[equivalence.representative[last]]
        if self._schedule == "gpipe" and stages.ranks > 1:
            slowest_s = suffix_max(received_s[equivalence.representative])
            forwards_s = way_s + (stages.microbatches - 1) * slowest_s[first]
        result: Times = np.maximum(way_s, forwards_s)
        return result


class SyncTable:
    """Times of gradient synchronisation, of a stage of each kind, shape (kinds, rows).

    sums_s: all sums of a pass, last_s: the last of them. gathers_s: gathers before a pass, opening_s: the first of them;
    after_s: gathers after the step. begin, stop: layers of the unit whose gradients are complete first. optimizer_s: shape
    (ranks, rows).
    """

    def __init__(self, shape: ConfigurationShape, passes: LayerPassTimes, sync_times: SyncTimes) -> None:
        c, kinds = shape.sync_rows, np.arange(len(shape.cut.kinds))[:, None]
        found = sync_times.by_field[:, sync_times.place + kinds]
        self.sums_s, self.last_s = np.where(c.zero > 0, found[2:4], found[:2])
        self.gathers_s, self.opening_s, self.after_s = found[4:]
        self.begin, self.stop = sync_times.layers[:, sync_times.own + kinds]
        self.copied_s = sync_times.copied_s
        parameters = sync_times.parameters[:, sync_times.own + kinds]
        replicas, experts = shape.stage_counts @ parameters[0], shape.stage_counts @ parameters[1]
        shared = c.zero > 0
        updated = replicas / np.where(shared, c.workers * c.context, 1)
        updated += experts / np.where(shared, _expert_replicas(c), 1)
        job = passes.jobs[0]
        self.optimizer_s = job.optimizer_s(updated)
        self._contend(shape, job, parameters.sum(axis=0))

    def _contend(self, shape: ConfigurationShape, job: Job, parameters: Times) -> None:
        """Sets what collectives take from overlapping passes. parameters: by kind and row.

        moved_s, moved_bytes, moved_J: seconds of collectives during the passes over a stage of each kind, and memory traffic
        and energy of them: of each microbatch from ZeRO's stage 2 on, else of a step.
        """
        c, kept = shape.sync_rows, shape.kept
        self.resources = Resources.of(job)
        if self.resources is None:
            return
        size, gradient_size = job.gathered_bytes, job.reduced_bytes
        sums = ((c.zero >= 2) | bool(kept.get("overlap", False))).astype(np.float64)
        # gathers once a step are neglected
        gathers = (c.zero == 3) * (0.0 if shape.keeps else 1.0 + bool(kept.get("reshard", True)))
        step = (c.zero == 1) * float(bool(kept.get("overlap_gather", False)))
        self.moved_s = sums * self.sums_s + gathers * self.gathers_s + step * self.after_s
        ranks = c.workers * c.context

        def moved(per_bus_byte: Mapping[Op, float]) -> Times:
            """Amount of all collectives, by the amount for each byte on the bus."""
            by_sum = np.where(c.zero > 0, per_bus_byte["reduce_scatter"], 2 * per_bus_byte["all_reduce"])
            by_gather = per_bus_byte["all_gather"] * size
            result: Times = parameters * (ranks - 1) / ranks * (sums * by_sum * gradient_size + (gathers + step) * by_gather)
            return result

        joules: dict[Op, float] = {op: joules_per_bus_byte(moves) for op, moves in MEMORY_BYTES_PER_BUS_BYTE.items()}
        self.moved_bytes, self.moved_J = moved(MEMORY_BYTES_PER_BUS_BYTE), moved(joules)


def _expert_replicas(c: Configurations) -> Numbers:
    """Number of ranks with the same experts, as in `Plan.expert_replicas`."""
    among_workers = np.maximum(1, c.workers // c.expert) * c.context
    folds = np.maximum(1, c.tensor // np.maximum(1, c.expert_tensor))
    folded: Numbers = np.maximum(1, c.workers * c.context * folds // c.expert)
    return np.where(c.expert_tensor > 0, folded, among_workers)
