"""Common base of replica strategies: fields, checks, and their Plan."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, Self

from pydantic import Field

from scaleproof.simulator.cluster.collectives.algorithms import ALGORITHMS, names_for
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.spec import Count, Spec
from scaleproof.simulator.common.units import Bytes
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.strategy import option_rules as rules
from scaleproof.simulator.strategy.base import Strategy, nearest_divisor
from scaleproof.simulator.strategy.data_parallel.compression import AnyCompression
from scaleproof.simulator.strategy.data_parallel.uneven_batches import Shares, check_shares
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.pipeline import schedules
from scaleproof.simulator.strategy.pipeline.schedules import ScheduleName
from scaleproof.simulator.strategy.pipeline.stage_partition import Balance, cut, cut_by_blocks
from scaleproof.simulator.strategy.plan import Plan, check_size


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

    def ranges(self, job: Job) -> list[range]:
        """Layers of each stage of the model. Raises FieldError if the model cannot be divided accordingly."""
        return cut(job, self.plan, self.balance_of)

    def stage_layers(self, job: Job) -> Sequence[Sequence[int]]:
        """Indices of the layers of each stage, as the plan divides the model."""
        return self.ranges(job)

    def parts(self, job: Job) -> list[list[Layer]]:
        """Layers on each rank of a pipeline, in the order of the rank's chunks."""
        ranges = self.ranges(job)
        return [[job.layers[i] for stage in stages for i in ranges[stage]] for stages in self.plan.stage_of]

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
        schedules.check(plan.schedule, plan.stages, plan.microbatches, plan.chunks)
        known = names_for("all_reduce", list(ALGORITHMS))
        if plan.algorithm is not None and plan.algorithm not in known:
            message = f"unknown all-reduce algorithm {plan.algorithm!r}; give one of {', '.join(sorted(known))}"
            raise FieldError(("strategy", "algorithm"), message)


@functools.cache
def _options(strategy: type[ReplicaStrategy]) -> Mapping[str, str]:
    """Fields of a strategy by the options of a Plan that they set."""
    options = [option.name for option in dataclasses.fields(Plan)]
    return {option: field for option in options for field in (option, f"{option}_") if field in strategy.model_fields}


__all__ = [
    "GradientAveraging",
    "Microbatches",
    "PipelineStages",
    "ReplicaStrategy",
    "Shares",
]
