"""Agreement: how replicas keep their parameters alike: gradients summed, states and parameters shared out and gathered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simulator.cluster.algorithms import Group, Op
from simulator.model.layers import Layer
from simulator.program import Path
from simulator.run import Phase
from simulator.strategy.costs import Bucket, Job, buckets
from simulator.strategy.lanes import SLOTS
from simulator.strategy.plan import Plan
from simulator.strategy.replica import Replica, Shop
from simulator.strategy.schedule import Pass


@dataclass(frozen=True)
class Unit:
    """Layers whose gradients are complete together, or that are gathered together, and the buckets that are then full."""

    layers: range
    buckets: tuple[Bucket, ...]


def units(layers: Sequence[Layer], stage: range, plan: Plan, job: Job) -> list[Unit]:
    """The units of a stage of the model, in forward order: each layer where ZeRO's stage 3 gathers it, else as buckets fill."""
    if plan.workers * plan.context == 1 or plan.servers:
        return [Unit(stage, ())]
    if job.zero == 3:
        return [Unit(range(i, i + 1), (Bucket(i, layers[i].tensors),)) for i in stage]
    size = plan.gradient_bytes or job.element_bytes
    found = buckets([layers[i] for i in stage], size, plan.first_bucket_bytes, plan.bucket_bytes)
    if not (plan.overlap or job.zero == 2):
        return [Unit(stage, tuple(found))]
    result: list[Unit] = []
    end = stage.stop
    for bucket in found:
        layer = stage.start + bucket.layer
        if layer < end:
            result.insert(0, Unit(range(layer, end), ()))
            end = layer
        # one that a layer fills together with the one before it
        result[0] = Unit(result[0].layers, (*result[0].buckets, bucket))
    return ([Unit(range(stage.start, end), ())] if end > stage.start else []) + result


class _Event(NamedTuple):
    """A collective of a pipeline rank. slot: its place among the others. after: tasks of the lanes. before: task that waits for
    it, −1 for none."""

    slot: int
    op: Op
    group: str
    size_bytes: float
    after: tuple[int, ...]
    before: int = -1


