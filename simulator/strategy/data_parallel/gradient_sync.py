"""Gradient synchronisation of replicas: sums of gradients, and sharding and gathering of states and parameters."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scaleproof.simulator.cluster.collectives.cost import copying_s
from scaleproof.simulator.cluster.collectives.groups import Group, Op
from scaleproof.simulator.common.communication import Collective, Communication, Dimension, number_of
from scaleproof.simulator.common.csr import CsrLists
from scaleproof.simulator.program import Rows, Use
from scaleproof.simulator.run.run import Phase
from scaleproof.simulator.strategy.data_parallel.buckets import ends
from scaleproof.simulator.strategy.layout.resource_map import ResourceMap
from scaleproof.simulator.strategy.pipeline.rank_schedule import SLOTS
from scaleproof.simulator.strategy.pipeline.schedules import Pass
from scaleproof.simulator.strategy.pipeline.tasks import CompileContext, Replica
from scaleproof.simulator.strategy.program_template import JobCosts, SizeAndPath

# Names of groups of ranks with the same parameters: all replicas, or ranks with the same experts of a mixture.
REPLICA_GROUPS: Final = ("replicas", "experts")


class _CollectiveQuery(NamedTuple):
    """A collective of a pipeline rank, as a query to the resource map. group: name of the group of ranks.

    dimension: that it is reported with.
    """

    op: Op
    group: str
    size_bytes: float
    dimension: Dimension

    @property
    def number(self) -> int:
        """The number of the dimension and the collective."""
        return number_of(self.dimension, Collective.of(self.op))


class _RankCollectives(NamedTuple):
    """Collectives of a pipeline rank, arrays of shape (collectives,). slot: scheduling slots. queries: numbers of the queries.
    first_layer, last_layer: layers whose gradients or parameters they move. after: tasks of the rank schedule that they follow.
    before: tasks that wait for them, −1 for none. ends: tasks whose messages wait for them, −1 for none."""

    slot: Rows
    queries: Rows
    first_layer: Rows
    last_layer: Rows
    after: Rows
    before: Rows
    ends: Rows


class _Numbered(NamedTuple):
    """Queries of tasks, arrays of shape (queries,). task: index of the task; the others as in `_RankCollectives`."""

    task: Rows
    queries: Rows
    first_layer: Rows
    last_layer: Rows


class GradientSync:
    """Adds the collectives of all replicas to a program."""

    def __init__(self, context: CompileContext, replicas: Sequence[Replica]) -> None:
        self.context, self.plan, self.job, self.rank_layers = context, context.plan, context.job, context.rank_layers
        self.units, self.replicas = context.units, replicas
        self._unit_by_first_layer = {unit.layers.start: unit for stage in self.units for unit in stage}
        self._nodes = [sorted({replica.places[rank][0] for replica in replicas}) for rank in range(self.plan.stages)]
        self._rows = np.array([replica.rows for replica in replicas])
        self._makes_gradients = np.isin(context.schedule.kind, (Pass.BACKWARD, Pass.WEIGHT))
        self._has_backward = np.array([layer.has_backward for layer in context.rank_layers.layers])
        self._group_cache: dict[tuple[int, str], list[Group]] = {}
        self._query_numbers: dict[_CollectiveQuery, int] = {}
        self._recorded: dict[tuple[int, _CollectiveQuery], int] = {}

    def add(self) -> None:
        """Adds sums and gathers of every stage, and the optimizers."""
        sums = [self._add_collectives(rank) for rank in range(self.plan.stages)]
        if self.rank_layers.copied:
            self._sum_copies(sums)
        for rank, rows in enumerate(sums):
            self._add_optimizers(rank, rows)

    def _add_collectives(self, rank: int) -> list[int]:
        """Adds the collectives of a pipeline rank; returns the rows of its sums."""
        parts = list(self._rank_collectives(rank))
        if not parts:
            return []
        columns = (np.concatenate(column) for column in zip(*parts, strict=True))
        collectives = _RankCollectives(*columns)
        order = np.argsort(collectives.slot, kind="stable")
        slot, queries, first_layer, last_layer, after, before, ends = (column[order] for column in collectives)
        # queries are recorded in the order of the schedule
        _, first, index = np.unique(queries, return_index=True, return_inverse=True)
        by_appearance = np.argsort(first)
        queries_by_number = list(self._query_numbers)
        recorded = [self._recorded_query(rank, queries_by_number[number]) for number in queries[first[by_appearance]].tolist()]
        # sums that only optimizers wait for need no hint; several would have the same
        hints = slot if self.job.zero >= 2 else np.where(before >= 0, slot, -1)
        members, label = self._members(rank), rank if self.plan.stages > 1 else -1
        moved = [queries_by_number[number] for number in queries[first[by_appearance]].tolist()]
        index = by_appearance.argsort()[index]
        labels = Communication(
            np.array([query.number for query in moved])[index], np.array([query.size_bytes for query in moved])[index],
            first_layer=first_layer, last_layer=last_layer,
        )  # fmt: skip
        rows = self._add(members, recorded, index, self._rows[:, after].T, labels, label, hints)
        self._delay(rows, first_layer, before)
        is_awaited = before >= 0
        self.context.builder.follow(self._rows[:, before[is_awaited]].T, rows[is_awaited, None])
        self._delay_messages(rows, ends)
        sums: list[int] = rows[~is_awaited].tolist()
        return sums

    def _delay(self, rows: Rows, layers: Rows, before: Rows) -> None:
        """Lengthens collectives that move next to passes whose own collectives use the same links."""
        direction = np.where((before >= 0) & (self.context.schedule.kind[before] == Pass.FORWARD), 0, 1)
        share_of = partial(_replica_delay, self.job.samples_per_worker, direction, layers)
        self.context.recorder.record_delays(rows, share_of)

    def _delay_messages(self, rows: Rows, ends: Rows) -> None:
        """Makes messages that the tasks `ends` send wait for the collectives `rows` as well."""
        for replica in self.replicas:
            sends = np.where(ends >= 0, replica.sends[ends], -1)
            self.context.builder.follow(sends[sends >= 0], rows[sends >= 0])

    def _members(self, rank: int) -> list[int]:
        return [replica.ranks[rank] for replica in self.replicas]

    def _sum_copies(self, sums: Sequence[list[int]]) -> None:
        """Adds a sum of the gradients of weights that the first and the last stage both have, after replicas have summed theirs
        (Megatron-LM, arXiv 2104.04473). If gradients are sharded, each rank sums its shard."""
        pair, mesh, replicas = ends(self.plan), self.context.mesh, self.replicas
        share = self._groups(pair[0], "replicas")[0].size if self.job.zero >= 2 else 1
        size_bytes = self.rank_layers.copied * self.job.reduced_bytes / share
        queries = []
        for replica in replicas:
            group = Group.of([mesh.rank(replica.placed.rank, rank) for rank in pair], mesh.devices)
            queries.append(
                ("all_reduce", group, size_bytes, group.node_numbers.tolist(), min(replica.concurrent_senders, mesh.devices))
            )
        number = self.context.recorder.query(partial(_concurrent, queries))
        after = [row for rank in pair for row in (*sums[rank], *(replica.last_rows[rank] for replica in replicas))]
        members = [replica.ranks[rank] for rank in pair for replica in replicas]
        labels = Communication.of(Dimension.EMBEDDING, "all_reduce", size_bytes)
        row = self._add(members, [number], np.array([0]), [after], labels)
        for rank in pair:
            sums[rank] += row.tolist()

    def _add(
        self, members: Sequence[int], recorded: Sequence[int], index: Rows, after: ArrayLike, labels: Communication,
        stage: int = -1, slot: ArrayLike = -1,
    ) -> Rows:  # fmt: skip
        """Adds collectives with the sizes and paths of recorded queries; `index` selects the query of each. after: shape
        (collectives, tasks). Returns their rows."""
        if not len(index):
            return index
        recorder = self.context.recorder
        sizes_and_paths = [recorder.results[number] for number in recorded]
        rows = self.context.builder.collectives(members, sizes_and_paths, index, Phase.SYNCHRONISE, after, stage, slot, labels)
        recorder.record_transfers(rows, np.array(recorded)[index])
        return rows

    def _rank_collectives(self, rank: int) -> Iterator[_RankCollectives]:
        """Collectives of a rank that overlap with its passes or follow them."""
        if not self.plan.averages:
            return
        schedule, plan, zero = self.context.schedule, self.plan, self.job.zero
        rank_tasks = np.flatnonzero(schedule.rank == rank)
        if zero == 3:
            yield self._gathers(rank_tasks)
        elif zero and plan.overlap_gather:
            yield from self._gathers_of_step(rank, rank_tasks)
        overlaps = (plan.overlap and not self.job.sums_whole) or zero >= 2
        for stage in plan.stage_of[rank]:
            gradient_tasks = rank_tasks[(schedule.stage[rank_tasks] == stage) & self._makes_gradients[rank_tasks]]
            if not self.job.scatters:
                count = len(self.units[stage]) if overlaps and schedule.cut[gradient_tasks[-1]] else 1
                gradient_tasks = gradient_tasks[-count:]
            yield self._sums(rank, stage, gradient_tasks, schedule.cut[gradient_tasks] & overlaps)

    def _sums(self, rank: int, stage: int, gradient_tasks: Rows, cut: NDArray[np.bool_]) -> _RankCollectives:
        """Sums of the gradients that are complete after `gradient_tasks`: of the unit that a task passes if it is `cut`, else
        of the whole stage."""

        def queries(begin: int) -> Iterator[tuple[_CollectiveQuery, range]]:
            for unit in self.units[stage][::-1] if begin < 0 else [self._unit_by_first_layer[begin]]:
                buckets = (self.rank_layers.gradients.tensors[begin:end] for begin, end in itertools.pairwise(unit.bounds))
                parts = [("replicas", tensors) for tensors in buckets if sum(tensors)]
                _, experts = self.rank_layers.trained(unit.layers)
                parts += [("experts", (experts,))] if experts else []
                for query in itertools.chain.from_iterable(itertools.starmap(partial(self._summed, rank), parts)):
                    yield query, unit.layers

        numbered = self._numbered(np.where(cut, self.context.schedule.begin[gradient_tasks], -1), queries)
        after = gradient_tasks[numbered.task]
        slot = self.context.schedule.slot[after] + SLOTS // 2
        if not self.job.waits_for_scatters:
            return _RankCollectives(slot, *numbered[1:], after, *np.full((2, len(after)), -1))
        # the pass returns with its gradients scattered
        last = np.flatnonzero(self.context.schedule.rank == rank)[-1]
        return _RankCollectives(slot, *numbered[1:], after, np.where(after < last, after + 1, -1), after)

    def _numbered(self, begin: Rows, queries: Callable[[int], Iterable[tuple[_CollectiveQuery, range]]]) -> _Numbered:
        """Numbers and layers of the queries of tasks that begin with the layers `begin`."""
        known = self._query_numbers
        begins, index = np.unique(begin, return_inverse=True)
        found = [list(queries(layer)) for layer in begins.tolist()]
        numbers, first, last = (
            CsrLists.from_lists([[value(query, layers) for query, layers in of_task] for of_task in found]).take(index)
            for value in (
                lambda query, _: known.setdefault(query, len(known)),
                lambda _, layers: layers.start,
                lambda _, layers: layers.stop - 1,
            )
        )
        return _Numbered(numbers.keys(), numbers.values, first.values, last.values)

    def _summed(self, rank: int, group: str, tensors: Sequence[int]) -> Iterator[_CollectiveQuery]:
        """Queries that sum the gradients of a group of ranks with the same parameters."""
        plan, size = self.plan, self.job.reduced_bytes
        ranks = self._groups(rank, group)[0].size
        if self.job.sums_whole:
            yield _CollectiveQuery("all_reduce", group, float(sum(tensors) * size), self._sharding)
        elif self.job.owns_tensors:
            yield _CollectiveQuery("all_reduce", "all replicas", float(sum(tensors) * size), self._sharding)
        elif self.job.zero:
            yield _CollectiveQuery("reduce_scatter", group, float(sum(tensors) * size), self._sharding)
            if group == "replicas" and plan.sharing < plan.workers:
                yield _CollectiveQuery("all_reduce", "shards", sum(tensors) * size / ranks, Dimension.DATA)
        elif plan.compression is None:
            yield _CollectiveQuery("all_reduce", group, float(sum(tensors) * size), Dimension.DATA)
        else:
            for collective in plan.compression.wire(tensors, size):
                yield _CollectiveQuery(collective.op, group, collective.collective_bytes(ranks), Dimension.DATA)

    @property
    def _sharding(self) -> Dimension:
        """The dimension of collectives over replicas that shard states or parameters."""
        return Dimension.FSDP if self.job.zero == 3 else Dimension.ZERO

    def _parameters(self, *layers: range, trained: bool) -> dict[str, int]:
        """Number of parameters of some layers, or of the trained ones only, by the group of ranks that have the same."""
        count_of = self.rank_layers.trained if trained else self.rank_layers.parameters
        counts = map(sum, zip(*map(count_of, layers), strict=True))
        return {group: count for group, count in zip(REPLICA_GROUPS, counts, strict=True) if count}

    def _gathers(self, rank_tasks: Rows) -> _RankCollectives:
        """Gathers of the parameters of each layer before its forward pass, and before its backward pass if they were freed;
        only before the step's first pass if they are kept for the whole step."""
        kinds = (Pass.FORWARD, Pass.BACKWARD, Pass.INPUT) if self.plan.reshard else (Pass.FORWARD,)
        layer_tasks = rank_tasks[np.isin(self.context.schedule.kind[rank_tasks], kinds)]
        # layers below the first trained one are not passed backward
        forward = self.context.schedule.kind[layer_tasks] == Pass.FORWARD
        layer_tasks = layer_tasks[forward | self._has_backward[self.context.schedule.begin[layer_tasks]]]
        if self.plan.keeps_gathered:
            layer_tasks = layer_tasks[self.context.schedule.microbatch[layer_tasks] == self._first_of(layer_tasks)]
        ahead = np.arange(len(layer_tasks)) - 1 - self.plan.prefetch
        return self._gathered(layer_tasks, np.where(ahead >= 0, layer_tasks[np.maximum(ahead, 0)], rank_tasks[0]))

    def _first_of(self, layer_tasks: Rows) -> Rows:
        """For each task of a rank, the microbatch that passes the task's stage first."""
        stage, microbatch = self.context.schedule.stage[layer_tasks], self.context.schedule.microbatch[layer_tasks]
        stages, first = np.unique(stage, return_index=True)
        result: Rows = microbatch[first][np.searchsorted(stages, stage)]
        return result

    def _gathers_of_step(self, rank: int, rank_tasks: Rows) -> Iterator[_RankCollectives]:
        """Gathers of the parameters of each unit before the step's first pass over it, one after another."""
        for stage in self.plan.stage_of[rank]:
            unit_tasks = rank_tasks[self.context.schedule.stage[rank_tasks] == stage][: len(self.units[stage])]
            yield self._gathered(unit_tasks, np.full(len(unit_tasks), rank_tasks[0]))

    def _gathered(self, unit_tasks: Rows, after: Rows) -> _RankCollectives:
        """Gathers of the parameters that tasks need."""

        def queries(begin: int) -> Iterator[tuple[_CollectiveQuery, range]]:
            layers = self._unit_by_first_layer[begin].layers
            for query in self._gathers_of_layers(layers):
                yield query, layers

        numbered = self._numbered(self.context.schedule.begin[unit_tasks], queries)
        before = unit_tasks[numbered.task]
        slot = self.context.schedule.slot[before] - SLOTS + 1
        return _RankCollectives(slot, *numbered[1:], after[numbered.task], before, np.full(len(before), -1))

    def _gathers_of_layers(self, layers: range) -> Iterator[_CollectiveQuery]:
        """Queries that gather the shards of some layers' parameters, or broadcast them from the ranks that own them: of all
        parameters where these are sharded, else of those that the optimizer has changed."""
        for group, parameters in self._parameters(layers, trained=self.job.zero < 3).items():
            size_bytes = float(parameters * self.job.gathered_bytes)
            if self.job.owns_tensors:
                count = self.job.broadcasts([self.rank_layers.layers[i] for i in layers], self.plan.sharing)
                yield from [_CollectiveQuery("broadcast", group, size_bytes / count, self._sharding)] * count
            else:
                yield _CollectiveQuery("all_gather", group, size_bytes, self._sharding)

    def _recorded_query(self, rank: int, query: _CollectiveQuery) -> int:
        """Number of a recorded query for a collective of a pipeline rank."""
        if (rank, query) not in self._recorded:
            mesh = self.context.mesh
            algorithm = self.plan.algorithm if query.op == "all_reduce" else None
            tensor_ranks = self.plan.expert_tensor if query.group == "experts" else None
            concurrent = mesh.on_first_node(
                [mesh.rank(0, rank) + i * mesh.stride("tensor") for i in range(tensor_ranks or mesh.tensor)]
            )
            queries = []
            for group in self._groups(rank, query.group):
                nodes = [node for node in self._nodes[rank] if node in group.node_numbers]
                queries.append((query.op, group, query.size_bytes, nodes, concurrent, algorithm))
            copied_bytes = self.job.shard_copies.of(query.op) * query.size_bytes
            self._recorded[rank, query] = self.context.recorder.query(partial(_concurrent, queries, copied_bytes=copied_bytes))
        return self._recorded[rank, query]

    def _groups(self, rank: int, name: str) -> list[Group]:
        """Groups that synchronise concurrently and have members on modelled nodes."""
        if (rank, name) not in self._group_cache:
            nodes = self._nodes[rank]
            workers = self.context.mesh.workers_on(nodes, rank)
            groups = self._groups_with(workers, rank, name)
            self._group_cache[rank, name] = [group for group in groups if np.isin(group.node_numbers, nodes).any()]
        return self._group_cache[rank, name]

    def _groups_with(self, workers: Iterable[int], rank: int, name: str) -> Iterator[Group]:
        """Groups that contain some workers: "replicas" have the same parameters, and shard states with ZeRO; "all replicas"
        have the same parameters; "shards" have the same shard of these; "experts" have the same experts."""
        plan, mesh = self.plan, self.context.mesh
        sharing = plan.sharing if self.job.zero and name != "all replicas" else plan.workers
        if name == "experts":
            for ranks in mesh.expert_replicas(rank, plan.expert, plan.expert_tensor):
                yield Group.of(ranks, mesh.devices)
            return
        for first in sorted({worker % sharing if name == "shards" else worker - worker % sharing for worker in workers}):
            if name in ("replicas", "all replicas"):
                yield mesh.replicas_of(rank, first, sharing)
            else:
                columns = (mesh.members(worker, rank)[:: mesh.tensor] for worker in range(first, plan.workers, sharing))
                yield from (Group.of(members, mesh.devices) for members in zip(*columns, strict=True))

    def _add_optimizers(self, rank: int, sums: Sequence[int]) -> None:
        """Adds each replica's optimizer step, and afterwards the gather of sharded parameters unless the next step overlaps
        it."""
        context, plan, job = self.context, self.plan, self.job
        times_of = self._optimizer_times(rank)
        work_s, _ = times_of(context.job_costs)
        label = rank if plan.stages > 1 else -1
        members = self._members(rank)
        rows = [context.builder.compute(member, Phase.OPTIMIZER, work_s, sums, label) for member in members]
        context.recorder.record_times(rows, members, times_of)
        if job.zero in (1, 2) and not plan.overlap_gather and plan.averages:
            gathered = [
                (query, context.ranges[stage])
                for stage in plan.stage_of[rank]
                for query in self._gathers_of_layers(context.ranges[stage])
            ]
            numbers = [self._recorded_query(rank, query) for query, _ in gathered]
            labels = Communication(
                np.array([query.number for query, _ in gathered]),
                np.array([query.size_bytes for query, _ in gathered]),
                first_layer=np.array([layers.start for _, layers in gathered]),
                last_layer=np.array([layers.stop - 1 for _, layers in gathered]),
            )
            gathers = self._add(members, numbers, np.arange(len(numbers)), [rows], labels, label).tolist()
            for member in members:
                context.builder.wait(member, Phase.SYNCHRONISE, gathers, label)

    def _optimizer_times(self, rank: int) -> Callable[[JobCosts], tuple[float, float]]:
        """Function for the seconds of the optimizer's step over a rank's own shard of the parameters; the second value is
        zero."""
        plan, zero = self.plan, self.job.zero
        stages = [self.context.ranges[stage] for stage in plan.stage_of[rank]]
        parameters, ranks = self._parameters(*stages, trained=True), self._groups(rank, "replicas")[0].size
        updated = sum(count / (self._groups(rank, group)[0].size if zero else 1) for group, count in parameters.items())
        tensors = [tensor for stage in stages for i in stage for tensor in self.rank_layers.layers[i].tensors]

        def times_of(job_costs: JobCosts) -> tuple[float, float]:
            job = job_costs.job
            work_s = job.optimizer_s(updated) + job.gradient_host_s(len(tensors), ranks) + job.broadcasts_s(len(tensors), ranks)
            work_s += plan.compression_s(job, tensors, ranks)
            if plan.stages == 1 and ranks > 1:
                work_s += job.framework.step_stall_s(self.context.mesh.nodes)
            return work_s, 0.0

        return times_of


def _replica_delay(samples: int, direction: Rows, layers: Rows, costs: JobCosts) -> NDArray[Any]:
    """Share by which collectives next to passes over layers take longer."""
    result: NDArray[Any] = costs.costs(samples).replica_delay[direction, layers]
    return result


def _concurrent(queries: Sequence[tuple[Any, ...]], resource_map: ResourceMap, copied_bytes: float = 0.0) -> SizeAndPath:
    """Size and path of concurrent collectives of several groups, each given by arguments of `ResourceMap.collective`: the
    longest of them, with the resources of all. copied_bytes: of each rank, before or after they move."""
    results = list(itertools.starmap(resource_map.collective, queries))
    moved_bytes, longest = max(results, key=lambda result: result[1].latency_s + result[0] / result[1].max_Bps)
    if copied_bytes:
        longest = replace(longest, latency_s=longest.latency_s + copying_s(copied_bytes, resource_map.cluster))
    if len(results) == 1:
        return moved_bytes, longest
    uses: dict[int, float] = {}
    for _, path in results:
        for use in path.uses:
            uses[use.resource] = uses.get(use.resource, 0.0) + use.per_unit
    return moved_bytes, replace(longest, uses=tuple(Use(*use) for use in uses.items()))
