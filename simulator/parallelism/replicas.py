"""Strategies of replicas that a Plan describes completely: data parallelism, pipelines, and hybrids of all degrees.

Worker k with m_k samples has the mean gradient of its own samples. The mean over all n samples weights these by m_k / n; an
unweighted average would overweight samples of workers with few of them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, Self

from pydantic import Field

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.algorithms import ALGORITHMS, names_for
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.spec import Count, Spec, Width
from scaleproof.simulator.common.units import Bytes
from scaleproof.simulator.model.layers import ContextBy, Layer
from scaleproof.simulator.parallelism import option_rules as rules
from scaleproof.simulator.parallelism.compression import AnyCompression
from scaleproof.simulator.parallelism.mesh import ORDER, Axis
from scaleproof.simulator.parallelism.plan import Plan, WirePrecision, check_size
from scaleproof.simulator.parallelism.stages import Balance, ScheduleName, check_schedule, cut_by_blocks
from scaleproof.simulator.parallelism.strategy import Strategy, nearest_divisor

Shares = Annotated[tuple[Width, ...], Field(min_length=1, max_length=100_000, description="samples of each worker")]


class PipelineStages(Spec):
    """Fields of strategies that divide the model into pipeline stages."""

    stages_: Count = Field(1, alias="stages", description="pipeline ranks of a worker")
    chunks: Annotated[Count, rules.CHUNKS] = Field(1, description="model stages on each rank (virtual stages)")
    schedule: ScheduleName = "1f1b"
    balance: Balance = Field("layers", description="what is balanced between stages, or the number of blocks of each")
    account_for_embedding: Annotated[bool, rules.COUNTED_END] = Field(
        False, description="count the embedding as a layer when stages are cut"
    )
    account_for_loss: Annotated[bool, rules.COUNTED_END] = Field(
        False, description="count the output head and the loss as a layer when stages are cut"
    )
    overlap_sends: Annotated[bool, rules.STAGES] = Field(
        False, description="overlap sends and receives of activations with passes"
    )

    @property
    def balance_of(self) -> Balance:
        """Distribution of layers over stages."""
        return self.balance


class GradientAveraging(Spec):
    """Fields of strategies that average gradients over workers."""

    workers_: Count = Field(1, alias="workers", description="replicas of the model")
    bucket_bytes: Annotated[Bytes, rules.REPLICAS, rules.BUCKETS] = Field(
        25 * 2.0**20, alias="bucket", description="size at which a bucket of gradients closes"
    )
    first_bucket_bytes: Annotated[Bytes | None, rules.REPLICAS, rules.BUCKETS] = Field(
        None, alias="first_bucket", description="size at which the first bucket closes; that of the others if absent"
    )
    overlap: Annotated[bool, rules.REPLICAS, rules.AVERAGES] = Field(
        True, description="overlap the sum of buckets with the backward pass"
    )
    algorithm: Annotated[str | None, rules.AVERAGES] = Field(
        None, description="algorithm of the all-reduce; the library's choice if absent"
    )
    compression: Annotated[AnyCompression | None, rules.AVERAGES, rules.WHOLE_GRADIENTS] = Field(
        None, description="compression of gradients"
    )
    prefetch: Annotated[int, rules.GATHERS_LAYERS] = Field(
        1, ge=0, le=1000, description="layers whose parameters are gathered ahead (zero 3)"
    )
    reshard: Annotated[bool, rules.GATHERS_LAYERS] = Field(
        True, description="free gathered parameters after the forward pass; else pipelines keep them for the whole step"
    )
    scatter: Annotated[Literal["microbatch", "step"], rules.SCATTERS] = Field(
        "microbatch", description="scatter gradients after each microbatch, or once per step (FSDP's no_sync)"
    )
    shard_over: Annotated[Count | None, rules.SHARDS] = Field(
        None, description="workers that shard states; all if absent (hybrid sharding)"
    )


class Microbatches(Spec):
    """Fields of strategies that divide a worker's samples into microbatches: their number, or the samples of each."""

    microbatches_: Count = Field(
        1, alias="microbatches", description="number of microbatches of a worker and step (gradient accumulation steps)"
    )
    micro_batch_size: Count | None = Field(None, description="samples of a microbatch, in place of microbatches")


