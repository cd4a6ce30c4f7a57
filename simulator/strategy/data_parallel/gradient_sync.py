"""Agreement: how replicas keep their parameters alike: gradients summed, states and parameters shared out and gathered."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scaleproof.simulator.cluster.collectives.algorithms import Group, Op
from scaleproof.simulator.common.csr import Ragged
from scaleproof.simulator.model.layers import Layer, copied_weights, glued_ends
from scaleproof.simulator.program import Rows, Use
from scaleproof.simulator.run.run import Phase
from scaleproof.simulator.strategy.data_parallel.buckets import Gradients
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.layout.resource_map import ResourceMap
from scaleproof.simulator.strategy.pipeline.rank_schedule import SLOTS
from scaleproof.simulator.strategy.pipeline.schedule import Pass
from scaleproof.simulator.strategy.pipeline.tasks import CompileContext, Replica
from scaleproof.simulator.strategy.plan import Plan
from scaleproof.simulator.strategy.program_template import JobCosts, Moved

# What ranks have alike: what all replicas have, or a mixture's experts.
KEEPERS: Final = ("replicas", "experts")


class SyncUnit(NamedTuple):
    """Layers whose gradients are complete together, or that are gathered together. bounds: where the buckets that are then full
    begin, among all gradients, and where the last of them ends."""

    layers: range
    bounds: list[int]


class RankLayers:
    """A model's layers, as pipeline ranks have them that have all its stages. copied: parameters of which the last stage has
    a copy. gradients: of what all workers have, and of experts that some have."""

    def __init__(self, layers: Sequence[Layer], plan: Plan) -> None:
        self.layers = with_copies(layers, plan)
        self.copied = self.layers[-1].parameters - layers[-1].parameters
        everyones = [_without_experts(layer) if plan.divides_experts else layer for layer in self.layers]
        self.gradients = Gradients(everyones)
        replicas = [layer.parameters for layer in everyones]
        experts = [layer.parameters - own for layer, own in zip(self.layers, replicas, strict=True)]
        self._replicas, self._experts = (list(itertools.accumulate(each, initial=0)) for each in (replicas, experts))

    def parameters(self, stage: range) -> tuple[int, int]:
        """Of what all workers have, and of experts that some have."""
        begin, end = stage.start, stage.stop
        return self._replicas[end] - self._replicas[begin], self._experts[end] - self._experts[begin]

    def units(self, stage: range, plan: Plan, job: Job) -> list[SyncUnit]:
        """The units of a stage of the model, in forward order: each layer where ZeRO's stage 3 gathers it, else as buckets
        fill."""
        if not plan.averages or plan.servers:
            return [SyncUnit(stage, [])]
        if job.zero == 3:
            return [SyncUnit(layer, self.gradients.bounds(layer)) for layer in (range(i, i + 1) for i in stage)]
        size = job.reduced_bytes
        bounds, layers = self.gradients.buckets(stage, size, plan.first_bucket_bytes, plan.bucket_bytes)
        if not (plan.overlap or plan.overlap_gather or job.zero == 2):
            return [SyncUnit(stage, bounds)]
        result, begin, end = list[SyncUnit](), 0, stage.stop
        # all that one layer completes are of one unit
        for layer, own in itertools.groupby(layers):
            count = len(list(own))
            result.append(SyncUnit(range(layer, end), bounds[begin : begin + count + 1]))
            begin, end = begin + count, layer
        if end > stage.start:
            result.append(SyncUnit(range(stage.start, end), []))
        return result[::-1]


def _without_experts(layer: Layer) -> Layer:
    """With no gradients but those of what all workers have; which tensors are experts' is not told, so they are one."""
    return replace(layer, tensors=(layer.parameters - layer.expert_parameters,)) if layer.expert_parameters else layer


