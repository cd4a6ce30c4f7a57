"""Data parallelism by all-reduces: replicas sum each bucket of gradients as soon as a backward pass has completed it.

The sum overlaps with the rest of the backward pass (Horovod, arXiv 1802.05799; DistributedDataParallel, arXiv 2006.15704), or
follows it. Library and links decide how it moves: by a ring, a tree, or switches. Replicas that shard states or parameters
scatter gradients instead, and gather parameters; see `zero`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scaleproof.simulator.cluster.collectives.groups import Group, passed_bytes
from scaleproof.simulator.common.communication import Communication, Dimension
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.model.muon import NARROW_BYTES, matrix_elements
from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.simulator.program import PathOf, Rows
from scaleproof.simulator.strategy.data_parallel import zero
from scaleproof.simulator.strategy.data_parallel.buckets import Issued, ReplicaCollective, SyncUnit, ends
from scaleproof.simulator.strategy.data_parallel.offloading import HostCopies
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.layout.resource_map import ResourceMap
from scaleproof.simulator.strategy.pipeline.replica import SLOTS, CompileContext, Replica
from scaleproof.simulator.strategy.pipeline.schedules import Pass
from scaleproof.simulator.strategy.step_builder import JobCosts

# Bytes of the sum of squares of gradients.
_NORM_BYTES: Final = 4.0


class GradientSync:
    """Adds the sums of gradients of all replicas to a program, their gathers of parameters, and their optimizers."""

    def __init__(self, context: CompileContext, replicas: Sequence[Replica]) -> None:
        self.context, self.plan, self.job, self.replicas = context, context.plan, context.job, replicas
        self._rows = np.array([replica.rows for replica in replicas])
        # that are modelled, by pipeline rank
        self._nodes = [sorted({replica.places[rank][0] for replica in replicas}) for rank in range(context.plan.stages)]
        self._known_groups: dict[tuple[int, str], list[Group]] = {}

    def add(self) -> None:
        """Adds sums and gathers of every stage, and the optimizers."""
        copies = [self._host_copies(rank) for rank in range(self.plan.stages)]
        sums = [self._add_collectives(rank, copies[rank]) for rank in range(self.plan.stages)]
        if self.context.rank_layers.copied:
            self._sum_copies(sums)
        if self.job.clips:
            self._add_norm(sums)
        for rank, rows in enumerate(sums):
            self._add_optimizers(rank, rows, copies[rank])

    def _host_copies(self, rank: int) -> HostCopies:
        """Copies of the states of a pipeline rank between devices and hosts."""
        groups = ("replicas", "experts") if self.context.rank_layers.has_experts else ("replicas",)
        shares = {group: self._group_size(rank, group) if self.job.zero else 1 for group in groups}
        return HostCopies(self.context, self.replicas, rank, shares)

    def _add_collectives(self, rank: int, copies: HostCopies) -> Rows:
        """Adds the collectives of a pipeline rank, and copies before and after them; returns the rows of its sums."""
        gathers = zero.gathers(self.context, rank) if self.job.zero else ()
        issued = [*gathers, *self._sums(rank)] if self.plan.averages else []
        by_task: dict[tuple[int, int], list[int]] = {}
        sums = self._add_issued(rank, issued, by_task) if issued else np.array([], dtype=np.int64)
        if "parameters" in self.job.offload:
            copies.fetch_parameters({task: rows for (task, layer), rows in by_task.items() if layer < 0})
        if "optimizer" in self.job.offload:
            done = [(task, unit) for task, units in completed(self.context, rank) for unit in units]
            copies.send_gradients([(task, unit, by_task.get((task, unit.layers.start), ())) for task, unit in done])
        return sums

    def _add_issued(self, rank: int, issued: list[Issued], by_task: dict[tuple[int, int], list[int]]) -> Rows:
        """Adds collectives of a pipeline rank; returns the rows of its sums. by_task: gets the rows of gathers by the task that
        needs them and −1, and those of sums by the task that completes the gradients and their first layer."""
        issued.sort(key=lambda call: call.slot)
        slot, after, before, holds, first_layer = np.array(
            [(call.slot, call.after, call.before, call.holds, call.layers.start) for call in issued]
        ).T
        # sums that only optimizers wait for need no hint; several would have the same
        hints = slot if self.job.zero >= 2 else np.where(before >= 0, slot, -1)
        rows = self._add(rank, [(call.collective, call.layers) for call in issued], self._rows[:, after], hints)
        # collectives take longer next to passes whose own collectives use the same links
        direction = np.where((before >= 0) & (self.context.schedule.kind[before] == Pass.FORWARD), 0, 1)
        self.context.builder.delay(rows, partial(_replica_delay, self.job.samples_per_worker, direction, first_layer))
        for call, row in zip(issued, rows.tolist(), strict=True):
            is_sum = call.collective.op in ("reduce_scatter", "all_reduce")
            by_task.setdefault((call.after, call.layers.start) if is_sum else (call.before, -1), []).append(row)
        is_awaited = before >= 0
        self.context.builder.follow(self._rows[:, before[is_awaited]].T, rows[is_awaited, None])
        for replica in self.replicas:
            sends = np.where(holds >= 0, replica.sends[holds], -1)
            self.context.builder.follow(sends[sends >= 0], rows[sends >= 0])
        sums: Rows = rows[~is_awaited]
        return sums

    def _sums(self, rank: int) -> Iterator[Issued]:
        """The sums of the gradients of a pipeline rank, each after the pass that completes its gradients."""
        schedule, waits = self.context.schedule, self.job.waits_for_scatters
        last = int(np.flatnonzero(schedule.rank == rank)[-1])
        for task, units in completed(self.context, rank):
            slot = int(schedule.slot[task]) + SLOTS // 2
            # the pass returns with its gradients scattered
            before, holds = (task + 1 if task < last else -1, task) if waits else (-1, -1)
            for unit in units:
                for group, tensors in _gradients(self.context, unit):
                    for collective in summed(self.context, self._group_size(rank, group), group, tensors):
                        yield Issued(collective, unit.layers, slot, task, before, holds)

    def _add(self, rank: int, moved: Sequence[tuple[ReplicaCollective, range]], after: Rows, slot: ArrayLike = -1) -> Rows:
        """Adds collectives of a pipeline rank, each with the layers whose gradients or parameters it moves; returns their rows.
        after: shape (tasks, collectives)."""
        if not moved:
            return np.array([], dtype=np.int64)
        collectives, layers = zip(*moved, strict=True)
        known = {collective: self._moved(rank, collective) for collective in dict.fromkeys(collectives)}
        moved_bytes, paths = zip(*(known[collective] for collective in collectives), strict=True)
        labels = Communication(
            np.array([collective.number for collective in collectives]),
            np.array([collective.size_bytes for collective in collectives]),
            first_layer=np.array([one.start for one in layers]),
            last_layer=np.array([one.stop - 1 for one in layers]),
        )
        return self.context.builder.collective(
            [np.array([member]) for member in self._members(rank)], np.array(moved_bytes), np.array(paths, dtype=np.object_),
            Phase.SYNCHRONISE, after, self._label(rank), slot=slot, labels=labels,
        )  # fmt: skip

    def _members(self, rank: int) -> list[int]:
        """Rank classes of a pipeline rank."""
        return [replica.ranks[rank] for replica in self.replicas]

    def _group_size(self, rank: int, name: str) -> int:
        """Number of ranks in each group of a pipeline rank."""
        return self._groups(rank, name)[0].size

    def _groups(self, rank: int, name: str) -> list[Group]:
        """The groups of a pipeline rank with a name, which communicate concurrently: those with members on modelled nodes."""
        if (rank, name) not in self._known_groups:
            nodes = self._nodes[rank]
            groups = self._groups_of(self.context.mesh.workers_on(nodes, rank), rank, name)
            self._known_groups[rank, name] = [group for group in groups if np.isin(group.node_numbers, nodes).any()]
        return self._known_groups[rank, name]

    def _groups_of(self, workers: Iterable[int], rank: int, name: str) -> Iterator[Group]:
        """Groups that contain some workers: "replicas" have the same parameters, and shard states with ZeRO; "all replicas"
        have the same parameters; "shards" have the same shard of these; "experts" have the same experts."""
        plan, mesh = self.plan, self.context.mesh
        sharing = plan.sharing if self.job.zero and name != "all replicas" else plan.workers
        if name == "experts":
            for ranks in mesh.expert_replicas(rank):
                yield mesh.group(ranks)
            return
        for first in sorted({worker % sharing if name == "shards" else worker - worker % sharing for worker in workers}):
            if name in ("replicas", "all replicas"):
                yield mesh.replicas_of(rank, first, sharing)
            else:
                columns = (mesh.members(worker, rank)[:: mesh.tensor] for worker in range(first, plan.workers, sharing))
                yield from (mesh.group(members) for members in zip(*columns, strict=True))

    def _moved(self, rank: int, collective: ReplicaCollective) -> tuple[float, PathOf]:
        """Bytes through each member of a collective of a pipeline rank, and its path."""
        plan, mesh, groups = self.plan, self.context.mesh, self._groups(rank, collective.group)
        op, size_bytes = collective.op, collective.size_bytes
        algorithm = plan.algorithm if op == "all_reduce" else None
        tensor_ranks = plan.expert_shards if collective.group == "experts" else mesh.tensor
        concurrent = mesh.on_first_node([mesh.rank(0, rank) + i * mesh.stride("tensor") for i in range(tensor_ranks)])
        calls = [
            (op, group, size_bytes, [node for node in self._nodes[rank] if node in group.node_numbers], concurrent, algorithm)
            for group in groups
        ]
        copied_bytes = self.job.shard_copies.of(op) * size_bytes
        return passed_bytes(op, groups[0], size_bytes), partial(
            ResourceMap.concurrent_collectives, calls=calls, copied_bytes=copied_bytes
        )

    def _label(self, rank: int) -> int:
        """The label of the spans of a pipeline rank."""
        return rank if self.plan.stages > 1 else -1

    def _sum_copies(self, sums: list[Rows]) -> None:
        """Adds a sum of the gradients of weights that the first and the last stage both have, after replicas have summed theirs
        (Megatron-LM, arXiv 2104.04473). If gradients are sharded, each rank sums its shard."""
        pair, mesh, replicas = ends(self.plan), self.context.mesh, self.replicas
        share = self._group_size(pair[0], "replicas") if self.job.zero >= 2 else 1
        size_bytes = self.context.rank_layers.copied * self.job.reduced_bytes / share
        groups = [mesh.group([mesh.rank(replica.workers.rank, rank) for rank in pair]) for replica in replicas]
        senders = [min(replica.concurrent_senders, mesh.devices) for replica in replicas]
        calls = [
            ("all_reduce", group, size_bytes, group.node_numbers.tolist(), count)
            for group, count in zip(groups, senders, strict=True)
        ]
        path: PathOf = partial(ResourceMap.concurrent_collectives, calls=calls)
        after = [row for rank in pair for row in (*sums[rank], *(replica.last_rows[rank] for replica in replicas))]
        members = [replica.ranks[rank] for rank in pair for replica in replicas]
        labels = Communication.of(Dimension.EMBEDDING, "all_reduce", size_bytes)
        moved_bytes = passed_bytes("all_reduce", groups[0], size_bytes)
        row = self.context.builder.collective(members, moved_bytes, path, Phase.SYNCHRONISE, after, labels=labels)
        for rank in pair:
            sums[rank] = np.append(sums[rank], row)

    def _add_norm(self, sums: list[Rows]) -> None:
        """Adds the sum of the squares of gradients over all ranks that have a part of them, for which optimizers wait."""
        plan, mesh, job, replicas = self.plan, self.context.mesh, self.job, self.replicas
        if job.zero and plan.averages:
            groups, dimension = [mesh.group(range(plan.ranks))], zero.dimension_of(job)
        else:
            by_stage = ([mesh.members(one.workers.rank, stage) for stage in range(plan.stages)] for one in replicas)
            groups = [mesh.group([*itertools.chain.from_iterable(members)]) for members in by_stage]
            dimension = Dimension.PIPELINE if plan.stages > 1 else Dimension.TENSOR
        if groups[0].size == 1:
            return
        nodes = sorted({node for of_rank in self._nodes for node in of_rank})
        calls = [("all_reduce", one, _NORM_BYTES, [node for node in nodes if node in one.node_numbers]) for one in groups]
        path: PathOf = partial(ResourceMap.concurrent_collectives, calls=calls)
        after = [row for rows in sums for row in rows] + [row for replica in replicas for row in replica.last_rows]
        members = [number for replica in replicas for number in replica.ranks]
        labels = Communication.of(dimension, "all_reduce", _NORM_BYTES)
        moved_bytes = passed_bytes("all_reduce", groups[0], _NORM_BYTES)
        row = self.context.builder.collective(members, moved_bytes, path, Phase.SYNCHRONISE, after, labels=labels)
        sums[:] = [np.append(rows, row) for rows in sums]

    def _add_whole_matrices(self, rank: int, sums: Rows) -> Rows:
        """Adds Muon's gathers of the momentum of sharded matrices; returns the rows that its step follows."""
        layers = self.context.rank_layers.layers
        stages = [self.context.ranges[stage] for stage in self.plan.stage_of[rank]]
        sizes_bytes = [float(NARROW_BYTES * sum(matrix_elements(layers[i]) for i in stage)) for stage in stages]
        dimension = zero.dimension_of(self.job)
        moved = [
            (ReplicaCollective("all_gather", "replicas", size_bytes, dimension), stage)
            for size_bytes, stage in zip(sizes_bytes, stages, strict=True)
            if size_bytes
        ]
        return self._add(rank, moved, sums[:, None]) if moved else sums

    def _add_optimizers(self, rank: int, sums: Rows, copies: HostCopies) -> None:
        """Adds each replica's optimizer step, and afterwards the gather of sharded parameters unless the next step overlaps
        it."""
        context, plan, label = self.context, self.plan, self._label(rank)
        if self.job.optimizer == "muon" and self.job.zero and plan.averages:
            sums = self._add_whole_matrices(rank, sums)
        if "optimizer" in self.job.offload:
            copies.update(self._updated(rank), sums, label)
        members = self._members(rank)
        seconds = [self._optimizer_seconds(rank, replica.kinds[rank]) for replica in self.replicas]
        rows = [
            context.builder.compute(member, Phase.OPTIMIZER, own, sums, label)
            for member, own in zip(members, seconds, strict=True)
        ]
        if plan.gathering(self.job.zero) == "after update":
            stages = [context.ranges[stage] for stage in plan.stage_of[rank]]
            moved = [(collective, layers) for layers in stages for collective in zero.gathers_of(context, layers)]
            gathers = self._add(rank, moved, np.array(rows)[:, None])
            for member in members:
                context.builder.wait(member, Phase.SYNCHRONISE, gathers, label)

    def _optimizer_seconds(self, rank: int, kind: int) -> Callable[[JobCosts], float]:
        """Function for the seconds of the optimizer's step over a rank's own shard of the parameters, on a kind of nodes."""
        context, plan = self.context, self.plan
        ranks, updated = self._group_size(rank, "replicas"), self._updated(rank)
        layers = [context.rank_layers.layers[i] for stage in plan.stage_of[rank] for i in context.ranges[stage]]
        tensors = [tensor for layer in layers for tensor in layer.tensors]

        def seconds(costs: JobCosts) -> float:
            job = costs.job_with(costs.job.samples_per_worker, kind)
            work_s = job.gradient_host_s(len(tensors), ranks) + job.broadcasts_s(len(tensors), ranks)
            if "optimizer" not in job.offload:
                # shards of ZeRO's stage 3 have rows of all matrices, others some whole matrices
                orthogonalised = 1 / ranks if job.zero in (1, 2) else 1.0
                work_s += job.device_optimizer_s(updated) + orthogonalised * job.orthogonalising_s(layers)
            work_s += compression_s(plan, job, tensors, ranks)
            if plan.stages == 1 and ranks > 1:
                work_s += job.framework.step_stall_s(context.mesh.nodes)
            return float(work_s)

        return seconds

    def _updated(self, rank: int) -> float:
        """Number of parameters that a rank updates."""
        stages = (self.context.ranges[stage] for stage in self.plan.stage_of[rank])
        parameters = self.context.rank_layers.by_group(*stages, trained=True)
        return sum(count / (self._group_size(rank, group) if self.job.zero else 1) for group, count in parameters.items())


