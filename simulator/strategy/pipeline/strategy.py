"""Pipeline parallelism: contiguous stages of layers on different ranks, with microbatches passing through them."""

from __future__ import annotations

from typing import Literal

from scaleproof.simulator.strategy.replica_strategy import Microbatches, PipelineStages, ReplicaStrategy


class Pipeline(Microbatches, PipelineStages, ReplicaStrategy):
    """One replica of the model, divided into pipeline stages."""

    kind: Literal["pipeline"] = "pipeline"
