"""Plan: the complete description of how replicas of a model are divided, scheduled and synchronised; common to all replica
strategies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal

import numpy as np

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.model.layers import ContextBy, Counted, Shard
from scaleproof.simulator.parallelism.compression import Compression
from scaleproof.simulator.parallelism.mesh import ORDER, Axis, DeviceMesh
from scaleproof.simulator.parallelism.stages import ScheduleName, stage_of

# Limit of stages · microbatches of all simulated replicas. At the limit, replay needs 10 s and 1.5 GB on a 2-core virtual
# machine; events needs minutes, when jitter makes messages of hundreds of replicas contend with gradient synchronisation.
_MAX_PASSES: Final = 200_000
# Precisions of data sent to experts and back.
WirePrecision = Literal["fp8", "bf16", "fp16", "fp32"]
# A number, or an array with one entry per plan.
Amount = Any


@dataclass(frozen=True)
class Plan:
    """Replicas: `workers` of `stages` pipeline stages, each with `chunks` stages of the model, on `tensor` · `context` ranks
    each.

    Options are described with the fields of strategies that have the same names (`Hybrid`, `DataParallel`). expert: ranks that
    divide a mixture's experts: workers if `expert_tensor` is None; otherwise they are taken from all other ranks of a stage
    (`DeviceMesh.experts`). split_sends: arXiv 2104.04473, section 4.1. scatter: when ZeRO's stages 2 and 3 scatter gradients.
    shard_over: groups of these workers average. shares: samples of each worker, where they differ.
    """

    workers: int = 1
    stages: int = 1
    chunks: int = 1
    tensor: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int | None = None
    order: tuple[Axis, ...] = ORDER
    sequence_parallel: bool = False
    context_by: ContextBy = "ring"
    overlap_tensor: bool = False
    overlap_experts: bool = False
    node_limit: int | None = None
    deduplicated: bool = False
    dispatch_precision: WirePrecision | None = None
    combine_precision: WirePrecision | None = None
    microbatches: int = 1
    schedule: ScheduleName = "1f1b"
    account_for_embedding: bool = False
    account_for_loss: bool = False
    overlap_sends: bool = False
    split_sends: bool = False
    bucket_bytes: float = math.inf
    first_bucket_bytes: float = math.inf
    overlap: bool = False
    overlap_gather: bool = False
    prefetch: int = 1
    reshard: bool = True
    scatter: Literal["microbatch", "step"] = "microbatch"
    shard_over: int | None = None
    algorithm: str | None = None
    compression: Compression | None = None
    shares: tuple[int, ...] | None = None
    servers: int = 0

    @property
    def model_parallel_size(self) -> int:
        """Number of ranks that share a stage of a worker."""
        return self.tensor * self.context

    @property
    def ranks(self) -> int:
        """Number of ranks of all workers."""
        return self.workers * self.stages * self.model_parallel_size

    @property
    def shard(self) -> Shard:
        """Division of each layer over ranks."""
        expert_tensor = None if self.expert_tensor == self.tensor else self.expert_tensor
        return Shard(self.tensor, self.sequence_parallel, self.expert, self.context, self.context_by, expert_tensor)

    @property
    def folds(self) -> int:
        """Number of tensor-parallel ranks with different tokens of a mixture."""
        return max(1, self.tensor // (self.expert_tensor or self.tensor))

    @property
    def divides_experts(self) -> bool:
        """Whether the replicas of experts are other ranks than the replicas of the remaining parameters."""
        return self.expert > 1 or self.folds > 1

    def expert_replicas(self, workers: Amount) -> Amount:
        """Number of ranks with the same experts among `workers` workers."""
        if self.expert_tensor is None:
            return np.maximum(1, workers // self.expert) * self.context
        return np.maximum(1, workers * self.context * self.folds // self.expert)

    @property
    def averages(self) -> bool:
        """Whether several ranks have the same parameters."""
        return self.workers * self.context > 1 or (self.folds > 1 and bool(self.expert_replicas(self.workers) > 1))

    @property
    def keeps_gathered(self) -> bool:
        """Whether parameters gathered by ZeRO's stage 3 stay until the step's last backward pass, as in FSDP2 with pipelines
        (torch.distributed.pipelining.stage: set_reshard_after_backward)."""
        return not self.reshard and self.stages > 1

    def pipelined_ranks(self, devices: int) -> int:
        """Number of tensor-parallel ranks of each stage of a pipeline over several nodes; 0 without one. devices: of a node."""
        return self.tensor if self.stages > 1 and self.ranks > devices else 0

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
        return DeviceMesh(self.workers, self.stages, self.tensor, self.context, devices, self.order)

    def samples_of(self, worker: int, samples_per_worker: int) -> int:
        """Samples of a worker in a step. samples_per_worker: where they are equal."""
        return self.shares[worker] if self.shares else samples_per_worker

    def check(self, experts: bool) -> None:
        """Checks that the degrees of parallelism fit together; raises FieldError."""
        self.check_experts(experts)
        if self.shard_over is not None:
            _check_divides("shard_over", self.shard_over, "workers", self.workers)
        if sorted(self.order) != sorted(ORDER):
            raise FieldError(("strategy", "order"), f"must list each of {', '.join(ORDER)} once, innermost first")

    def check_experts(self, experts: bool) -> None:
        """Checks that the experts of the model can be divided accordingly; raises FieldError."""
        if self.expert_tensor is None:
            _check_divides("expert", self.expert, "workers", self.workers)
        else:
            ranks = self.folds * self.context * self.workers
            _check_divides("expert", self.expert, "ranks (tensor · context · workers / expert_tensor)", ranks)
        for field, given in (("expert", self.expert > 1), ("expert_tensor", self.expert_tensor is not None)):
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