def with_copies(layers: Sequence[Layer], plan: Plan) -> Sequence[Layer]:
    """The layers as pipeline ranks have them: the last with a copy of the weights that it takes from the first rank's."""
    first, last = ends(plan)
    if first == last or not layers[-1].glued:
        return layers
    copied = copied_weights(layers[-1], layers[glued_ends(layers)[1] :], layers)
    return [*layers[:-1], replace(layers[-1], tensors=(*layers[-1].tensors, *copied))]


def ends(plan: Plan) -> tuple[int, int]:
    """The pipeline ranks that have the first and the last stage of the model: one, where a pipeline is V-shaped."""
    last = plan.stages * plan.chunks - 1
    first_rank, last_rank = (next(rank for rank, held in enumerate(plan.stage_of) if stage in held) for stage in (0, last))
    return first_rank, last_rank


class _CollectiveQuery(NamedTuple):
    """A collective of a pipeline rank, as a fabric is asked for it."""

    op: Op
    group: str
    size_bytes: float


class _Events(NamedTuple):
    """Collectives of a pipeline rank, arrays of shape (collectives,). slot: their places among the others. asked: by number.
    after: tasks of the lanes. before: tasks that wait for them, −1 for none."""

    slot: Rows
    asked: Rows
    after: Rows
    before: Rows


