"""Options of replicas: each with its default, its description, and the rules on what it needs.

Users write them in strategies (`replicas.py`), each of which has some of these groups; a `Plan` has all.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from scaleproof.simulator.common.spec import Count, Spec
from scaleproof.simulator.common.units import Bytes
from scaleproof.simulator.model.layers import ContextBy
from scaleproof.simulator.model.recommender.placement import Tables
from scaleproof.simulator.parallelism.compression import AnyCompression
from scaleproof.simulator.parallelism.mesh import ORDER, AxisOrder
from scaleproof.simulator.parallelism.option_rules import BY_FRAMEWORK, Rule
from scaleproof.simulator.parallelism.stages import Balance, ScheduleName

# Precisions of data sent to experts and back.
WirePrecision = Literal["fp8", "bf16", "fp16", "fp32"]
# What sends tokens to experts and back: NCCL, or kernels of DeepEP or HybridEP.
Dispatcher = Literal["alltoall", "deepep", "hybridep"]

# What options need, and the errors elsewhere
STAGES: Final = Rule("stages > 1")
CHUNKS: Final = Rule(
    "stages > 1",
    "{value} chunks need several pipeline stages", "set strategy.stages, or set chunks: 1 and schedule: 1f1b",
)  # fmt: skip
COUNTED_END: Final = Rule("stages > 1", "there is one stage of the model")
BY_LAYERS: Final = Rule("balance == 'layers'", "balance already determines the stages")
TENSOR: Final = Rule("tensor > 1", "has no effect without tensor parallelism", "set strategy.tensor, or leave it out")
SEQUENCE: Final = Rule(
    "sequence_parallel",
    "needs the collectives of sequence parallelism", "set strategy.sequence_parallel=true, or leave it out",
)  # fmt: skip
SPLIT_SENDS: Final = Rule(
    "tensor > 1 and stages > 1",
    "needs tensor-parallel ranks and several stages", "set strategy.tensor and strategy.stages, or leave it out",
)  # fmt: skip
CONTEXT: Final = Rule("context > 1", "has no effect without context parallelism", "set strategy.context, or leave it out")
EXPERT: Final = Rule("expert > 1", "has no effect without expert parallelism", "set strategy.expert, or leave it out")
OTHER_MICROBATCH: Final = Rule(
    "microbatches > 1", "needs another microbatch to compute meanwhile", "set strategy.microbatches, or leave it out"
)
ONE_OVERLAP: Final = Rule(
    "not overlap_experts", "another microbatch's compute overlaps with the all-to-alls already", "leave one of them out"
)
OTHER_NODE: Final = Rule(
    "nodes > 1",
    "all {ranks} ranks are on one node", "set more ranks or fewer cluster.node.devices, or leave it out",
)  # fmt: skip
WHOLE_REPLICAS: Final = Rule(
    "tensor * stages * context * expert == 1",
    "tables are divided over data-parallel workers alone", "leave tensor, stages, context and expert out, or tables",
)  # fmt: skip
REPLICAS: Final = Rule("averages")
BUCKETS: Final = Rule("zero < 3")
AVERAGES: Final = Rule("servers == 0", "has no effect with servers, which sum gradients themselves", "leave it or servers out")
WHOLE_GRADIENTS: Final = Rule(
    "zero == 0", "not supported for gradients that are reduce-scattered", "leave compression or training.zero out"
)
SHARDS: Final = Rule("zero >= 1", "nothing is sharded", "set training.zero to 1, 2 or 3")
SCATTERS: Final = Rule("zero >= 2", "gradients are not reduce-scattered", "set training.zero to 2 or 3, or leave it out")
GATHERS_UPDATED: Final = Rule(
    "zero in (1, 2)", "parameters are not all-gathered after a step", "set training.zero to 1 or 2, or leave it out"
)
GATHERS_LAYERS: Final = Rule("zero == 3", "parameters are not all-gathered", "set training.zero=3, or leave it out")


class PipelineStages(Spec):
    """Division of the model into pipeline stages."""

    stages: Count = Field(1, description="pipeline ranks of a worker")
    chunks: Annotated[Count, CHUNKS] = Field(1, description="model stages on each rank (virtual stages)")
    schedule: ScheduleName = "1f1b"
    balance: Annotated[Balance, BY_FRAMEWORK] = Field(
        "layers", description="what is balanced between stages, or the number of blocks of each"
    )
    account_for_embedding: Annotated[bool, COUNTED_END, BY_LAYERS] = Field(
        False, description="count the embedding as a layer when stages are cut"
    )
    account_for_loss: Annotated[bool, COUNTED_END, BY_LAYERS] = Field(
        False, description="count the output head and the loss as a layer when stages are cut"
    )
    overlap_sends: Annotated[bool, BY_FRAMEWORK, STAGES] = Field(
        False, description="overlap sends and receives of activations with passes"
    )


class GradientAveraging(Spec):
    """Averages of gradients over workers, and shards of their states."""

    workers: Count = Field(1, description="replicas of the model")
    bucket_bytes: Annotated[Bytes, BY_FRAMEWORK, REPLICAS, BUCKETS] = Field(
        25 * 2.0**20, alias="bucket", description="size at which a bucket of gradients closes"
    )
    first_bucket_bytes: Annotated[Bytes | None, BY_FRAMEWORK, REPLICAS, BUCKETS] = Field(
        None, alias="first_bucket", description="size at which the first bucket closes; that of the others if absent"
    )
    overlap: Annotated[bool, BY_FRAMEWORK, REPLICAS, AVERAGES] = Field(
        True, description="overlap the sum of buckets with the backward pass"
    )
    algorithm: Annotated[str | None, AVERAGES] = Field(
        None, description="algorithm of the all-reduce; the library's choice if absent"
    )
    compression: Annotated[AnyCompression | None, AVERAGES, WHOLE_GRADIENTS] = Field(
        None, description="compression of gradients"
    )
    prefetch: Annotated[int, GATHERS_LAYERS] = Field(
        1, ge=0, le=1000, description="layers whose parameters are gathered ahead (zero 3)"
    )
    reshard: Annotated[bool, BY_FRAMEWORK, GATHERS_LAYERS] = Field(
        True, description="free gathered parameters after the forward pass; else pipelines keep them for the whole step"
    )
    scatter: Annotated[Literal["microbatch", "step"], SCATTERS] = Field(
        "microbatch", description="scatter gradients after each microbatch, or once per step (FSDP's no_sync)"
    )
    shard_over: Annotated[Count | None, SHARDS] = Field(
        None, description="workers that shard states; all if absent (hybrid sharding)"
    )
    tables: Annotated[Tables | None, WHOLE_REPLICAS] = Field(
        None, description="how embedding tables are divided over workers; each has all, with dense gradients, if absent"
    )


class Microbatches(Spec):
    """Division of a worker's samples into microbatches: their number, or the samples of each."""

    microbatches: Count = Field(1, description="number of microbatches of a worker and step (gradient accumulation steps)")
    micro_batch_size: Count | None = Field(None, description="samples of a microbatch, in place of microbatches")


