"""A replica: the schedule of its ranks in a step, as arrays of passes or pieces of passes, and the tasks that they have: these
passes, and messages between pipeline stages."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster.collectives.cost import concurrent_collective
from scaleproof.simulator.common.communication import UNKNOWN, Collective, Communication, Dimension, number_of
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.frameworks import Framework
from scaleproof.simulator.parallelism.mesh import DeviceMesh, RankClass
from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.simulator.program import Path, Rows
from scaleproof.simulator.strategy.data_parallel.buckets import RankLayers, SyncUnit
from scaleproof.simulator.strategy.data_parallel.data_loading import FIRST_SLOT
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.layout.resource_map import ResourceMap
from scaleproof.simulator.strategy.pipeline.schedules import Pass, PassTimes, order
from scaleproof.simulator.strategy.step_builder import JobCosts, StepBuilder

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]

# Slots from a task to the next of its rank; those between are for messages, gathers and sums.
SLOTS: Final = 4
# Kinds of tasks without a pass: the begin of a step, and the turn from forward to backward.
BEGIN: Final = -1
TURN: Final = -2
# Actions of a list after a stage has all its gradients: their reduction and the reshard of parameters, sharded or not.
_ACTIONS_WHEN_COMPLETE: Final = 2
_OTHER: Final = -1
_BACKWARD: Final = (Pass.BACKWARD, Pass.INPUT)
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

    def table(self, at: Flags, stages: int, microbatches: int, *kinds: Pass) -> Numbers:
        """Row of the task that begins or ends (`at`: `first` or `last`) each stage's pass over each microbatch, of these kinds
        of pass; shape (stages, microbatches)."""
        tasks = np.flatnonzero(np.isin(self.kind, kinds) & at)
        result = np.full((stages, microbatches), -1)
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


def posting_tasks(schedule: RankSchedule, senders: Numbers, users: Numbers) -> Numbers:
    """For each message, the receiver's task after which it posts the receive when torch's runtime runs the schedule.

    A receive enters a rank's list of actions when the sending rank reaches the pass that produces the message. The lists of all
    ranks are built concurrently, one entry per rank in turn; a rank whose next pass needs a message that has not been produced
    yet is skipped (torch/distributed/pipelining/schedules.py, _add_send_recv).

    senders: task that produces each message; users: task that uses it; all arrays have the same shape.
    """
    ends, number = np.flatnonzero(schedule.last), np.cumsum(schedule.first) - 1
    sending_passes, receiving_passes = number[senders.ravel()].tolist(), number[users.ravel()].tolist()
    receivers = schedule.rank[users.ravel()].tolist()
    missing: defaultdict[int, int] = defaultdict(int)
    sends: defaultdict[int, list[int]] = defaultdict(list)
    for message, (sending, receiving) in enumerate(zip(sending_passes, receiving_passes, strict=True)):
        missing[receiving] += 1
        sends[sending].append(message)
    lists = _lists(schedule, ends)
    # the last task in each rank's list so far, initially the first of its schedule
    posted_after = np.searchsorted(schedule.rank, np.arange(len(lists))).tolist()
    result = np.empty(len(sending_passes), dtype=np.int64)
    while any(lists):
        for rank, remaining in enumerate(lists):
            if not remaining or missing[remaining[0]]:
                continue
            entry = remaining.popleft()
            if entry != _OTHER:
                posted_after[rank] = int(ends[entry])
            for message in sends[entry]:
                result[message] = posted_after[receivers[message]]
                missing[receiving_passes[message]] -= 1
    return result.reshape(senders.shape)


def _lists(schedule: RankSchedule, ends: Numbers) -> list[deque[int]]:
    """Numbers of the passes of each rank in order, and _OTHER for other actions."""
    gradient_passes = np.flatnonzero(np.isin(schedule.kind[ends], (Pass.BACKWARD, Pass.WEIGHT)))
    # the last pass of each stage completes its gradients
    completing = set(dict(zip(schedule.stage[ends[gradient_passes]].tolist(), gradient_passes.tolist(), strict=True)).values())
    lists: list[deque[int]] = [deque() for _ in range(int(schedule.rank[-1]) + 1)]
    for number, task in enumerate(ends.tolist()):
        lists[schedule.rank[task]].append(number)
        if number in completing:
            lists[schedule.rank[task]].extend([_OTHER] * _ACTIONS_WHEN_COMPLETE)
    return lists


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
        return self.plan.grid(self.job.cluster.node.devices)

    @cached_property
    def builder(self) -> StepBuilder:
        """Collects the tasks of all replicas."""
        return StepBuilder(self.job)


class Replica:
    """Adds a class of equivalent workers to a program.

    A receive is posted when its rank reaches it, and data move once both sides are ready, as in torch.distributed.pipelining
    and Megatron-LM's 1F1B; or all receives are posted ahead, and transfers overlap with passes.

    samples: per step, of one worker. ranks: rank classes by pipeline rank. rows: row in the program of each task of the
    schedule. sends: row of the message that each task sends, −1 for none. last_rows: by pipeline rank, the row that ends its
    passes.
    """

    def __init__(self, context: CompileContext, workers: RankClass) -> None:
        self.context, self.workers = context, workers
        self.samples = context.plan.samples_of(workers.rank, context.job.samples_per_worker)
        plan, stages = context.plan, range(context.plan.stages)
        self.places = [context.mesh.place(workers.rank, stage) for stage in stages]
        self.ranks = [self._add_rank(stage) for stage in stages]
        node, _ = self.places[0]
        context.builder.load(self.ranks[0], node, workers.each, workers.ranks, self.samples)
        self.rows: Rows = self._add_tasks()
        last = context.builder.computes(self.ranks, Phase.SEND, 0.0, stage=stages if plan.stages > 1 else -1)
        self.sends: Rows = np.full(len(self.rows), -1)
        if plan.stages > 1:
            self.sends = self._add_messages()
            self._wait_for_sends(self.sends)
            context.builder.follow(last[context.schedule.rank], self.sends)
        self.last_rows: list[int] = last.tolist()

    @cached_property
    def concurrent_senders(self) -> int:
        """Number of ranks of a stage that are on the same node and send concurrently."""
        return self.workers.each * self.context.mesh.on_first_node(self.context.mesh.members(self.workers.rank, 0))

    def _add_rank(self, stage: int) -> int:
        """Adds the ranks of a stage. They are named '16 workers', 'stage 0 (16 workers)', or after the first worker if workers
        are not all equivalent."""
        plan, workers, mesh = self.context.plan, self.workers, self.context.mesh
        name = workers.name()
        if plan.stages > 1:
            first = f"worker {workers.rank} " if workers.ranks < plan.workers else ""
            name = f"{first}stage {stage}" + (f" ({name})" if workers.ranks > 1 else "")
        members = mesh.members(workers.rank, stage)
        return self.context.builder.add_rank(
            name, members[0], self.places[stage][0], min(self.concurrent_senders, mesh.devices), workers.ranks * len(members),
            members=members,
        )  # fmt: skip

    def _add_tasks(self) -> Rows:
        """Adds the passes of every stage in order; returns their rows."""
        schedule, context = self.context.schedule, self.context
        exchanges = (schedule.kind >= 0) & (schedule.kind != Pass.WEIGHT)
        return context.builder.computes(
            np.array(self.ranks)[schedule.rank], _PHASES[schedule.kind], self._times_s,
            stage=schedule.stage if context.plan.stages > 1 else -1,
            microbatch=schedule.microbatch, slot=schedule.slot, first_layer=np.where(exchanges, schedule.begin, UNKNOWN),
            last_layer=np.where(exchanges, schedule.end - 1, UNKNOWN),
        )  # fmt: skip

    def _times_s(self, job_costs: JobCosts) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Compute seconds of each task of the schedule, and exposed seconds of collectives within it."""
        schedule = self.context.schedule
        costs = job_costs.layers(self.samples)
        forward, weight = schedule.kind == Pass.FORWARD, schedule.kind == Pass.WEIGHT
        work_s = np.where(forward, _over(costs.forward_s, schedule), _over(costs.backward_s, schedule))
        first, last = schedule.microbatch == 0, schedule.microbatch == self.context.plan.microbatches - 1
        work_s += np.where(forward & first, _over(costs.first_forward_s, schedule), 0.0)
        work_s += np.where(np.isin(schedule.kind, _BACKWARD) & last, _over(costs.last_backward_s, schedule), 0.0)
        exchange_s = np.where(forward, _over(costs.forward_exchange_s, schedule), _over(costs.backward_exchange_s, schedule))
        if weight.any():
            weights_s = _over(job_costs.job_with(self.samples).weights_s(self.context.plan.microbatches), schedule)
            work_s = np.where(weight, weights_s, np.where(schedule.kind == Pass.INPUT, work_s - weights_s, work_s))
            exchange_s[weight] = 0.0
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
        pass_s = np.where((schedule.kind == Pass.FORWARD) | self._has_backward[schedule.stage], pass_s, 0.0)
        loss_s = host.loss_s * ((schedule.kind == Pass.FORWARD) & (schedule.stage == len(self.context.ranges) - 1))
        return framework.host_scale * np.where(schedule.first, pass_s + loss_s, 0.0)

    @cached_property
    def _has_backward(self) -> NDArray[np.bool_]:
        """Whether each stage of the model, or one before it, has gradients to compute, shape (stages,)."""
        return np.array([self.context.rank_layers.has_backward(range(layers.stop)) for layers in self.context.ranges])

    def _add_messages(self) -> Rows:
        """Adds messages with activations to the next stage and their gradients back.

        Returns for each task of the schedule the row of the message that it sends, −1 for none.
        """
        plan, schedule = self.context.plan, self.context.schedule
        is_gloo = self.context.job.cluster.library == "gloo"
        stages, counts = plan.stages * plan.chunks, (plan.stages * plan.chunks, plan.microbatches)
        rank_of = np.empty(stages, dtype=np.int64)
        rank_of[np.array(plan.stage_of)] = np.arange(plan.stages)[:, None]
        crossing = np.flatnonzero(rank_of[:-1] != rank_of[1:])
        # stages below the first trained layer receive no gradients
        back = crossing[self._has_backward[crossing]]
        sends, to = np.full((2, len(schedule.rank)), -1)
        directions = ((1, crossing, (Pass.FORWARD,)), (-1, back + 1, _BACKWARD))
        all_senders = [schedule.table(schedule.last, *counts, *kinds)[sources] for _, sources, kinds in directions]
        all_receivers = [schedule.table(schedule.first, *counts, *kinds)[sources + step] for step, sources, kinds in directions]
        # a receive is posted right after the previous task of the receiver, or earlier
        all_posted = [receivers - 1 for receivers in all_receivers]
        if plan.overlap_sends and is_gloo:
            arguments = np.concatenate(all_senders), np.concatenate(all_receivers)
            earlier = posting_tasks(schedule, *arguments)
            all_posted = np.split(np.minimum(earlier, arguments[1] - 1), [len(crossing)])
        number, messages = number_of(Dimension.PIPELINE, Collective.SEND), []
        # that each rank of a stage sends per microbatch, behind each layer
        sent_bytes = self.context.job.boundary_bytes(self.samples / plan.microbatches) / (plan.tensor if plan.splits else 1)
        for (step, sources, _), senders, receivers, posted in zip(
            directions, all_senders, all_receivers, all_posted, strict=True
        ):
            if not len(sources):
                continue
            predecessors = (senders,) if plan.overlap_sends and not is_gloo else (senders, posted)
            layers = np.array([self.context.ranges[boundary][-1] for boundary in np.minimum(sources, sources + step)])
            sizes_bytes = sent_bytes[layers].tolist()
            ends = list(zip(rank_of[sources].tolist(), rank_of[sources + step].tolist(), sizes_bytes, strict=True))
            # with virtual stages the same ranks exchange several messages
            index_of = {end: place for place, end in enumerate(dict.fromkeys(ends))}
            index = np.array([index_of[end] for end in ends], dtype=np.int64)
            paths = [partial(self._path, *end) for end in index_of]
            ranks = np.array(self.ranks)
            rows = self.context.builder.transfers(
                ranks[rank_of[sources]][:, None], ranks[rank_of[sources + step]][:, None], [end[2] for end in index_of], paths,
                index[:, None], Phase.SEND, [self.rows[end] for end in predecessors],
                stage=sources[:, None], microbatch=np.arange(plan.microbatches),
                slot=np.max([schedule.slot[end] for end in predecessors], axis=0) + 1,
                labels=Communication(number, np.array(sizes_bytes)[:, None], 1, layers[:, None], layers[:, None]),
            )  # fmt: skip
            self.context.builder.follow(self.rows[receivers], rows)
            sends[senders], to[senders] = rows, rank_of[sources + step][:, None]
            messages.append(rows)
        if plan.overlap_sends:
            self._send_in_turn(sends, to)
        if is_gloo:
            sent = tuple(np.concatenate([part.ravel() for part in parts]) for parts in (messages, all_senders, all_posted))
            self._pair(*sent)
            if plan.overlap_sends:
                self._announce_ready(*sent)
        return sends

    def _send_in_turn(self, sends: Rows, to: Rows) -> None:
        """Makes messages from one rank to another follow each other, as on one stream."""
        tasks = np.flatnonzero(sends >= 0)
        pair = self.context.schedule.rank[tasks] * self.context.plan.stages + to[tasks]
        order = np.argsort(pair, kind="stable")
        rows, same = sends[tasks[order]], np.diff(pair[order]) == 0
        self.context.builder.follow(rows[1:][same], rows[:-1][same])

    def _pair(self, rows: Rows, senders: Rows, posted: Rows) -> None:
        """Pairs messages of gloo: a receiver announces that it is ready on the connection on which it also sends, behind its
        earlier sends (gloo/transport/tcp/pair.cc). If two ranks each send and then receive, one message follows the other.

        rows: of messages. senders: tasks that send them. posted: tasks after which their receives are posted.
        """
        row_of = {(a, b): row for a, b, row in zip(senders.tolist(), posted.tolist(), rows.tolist(), strict=True)}
        pairs = [(row, row_of[b, a]) for (a, b), row in row_of.items() if a < b and (b, a) in row_of]
        if pairs:
            self.context.builder.pair(*np.array(pairs).T)

    def _announce_ready(self, rows: Rows, senders: Rows, posted: Rows) -> None:
        """Without waiting for sends, a receiver's announcement may be queued behind the last message that it sent in the
        opposite direction. Arguments as in `_pair`."""
        rank = self.context.schedule.rank
        messages = sorted(zip(senders.tolist(), posted.tolist(), rows.tolist(), strict=True))
        sent: defaultdict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
        for message in messages:
            sent[rank[message[0]], rank[message[1]]].append(message)
        announcements = []
        for task, receives, row in messages:
            other_way = sent[rank[receives], rank[task]]
            place = bisect_right(other_way, receives, key=lambda message: message[0])
            sent_after, awaited_by, before = other_way[place - 1] if place else (-1, task, -1)
            # of two that follow the same tasks, the one that is awaited later is assumed to move later
            is_before = awaited_by < task or (awaited_by == task and sent_after < receives)
            announcements.append((row, int(self.rows[receives]), before if is_before else -1))
        self.context.builder.announce_ready(*np.array(announcements).T)

    def _path(self, source: int, target: int, size_bytes: float, links: ResourceMap) -> Path:
        """Path of the concurrent messages of all equivalent ranks between two pipeline ranks."""
        plan, places = self.context.plan, self.places
        stall_s = self.context.job.framework.stall_s(self.context.mesh.nodes)
        path = links.concurrent_messages(places[source], places[target], size_bytes, self.concurrent_senders, stall_s)
        path = replace(path, uses=links.of_class(path.uses, self.workers.nodes))
        if plan.splits:
            # the shards are gathered on the receiving stage
            group = self.context.mesh.along("tensor", plan.tensor)
            together_s = concurrent_collective("all_gather", group, links.cluster)(size_bytes * plan.tensor)
            path = replace(path, latency_s=path.latency_s + together_s)
        return path

    def _wait_for_sends(self, sends: Rows) -> None:
        """Makes ranks wait for their sends if these do not overlap with passes: in gpipe at the turn from forward to backward,
        in 1f1b at every turn."""
        plan, schedule, builder = self.context.plan, self.context.schedule, self.context.builder
        same = schedule.rank[1:] == schedule.rank[:-1]
        if plan.overlap_sends:
            return
        if plan.schedule == "gpipe":
            turns = np.flatnonzero(schedule.kind == TURN)
            forward = np.where(schedule.kind == Pass.FORWARD, sends, -1)
            row_of = np.full(plan.stages, -1)
            row_of[schedule.rank[turns]] = self.rows[turns]
            given = row_of[schedule.rank] >= 0
            builder.follow(row_of[schedule.rank][given], forward[given])
        elif plan.schedule == "1f1b":
            turned = same & (schedule.kind[1:] != schedule.kind[:-1])
            builder.follow(self.rows[1:][turned], sends[:-1][turned])


def _over(values: NDArray[np.float64], schedule: RankSchedule) -> NDArray[np.float64]:
    """Sums of per-layer values over the layers of each task."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    result: NDArray[np.float64] = total[schedule.end] - total[schedule.begin]
    return result
