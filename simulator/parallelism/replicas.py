"""Strategies of replicas that a Plan describes completely: data parallelism, pipelines, and hybrids of all degrees.

Worker k with m_k samples has the mean gradient of its own samples. The mean over all n samples weights these by m_k / n; an
unweighted average would overweight samples of workers with few of them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final, Literal, Self

from pydantic import Field

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.algorithms import names_for
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.model.contrastive import Peers, TwoTowers
from scaleproof.simulator.model.layers import Layer, ModelSpec
from scaleproof.simulator.model.recommender.parts import lookups_of
from scaleproof.simulator.parallelism.options import AllDegrees, GradientAveraging, Microbatches, PipelineStages
from scaleproof.simulator.parallelism.plan import Plan, Shares, check_size
from scaleproof.simulator.parallelism.stages import check_schedule, cut_by_blocks
from scaleproof.simulator.parallelism.strategy import Strategy, nearest_divisor

GivenShares = Shares | Literal["auto"] | None
_SHARES: Final = Field(None, description="samples of each worker, or auto: by the rates of their devices")


class ReplicaStrategy(Strategy):
    """Strategies that are described completely by their plan."""

    def for_samples(self, samples_per_worker: int) -> Self:
        """The strategy with the number of microbatches that follows from their size, if that is given, which it may not be if
        workers have different shares."""
        size: int | None = getattr(self, "micro_batch_size", None)
        if size is None:
            return self
        if getattr(self, "shares", None) is not None:
            message = "workers have different shares of the samples; give microbatches instead"
            raise FieldError(("strategy", "micro_batch_size"), message)
        number, rest = divmod(samples_per_worker, size)
        if rest:
            near = nearest_divisor(samples_per_worker, min(size, samples_per_worker))
            message = f"micro-batches of {size} do not divide {samples_per_worker} samples per worker; give {near}"
            raise FieldError(("strategy", "micro_batch_size"), message)
        if "microbatches" in self.model_fields_set and self.microbatches != number:
            message = f"{samples_per_worker} samples per worker are {number} micro-batches of {size}, not {self.microbatches}"
            raise FieldError(("strategy", "micro_batch_size"), f"{message}; leave out microbatches or micro_batch_size")
        return self.defaulted({"microbatches": number})

    @functools.cached_property
    def plan(self) -> Plan:
        """Division and schedule of the replicas, by the strategy's fields."""
        # the number of microbatches follows from their size
        options = Plan.model_fields.keys() & type(self).model_fields.keys() - {"micro_batch_size"}
        return Plan.model_construct(**{name: getattr(self, name) for name in options})

    def check(self, layers: Sequence[Layer], samples_per_worker: int) -> None:
        """Checks layers, samples of workers, degrees, schedule and all-reduce algorithm; raises FieldError."""
        plan = self.plan
        cut_by_blocks(layers, plan.stages * plan.chunks, plan.balance, plan.counted)
        for samples in plan.shares or (samples_per_worker,):
            super().check(layers, samples)
        check_size(plan)
        plan.check(any(layer.expert_parameters for layer in layers))
        if plan.tables is not None and not lookups_of(layers):
            message = "the model has no embedding tables to place; leave tables out, or train a model of kind dlrm"
            raise FieldError(("strategy", "tables"), message)
        check_schedule(plan.schedule, plan.stages, plan.microbatches, plan.chunks)
        if plan.algorithm is not None and plan.algorithm not in names_for("all_reduce"):
            known = ", ".join(sorted(names_for("all_reduce")))
            message = f"unknown all-reduce algorithm {plan.algorithm!r}; give one of {known}"
            raise FieldError(("strategy", "algorithm"), message)


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
    shares: GivenShares = _SHARES


class Pipeline(Microbatches, PipelineStages, ReplicaStrategy):
    """One replica of the model, divided into pipeline stages."""

    kind: Literal["pipeline"] = "pipeline"


class Hybrid(AllDegrees, ReplicaStrategy):
    """`workers` · `stages` · `tensor` · `context` ranks, numbered along the axes of `order`, innermost first."""

    kind: Literal["hybrid"] = "hybrid"
    shares: GivenShares = _SHARES

    def nodes_needed(self, cluster: Cluster) -> int:
        """Nodes of the training ranks, and one for each server."""
        return super().nodes_needed(cluster) + self.servers


def peers_of(strategy: Strategy, samples_per_worker: float) -> Peers:
    """The workers that pass together; of other strategies than replicas each passes by itself."""
    plan = strategy.plan
    return Peers(plan.workers if isinstance(strategy, ReplicaStrategy) else 1, samples_per_worker / plan.microbatches)


def compared_workers(model: ModelSpec, strategy: Strategy) -> int:
    """Number of workers whose features the model's contrastive loss compares; 1 without such a loss."""
    is_compared = isinstance(model, TwoTowers) and model.contrast in ("gathered", "ring")
    return peers_of(strategy, 1).workers if is_compared else 1