class GradientSync:
    """Adds to a program what all replicas do together."""

    def __init__(
        self, shop: CompileContext, job: Job, held: RankLayers, found: Sequence[Sequence[SyncUnit]], replicas: Sequence[Replica]
    ) -> None:
        """job: any replica's. found: the units of each stage of the model."""
        self.shop, self.plan, self.job, self.held = shop, shop.plan, job, held
        self.units, self.replicas = found, replicas
        self._beginning = {unit.layers.start: unit for stage in found for unit in stage}
        self._nodes = [sorted({replica.places[rank][0] for replica in replicas}) for rank in range(self.plan.stages)]
        self._rows = np.array([replica.rows for replica in replicas])
        self._makes = np.isin(shop.lanes.kind, (Pass.BACKWARD, Pass.WEIGHT))
        self._found: dict[tuple[int, str], list[Group]] = {}
        self._numbers: dict[_CollectiveQuery, int] = {}
        self._drafted: dict[tuple[int, _CollectiveQuery], int] = {}

    def add(self) -> None:
        """Sums and gathers of every stage, and the optimizers."""
        sums = [self._add_collectives(rank) for rank in range(self.plan.stages)]
        if self.held.copied:
            self._sum_copies(sums)
        for rank, rows in enumerate(sums):
            self._add_optimizers(rank, rows)

    def _add_collectives(self, rank: int) -> list[int]:
        """Those of one stage; returns the rows of its sums."""
        parts = list(self._events(rank))
        if not parts:
            return []
        columns = (np.concatenate(column) for column in zip(*parts, strict=True))
        events = _Events(*columns)
        order = np.argsort(events.slot, kind="stable")
        slot, asked, after, before = (column[order] for column in events)
        # they are asked for in the order in which they come
        _, first, which = np.unique(asked, return_index=True, return_inverse=True)
        turn = np.argsort(first)
        known = list(self._numbers)
        drafted = [self._ask(rank, known[number]) for number in asked[first[turn]].tolist()]
        # sums that nothing but optimizers follows need no hint, of which several would have the same
        hints = slot if self.job.zero >= 2 else np.where(before >= 0, slot, -1)
        members, label = self._members(rank), rank if self.plan.stages > 1 else -1
        rows = self._add(members, drafted, turn.argsort()[which], self._rows[:, after].T, label, hints)
        held = before >= 0
        self.shop.builder.follow(self._rows[:, before[held]].T, rows[held, None])
        sums: list[int] = rows[~held].tolist()
        return sums

    def _members(self, rank: int) -> list[int]:
        return [replica.ranks[rank] for replica in self.replicas]

    def _sum_copies(self, sums: Sequence[list[int]]) -> None:
        """Adds a sum to those of the first and the last stage: of the gradients of weights that both have, once replicas have
        summed theirs (Megatron-LM, arXiv 2104.04473). Where gradients are shared out, each rank has a part of them."""
        pair, grid, replicas = ends(self.plan), self.shop.grid, self.replicas
        share = self._groups(pair[0], "replicas")[0].size if self.job.zero >= 2 else 1
        size_bytes = self.held.copied * self.job.reduced_bytes / share
        asked = []
        for replica in replicas:
            group = Group.of([grid.rank(replica.placed.rank, rank) for rank in pair], grid.devices)
            asked.append(("all_reduce", group, size_bytes, group.node_numbers.tolist(), min(replica.alike, grid.devices)))
        number = self.shop.draft.ask(partial(_together, asked))
        after = [row for rank in pair for row in (*sums[rank], *(replica.last_rows[rank] for replica in replicas))]
        members = [replica.ranks[rank] for rank in pair for replica in replicas]
        row = self._add(members, [number], np.array([0]), [after])
        for rank in pair:
            sums[rank] += row.tolist()

    def _add(
        self, members: Sequence[int], drafted: Sequence[int], which: Rows, after: ArrayLike, label: int = -1,
        slot: ArrayLike = -1,
    ) -> Rows:  # fmt: skip
        """Adds collectives that move what was asked for by these numbers, each that of place `which`; their rows. after: shape
        (collectives, tasks)."""
        if not len(which):
            return which
        draft = self.shop.draft
        moved = [draft.found[number] for number in drafted]
        rows = self.shop.builder.collectives(members, moved, which, Phase.SYNCHRONISE, after, label, slot)
        draft.moves(rows, np.array(drafted)[which])
        return rows

    def _events(self, rank: int) -> Iterator[_Events]:
        """Collectives of a rank beside its passes."""
        if not self.plan.averages:
            return
        tasks, plan, zero = self.shop.lanes, self.plan, self.job.zero
        own = np.flatnonzero(tasks.rank == rank)
        if zero == 3:
            yield self._gathers(own)
        elif zero and plan.overlap_gather:
            yield from self._gathers_of_step(rank, own)
        beside = plan.overlap or zero >= 2
        for stage in plan.stage_of[rank]:
            making = own[(tasks.stage[own] == stage) & self._makes[own]]
            if not self.job.scatters:
                making = making[-len(self.units[stage]) if beside and tasks.cut[making[-1]] else -1 :]
            yield self._sums(rank, stage, making, tasks.cut[making] if beside else np.zeros(len(making), dtype=np.bool_))

    def _sums(self, rank: int, stage: int, making: Rows, cut: NDArray[np.bool_]) -> _Events:
        """Sums of the gradients that are complete after tasks: of the unit that a task passes where it is `cut`, else of all
        those of the stage."""

        def asked(begin: int) -> Iterator[_CollectiveQuery]:
            for unit in self.units[stage][::-1] if begin < 0 else [self._beginning[begin]]:
                buckets = (self.held.gradients.tensors[begin:end] for begin, end in itertools.pairwise(unit.bounds))
                parts = [("replicas", tensors) for tensors in buckets]
                parts += [(group, (count,)) for group, count in self._parameters(unit.layers).items() if group == "experts"]
                yield from itertools.chain.from_iterable(itertools.starmap(partial(self._summed, rank), parts))

        found = self._asked_by(np.where(cut, self.shop.lanes.begin[making], -1), asked)
        after = making[found.keys()]
        return _Events(self.shop.lanes.slot[after] + SLOTS // 2, found.values, after, np.full(len(after), -1))

    def _asked_by(self, begin: Rows, asked: Callable[[int], Iterable[_CollectiveQuery]]) -> Ragged:
        """The numbers of what is asked for by tasks that begin with these layers."""
        begins, which = np.unique(begin, return_inverse=True)
        numbers = [[self._numbers.setdefault(one, len(self._numbers)) for one in asked(layer)] for layer in begins.tolist()]
        return Ragged.of(numbers).take(which)

    def _summed(self, rank: int, keepers: str, tensors: Sequence[int]) -> Iterator[_CollectiveQuery]:
        """The collectives that sum the gradients of what a group keeps alike."""
        plan, size = self.plan, self.job.reduced_bytes
        ranks = self._groups(rank, keepers)[0].size
        if self.job.zero:
            yield _CollectiveQuery("reduce_scatter", keepers, float(sum(tensors) * size))
            if keepers == "replicas" and plan.sharing < plan.workers:
                yield _CollectiveQuery("all_reduce", "shards", sum(tensors) * size / ranks)
        elif plan.compression is None:
            yield _CollectiveQuery("all_reduce", keepers, float(sum(tensors) * size))
        else:
            for wire in plan.compression.wire(tensors, size):
                yield _CollectiveQuery(wire.op, keepers, wire.collective_bytes(ranks))

    def _parameters(self, *layers: range) -> dict[str, int]:
        """How many parameters of some layers each group keeps alike."""
        counts = map(sum, zip(*map(self.held.parameters, layers), strict=True))
        return {group: count for group, count in zip(KEEPERS, counts, strict=True) if count}

    def _gathers(self, own: Rows) -> _Events:
        """The parameters of each layer before it is passed; again before it is passed backward, where they were dropped; before
        the step's first pass alone, where they are kept for the whole step."""
        kinds = (Pass.FORWARD, Pass.BACKWARD, Pass.INPUT) if self.plan.reshard else (Pass.FORWARD,)
        passed = own[np.isin(self.shop.lanes.kind[own], kinds)]
        if self.plan.keeps_gathered:
            passed = passed[self.shop.lanes.microbatch[passed] == self._first_of(passed)]
        ahead = np.arange(len(passed)) - 1 - self.plan.prefetch
        return self._gathered(passed, np.where(ahead >= 0, passed[np.maximum(ahead, 0)], own[0]))

    def _first_of(self, passed: Rows) -> Rows:
        """The microbatch that is the first to pass the stage of each of some tasks of a rank."""
        stage, microbatch = self.shop.lanes.stage[passed], self.shop.lanes.microbatch[passed]
        stages, first = np.unique(stage, return_index=True)
        found: Rows = microbatch[first][np.searchsorted(stages, stage)]
        return found

    def _gathers_of_step(self, rank: int, own: Rows) -> Iterator[_Events]:
        """The parameters of each unit before the step's first pass over it, as soon as those before are gathered."""
        for stage in self.plan.stage_of[rank]:
            passing = own[self.shop.lanes.stage[own] == stage][: len(self.units[stage])]
            yield self._gathered(passing, np.full(len(passing), own[0]))

    def _gathered(self, passing: Rows, after: Rows) -> _Events:
        """The parameters of what tasks pass."""

        def asked(begin: int) -> Iterator[_CollectiveQuery]:
            for group, count in self._parameters(self._beginning[begin].layers).items():
                yield _CollectiveQuery("all_gather", group, float(count * self.job.gathered_bytes))

        found = self._asked_by(self.shop.lanes.begin[passing], asked)
        before = passing[found.keys()]
        return _Events(self.shop.lanes.slot[before] - SLOTS + 1, found.values, after[found.keys()], before)

    def _ask(self, rank: int, one: _CollectiveQuery) -> int:
        """The draft's number of what is asked for so."""
        if (rank, one) not in self._drafted:
            grid = self.shop.grid
            algorithm = self.plan.algorithm if one.op == "all_reduce" else None
            same = self.plan.expert_tensor if one.group == "experts" else None
            beside = grid.beside([grid.rank(0, rank) + i * grid.stride("tensor") for i in range(same or grid.tensor)])
            asked = []
            for group in self._groups(rank, one.group):
                nodes = [node for node in self._nodes[rank] if node in group.node_numbers]
                asked.append((one.op, group, one.size_bytes, nodes, beside, algorithm))
            self._drafted[rank, one] = self.shop.draft.ask(partial(_together, asked))
        return self._drafted[rank, one]

    def _groups(self, rank: int, name: str) -> list[Group]:
        """The groups that agree at the same time, those that have members on nodes that are modelled."""
        if (rank, name) not in self._found:
            nodes = self._nodes[rank]
            own = self.shop.grid.workers_on(nodes, rank)
            groups = self._groups_with(own, rank, name)
            self._found[rank, name] = [group for group in groups if np.isin(group.node_numbers, nodes).any()]
        return self._found[rank, name]

    def _groups_with(self, workers: Iterable[int], rank: int, name: str) -> Iterator[Group]:
        """Those that some workers are in: "replicas" have the same parameters, and share out states where ZeRO does so,
        "shards" have the same part of these, "experts" the same experts."""
        plan, grid = self.plan, self.shop.grid
        sharing = plan.sharing if self.job.zero else plan.workers
        if name == "experts":
            for ranks in grid.expert_replicas(rank, plan.expert, plan.expert_tensor):
                yield Group.of(ranks, grid.devices)
            return
        for first in sorted({worker % sharing if name == "shards" else worker - worker % sharing for worker in workers}):
            if name == "replicas":
                yield grid.replicas_of(rank, first, sharing)
            else:
                apart = (grid.members(worker, rank)[:: grid.tensor] for worker in range(first, plan.workers, sharing))
                yield from (Group.of(members, grid.devices) for members in zip(*apart, strict=True))

    def _add_optimizers(self, rank: int, sums: Sequence[int]) -> None:
        """Each replica's own part of the step; what is shared out after it is gathered, where the next step does not do so."""
        shop, plan, job = self.shop, self.plan, self.job
        told = self._updating(rank)
        work_s, _ = told(shop.sheet)
        label = rank if plan.stages > 1 else -1
        members = self._members(rank)
        rows = [shop.builder.compute(member, Phase.OPTIMIZER, work_s, sums, label) for member in members]
        shop.draft.times(rows, members, told)
        if job.zero in (1, 2) and not plan.overlap_gather and plan.averages:
            held = [part for stage in plan.stage_of[rank] for part in self._parameters(shop.ranges[stage]).items()]
            asked = [_CollectiveQuery("all_gather", group, float(count * job.gathered_bytes)) for group, count in held]
            numbers = [self._ask(rank, one) for one in asked]
            gathers = self._add(members, numbers, np.arange(len(numbers)), [rows], label).tolist()
            for member in members:
                shop.builder.wait(member, Phase.SYNCHRONISE, gathers, label)

    def _updating(self, rank: int) -> Callable[[JobCosts], tuple[float, float]]:
        """Seconds of the optimizer's step over a rank's own part of the parameters, and none of exchanges."""
        plan, zero = self.plan, self.job.zero
        held = [self.shop.ranges[stage] for stage in plan.stage_of[rank]]
        kept, ranks = self._parameters(*held), self._groups(rank, "replicas")[0].size
        own = sum(count / (self._groups(rank, group)[0].size if zero else 1) for group, count in kept.items())
        tensors = [tensor for stage in held for i in stage for tensor in self.held.layers[i].tensors]

        def told(sheet: JobCosts) -> tuple[float, float]:
            job, work_s = sheet.job, sheet.job.optimizer_s(own)
            if plan.compression is not None and ranks > 1 and not zero:
                work_s += plan.compression.work_s(tensors, ranks, job.cluster.device, job.precision)
            return work_s, 0.0

        return told


def _together(asked: Sequence[tuple[Any, ...]], fabric: ResourceMap) -> Moved:
    """Collectives of several groups at once, each as `ResourceMap.collective` is asked for it: as long as the longest of
    them, using
    what all of them use."""
    found = list(itertools.starmap(fabric.collective, asked))
    if len(found) == 1:
        return found[0]
    moved_bytes, longest = max(found, key=lambda one: one[1].latency_s + one[0] / one[1].max_Bps)
    uses: dict[int, float] = {}
    for _, path in found:
        for use in path.uses:
            uses[use.resource] = uses.get(use.resource, 0.0) + use.per_unit
    return moved_bytes, replace(longest, uses=tuple(Use(*use) for use in uses.items()))