def completed(context: CompileContext, rank: int) -> Iterator[tuple[int, Sequence[SyncUnit]]]:
    """Tasks that complete gradients, and the units that they complete: one each where the task passes one unit and sums
    overlap with passes, else all of the stage."""
    plan, job, schedule = context.plan, context.job, context.schedule
    overlaps = (plan.overlap and not job.sums_whole) or job.zero >= 2
    for stage in plan.stage_of[rank]:
        units = context.units[stage]
        makes_gradients = np.isin(schedule.kind, (Pass.BACKWARD, Pass.WEIGHT))
        tasks = np.flatnonzero((schedule.rank == rank) & (schedule.stage == stage) & makes_gradients)
        if not job.scatters:
            # the last microbatch completes them
            tasks = tasks[-len(units) if overlaps and schedule.cut[tasks[-1]] else -1 :]
        for task in tasks.tolist():
            is_piece = overlaps and schedule.cut[task]
            yield task, [context.unit_of[int(schedule.begin[task])]] if is_piece else units[::-1]


def _gradients(context: CompileContext, unit: SyncUnit) -> Iterator[tuple[str, Sequence[int]]]:
    """Elements of the tensors whose gradients are summed together, with the name of the group that sums them: those of each
    bucket, and those of experts."""
    for begin, end in itertools.pairwise(unit.bounds):
        tensors = context.rank_layers.gradients.tensors[begin:end]
        if sum(tensors):
            yield "replicas", tensors
    _, experts = context.rank_layers.trained(unit.layers)
    if experts:
        yield "experts", (experts,)


