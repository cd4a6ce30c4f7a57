"""Replica: the ranks of one worker, or of several that are alike: their passes, and the messages between stages."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster.collectives.cost import library_of
from scaleproof.simulator.program import ProgramBuilder, Rows
from scaleproof.simulator.run.run import Phase
from scaleproof.simulator.strategy.data_parallel.loading_tasks import Feeding
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.layout.mesh import DeviceMesh
from scaleproof.simulator.strategy.layout.placement import Placed
from scaleproof.simulator.strategy.layout.resource_map import ResourceMap
from scaleproof.simulator.strategy.model_parallel.layer_collectives import crowded_s
from scaleproof.simulator.strategy.pipeline.rank_schedule import TURN, Lanes
from scaleproof.simulator.strategy.pipeline.recv_posting import posted
from scaleproof.simulator.strategy.pipeline.schedule import Pass
from scaleproof.simulator.strategy.plan import Plan
from scaleproof.simulator.strategy.program_template import JobCosts, Moved, TemplateRecorder

_BACK: Final = (Pass.BACKWARD, Pass.INPUT)
# the phases of passes, then of TURN and BEGIN, which count from the end
_PHASES: Final = np.array([Phase.FORWARD, Phase.BACKWARD, Phase.BACKWARD, Phase.BACKWARD, Phase.SEND, Phase.WAIT])


@dataclass(frozen=True)
class CompileContext:
    """What all replicas of a program are made with. ranges: the layers of each stage of the model."""

    builder: ProgramBuilder
    fabric: ResourceMap
    feeding: Feeding
    plan: Plan
    grid: DeviceMesh
    ranges: Sequence[range]
    lanes: Lanes
    draft: TemplateRecorder
    sheet: JobCosts


class Replica:
    """Adds a class of alike workers to a program.

    A receive is posted when its rank gets to it, and data moves once both sides are ready, as torch.distributed.pipelining
    and Megatron-LM's 1F1B do it; or all are posted ahead, and data moves beside passes. ranks: rank classes, by pipeline rank.
    rows: the program's row of each task of the lanes. last_rows: by pipeline rank, what ends its passes.
    """

    def __init__(self, shop: CompileContext, job: Job, placed: Placed) -> None:
        """job: with the samples that one of these workers has."""
        self.shop, self.job, self.placed = shop, job, placed
        plan, stages = shop.plan, range(shop.plan.stages)
        self.places = [shop.grid.place(placed.rank, stage) for stage in stages]
        self.ranks = [self._add_rank(stage) for stage in stages]
        node, _ = self.places[0]
        shop.feeding.add(self.ranks[0], node, placed.each, placed.ranks, job.samples_per_worker)
        self.rows: Rows = self._add_tasks()
        last = shop.builder.computes(self.ranks, Phase.SEND, 0.0, stage=stages if plan.stages > 1 else -1)
        if plan.stages > 1:
            sends = self._add_messages()
            self._wait_for_sends(sends)
            shop.builder.follow(last[shop.lanes.rank], sends)
        self.last_rows: list[int] = last.tolist()

    @property
    def alike(self) -> int:
        """Ranks of a stage that are on the same node and send together."""
        return self.placed.each * self.shop.grid.beside(self.shop.grid.members(self.placed.rank, 0))

    def _add_rank(self, stage: int) -> int:
        placed, grid = self.placed, self.shop.grid
        members = grid.members(placed.rank, stage)
        add = partial(
            ResourceMap.add_rank, name=self._name(stage), unevenness=self.job.unevenness, rank=members[0],
            node=self.places[stage][0], each=min(self.alike, grid.devices), multiplicity=placed.ranks * len(members),
            lockstep=members,
        )  # fmt: skip
        return self.shop.draft.rank(add)

    def _name(self, stage: int) -> str:
        """Of a rank class: '16 workers', 'stage 0 (16 alike)', or by the first of its workers where not all are alike."""
        plan, placed = self.shop.plan, self.placed
        if plan.stages == 1:
            return f"{placed.ranks} workers" if placed.ranks > 1 else f"worker {placed.rank}"
        worker = f"worker {placed.rank} " if placed.ranks < plan.workers else ""
        return f"{worker}stage {stage}" + (f" ({placed.ranks} alike)" if placed.ranks > 1 else "")

    def _add_tasks(self) -> Rows:
        """The passes of every stage in their order."""
        tasks, shop = self.shop.lanes, self.shop
        ranks = np.array(self.ranks)[tasks.rank]
        work_s, exchange_s = self._times_s(shop.sheet)
        rows = shop.builder.computes(
            ranks, _PHASES[tasks.kind], work_s, stage=self._labels(), microbatch=tasks.microbatch, slot=tasks.slot,
            exchange_s=exchange_s,
        )  # fmt: skip
        shop.draft.times(rows, ranks, self._times_s)
        return rows

    def _times_s(self, sheet: JobCosts) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Seconds that each task of the lanes computes, and that its ranks exchange within it."""
        tasks, samples = self.shop.lanes, self.job.samples_per_worker
        costs = sheet.costs(samples)
        forward, weight = tasks.kind == Pass.FORWARD, tasks.kind == Pass.WEIGHT
        work_s = np.where(forward, _over(costs.forward_s, tasks), _over(costs.backward_s, tasks))
        first, last = tasks.microbatch == 0, tasks.microbatch == self.shop.plan.microbatches - 1
        # not in place: where links vary from point to point, one of these may vary and the others not
        work_s = work_s + np.where(forward & first, _over(costs.first_forward_s, tasks), 0.0)
        work_s = work_s + np.where(np.isin(tasks.kind, _BACK) & last, _over(costs.last_backward_s, tasks), 0.0)
        exchange_s = np.where(forward, _over(costs.forward_exchange_s, tasks), _over(costs.backward_exchange_s, tasks))
        if weight.any():
            weights_s = _over(sheet.of(samples).weights_s(self.shop.plan.microbatches), tasks)
            work_s = np.where(weight, weights_s, np.where(tasks.kind == Pass.INPUT, work_s - weights_s, work_s))
            exchange_s[weight] = 0.0
        waits = tasks.kind < 0
        work_s[waits] = exchange_s[waits] = 0.0
        return work_s, exchange_s

    def _labels(self) -> NDArray[np.int64]:
        """The stage that spans are labelled with: none where there is one."""
        plan, tasks = self.shop.plan, self.shop.lanes
        return tasks.stage if plan.stages > 1 else np.full_like(tasks.stage, -1)

    def _add_messages(self) -> Rows:
        """Activations to the next stage and their gradients back, each once made on one side and awaited on the other.

        Returns the row of the message that each task of the lanes sends, −1 for none.
        """
        plan, tasks = self.shop.plan, self.shop.lanes
        is_gloo = library_of(self.job.cluster) == "gloo"
        stages, counts = plan.stages * plan.chunks, (plan.stages * plan.chunks, plan.microbatches)
        rank_of = np.empty(stages, dtype=np.int64)
        rank_of[np.array(plan.stage_of)] = np.arange(plan.stages)[:, None]
        crossing = np.flatnonzero(rank_of[:-1] != rank_of[1:])
        sends, to = np.full((2, len(tasks.rank)), -1)
        ways = ((1, crossing, (Pass.FORWARD,)), (-1, crossing + 1, _BACK))
        mades = np.array([tasks.table(tasks.last, *counts, *kinds)[sources] for _, sources, kinds in ways])
        useds = np.array([tasks.table(tasks.first, *counts, *kinds)[sources + step] for step, sources, kinds in ways])
        # a receive is posted where the lane has got to just before it, or before that, or long before
        posteds = np.minimum(posted(tasks, mades, useds), useds - 1) if plan.overlap_sends and is_gloo else useds - 1
        messages = []
        for (step, sources, _), made, used, at in zip(ways, mades, useds, posteds, strict=True):
            both = (made,) if plan.overlap_sends and not is_gloo else (made, at)
            sizes_bytes = [self._sent_bytes(boundary) for boundary in crossing.tolist()]
            ends = zip(rank_of[sources].tolist(), rank_of[sources + step].tolist(), sizes_bytes, strict=True)
            asked = [self.shop.draft.ask(partial(self._sent, *end)) for end in ends]
            paths = [self.shop.draft.found[number][1] for number in asked]
            ranks = np.array(self.ranks)
            rows = self.shop.builder.transfers(
                ranks[rank_of[sources]][:, None], ranks[rank_of[sources + step]][:, None], sizes_bytes, paths,
                np.arange(len(sources))[:, None], Phase.SEND, [self.rows[end] for end in both],
                stage=sources[:, None], microbatch=np.arange(plan.microbatches),
                slot=np.max([tasks.slot[end] for end in both], axis=0) + 1,
            )  # fmt: skip
            self.shop.draft.moves(rows, np.array(asked, dtype=np.int64)[:, None])
            self.shop.builder.follow(self.rows[used], rows)
            sends[made], to[made] = rows, rank_of[sources + step][:, None]
            messages.append(rows)
        if plan.overlap_sends:
            self._send_in_turn(sends, to)
        if is_gloo:
            found = np.array(messages).ravel(), mades.ravel(), posteds.ravel()
            self._pair(*found)
            if plan.overlap_sends:
                self._tell(*found)
        return sends

    def _send_in_turn(self, sends: Rows, to: Rows) -> None:
        """What a rank sends `to` another moves message by message, as on one stream."""
        tasks = np.flatnonzero(sends >= 0)
        pair = self.shop.lanes.rank[tasks] * self.shop.plan.stages + to[tasks]
        order = np.argsort(pair, kind="stable")
        rows, same = sends[tasks[order]], np.diff(pair[order]) == 0
        self.shop.builder.follow(rows[1:][same], rows[:-1][same])

    def _pair(self, rows: Rows, made: Rows, posted: Rows) -> None:
        """Gloo's receiver tells the sender that it is ready on the connection on which it sends itself, so behind what it sends
        already (gloo/transport/tcp/pair.cc): where two ranks each send and then receive, one message follows the other.

        rows: of messages, each `made` by one task and its receive `posted` by another.
        """
        row_of = {(a, b): row for a, b, row in zip(made.tolist(), posted.tolist(), rows.tolist(), strict=True)}
        pairs = [(row, row_of[b, a]) for (a, b), row in row_of.items() if a < b and (b, a) in row_of]
        if pairs:
            self.shop.builder.pair(*np.array(pairs).T)

    def _tell(self, rows: Rows, made: Rows, posted: Rows) -> None:
        """So where sends are not waited for, that word may be behind the last message which the receiver had sent the other way
        before. Arguments as of `_pair`."""
        rank = self.shop.lanes.rank
        messages = sorted(zip(made.tolist(), posted.tolist(), rows.tolist(), strict=True))
        sent: defaultdict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
        for message in messages:
            sent[rank[message[0]], rank[message[1]]].append(message)
        told = []
        for task, receives, row in messages:
            other_way = sent[rank[receives], rank[task]]
            place = bisect_right(other_way, receives, key=lambda message: message[0])
            sent_at, awaited_at, before = other_way[place - 1] if place else (-1, task, -1)
            # two that follow the same tasks take turns, and what is awaited later is taken to move later
            is_before = awaited_at < task or (awaited_at == task and sent_at < receives)
            told.append((row, int(self.rows[receives]), before if is_before else -1))
        self.shop.builder.tell(*np.array(told).T)

    def _sent_bytes(self, boundary: int) -> float:
        """What each of a stage's ranks sends, for a microbatch."""
        whole = float(self.shop.sheet.costs(self.job.samples_per_worker).output_bytes[self.shop.ranges[boundary][-1]])
        return whole / self.shop.plan.tensor if self.shop.plan.splits else whole

    def _sent(self, source: int, target: int, size_bytes: float, fabric: ResourceMap) -> Moved:
        """Between two pipeline ranks: the messages of all alike ranks at once."""
        plan, places = self.shop.plan, self.places
        path = fabric.alike_messages(places[source], places[target], size_bytes, self.alike)
        if plan.splits:
            # what each has a part of is put together again
            group = self.shop.grid.along("tensor", plan.tensor)
            together_s = crowded_s("all_gather", size_bytes * plan.tensor, group, fabric.cluster)
            path = replace(path, latency_s=path.latency_s + together_s)
        return size_bytes, path

    def _wait_for_sends(self, sends: Rows) -> None:
        """A rank waits for what it has sent where sends are not overlapped: gpipe when it turns from forward to backward, 1f1b
        whenever it turns."""
        plan, tasks, builder = self.shop.plan, self.shop.lanes, self.shop.builder
        same = tasks.rank[1:] == tasks.rank[:-1]
        if plan.overlap_sends:
            return
        if plan.schedule == "gpipe":
            turns = np.flatnonzero(tasks.kind == TURN)
            forward = np.where(tasks.kind == Pass.FORWARD, sends, -1)
            row_of = np.full(plan.stages, -1)
            row_of[tasks.rank[turns]] = self.rows[turns]
            given = row_of[tasks.rank] >= 0
            builder.follow(row_of[tasks.rank][given], forward[given])
        elif plan.schedule == "1f1b":
            turned = same & (tasks.kind[1:] != tasks.kind[:-1])
            builder.follow(self.rows[1:][turned], sends[:-1][turned])


def _over(values: NDArray[np.float64], tasks: Lanes) -> NDArray[np.float64]:
    """Sums over the layers that each task passes, of values by layer."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    result: NDArray[np.float64] = total[tasks.end] - total[tasks.begin]
    return result