class ReplicaStrategy(Strategy):
    """Strategies that are described completely by their plan."""

    @property
    def workers(self) -> int:
        """Number of replicas in the plan."""
        return self.plan.workers

    @property
    def stages(self) -> int:
        """Number of pipeline stages in the plan."""
        return self.plan.stages

    @property
    def servers(self) -> int:
        """Number of servers in the plan."""
        return self.plan.servers

    @property
    def microbatches(self) -> int:
        """Number of microbatches in the plan."""
        return self.plan.microbatches

    def for_samples(self, samples_per_worker: int) -> Self:
        """The strategy with the number of microbatches that follows from their size, if that is given."""
        size: int | None = getattr(self, "micro_batch_size", None)
        if size is None:
            return self
        number, rest = divmod(samples_per_worker, size)
        if rest:
            near = nearest_divisor(samples_per_worker, min(size, samples_per_worker))
            message = f"micro-batches of {size} do not divide {samples_per_worker} samples per worker; give {near}"
            raise FieldError(("strategy", "micro_batch_size"), message)
        if "microbatches_" in self.model_fields_set and self.microbatches != number:
            message = f"{samples_per_worker} samples per worker are {number} micro-batches of {size}, not {self.microbatches}"
            raise FieldError(("strategy", "micro_batch_size"), f"{message}; leave out microbatches or micro_batch_size")
        return self.defaulted({"microbatches_": number})

    @functools.cached_property
    def plan(self) -> Plan:
        """Division and schedule of the replicas, by the strategy's fields."""
        options = {option: getattr(self, field) for option, field in _options(type(self)).items()}
        if "first_bucket_bytes" in options and options["first_bucket_bytes"] is None:
            options["first_bucket_bytes"] = options["bucket_bytes"]
        return Plan(**options)

    @property
    def balance_of(self) -> Balance:
        """Distribution of layers over stages."""
        return "layers"

    def check(self, layers: Sequence[Layer], samples_per_worker: int) -> None:
        """Checks options, layers, shares of samples, degrees, schedule and all-reduce algorithm; raises FieldError."""
        plan = self.plan
        rules.check_options(self, vars(plan))
        cut_by_blocks(layers, plan.stages * plan.chunks, self.balance_of, plan.counted)
        if plan.shares is not None:
            check_shares(plan.shares, plan.workers, samples_per_worker * plan.workers)
        for samples in plan.shares or (samples_per_worker,):
            super().check(layers, samples)
        check_size(plan)
        plan.check(any(layer.expert_parameters for layer in layers))
        check_schedule(plan.schedule, plan.stages, plan.microbatches, plan.chunks)
        known = names_for("all_reduce", list(ALGORITHMS))
        if plan.algorithm is not None and plan.algorithm not in known:
            message = f"unknown all-reduce algorithm {plan.algorithm!r}; give one of {', '.join(sorted(known))}"
            raise FieldError(("strategy", "algorithm"), message)


@functools.cache
def _options(strategy: type[ReplicaStrategy]) -> Mapping[str, str]:
    """Fields of a strategy by the options of a Plan that they set."""
    options = [option.name for option in dataclasses.fields(Plan)]
    return {option: field for option in options for field in (option, f"{option}_") if field in strategy.model_fields}


def check_shares(shares: Sequence[int], workers: int, total_samples: int) -> None:
    """Raises FieldError unless there is one share per worker and shares add up to the samples of a step."""
    if len(shares) != workers:
        message = f"{len(shares)} shares for {workers} workers; give one per worker, or set strategy.workers={len(shares)}"
        raise FieldError(("strategy", "shares"), message)
    if sum(shares) != total_samples:
        message = f"they add up to {sum(shares)} samples, the batch has {total_samples}; set batch.total={sum(shares)}"
        raise FieldError(("strategy", "shares"), message)