class AllDegrees(Microbatches, GradientAveraging, PipelineStages):
    """Division of layers, tokens and experts over ranks, in addition to that of samples and of the model into stages."""

    overlap: Annotated[bool, BY_FRAMEWORK, REPLICAS, AVERAGES] = Field(
        False, description="overlap the sum of buckets with the last microbatch's backward pass"
    )
    tensor: Count = Field(1, description="ranks that share each layer's matrices")
    sequence_parallel: Annotated[bool, TENSOR] = Field(
        False, description="tensor-parallel ranks also divide operators between the matrices (arXiv 2205.05198)"
    )
    overlap_tensor: Annotated[bool, BY_FRAMEWORK, SEQUENCE] = Field(
        False, description="overlap tensor-parallel collectives with the adjacent matrix products"
    )
    context: Count = Field(1, description="ranks that divide the tokens of every sample")
    context_by: Annotated[ContextBy, BY_FRAMEWORK, CONTEXT] = Field(
        "ring",
        description="how attention reads all tokens: keys and values by ring or all-gather, or all-to-all of heads (ulysses)",
    )
    expert: Count = Field(1, description="ranks that divide a mixture's experts; divides workers if expert_tensor is absent")
    expert_tensor: Count | None = Field(
        None, description="tensor-parallel ranks that divide each expert's matrices, all if absent; others are expert ranks"
    )
    overlap_experts: Annotated[bool, BY_FRAMEWORK, EXPERT, OTHER_MICROBATCH] = Field(
        False, description="overlap expert all-to-alls with another microbatch's compute"
    )
    overlap_shared_experts: Annotated[bool, BY_FRAMEWORK, EXPERT, ONE_OVERLAP] = Field(
        False, description="overlap expert all-to-alls with the shared experts' compute"
    )
    node_limit: Annotated[Count | None, EXPERT, OTHER_NODE] = Field(
        None, description="maximum number of nodes with a token's experts; unlimited if absent"
    )
    dispatcher: Annotated[Dispatcher, BY_FRAMEWORK, EXPERT] = Field(
        "alltoall",
        description="sends tokens to experts: NCCL's all-to-all one copy to each expert; deepep and hybridep one to each node, "
        "and there one to each rank",
    )
    dispatch_precision: Annotated[WirePrecision | None, BY_FRAMEWORK, EXPERT] = Field(
        None, description="precision of tokens sent to experts; the training precision if absent"
    )
    combine_precision: Annotated[WirePrecision | None, EXPERT] = Field(
        None, description="precision of expert outputs; the training precision if absent"
    )
    order: Annotated[AxisOrder, Field(max_length=4)] = ORDER
    split_sends: Annotated[bool, BY_FRAMEWORK, SPLIT_SENDS] = Field(
        False, description="tensor-parallel ranks each send a shard of an activation to the next stage"
    )
    overlap_gather: Annotated[bool, BY_FRAMEWORK, AVERAGES, GATHERS_UPDATED] = Field(
        False, description="overlap the all-gather of updated parameters with the next forward pass (zero 1 and 2)"
    )
    servers: int = Field(0, ge=0, le=1_000_000, description="parameter servers on separate nodes, in place of averaging")
