"""Plan: everything that says how replicas of a model are divided, scheduled and kept alike; what replica strategies have in
common, and what is compiled."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.algorithms import Group, Op
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.model.layers import ContextBy, Counted, Shard
from scaleproof.simulator.strategy.data_parallel.compression import Compression
from scaleproof.simulator.strategy.data_parallel.contention import Contention, Replicas
from scaleproof.simulator.strategy.data_parallel.uneven_batches import place_shares
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.layout.mesh import ORDER, Axis, DeviceMesh
from scaleproof.simulator.strategy.layout.placement import Placed, place
from scaleproof.simulator.strategy.model_parallel.expert_dispatch import Dispatch, WirePrecision
from scaleproof.simulator.strategy.model_parallel.layer_collectives import Exchanges
from scaleproof.simulator.strategy.pipeline.schedule import PassTimes, ScheduleName, stage_of

# A number, or an array of one for each of many plans.
Amount = Any


@dataclass(frozen=True)
class Plan:
    """Replicas: `workers` of `stages` pipeline ranks, each with `chunks` stages of the model, of `tensor` · `context` ranks.

    order: axes of the ranks' numbers, the innermost first. expert: ranks that share a mixture's experts: workers, if
    `expert_tensor` is None. expert_tensor: tensor-parallel ranks that share each expert's matrices, all if None; if given,
    `expert` ranks are taken from all others of a stage (`DeviceMesh.experts`). sequence_parallel, context_by: as in `Shard`.
    overlap_tensor: as in `Exchanges`. overlap_experts, node_limit, deduplicated, dispatch_precision, combine_precision: as in
    `Dispatch`. overlap_sends: whether activations are sent and received beside passes. split_sends:
    tensor-parallel ranks send a part each of what all of them have (arXiv 2104.04473, section 4.1). account_for_embedding,
    account_for_loss: whether these count as blocks of stages.
    bucket_bytes, first_bucket_bytes: at which a bucket of gradients closes. overlap: whether gradients are summed while the
    backward pass goes on. overlap_gather: whether parameters that ZeRO's stages 1 and 2 share out are gathered while the next
    forward pass goes on. prefetch: layers that ZeRO's stage 3 gathers ahead. reshard: whether it drops parameters after the
    forward pass. scatter: when ZeRO's stages 2 and 3 scatter gradients. shard_over: workers that share states, all if None;
    groups of them average (hybrid sharding).
    shares: samples of each worker, where they differ. servers: through which workers keep alike in place of averaging, on nodes
    of their own.
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
    def lockstep(self) -> int:
        """Ranks that share a stage of a worker."""
        return self.tensor * self.context

    @property
    def ranks(self) -> int:
        return self.workers * self.stages * self.lockstep

    @property
    def shard(self) -> Shard:
        """How each layer is divided."""
        folded = None if self.expert_tensor == self.tensor else self.expert_tensor
        return Shard(self.tensor, self.sequence_parallel, self.expert, self.context, self.context_by, folded)

    @property
    def folds(self) -> int:
        """Tensor-parallel ranks with different tokens of a mixture."""
        return max(1, self.tensor // (self.expert_tensor or self.tensor))

    @property
    def divides_experts(self) -> bool:
        """Whether ranks that have the same experts are others than those that have the same of all else."""
        return self.expert > 1 or self.folds > 1

    def expert_replicas(self, workers: Amount) -> Amount:
        """Ranks that have the same experts, of so many workers."""
        if self.expert_tensor is None:
            return np.maximum(1, workers // self.expert) * self.context
        return np.maximum(1, workers * self.context * self.folds // self.expert)

    @property
    def averages(self) -> bool:
        """Whether several ranks have the same parameters."""
        return self.workers * self.context > 1 or (self.folds > 1 and bool(self.expert_replicas(self.workers) > 1))

    @property
    def keeps_gathered(self) -> bool:
        """Whether parameters that ZeRO's stage 3 gathers stay until the step's last backward pass, as FSDP2 has it in pipelines
        (torch.distributed.pipelining.stage: set_reshard_after_backward)."""
        return not self.reshard and self.stages > 1

    @property
    def splits(self) -> bool:
        """Whether tensor-parallel ranks send a part each of what all of them have."""
        return self.split_sends and not self.sequence_parallel

    @property
    def counted(self) -> Counted:
        """Ends of the model that count as blocks of stages."""
        return Counted(self.account_for_embedding, self.account_for_loss)

    @property
    def sharing(self) -> int:
        """Workers among which states are shared out, where they are."""
        return self.shard_over or self.workers

    @cached_property
    def stage_of(self) -> list[list[int]]:
        """The stage of the model that each chunk of each rank is."""
        return [
            [stage_of(self.schedule, self.stages, rank, chunk) for chunk in range(self.chunks)] for rank in range(self.stages)
        ]

    def pass_times(self, job: Job) -> PassTimes:
        """What orders that are searched for weigh: means over all stages; alike where the schedule does not ask."""
        if self.schedule not in ("zb_1p", "zb_2p"):
            return PassTimes()
        costs, stages = job.costs(self.microbatches), self.stages * self.chunks
        weights_s = float(job.weights_s(self.microbatches).sum()) / stages
        forward_s = float((costs.forward_s + costs.forward_exchange_s).sum()) / stages
        backward_s = float((costs.backward_s + costs.backward_exchange_s).sum()) / stages
        return PassTimes(forward_s, backward_s - weights_s, weights_s, kept=job.weights_share())

    def exchanging(self, job: Job) -> Job:
        """The job of ranks that exchange what these do within their passes and next to them."""
        grid = self.grid(job.cluster.node.devices)
        names = ("node_limit", "deduplicated", "dispatch_precision", "combine_precision")
        dispatch = Dispatch(**{name: getattr(self, name) for name in names}, overlap=self.overlap_experts)
        exchange = Exchanges(grid, self.expert, self.overlap_tensor, self.expert_tensor, dispatch)
        return replace(
            job, exchange=exchange, contend=self._contention(grid, job.zero),
            ranks=self.ranks, group=self.lockstep,
        )  # fmt: skip

    def _contention(self, grid: DeviceMesh, zero: int) -> Contention | None:
        """What replicas exchange next to their passes; None where they exchange nothing."""
        if not self.averages or self.servers:
            return None
        experts = grid.expert_replicas(0, self.expert, self.expert_tensor)[0] if self.divides_experts else None
        sums: Op | None = ("reduce_scatter" if zero else "all_reduce") if self.overlap or zero >= 2 else None
        return Contention(
            Replicas(
                grid.replicas_of(0, 0, self.sharing if zero else None),
                None if experts is None else Group.of(experts, grid.devices),
                (zero == 3 and not self.keeps_gathered, zero == 3 and self.reshard),
                (zero in (1, 2) and self.overlap_gather) or (zero == 3 and self.keeps_gathered),
                sums,
                1 if zero >= 2 and self.scatter == "microbatch" else self.microbatches if self.chunks > 1 else 0,
            )
        )

    def grid(self, devices: int) -> DeviceMesh:
        """The ranks on nodes of so many devices."""
        return DeviceMesh(self.workers, self.stages, self.tensor, self.context, devices, self.order)

    def samples_of(self, worker: int, job: Job) -> int:
        """Of a step."""
        return self.shares[worker] if self.shares else job.samples_per_worker

    def classes(self, job: Job) -> list[Placed]:
        """Alike workers, of which the first of each class is modelled; `node` and `each` are its first stage's."""
        cluster, grid = job.cluster, self.grid(job.cluster.node.devices)
        apart_ranks = set(job.apart(self.ranks))
        scattered = grid.stride("workers") % self.lockstep or grid.stride("stages") % self.lockstep
        if not cluster.is_uniform or scattered or (self.shares and self.ranks > self.workers):
            return self._each_alone(grid)
        per_node, rest = divmod(grid.devices, self.lockstep)
        aligned = (rest == 0 and self.order.index("workers") < self.order.index("stages")) or self.stages == 1
        if aligned and per_node and (self.stages == 1 or self.workers % per_node == 0):
            apart = {rank // grid.stride("workers") % self.workers for rank in apart_ranks}
            if cluster.node.cards_used > 1:
                # what some of a node's ranks send is not spread evenly over its cards
                apart = {worker - worker % per_node + beside for worker in apart for beside in range(per_node)}
            return place_shares(self.shares, per_node, apart) if self.shares else place(self.workers, per_node, apart)
        period = math.lcm(grid.stride("workers"), grid.devices) // grid.stride("workers")
        if apart_ranks or self.ranks <= grid.devices or self.workers % period:
            return self._each_alone(grid)
        if self.order.index("workers") < self.order.index("stages") and self.workers * self.lockstep % grid.devices:
            return self._each_alone(grid)
        return [Placed(grid.place(w, 0)[0], self.workers // period, 1, w) for w in range(period)]

    def _each_alone(self, grid: DeviceMesh) -> list[Placed]:
        return [Placed(grid.place(worker, 0)[0], 1, 1, worker) for worker in range(self.workers)]

    def check(self, experts: bool) -> None:
        """Raises FieldError where degrees do not go together."""
        self.check_experts(experts)
        if self.shard_over is not None:
            _check_divides("shard_over", self.shard_over, "workers", self.workers)
        if sorted(self.order) != sorted(ORDER):
            raise FieldError(("strategy", "order"), f"needs each of {', '.join(ORDER)} once, the innermost first")
        if self.chunks > 1 and self.stages == 1:
            message = f"{self.chunks} chunks on a rank that has no others beside it; set strategy.stages, or give 1 and 1f1b"
            raise FieldError(("strategy", "chunks"), message)
        for field in ("overlap", "overlap_gather", "algorithm", "compression"):
            if self.servers and getattr(self, field):
                raise FieldError(("strategy", field), "servers sum what workers push; leave it out, or servers")
        if self.split_sends and (self.tensor == 1 or self.stages == 1):
            message = "only tensor-parallel ranks of several stages send in parts; set tensor and stages, or leave it out"
            raise FieldError(("strategy", "split_sends"), message)
        if self.context_by != "ring" and self.context == 1:
            message = "no ranks share a sample's tokens; set strategy.context, or leave it out"
            raise FieldError(("strategy", "context_by"), message)
        if self.overlap_tensor and not self.sequence_parallel:
            message = "only gathers and scatters are cut into pieces; set strategy.sequence_parallel=true, or leave it out"
            raise FieldError(("strategy", "overlap_tensor"), message)
        if self.sequence_parallel and self.tensor == 1:
            message = "sequence parallelism divides what tensor-parallel ranks have; set strategy.tensor, or leave it out"
            raise FieldError(("strategy", "sequence_parallel"), message)

    def check_experts(self, experts: bool) -> None:
        """Raises FieldError where a mixture cannot be divided so, or there is none."""
        if self.expert_tensor is None:
            _check_divides("expert", self.expert, "workers", self.workers)
        else:
            ranks = self.folds * self.context * self.workers
            _check_divides("expert", self.expert, "ranks (tensor · context · workers / expert_tensor)", ranks)
        for field in ("overlap_experts", "node_limit", "deduplicated", "dispatch_precision", "combine_precision"):
            if getattr(self, field) and self.expert == 1:
                message = "no ranks send one another tokens of a mixture; set strategy.expert, or leave it out"
                raise FieldError(("strategy", field), message)
        if self.overlap_experts and self.microbatches == 1:
            message = "there is no other microbatch to compute meanwhile; set strategy.microbatches, or leave it out"
            raise FieldError(("strategy", "overlap_experts"), message)
        for field, given in (("expert", self.expert > 1), ("expert_tensor", self.expert_tensor is not None)):
            if given and not experts:
                raise FieldError(("strategy", field), "there are no experts to divide; leave expert parallelism out")

    def check_on(self, cluster: Cluster) -> None:
        """Raises FieldError where options make no sense on a cluster."""
        if self.node_limit is not None and self.ranks <= cluster.node.devices:
            message = f"all {self.ranks} ranks are on one node; set more ranks or fewer cluster.node.devices, or leave it out"
            raise FieldError(("strategy", "node_limit"), message)


def _check_divides(field: str, number: int, other: str, of: int) -> None:
    if of % number:
        divisors = [divisor for divisor in range(1, of + 1) if of % divisor == 0]
        below, above = [d for d in divisors if d < number], [d for d in divisors if d > number]
        message = f"{number} does not divide {of} {other}; give {' or '.join(map(str, [*below[-1:], *above[:1]]))}"
        raise FieldError(("strategy", field), message)