class DataParallel(Microbatches, GradientAveraging, ReplicaStrategy):
    """Every worker has the whole model, or with ZeRO a shard of it, and trains on its share of the samples.

    Gradients are averaged bucket by bucket, as in PyTorch's DistributedDataParallel, by the given algorithm or the library's
    choice. With several microbatches only the last is followed by an average; if gradients are sharded (`training.zero` from 2
    on) each is.
    """

    kind: Literal["data_parallel"] = "data_parallel"
    shares: Shares | None = None

    def for_samples(self, samples_per_worker: int) -> Self:
        """The strategy for these samples. Raises FieldError for `micro_batch_size` if workers have different shares."""
        if self.shares is not None and self.micro_batch_size is not None:
            message = "workers have different shares of the samples; give microbatches instead"
            raise FieldError(("strategy", "micro_batch_size"), message)
        return super().for_samples(samples_per_worker)


class Pipeline(Microbatches, PipelineStages, ReplicaStrategy):
    """One replica of the model, divided into pipeline stages."""

    kind: Literal["pipeline"] = "pipeline"


class Hybrid(Microbatches, GradientAveraging, PipelineStages, ReplicaStrategy):
    """`workers` · `stages` · `tensor` · `context` ranks, numbered along the axes of `order`, innermost first."""

    kind: Literal["hybrid"] = "hybrid"
    overlap: Annotated[bool, rules.REPLICAS, rules.AVERAGES] = Field(
        False, description="overlap the sum of buckets with the last microbatch's backward pass"
    )
    tensor: Count = Field(1, description="ranks that share each layer's matrices")
    sequence_parallel: Annotated[bool, rules.TENSOR] = Field(
        False, description="tensor-parallel ranks also divide operators between the matrices (arXiv 2205.05198)"
    )
    overlap_tensor: Annotated[bool, rules.SEQUENCE] = Field(
        False, description="overlap tensor-parallel collectives with the adjacent matrix products"
    )
    context: Count = Field(1, description="ranks that divide the tokens of every sample")
    context_by: Annotated[ContextBy, rules.CONTEXT] = Field(
        "ring",
        description="how attention reads all tokens: keys and values by ring or all-gather, or all-to-all of heads (ulysses)",
    )
    expert: Count = Field(1, description="ranks that divide a mixture's experts; divides workers if expert_tensor is absent")
    expert_tensor: Count | None = Field(
        None, description="tensor-parallel ranks that divide each expert's matrices, all if absent; others are expert ranks"
    )
    overlap_experts: Annotated[bool, rules.EXPERT, rules.OTHER_MICROBATCH] = Field(
        False, description="overlap expert all-to-alls with another microbatch's compute"
    )
    node_limit: Annotated[Count | None, rules.EXPERT, rules.OTHER_NODE] = Field(
        None, description="maximum number of nodes with a token's experts; unlimited if absent"
    )
    deduplicated: Annotated[bool, rules.EXPERT] = Field(
        False, description="send a token once to each node and forward it inside the node (DeepEP)"
    )
    dispatch_precision: Annotated[WirePrecision | None, rules.EXPERT] = Field(
        None, description="precision of tokens sent to experts; the training precision if absent"
    )
    combine_precision: Annotated[WirePrecision | None, rules.EXPERT] = Field(
        None, description="precision of expert outputs; the training precision if absent"
    )
    order: Annotated[tuple[Axis, ...], Field(max_length=4)] = ORDER
    split_sends: Annotated[bool, rules.SPLIT_SENDS] = Field(
        False, description="tensor-parallel ranks each send a shard of an activation to the next stage"
    )
    overlap_gather: Annotated[bool, rules.AVERAGES, rules.GATHERS_UPDATED] = Field(
        False, description="overlap the all-gather of updated parameters with the next forward pass (zero 1 and 2)"
    )

    servers_: int = Field(
        0, ge=0, le=1_000_000, alias="servers", description="parameter servers on separate nodes, in place of averaging"
    )

    def nodes_needed(self, cluster: Cluster) -> int:
        """Nodes of the training ranks, and one for each server."""
        return super().nodes_needed(cluster) + self.servers