def summed(context: CompileContext, ranks: int, group: str, tensors: Sequence[int]) -> Iterator[ReplicaCollective]:
    """Collectives that sum the gradients of a group of `ranks` ranks with the same parameters."""
    plan, size = context.plan, context.job.reduced_bytes
    if context.job.zero:
        yield from zero.summed(context, ranks, group, float(sum(tensors) * size))
    elif plan.compression is None:
        yield ReplicaCollective("all_reduce", group, float(sum(tensors) * size), Dimension.DATA)
    else:
        for sent in plan.compression.wire(tensors, size):
            yield ReplicaCollective(sent.op, group, sent.collective_bytes(ranks), Dimension.DATA)


def compression_s(plan: Plan, job: Job, tensors: Sequence[int], ranks: int) -> float:
    """Seconds for which each of `ranks` replicas compresses the gradients of tensors of these sizes and restores their sum;
    zero without compression."""
    if plan.compression is None or ranks == 1 or job.zero:
        return 0.0
    return plan.compression.work_s(tensors, ranks, job.cluster.device, job.precision)


def _replica_delay(samples: int, direction: Rows, layers: Rows, costs: JobCosts) -> NDArray[Any]:
    """Share by which collectives next to passes over layers take longer."""
    result: NDArray[Any] = costs.layers(samples).replica_delay[direction, layers]
    return result
