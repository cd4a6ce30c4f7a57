"""Plan: the complete description of how replicas of a model are divided, scheduled and synchronised; common to all replica
strategies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from scaleproof.simulator.cluster.collectives.groups import Group, Op
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.model.layers import ContextBy, Counted, Shard
from scaleproof.simulator.strategy.data_parallel.compression import Compression
from scaleproof.simulator.strategy.data_parallel.contention import Contention, ReplicaCollectives
from scaleproof.simulator.strategy.data_parallel.uneven_batches import place_shares
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.layout.mesh import ORDER, Axis, DeviceMesh, Placed, place
from scaleproof.simulator.strategy.model_parallel.expert_dispatch import Dispatch, WirePrecision
from scaleproof.simulator.strategy.model_parallel.layer_collectives import LayerCollectives
from scaleproof.simulator.strategy.pipeline.schedules import WHOLE, PassTimes, ScheduleName, stage_of

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

    def pass_times(self, job: Job) -> PassTimes:
        """Pass times for schedules that search for an order: means over all stages. Equal times for other schedules."""
        if self.schedule not in ("zb_1p", "zb_2p"):
            return PassTimes()
        costs, stages = job.costs(self.microbatches), self.stages * self.chunks
        weights_s = float(job.weights_s(self.microbatches).sum()) / stages
        forward_s = float((costs.forward_s + costs.forward_exchange_s).sum()) / stages
        backward_s = float((costs.backward_s + costs.backward_exchange_s).sum()) / stages
        return PassTimes(forward_s, backward_s - weights_s, weights_s, kept=job.weights_share())

    def exchanging(self, job: Job) -> Job:
        """The job with the collectives of these ranks within their passes, and the contention of collectives next to passes."""
        mesh = self.grid(job.cluster.node.devices)
        names = ("node_limit", "deduplicated", "dispatch_precision", "combine_precision")
        dispatch = Dispatch(**{name: getattr(self, name) for name in names}, overlap=self.overlap_experts)
        collectives = LayerCollectives(mesh, self.expert, self.overlap_tensor, self.expert_tensor, dispatch)
        return replace(
            job, exchange=collectives, contend=self._contention(mesh, job),
            ranks=self.ranks, group=self.model_parallel_size, pipelined_ranks=self.pipelined_ranks(mesh.devices),
            splits_backward=self.schedule not in WHOLE,
        )  # fmt: skip

    def _contention(self, mesh: DeviceMesh, job: Job) -> Contention | None:
        """Contention with collectives of replicas; None without such collectives."""
        if not self.averages or self.servers:
            return None
        zero, sums_whole = 0 if job.owns_tensors else job.zero, job.sums_whole
        experts = mesh.expert_replicas(0, self.expert, self.expert_tensor)[0] if self.divides_experts else None
        overlaps = (self.overlap and not sums_whole) or zero >= 2
        sum_op: Op | None = ("reduce_scatter" if zero else "all_reduce") if overlaps else None
        return Contention(
            ReplicaCollectives(
                mesh.replicas_of(0, 0, self.sharing if zero else None),
                None if experts is None else Group.of(experts, mesh.devices),
                (zero == 3 and not self.keeps_gathered, zero == 3 and self.reshard),
                (zero in (1, 2) and self.overlap_gather) or (zero == 3 and self.keeps_gathered),
                sum_op,
                1 if zero >= 2 and self.scatter == "microbatch" else self.microbatches if self.chunks > 1 else 0,
                self.stages if self.chunks == 1 else 1,
            )
        )

    def compression_s(self, job: Job, tensors: Sequence[int], ranks: int) -> float:
        """Seconds for which each of `ranks` replicas compresses the gradients of tensors of these sizes and restores their sum;
        zero without compression."""
        if self.compression is None or ranks == 1 or job.zero:
            return 0.0
        return self.compression.work_s(tensors, ranks, job.cluster.device, job.precision)

    def grid(self, devices: int) -> DeviceMesh:
        """The mesh of the ranks on nodes with this number of devices."""
        return DeviceMesh(self.workers, self.stages, self.tensor, self.context, devices, self.order)

    def samples_of(self, worker: int, job: Job) -> int:
        """Samples of a worker in a step."""
        return self.shares[worker] if self.shares else job.samples_per_worker

    def classes(self, job: Job) -> list[Placed]:
        """Classes of equivalent workers; `node` and `each` refer to the first stage of the first worker."""
        cluster, mesh = job.cluster, self.grid(job.cluster.node.devices)
        distinguishable_ranks = set(job.distinguishable_ranks(self.ranks))
        scattered = mesh.stride("workers") % self.model_parallel_size or mesh.stride("stages") % self.model_parallel_size
        if not cluster.is_uniform or scattered or (self.shares and self.ranks > self.workers):
            return self._separate_classes(mesh)
        per_node, rest = divmod(mesh.devices, self.model_parallel_size)
        aligned = (rest == 0 and self.order.index("workers") < self.order.index("stages")) or self.stages == 1
        if aligned and per_node and (self.stages == 1 or self.workers % per_node == 0):
            distinguishable = {rank // mesh.stride("workers") % self.workers for rank in distinguishable_ranks}
            if cluster.node.cards_used > 1:
                # messages of some of a node's ranks are not spread evenly over its network cards
                distinguishable = {
                    worker - worker % per_node + offset for worker in distinguishable for offset in range(per_node)
                }
            return (
                place_shares(self.shares, per_node, distinguishable)
                if self.shares
                else place(self.workers, per_node, distinguishable)
            )
        period = math.lcm(mesh.stride("workers"), mesh.devices) // mesh.stride("workers")
        if distinguishable_ranks or self.ranks <= mesh.devices or self.workers % period:
            return self._separate_classes(mesh)
        if self.order.index("workers") < self.order.index("stages") and self.workers * self.model_parallel_size % mesh.devices:
            return self._separate_classes(mesh)
        return [Placed(mesh.place(w, 0)[0], self.workers // period, 1, w) for w in range(period)]

    def _separate_classes(self, mesh: DeviceMesh) -> list[Placed]:
        return [Placed(mesh.place(worker, 0)[0], 1, 1, worker) for worker in range(self.workers)]

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