class Agreement:
    """Adds to a program what all replicas do together."""

    def __init__(self, shop: Shop, job: Job, found: Sequence[Sequence[Unit]], replicas: Sequence[Replica]) -> None:
        """job: any replica's. found: the units of each stage of the model."""
        self.shop, self.job, self.plan = shop, job, shop.plan
        self.units, self.replicas = found, replicas
        self._groups: dict[tuple[int, str], Group] = {}
        self._paths: dict[tuple[Op, str, int, float], tuple[float, Path]] = {}

    def add(self) -> None:
        """Sums and gathers of every stage, and the optimizers."""
        for rank in range(self.plan.stages):
            events = sorted(self._events(rank), key=lambda event: event.slot)
            rows = [self._collective(rank, event) for event in events]
            sums = [row for row, event in zip(rows, events, strict=True) if event.before < 0]
            self._add_optimizers(rank, sums)

    def _events(self, rank: int) -> Iterator[_Event]:
        """Collectives of a rank beside its passes."""
        if self.plan.workers * self.plan.context == 1:
            return
        tasks, plan, zero = self.shop.lanes, self.plan, self.job.zero
        own = np.flatnonzero(tasks.rank == rank)
        if zero == 3 and plan.workers > 1:
            yield from self._gathers(own.tolist())
        elif zero in (1, 2) and plan.overlap_gather:
            yield from self._gathers_of_step(rank, own.tolist())
        if zero >= 2:
            makes = np.isin(tasks.kind[own], (Pass.BACKWARD, Pass.INPUT))
            for task in own[makes].tolist():
                yield from self._sums(task, [self._unit_at(task)])
            return
        for stage in plan.stage_of[rank]:
            making = own[(tasks.stage[own] == stage) & np.isin(tasks.kind[own], (Pass.BACKWARD, Pass.WEIGHT))]
            last = int(making[-1])
            if not tasks.cut[last]:
                yield from self._sums(last, self.units[stage][::-1])
                continue
            for task, unit in zip(making[-len(self.units[stage]) :].tolist(), self.units[stage][::-1], strict=True):
                yield from self._sums(task, [unit])

    def _unit_at(self, task: int) -> Unit:
        tasks = self.shop.lanes
        begin = int(tasks.begin[task])
        return next(unit for unit in self.units[int(tasks.stage[task])] if unit.layers.start == begin)

    def _sums(self, task: int, done: Sequence[Unit]) -> Iterator[_Event]:
        """Sums of the gradients that are complete after a task."""
        slot = int(self.shop.lanes.slot[task]) + SLOTS // 2
        size = self.plan.gradient_bytes or self.job.element_bytes
        for unit in done:
            expert = sum(self.job.layers[i].expert_parameters for i in unit.layers) if self.plan.expert > 1 else 0
            whole = sum(self.job.layers[i].parameters for i in unit.layers)
            dense = 1 - expert / whole if whole else 1.0
            for bucket in unit.buckets:
                for op, group, size_bytes in self._summed(bucket, size, dense):
                    yield _Event(slot, op, group, size_bytes, (task,))
            if expert:
                yield _Event(slot, "all_reduce", "experts", float(expert * size), (task,))

    def _summed(self, bucket: Bucket, size: int, dense: float) -> Iterator[tuple[Op, str, float]]:
        """The collectives that sum a bucket, of whose gradients a share is not experts'."""
        if self.job.zero:
            size_bytes = sum(bucket.tensors) * dense * size
            yield "reduce_scatter", "sharing", size_bytes
            if self.plan.sharing < self.plan.workers:
                yield "all_reduce", "groups", size_bytes / self.plan.sharing
        elif self.plan.compression is None:
            yield "all_reduce", "replicas", sum(bucket.tensors) * dense * size
        else:
            for wire in self.plan.compression.wire(bucket.tensors, size):
                yield wire.op, "replicas", wire.collective_bytes(self.plan.workers)

    def _gathers(self, own: list[int]) -> Iterator[_Event]:
        """The parameters of each layer before it is passed; again before it is passed backward, where they were dropped."""
        tasks = self.shop.lanes
        kinds = (Pass.FORWARD, Pass.BACKWARD, Pass.INPUT) if self.plan.reshard else (Pass.FORWARD,)
        passed = [task for task in own if tasks.kind[task] in kinds]
        for number, task in enumerate(passed):
            ahead = number - 1 - self.plan.prefetch
            after = passed[ahead] if ahead >= 0 else own[0]
            size_bytes = float(sum(self.job.layers[i].parameters for i in self._unit_at(task).layers) * self.job.element_bytes)
            yield _Event(int(tasks.slot[task]) - SLOTS + 1, "all_gather", "sharing", size_bytes, (after,), task)

    def _gathers_of_step(self, rank: int, own: list[int]) -> Iterator[_Event]:
        """All parameters, stage by stage, before the step's first pass over each."""
        tasks = self.shop.lanes
        for stage in self.plan.stage_of[rank]:
            first = next(task for task in own if tasks.stage[task] == stage)
            slot = int(tasks.slot[first]) - 1
            yield _Event(slot, "all_gather", "sharing", self._parameters_bytes(stage), (own[0],), first)

    def _parameters_bytes(self, stage: int) -> float:
        return float(sum(self.job.layers[i].parameters for i in self.shop.ranges[stage]) * self.job.element_bytes)

    def _collective(self, rank: int, event: _Event) -> int:
        builder, replicas, stages = self.shop.builder, self.replicas, self.plan.stages
        moved_bytes, path = self._path(rank, event.op, event.group, event.size_bytes)
        after = [int(replica.rows[task]) for replica in replicas for task in event.after]
        members = [replica.ranks[rank] for replica in replicas]
        # sums that nothing but optimizers follows need no hint, of which several would have the same
        slot = event.slot if event.before >= 0 or self.job.zero >= 2 else -1
        row = builder.collective(members, moved_bytes, path, Phase.SYNCHRONISE, after, rank if stages > 1 else -1, slot=slot)
        if event.before >= 0:
            builder.follow(np.array([replica.rows[event.before] for replica in replicas]), row)
        return row

    def _path(self, rank: int, op: Op, group: str, size_bytes: float) -> tuple[float, Path]:
        key = op, group, rank, size_bytes
        if key not in self._paths:
            nodes = sorted({replica.places[rank][0] for replica in self.replicas})
            alike = min(self.plan.tensor, self.shop.grid.devices)
            algorithm = self.plan.algorithm if op == "all_reduce" and group == "replicas" else None
            found = self._group(rank, group)
            self._paths[key] = self.shop.fabric.collective(op, found, size_bytes, nodes, alike, algorithm)
        return self._paths[key]

    def _group(self, stage: int, group: str) -> Group:
        if (stage, group) not in self._groups:
            self._groups[stage, group] = self._make_group(stage, group)
        return self._groups[stage, group]

    def _make_group(self, stage: int, group: str) -> Group:
        plan, grid = self.plan, self.shop.grid
        match group:
            case "sharing":
                return grid.replicas_of(stage, count=plan.sharing)
            case "groups":
                return grid.replicas_of(stage, step=plan.sharing, count=plan.workers // plan.sharing)
            case "experts":
                return grid.replicas_of(stage, step=plan.expert, count=plan.workers // plan.expert)
            case _:
                return grid.replicas_of(stage)

    def _add_optimizers(self, rank: int, sums: Sequence[int]) -> None:
        """Each replica's own part of the step; what is shared out after it is gathered, where the next step does not do so."""
        builder, plan, job = self.shop.builder, self.plan, self.job
        held = [i for stage in plan.stage_of[rank] for i in self.shop.ranges[stage]]
        work_s = job.optimizer_s(float(sum(job.layers[i].parameters for i in held)), plan.sharing * plan.context)
        if plan.compression is not None and plan.workers > 1:
            tensors = [tensor for i in held for tensor in job.layers[i].tensors]
            work_s += plan.compression.work_s(tensors, plan.workers, job.cluster.device, job.precision)
        label = rank if plan.stages > 1 else -1
        rows = [builder.compute(replica.ranks[rank], Phase.OPTIMIZER, work_s, sums, label) for replica in self.replicas]
        if job.zero in (1, 2) and not plan.overlap_gather and plan.workers * plan.context > 1:
            members = [replica.ranks[rank] for replica in self.replicas]
            gathers = []
            for stage in plan.stage_of[rank]:
                moved_bytes, path = self._path(rank, "all_gather", "sharing", self._parameters_bytes(stage))
                gathers.append(builder.collective(members, moved_bytes, path, Phase.SYNCHRONISE, rows, label))
            for member in members:
                builder.wait(member, Phase.SYNCHRONISE, gathers, label)
