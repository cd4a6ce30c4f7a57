"""Hybrid: pipelines as workers, their gradients averaged over the workers by ring allreduce after the last microbatch."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from simulator.cluster.algorithms import Group
from simulator.program import Program, ProgramBuilder
from simulator.run import Phase
from simulator.spec import Count
from simulator.strategy.costs import Job, buckets
from simulator.strategy.fabric import Fabric
from simulator.strategy.feeding import Feeding
from simulator.strategy.pipeline import Pipelined, Replica
from simulator.units import Bytes


class Hybrid(Pipelined):
    """`workers` replicas, each a pipeline of `stages`; the stages of one replica have neighbouring ranks."""

    kind: Literal["hybrid"] = "hybrid"
    workers_: Count = Field(1, alias="workers")
    bucket_bytes: Bytes = Field(25 * 2.0**20, alias="bucket", description="size at which a gradient bucket closes")

    @property
    def workers(self) -> int:
        return self.workers_

    def compile(self, job: Job) -> Program:
        """The pipelines of as many workers as are not alike, and the allreduce of each stage's gradients over all workers."""
        builder = ProgramBuilder()
        fabric, feeding = Fabric(job.cluster, builder), Feeding(builder, job)
        modelled = self._modelled_workers(job)
        self.check_size(modelled)
        replicas = []
        for worker in range(modelled):
            replica = Replica(builder, fabric, feeding, job, self)
            replica.add(worker * self.stages, f"worker {worker} stage {{stage}}", self.workers // modelled)
            replicas.append(replica)
        sums = [self._allreduce(builder, fabric, job, replicas, stage) for stage in range(self.stages)]
        for replica in replicas:
            replica.add_optimizers(sums)
        return builder.build()

    def _modelled_workers(self, job: Job) -> int:
        """Replicas after which the placement on nodes repeats: the others are alike and folded away."""
        per_node = job.cluster.node.devices
        if job.apart(self.ranks) or not job.cluster.is_uniform:
            return self.workers
        if self.workers * self.stages <= per_node:
            return self.workers
        period = math.lcm(self.stages, per_node) // self.stages
        return period if self.workers % period == 0 else self.workers

    def _allreduce(self, builder: ProgramBuilder, fabric: Fabric, job: Job, replicas: list[Replica], stage: int) -> list[int]:
        """Rows that average a stage's gradients over all workers, bucket after bucket."""
        if self.workers == 1:
            return []
        nodes = sorted({replica.nodes[stage] for replica in replicas})
        group = Group(range(stage, self.workers * self.stages, self.stages), job.cluster.node.devices)
        layers = [job.layers[i] for i in replicas[0].ranges[stage]]
        members = [replica.ranks[stage] for replica in replicas]
        ready = [replica.last_rows[stage] for replica in replicas]
        rows = []
        for _, size_bytes in buckets(layers, job.element_bytes, self.bucket_bytes, self.bucket_bytes):
            moved_bytes, path = fabric.allreduce(group, size_bytes, nodes)
            rows.append(builder.collective(members, moved_bytes, path, Phase.SYNCHRONISE, ready, stage))
        return rows
