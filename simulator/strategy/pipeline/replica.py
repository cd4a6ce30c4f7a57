"""A replica: the schedule of its ranks in a step, as arrays of passes or pieces of passes, and their tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.communication import UNKNOWN
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.frameworks import Framework
from scaleproof.simulator.parallelism.mesh import DeviceMesh, RankClass
from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.simulator.program import Rows
from scaleproof.simulator.strategy.data_parallel.buckets import RankLayers, SyncUnit
from scaleproof.simulator.strategy.data_parallel.data_loading import FIRST_SLOT
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.pipeline.schedules import Pass, PassTimes, order
from scaleproof.simulator.strategy.step_builder import JobCosts, StepBuilder

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]

# Slots from a task to the next of its rank; those between are for messages, gathers and sums.
SLOTS: Final = 4
# Kinds of tasks without a pass: the begin of a step, and the turn from forward to backward.
BEGIN: Final = -1
TURN: Final = -2
# Passes that compute gradients of inputs.
BACKWARD: Final = (Pass.BACKWARD, Pass.INPUT)
# Phases of the kinds of pass, then of TURN and BEGIN, whose negative values index from the end.
_PHASES: Final = np.array([Phase.FORWARD, Phase.BACKWARD, Phase.BACKWARD, Phase.BACKWARD, Phase.SEND, Phase.WAIT])


class RankSchedule(NamedTuple):
    """Tasks of the main streams, rank by rank in order; arrays of shape (tasks,).

    rank: pipeline rank. kind: Pass, or BEGIN or TURN for tasks that only wait. stage: of the model. begin, end: indices of the
    first layer that is passed, and of the first one that is not. cut: whether the task is a piece of a divided pass. first,
    last: whether it is the first or the last piece of its pass. slot: scheduling hint.
    """

    rank: Numbers
    kind: Numbers
    stage: Numbers
    microbatch: Numbers
    begin: Numbers
    end: Numbers
    cut: Flags
    first: Flags
    last: Flags
    slot: Numbers

    def table(self, at: Flags, shape: tuple[int, int], *kinds: Pass) -> Numbers:
        """Row of the task that begins or ends (`at`: `first` or `last`) each stage's pass over each microbatch, of these kinds
        of pass. shape: (stages, microbatches)."""
        tasks = np.flatnonzero(np.isin(self.kind, kinds) & at)
        result = np.full(shape, -1)
        result[self.stage[tasks], self.microbatch[tasks]] = tasks
        return result


def rank_schedule(plan: Plan, cuts: Sequence[Sequence[range]], cuts_all_passes: bool, times: PassTimes) -> RankSchedule:
    """The tasks of a plan's ranks in the order of its schedule.

    cuts: for each stage of the model, the ranges of layers in forward order into which passes are divided: all passes if
    `cuts_all_passes`; otherwise the last backward pass, which completes gradients, and the first forward pass if parameters are
    gathered during it. Each rank begins with a task at which the step begins and the first receive is posted.
    """
    passes = order(plan.schedule, plan.stages, plan.microbatches, plan.chunks, times)
    rank, column = np.nonzero(passes.slot >= 0)
    kind, chunk, microbatch, slot = (values[rank, column] for values in passes)
    stage = np.array(plan.stage_of)[rank, chunk]
    cut = kind != Pass.WEIGHT if cuts_all_passes else _completes(kind, stage)
    if plan.overlap_gather:
        cut[np.unique(stage, return_index=True)[1]] = True
    pieces = np.array([len(ranges) for ranges in cuts])
    counts = np.where(cut, pieces[stage], 1)
    pass_of = np.repeat(np.arange(len(kind)), counts)
    piece = np.arange(len(pass_of)) - np.repeat(np.cumsum(counts) - counts, counts)
    # a backward pass begins with the last layers
    number = np.where(kind[pass_of] == Pass.FORWARD, piece, counts[pass_of] - 1 - piece)
    begins, ends = np.array([(layers.start, layers.stop) for ranges in cuts for layers in ranges]).T
    # the first and the last range that a task passes, among those of all stages
    first = (np.cumsum(pieces) - pieces)[stage][pass_of] + number
    last = np.where(cut[pass_of], first, first + pieces[stage][pass_of] - 1)
    result = RankSchedule(
        rank=rank[pass_of],
        kind=kind[pass_of],
        stage=stage[pass_of],
        microbatch=microbatch[pass_of],
        begin=begins[first],
        end=ends[last],
        cut=cut[pass_of],
        first=piece == 0,
        last=piece == counts[pass_of] - 1,
        slot=FIRST_SLOT + SLOTS * (1 + slot[pass_of] * counts.max() + piece),
    )
    if plan.schedule == "gpipe" and plan.stages > 1:
        # at the turn from forward to backward a rank waits for its sends
        turns = np.flatnonzero((result.kind[:-1] == Pass.FORWARD) & (result.kind[1:] != Pass.FORWARD)) + 1
        result = _with_waits(result, turns, TURN, result.slot[turns - 1] + SLOTS // 2)
    return _with_waits(result, np.searchsorted(result.rank, np.arange(plan.stages)), BEGIN, FIRST_SLOT)


def _completes(kind: Numbers, stage: Numbers) -> Flags:
    """Whether a pass is the last one that computes weight gradients of a stage, and computes them together with input
    gradients."""
    gradient_passes = np.flatnonzero((kind == Pass.BACKWARD) | (kind == Pass.WEIGHT))
    latest = np.full(stage.max() + 1, -1)
    np.maximum.at(latest, stage[gradient_passes], gradient_passes)
    result = np.zeros(len(kind), dtype=np.bool_)
    result[latest] = kind[latest] == Pass.BACKWARD
    return result


def _with_waits(tasks: RankSchedule, before: Numbers, kind: int, slot: Any) -> RankSchedule:
    """Inserts tasks that only wait in front of the tasks `before`."""
    blank = {"kind": kind, "stage": -1, "microbatch": -1} | dict.fromkeys(("begin", "end"), 0)
    values = {**blank, "rank": tasks.rank[before], "cut": False, "first": False, "last": False, "slot": slot}
    return RankSchedule(**{name: np.insert(column, before, values[name]) for name, column in tasks._asdict().items()})


@dataclass(frozen=True, eq=False)
class CompileContext:
    """Objects that the compilation of all replicas of a program shares.

    job: of any replica, with the collectives of the plan. ranges, units: layers, and units of gradient synchronisation, of each
    stage of the model.
    """

    plan: Plan
    job: Job
    ranges: Sequence[range]
    schedule: RankSchedule
    rank_layers: RankLayers
    units: Sequence[Sequence[SyncUnit]]

    @cached_property
    def unit_of(self) -> Mapping[int, SyncUnit]:
        """The unit of gradient synchronisation that begins with a layer."""
        return {unit.layers.start: unit for stage in self.units for unit in stage}

    @cached_property
    def mesh(self) -> DeviceMesh:
        """The ranks on nodes of the cluster."""
        return self.plan.grid_on(self.job.cluster)

    @cached_property
    def has_backward(self) -> Flags:
        """Whether each stage of the model, or one before it, has gradients to compute, shape (stages,)."""
        return np.array([self.rank_layers.has_backward(range(layers.stop)) for layers in self.ranges])

    @cached_property
    def builder(self) -> StepBuilder:
        """Collects the tasks of all replicas."""
        return StepBuilder(self.job)


class Replica:
    """Adds a class of equivalent workers to a program, without the messages between their stages.

    samples: per step, of one worker. ranks: rank classes by pipeline rank. rows: row in the program of each task of the
    schedule. sends: row of the message that each task sends, −1 for none. last_rows: by pipeline rank, the row that ends its
    passes.
    """

    def __init__(self, context: CompileContext, workers: RankClass) -> None:
        self.context, self.workers = context, workers
        self.samples = context.plan.samples_of(workers.rank, context.job.samples_per_worker)
        plan, stages = context.plan, range(context.plan.stages)
        self.places = [context.mesh.place(workers.rank, stage) for stage in stages]
        self.kinds = [context.job.cluster.kind_of(node) for node, _ in self.places]
        self.ranks = [self._add_rank(stage) for stage in stages]
        node, _ = self.places[0]
        context.builder.load(self.ranks[0], node, workers.each, workers.ranks, self.samples)
        self.rows: Rows = self._add_tasks()
        self.sends: Rows = np.full(len(self.rows), -1)
        last = context.builder.wait(np.array(self.ranks), Phase.SEND, [], stages if plan.stages > 1 else -1)
        self.last_rows: list[int] = last.tolist()

    @cached_property
    def concurrent_senders(self) -> int:
        """Number of ranks of a stage that are on the same node and send concurrently."""
        return self.workers.each * self.context.mesh.on_first_node(self.context.mesh.members(self.workers.rank, 0))

    @property
    def on_node(self) -> int:
        """Number of ranks of a stage and of this class that are on the same node."""
        return min(self.concurrent_senders, self.context.mesh.devices)

    def _add_rank(self, stage: int) -> int:
        """Adds the ranks of a stage. They are named '16 workers', 'stage 0 (16 workers)', or after the first worker if workers
        are not all equivalent."""
        plan, workers, mesh = self.context.plan, self.workers, self.context.mesh
        name = workers.name()
        if plan.stages > 1:
            first = f"worker {workers.rank} " if workers.ranks < plan.workers else ""
            name = f"{first}stage {stage}" + (f" ({name})" if workers.ranks > 1 else "")
        if self.context.job.cluster.kinds:
            name = f"{name} ({self.context.job.cluster.with_device_of(self.kinds[stage]).device.name})"
        members = mesh.members(workers.rank, stage)
        return self.context.builder.add_rank(
            name, members[0], self.places[stage][0], self.on_node, workers.ranks * len(members), members=members
        )

    def _add_tasks(self) -> Rows:
        """Adds the passes of every stage in order; returns their rows."""
        schedule, context = self.context.schedule, self.context
        exchanges = (schedule.kind >= 0) & (schedule.kind != Pass.WEIGHT)
        return context.builder.compute(
            np.array(self.ranks)[schedule.rank], _PHASES[schedule.kind], self._times_s,
            stage=schedule.stage if context.plan.stages > 1 else -1,
            microbatch=schedule.microbatch, slot=schedule.slot, first_layer=np.where(exchanges, schedule.begin, UNKNOWN),
            last_layer=np.where(exchanges, schedule.end - 1, UNKNOWN),
        )  # fmt: skip

    def _times_s(self, job_costs: JobCosts) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Compute seconds of each task of the schedule, and exposed seconds of collectives within it."""
        work_s, exchange_s = self._times_on(self.kinds[0], job_costs)
        kinds = np.array(self.kinds)[self.context.schedule.rank]
        for kind in set(self.kinds[1:]) - {self.kinds[0]}:
            other_work_s, other_exchange_s = self._times_on(kind, job_costs)
            work_s = np.where(kinds == kind, other_work_s, work_s)
            exchange_s = np.where(kinds == kind, other_exchange_s, exchange_s)
        return work_s, exchange_s

    def _times_on(self, kind: int, job_costs: JobCosts) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The times of all tasks on one kind of nodes."""
        schedule = self.context.schedule
        costs = job_costs.layers(self.samples, kind)
        forward, weight = schedule.kind == Pass.FORWARD, schedule.kind == Pass.WEIGHT
        work_s = np.where(forward, _over(costs.forward_s, schedule), _over(costs.backward_s, schedule))
        first, last = schedule.microbatch == 0, schedule.microbatch == self.context.plan.microbatches - 1
        work_s += np.where(forward & first, _over(costs.first_forward_s, schedule), 0.0)
        work_s += np.where(np.isin(schedule.kind, BACKWARD) & last, _over(costs.last_backward_s, schedule), 0.0)
        exchange_s = np.where(forward, _over(costs.forward_exchange_s, schedule), _over(costs.backward_exchange_s, schedule))
        if weight.any():
            weights_s = _over(job_costs.job_with(self.samples, kind).weights_s(self.context.plan.microbatches), schedule)
            work_s = np.where(weight, weights_s, np.where(schedule.kind == Pass.INPUT, work_s - weights_s, work_s))
            exchange_s[weight] = 0.0
        makes_gradients = np.isin(schedule.kind, (Pass.BACKWARD, Pass.WEIGHT))
        work_s += np.where(makes_gradients & first, _over(costs.made_s, schedule), 0.0)
        work_s += np.where(makes_gradients & last, _over(costs.bucketed_s, schedule), 0.0)
        waits = schedule.kind < 0
        work_s[waits] = exchange_s[waits] = 0.0
        if self.context.plan.stages > 1:
            work_s += self._stage_host_s(job_costs.job.framework)
        return work_s, exchange_s

    def _stage_host_s(self, framework: Framework) -> NDArray[np.float64]:
        """Host seconds of each task that begins a pass of a stage, in addition to its layers."""
        schedule, host = self.context.schedule, framework.host.stage
        by_kind_s = np.array([host.forward_s, host.backward_s, host.inputs_s, host.weights_s])
        of_first_s = np.array([host.forward_s, host.backward_s, 0.0, host.backward_s])
        pass_s = np.where(schedule.stage == 0, of_first_s[schedule.kind], by_kind_s[schedule.kind])
        pass_s = np.where((schedule.kind == Pass.FORWARD) | self.context.has_backward[schedule.stage], pass_s, 0.0)
        loss_s = host.loss_s * ((schedule.kind == Pass.FORWARD) & (schedule.stage == len(self.context.ranges) - 1))
        return framework.host_scale * np.where(schedule.first, pass_s + loss_s, 0.0)


def _over(values: NDArray[np.float64], schedule: RankSchedule) -> NDArray[np.float64]:
    """Sums of per-layer values over the layers of each task."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    result: NDArray[np.float64] = total[schedule.end] - total[schedule.begin]
    return result
