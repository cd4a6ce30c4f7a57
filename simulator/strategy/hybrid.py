"""Hybrid: replicas, pipelines, and layers, tokens and experts divided among ranks, by degrees that multiply."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.common.spec import Count
from scaleproof.simulator.model.layers import ContextBy
from scaleproof.simulator.strategy.layout.mesh import ORDER, Axis
from scaleproof.simulator.strategy.model_parallel.expert_dispatch import WirePrecision
from scaleproof.simulator.strategy.plan import Plan
from scaleproof.simulator.strategy.replica_strategy import Averaged, Replicated, Staged, averaging, staging


class Hybrid(Averaged, Staged, Replicated):
    """`workers` · `stages` · `tensor` · `context` ranks, numbered along the axes of `order`, the innermost first."""

    kind: Literal["hybrid"] = "hybrid"
    microbatches_: Count = Field(1, alias="microbatches")
    overlap: bool = Field(False, description="sum buckets while the last microbatch's backward pass goes on")
    tensor: Count = Field(1, description="ranks that share each layer's matrices")
    sequence_parallel: bool = Field(False, description="they also share what is between the matrices (arXiv 2205.05198)")
    overlap_tensor: bool = Field(False, description="their collectives move beside the products around them")
    context: Count = Field(1, description="ranks that each have a part of every sample's tokens")
    context_by: ContextBy = Field(
        "ring",
        description="how attention reads all tokens: keys and values in a ring or gathered, or heads for tokens (ulysses)",
    )
    expert: Count = Field(1, description="ranks that share a mixture's experts; divides workers, if expert_tensor is absent")
    expert_tensor: Count | None = Field(
        None, description="tensor-parallel ranks that share each expert's matrices, all if absent; others are expert ranks"
    )
    overlap_experts: bool = Field(False, description="tokens move to experts and back next to another microbatch's compute")
    node_limit: Count | None = Field(None, description="nodes at most that a token's experts lie on; any if absent")
    deduplicated: bool = Field(False, description="a token is sent once to a node, and forwarded inside it (DeepEP)")
    dispatch_precision: WirePrecision | None = Field(
        None, description="of tokens that experts are sent; the training's if absent"
    )
    combine_precision: WirePrecision | None = Field(None, description="of what experts send back; the training's if absent")
    order: Annotated[tuple[Axis, ...], Field(max_length=4)] = ORDER
    split_sends: bool = Field(False, description="tensor-parallel ranks each send a part of an activation to the next stage")
    overlap_gather: bool = Field(False, description="gather updated parameters beside the next forward pass (zero 1 and 2)")

    servers_: int = Field(0, ge=0, le=1_000_000, alias="servers", description="on nodes of their own, in place of averaging")

    def nodes_needed(self, cluster: Cluster) -> int:
        return super().nodes_needed(cluster) + self.servers

    @property
    def plan(self) -> Plan:
        names = (
            "tensor", "sequence_parallel", "overlap_tensor", "context", "context_by", "expert", "expert_tensor",
            "overlap_experts", "node_limit", "deduplicated", "dispatch_precision", "combine_precision", "order",
            "split_sends", "overlap_gather",
        )  # fmt: skip
        own = {name: getattr(self, name) for name in names} | {"first_bucket_bytes": self.bucket_bytes}
        return Plan(microbatches=self.microbatches_, servers=self.servers_, **averaging(self), **staging(self), **own)
