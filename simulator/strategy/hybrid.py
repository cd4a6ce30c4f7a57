"""Hybrid parallelism: data, pipeline, tensor, context and expert parallelism, by degrees that multiply."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.common.spec import Count
from scaleproof.simulator.model.layers import ContextBy
from scaleproof.simulator.strategy import option_rules as rules
from scaleproof.simulator.strategy.layout.mesh import ORDER, Axis
from scaleproof.simulator.strategy.model_parallel.expert_dispatch import WirePrecision
from scaleproof.simulator.strategy.replica_strategy import GradientAveraging, Microbatches, PipelineStages, ReplicaStrategy


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
