"""Pipeline parallelism: contiguous stages of layers on different ranks, with microbatches passing through them."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from pydantic import Field

from scaleproof.simulator.common.spec import Count
from scaleproof.simulator.strategy.plan import Plan
from scaleproof.simulator.strategy.replica_strategy import PipelineStages, ReplicaStrategy, pipeline_options


class Pipeline(PipelineStages, ReplicaStrategy):
    """One replica of the model, divided into pipeline stages."""

    kind: Literal["pipeline"] = "pipeline"
    microbatches_: Count = Field(1, alias="microbatches")

    @cached_property
    def plan(self) -> Plan:
        return Plan(microbatches=self.microbatches_, **pipeline_options(self))
