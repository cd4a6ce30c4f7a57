"""Plan: the complete description of how replicas of a model are divided, scheduled and synchronised; common to all replica
strategies."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, Final, Literal

import numpy as np
from pydantic import Field

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.spec import Width
from scaleproof.simulator.model.layers import Counted, Shard
from scaleproof.simulator.parallelism.mesh import DeviceMesh
from scaleproof.simulator.parallelism.options import AllDegrees
from scaleproof.simulator.parallelism.stages import stage_of

# Limit of stages · microbatches of all simulated replicas. At the limit, replay needs 10 s and 1.5 GB on a 2-core virtual
# machine; events needs minutes, when jitter makes messages of hundreds of replicas contend with gradient synchronisation.
_MAX_PASSES: Final = 200_000
# A number, or an array with one entry per plan.
Amount = Any
Shares = Annotated[tuple[Width, ...], Field(min_length=1, max_length=100_000, description="samples of each worker")]
# When ranks gather parameters that they shard, or of which each updates a part: before every forward and backward pass over a
# layer; before every forward pass over it; before the step's first pass over it, with ZeRO's stage 3 or after an update; or
# right after the update.
Gathering = Literal["every pass", "every forward pass", "once a step", "next forward pass", "after update"]


class Plan(AllDegrees):
    """Replicas: `workers` of `stages` pipeline stages, each with `chunks` stages of the model, on `tensor` · `context` ranks
    each.

    expert: ranks that divide a mixture's experts: workers if `expert_tensor` is None; otherwise they are taken from all other
    ranks of a stage (`DeviceMesh.experts`). split_sends: arXiv 2104.04473, section 4.1. shard_over: groups of these workers
    average. shares: samples of each worker, where they differ.
    """

    shares: Shares | None = None

    @property
    def model_parallel_size(self) -> int:
        """Number of ranks that share a stage of a worker."""
        return self.tensor * self.context

    @property
    def waiting_within(self) -> int:
        """Number of ranks that wait for each other within passes: those that share layers, or exchange tokens of a mixture."""
        if self.exchanges_rows:
            return self.workers
        return max(self.model_parallel_size, self.expert * self.expert_shards) if self.expert > 1 else self.model_parallel_size

    @property
    def exchanges_rows(self) -> bool:
        """Whether workers exchange rows of embedding tables."""
        return self.tables is not None and self.tables.shard != "data" and self.workers > 1

    @property
    def stores_rows_on_hosts(self) -> bool:
        """Whether embedding tables are in the memory of hosts."""
        return self.tables is not None and self.tables.shard != "data" and self.tables.on == "host"

    @property
    def ranks(self) -> int:
        """Number of ranks of all workers."""
        return self.workers * self.stages * self.model_parallel_size

    @property
    def shard(self) -> Shard:
        """Division of each layer over ranks."""
        expert_tensor = None if self.expert_tensor == self.tensor else self.expert_tensor
        return Shard(
            self.tensor, self.sequence_parallel, self.expert, self.context, self.context_by, expert_tensor,
            deduplicated=self.deduplicated and self.expert > 1, tables=self.tables, workers=self.workers if self.tables else 1,
        )  # fmt: skip

    @property
    def folds(self) -> int:
        """Number of tensor-parallel ranks with different tokens of a mixture."""
        return max(1, self.tensor // self.expert_shards)

    @property
    def expert_shards(self) -> int:
        """Number of tensor-parallel ranks that divide each expert's matrices."""
        return self.expert_tensor or self.tensor

    @property
    def deduplicated(self) -> bool:
        """Whether a token is sent once to each node with some of its experts, and once to each rank there."""
        return self.dispatcher != "alltoall"

    @property
    def folds_experts(self) -> bool:
        """Whether ranks with different experts are taken from all other ranks of a stage, instead of from workers."""
        return self.expert_tensor is not None

    @property
    def divides_experts(self) -> bool:
        """Whether the replicas of experts are other ranks than the replicas of the remaining parameters."""
        return self.expert > 1 or self.folds > 1

    def expert_replicas(self, workers: Amount) -> Amount:
        """Number of ranks with the same experts among `workers` workers."""
        if not self.folds_experts:
            return np.maximum(1, workers // self.expert) * self.context
        return np.maximum(1, workers * self.context * self.folds // self.expert)

    @property
    def averages(self) -> bool:
        """Whether several ranks have the same parameters."""
        return self.workers * self.context > 1 or (self.folds > 1 and bool(self.expert_replicas(self.workers) > 1))

    def gathering(self, zero: int) -> Gathering | None:
        """When ranks gather parameters with a stage of ZeRO; None if they shard nothing. A single rank with stage 3 copies
        those that its host has as often.

        In pipelines, parameters that are not freed after the forward pass stay until the step's last backward pass, as in FSDP2
        (torch.distributed.pipelining.stage: set_reshard_after_backward).
        """
        if zero == 0 or (zero < 3 and not self.averages):
            return None
        if zero < 3:
            return "next forward pass" if self.overlap_gather else "after update"
        if self.reshard:
            return "every pass"
        return "once a step" if self.stages > 1 else "every forward pass"

    @property
    def bucket_limits_bytes(self) -> tuple[float, float]:
        """Bytes at which the first bucket of gradients, and each other one, closes."""
        return self.bucket_bytes if self.first_bucket_bytes is None else self.first_bucket_bytes, self.bucket_bytes

    def pipelined_ranks(self, cluster: Cluster) -> int:
        """Number of tensor-parallel ranks of each stage of a pipeline over several nodes of a cluster; 0 without one."""
        return self.tensor if self.stages > 1 and cluster.nodes_of(self.ranks) > 1 else 0

    @property
    def splits(self) -> bool:
        """Whether tensor-parallel ranks each send a shard of the activations that all of them have."""
        return self.split_sends and not self.sequence_parallel

    @property
    def counted(self) -> Counted:
        """Ends of the model that count as blocks when stages are balanced."""
        return Counted(self.account_for_embedding, self.account_for_loss)

    @property
    def sharing(self) -> int:
        """Number of workers over which states are sharded."""
        return self.shard_over or self.workers

    @cached_property
    def stage_of(self) -> list[list[int]]:
        """Stage of the model by rank and chunk."""
        return [
            [stage_of(self.schedule, self.stages, rank, chunk) for chunk in range(self.chunks)] for rank in range(self.stages)
        ]

    def grid(self, devices: int) -> DeviceMesh:
        """The mesh of the ranks on nodes with this number of devices."""
        return DeviceMesh(
            self.workers, self.stages, self.tensor, self.context, devices, self.order, self.expert, self.expert_tensor
        )

    def grid_on(self, cluster: Cluster) -> DeviceMesh:
        """The mesh of the ranks on the nodes of a cluster."""
        mesh, numbers = self.grid(cluster.node.devices), cluster.device_numbers(self.ranks)
        return replace(mesh, device_numbers=numbers) if numbers else mesh

    def samples_of(self, worker: int, samples_per_worker: int) -> int:
        """Samples of a worker in a step. samples_per_worker: where they are equal."""
        return self.shares[worker] if self.shares else samples_per_worker

    def check(self, experts: bool) -> None:
        """Checks that the degrees of parallelism fit together; raises FieldError."""
        self.check_experts(experts)
        if self.shard_over is not None:
            _check_divides("shard_over", self.shard_over, "workers", self.workers)

    def check_experts(self, experts: bool) -> None:
        """Checks that the experts of the model can be divided accordingly; raises FieldError."""
        if not self.folds_experts:
            _check_divides("expert", self.expert, "workers", self.workers)
        else:
            ranks = self.folds * self.context * self.workers
            _check_divides("expert", self.expert, "ranks (tensor · context · workers / expert_tensor)", ranks)
        for field, given in (("expert", self.expert > 1), ("expert_tensor", self.folds_experts)):
            if given and not experts:
                raise FieldError(("strategy", field), "there are no experts to divide; leave expert parallelism out")


def _check_divides(field: str, number: int, other: str, of: int) -> None:
    if of % number:
        divisors = [divisor for divisor in range(1, of + 1) if of % divisor == 0]
        below, above = [d for d in divisors if d < number], [d for d in divisors if d > number]
        message = f"{number} does not divide {of} {other}; give {' or '.join(map(str, [*below[-1:], *above[:1]]))}"
        raise FieldError(("strategy", field), message)


def check_size(plan: Plan, replicas: int = 1) -> None:
    """Raises FieldError if a step has too many passes to simulate."""
    passes = replicas * plan.stages * plan.chunks * plan.microbatches
    if passes > _MAX_PASSES:
        limit = _MAX_PASSES // (replicas * plan.stages * plan.chunks)
        message = f"{passes} passes in a step are too many to simulate; give at most {limit}"
        raise FieldError(("strategy", "microbatches"), message)
