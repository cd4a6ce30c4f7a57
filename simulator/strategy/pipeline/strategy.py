"""Pipeline parallelism: contiguous stages of layers on different ranks, with microbatches passing through them."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from scaleproof.simulator.strategy.plan import Plan
from scaleproof.simulator.strategy.replica_strategy import Microbatches, PipelineStages, ReplicaStrategy, pipeline_options


class Pipeline(Microbatches, PipelineStages, ReplicaStrategy):
    """One replica of the model, divided into pipeline stages."""

    kind: Literal["pipeline"] = "pipeline"

    @cached_property
    def plan(self) -> Plan:
        """Stages of a single replica and their schedule."""
        return Plan(microbatches=self.microbatches_, **pipeline_options(self))
