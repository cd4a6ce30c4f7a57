"""Data parallelism with ring allreduce: gradient buckets, summed while the backward pass goes on or after it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from simulator.cluster.algorithms import Group
from simulator.program import Program, ProgramBuilder
from simulator.run import Phase
from simulator.spec import Count
from simulator.strategy.base import Strategy
from simulator.strategy.costs import Costs, Job, buckets
from simulator.strategy.fabric import Fabric
from simulator.strategy.feeding import Feeding
from simulator.strategy.placement import Placed, place
from simulator.units import Bytes


class DataParallel(Strategy):
    """Every worker holds the whole model and trains on its share; gradients are averaged around a ring."""

    kind: Literal["data_parallel"] = "data_parallel"
    workers_: Count = Field(1, alias="workers")
    bucket_bytes: Bytes = Field(25 * 2.0**20, alias="bucket", description="size at which a bucket closes")
    first_bucket_bytes: Bytes = Field(2.0**20, alias="first_bucket", description="the same for the first bucket")
    overlap: bool = Field(True, description="sum buckets while the backward pass goes on")

    @property
    def workers(self) -> int:
        return self.workers_

    def compile(self, job: Job) -> Program:
        """Forward, then the backward pass cut where a bucket is complete, allreduces beside or after it, the optimizer."""
        builder = ProgramBuilder()
        fabric = Fabric(job.cluster, builder)
        placed = place(self.workers, job.cluster.node.devices, job.apart(self.workers))
        ranks = [
            fabric.add_rank(_name(alike), job.unevenness, alike.rank, alike.node, alike.each, alike.ranks) for alike in placed
        ]
        costs = job.costs()
        feeding = Feeding(builder, job)
        for rank, alike in zip(ranks, placed, strict=True):
            feeding.add(rank, alike.node, alike.each, alike.ranks)
            builder.compute(rank, Phase.FORWARD, float(costs.forward_s.sum()))
        sums = self._backward(builder, fabric, job, costs, ranks, sorted({alike.node for alike in placed}))
        for rank in ranks:
            builder.compute(rank, Phase.OPTIMIZER, job.optimizer_s(float(costs.parameters.sum()), self.workers), sums)
        return builder.build()

    def _backward(
        self, builder: ProgramBuilder, fabric: Fabric, job: Job, costs: Costs, ranks: list[int], nodes: list[int]
    ) -> list[int]:
        """Backward passes cut where a bucket is complete, and the allreduce of each; returns the rows of the allreduces."""
        pieces = buckets(job.layers, job.element_bytes, self.first_bucket_bytes, self.bucket_bytes)
        rows: list[int] = []
        ready: list[list[int]] = []
        begin = len(job.layers)
        for layer, _ in pieces:
            if layer < begin and self.overlap:
                rows = [builder.compute(rank, Phase.BACKWARD, float(costs.backward_s[layer:begin].sum())) for rank in ranks]
                begin = layer
            ready.append(rows)
        if begin > 0:
            rows = [builder.compute(rank, Phase.BACKWARD, float(costs.backward_s[:begin].sum())) for rank in ranks]
        if not self.overlap:
            ready = [rows] * len(pieces)
        if self.workers == 1:
            return []
        group = Group.of(self.workers, job.cluster.node.devices)
        sums = []
        for (_, size_bytes), after in zip(pieces, ready, strict=True):
            moved_bytes, path = fabric.allreduce(group, size_bytes, nodes)
            sums.append(builder.collective(ranks, moved_bytes, path, Phase.SYNCHRONISE, after))
        return sums


def _name(alike: Placed) -> str:
    first, count = alike.rank, alike.ranks
    return f"worker {first}" if count == 1 else f"{count} workers like {first}"
