"""Framework: a version of training software, described by what it costs in kernels, host time, copies and memory."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from statistics import NormalDist
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, WithJsonSchema, create_model, model_validator

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.device.device import ELEMENT_BYTES, Precision, storage_precision
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.spec import Count, Spec
from scaleproof.simulator.common.units import Bytes, PositiveBytesPerSecond, Seconds
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.recompute import ATTENTION_CORE, AnyRecompute
from scaleproof.simulator.parallelism import Hybrid
from scaleproof.simulator.parallelism.option_rules import decided_by_framework
from scaleproof.simulator.parallelism.options import Dispatcher

# Features that a scenario may need; `simulator.scenario.framework_choice.features` determines which ones it needs.
Feature = Literal[
    "data_parallel", "zero_1", "zero_2", "zero_3", "tensor", "pipeline", "context", "expert", "model_parallel",
    "parameter_server", "local_sgd", "gather_average", "fp8", "fp4", "cpu",
]  # fmt: skip


class PerPass(Spec):
    """One number for the forward pass and one for the backward pass."""

    forward: float = Field(0.0, ge=0, le=1e6)
    backward: float = Field(0.0, ge=0, le=1e6)

    def __add__(self, other: PerPass) -> PerPass:
        return self.model_copy(update={"forward": self.forward + other.forward, "backward": self.backward + other.backward})

    def times(self, factor: float) -> PerPass:
        """Both numbers multiplied."""
        return self.model_copy(update={"forward": self.forward * factor, "backward": self.backward * factor})


class Rpc(Spec):
    """Remote procedure calls between workers and servers: one thread of each process copies all messages that it sends and
    receives, one after another."""

    send_Bps: PositiveBytesPerSecond = Field(alias="send", description="rate at which the thread sends")
    receive_Bps: PositiveBytesPerSecond = Field(alias="receive", description="rate at which it receives")


class StageHost(Spec):
    """Host time of each pass of a pipeline stage that its layers do not have, and that no kernel hides.

    Backward passes that are split into gradients of inputs and of weights have times of their own, except on the first stage,
    which computes all gradients in the pass for weights (torch/distributed/pipelining/stage.py, backward_one_chunk).
    """

    forward_s: Seconds = Field(0.0, alias="forward", description="of a forward pass")
    loss_s: Seconds = Field(0.0, alias="loss", description="of the loss, after the last stage's forward pass")
    backward_s: Seconds = Field(0.0, alias="backward", description="of a whole backward pass")
    inputs_s: Seconds = Field(0.0, alias="inputs", description="of a pass for gradients of inputs")
    weights_s: Seconds = Field(0.0, alias="weights", description="of a pass for gradients of weights")


class Host(Spec):
    """Work of the host process in each step.

    The kernel counts are launches per layer and pass. Layers without attention that are not the ends of a transformer launch as
    many kernels as the model describes, times `described`; so do transformer blocks without a count of their own, and those of
    `launches` in addition.
    """

    kernel_s: Seconds = Field(0.0, alias="kernel", description="host time per kernel launch")
    collective_s: Seconds = Field(0.0, alias="collective", description="host time per collective inside a layer")
    microbatch_s: Seconds = Field(0.0, alias="microbatch", description="time per microbatch in addition to its kernels")
    blocking: bool = Field(False, description="the host waits for each kernel (CUDA_LAUNCH_BLOCKING)")
    block: PerPass | None = Field(None, description="kernels of a transformer block; as the model describes them if absent")
    launches: dict[str, PerPass] = Field(
        {},
        description="kernels of a block without a count, in addition to those that the model describes: of an operator by its "
        "name, and of the block (`block`)",
    )
    ends: PerPass = Field(PerPass(), description="kernels of the embedding, and of the output head with the loss")
    mixture: PerPass = Field(PerPass(), description="kernels of a mixture-of-experts block in addition to those of a block")
    expert_s: Seconds = Field(
        0.0,
        alias="expert",
        description="time per expert of a grouped product, and of its casts to few bits, in loops of a library",
    )
    checkpoint: PerPass = Field(PerPass(), description="additional launches of a block that is recomputed")
    gradient_s: Seconds = Field(
        0.0, alias="gradient",
        description="time per gradient tensor and device after sums, of one process that drives all devices of a node",
    )  # fmt: skip
    stage: StageHost = Field(StageHost(), description="time per pass of a pipeline stage in addition to its layers")
    described: float = Field(1.0, ge=0, le=100, description="kernels launched per kernel that other layers describe")


class Hooks(Spec):
    """Python code that runs between kernels with ZeRO, on one device too."""

    modules: int = Field(0, ge=0, le=10_000, description="modules of a transformer block whose passes have hooks, with stage 3")
    module_s: Seconds = Field(0.0, alias="module", description="of a module's hooks in each pass, which gather and release")
    gradient_s: Seconds = Field(0.0, alias="gradient", description="of a trained tensor's hook in each backward pass")


class GradientPrecision(Spec):
    """Precision of gradients for each training precision, or one precision for all of them.

    Training precisions of 8 and 4 bits have the value of bf16, in which they store gradients, unless they have their own.
    """

    any: Literal["fp32", "bf16", "fp16"] | None = Field(None, description="for training precisions without a value")
    bf16: Literal["fp32", "bf16"] | None = None
    fp16: Literal["fp32", "fp16"] | None = None
    fp8: Literal["fp32", "bf16"] | None = None
    fp4: Literal["fp32", "bf16"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_shorthand(cls, value: Any) -> Any:
        return {"any": value} if isinstance(value, str) else value

    def element_bytes(self, training: Precision) -> int | None:
        """Bytes of a gradient's element, at least those of the stored training precision; None where nothing is given."""
        stored = storage_precision(training)
        name = getattr(self, training, None) or getattr(self, stored, None) or self.any
        return None if name is None else max(ELEMENT_BYTES[name], ELEMENT_BYTES[stored])


_NAMES: Final = ("fp32", "bf16", "fp16")
_SCHEMA: Final = {
    "anyOf": [
        {"enum": list(_NAMES)},
        {
            "type": "object",
            "properties": {field: {"enum": list(_NAMES)} for field in GradientPrecision.model_fields},
            "additionalProperties": False,
        },
    ]
}
AnyGradientPrecision = Annotated[GradientPrecision, WithJsonSchema(_SCHEMA)]


class ScorePass(Spec):
    """A kernel of attention without flash, which reads and writes scores in memory, or copies what attention reads.

    forward, backward: elements that it reads and writes per element, masks of a byte not counted.
    """

    forward: float = Field(0.0, ge=0, le=100)
    backward: float = Field(0.0, ge=0, le=100)
    of: Literal["scores", "inputs"] = Field("scores", description="its elements: scores, or queries, keys and values")
    when: Literal["always", "causal", "bidirectional"] = Field("always", description="the attention that has it")
    wide: Literal["never", "autocast", "always"] = Field(
        "never", description="when its scores have 32 bits in training with 16; casts before and after it are added"
    )


class Autocast(Spec):
    """What `torch.autocast` adds to training in 16 bits: parameters, gradients, norms and sums of the residual stream have 32
    bits, and casts are between them and products."""

    usual: bool = Field(False, description="training in 16 bits uses it unless the scenario says otherwise")
    extra_bytes: dict[str, PerPass] = Field(
        {}, description="moved per element that an operator writes, in addition to what training without it moves"
    )
    parameter_bytes: PerPass = Field(PerPass(), description="the same per parameter and microbatch")
    block: PerPass = Field(PerPass(), description="kernels of a transformer block in addition to those without it")

    @property
    def is_known(self) -> bool:
        """Whether the framework has it."""
        return bool(self.extra_bytes)


class RingAttention(Spec):
    """Ring attention among context-parallel ranks: one kernel for the keys of each rank, whose outputs are merged.

    merged, keys: bytes moved in both passes for each further piece, per element of a rank's output, in addition to reading
    the outputs of both pieces and writing one; and for each piece, per element of its keys and values.
    """

    merged: PerPass = PerPass()
    keys: PerPass = PerPass()
    kernels: PerPass = Field(PerPass(), description="launched in addition for each piece")
    repeats_keys: bool = Field(False, description="keys and values have been repeated to the number of query heads")
    waits: bool = Field(
        False, description="a compiler puts the wait for keys, values and gradients right after their collective"
    )
    key_gradient_bytes: Literal[2, 4] | None = Field(
        None, description="of an element of the gradients of keys and values that are sent; the training precision's if absent"
    )


class GradientDefaults(Spec):
    """Accumulation of gradients over microbatches and their sum over ranks, where a scenario does not specify them."""

    accumulate: AnyGradientPrecision = Field(
        GradientPrecision(), description="precision of the buffer, for each training precision; as reduced if absent"
    )
    reduce: AnyGradientPrecision = Field(
        GradientPrecision(), description="precision of sums over ranks, for each training precision; the training's if absent"
    )
    fused: bool | None = Field(
        None, description="the weight-gradient product adds to the buffer itself, or a kernel adds; absent: no buffer"
    )


class Buckets(Spec):
    """Copies of gradients into buckets and out of them, where replicas sum these, in the last backward pass of a step."""

    accesses: float = Field(0.0, ge=0, le=100, description="reads and writes of each gradient, divisions by the ranks included")
    kernels: float = Field(0.0, ge=0, le=100, description="kernels for each tensor")


class Scale(Spec):
    """Loss of speed that grows with the number of ranks that wait for each other."""

    device_deviation: float = Field(0.0, ge=0, le=1, description="standard deviation of equal devices' speeds, a share")
    pass_jitter: float = Field(0.0, ge=0, le=1, description="standard deviation of one rank's pass times, a share")


# Blom's constant (Statistical Estimates and Transformed Beta-Variables, 1958).
_BLOM = 0.375


@functools.cache
def expected_maximum(count: int) -> float:
    """Expected largest of `count` independent standard normal variables, by Blom's approximation; 0 for one."""
    if count <= 1:
        return 0.0
    return NormalDist().inv_cdf((count - _BLOM) / (count - 2 * _BLOM + 1))


def slowest(scale: Scale, ranks: int, group: int) -> float:
    """Time of the slowest of the ranks that wait for each other, over the mean.

    ranks: all that synchronise in each step: the slowest device sets the pace, and its speed lasts. group: ranks that
    synchronise within each pass (tensor and context parallelism), where the slowest of each pass sets the pace.
    """
    return 1 + scale.device_deviation * expected_maximum(ranks) + scale.pass_jitter * expected_maximum(group)


_WIDE_BYTES: Final = 4


class Loss(Spec):
    """Copies of the logits that a loss function allocates."""

    wide: bool = Field(True, description="copies have 32 bits where logits have 16")
    more: int = Field(2, ge=0, le=100, description="copies at the peak, in addition to the one kept for the backward pass")
    holds: bool = Field(True, description="scripts hold the logits during the backward pass, also where copies are as wide")
    chunks: Count = Field(
        1, description="parts of the samples whose logits, loss and gradients are computed one after the other, and not kept"
    )

    def logit_bytes(self, element_bytes: int) -> tuple[int, float]:
        """Bytes per logit that are kept for the backward pass, and bytes allocated in addition at the peak: copies, and the
        logits where they are not what is kept."""
        copy = max(_WIDE_BYTES, element_bytes) if self.wide else element_bytes
        own = element_bytes if self.wide and (self.holds or copy > element_bytes) else 0
        if self.chunks > 1:
            return 0, (copy + self.more * copy + own) / self.chunks
        return copy, self.more * copy + own


class MemoryBehaviour(Spec):
    """Memory that a framework allocates; fields are read by `scaleproof.simulator.memory`."""

    loss: Loss = Loss()
    gradients: Literal["made", "buffers", "both"] = Field(
        "made", description="allocated anew in each step, in buffers that stay, or 16-bit ones next to 32-bit buffers"
    )
    copies_buckets: bool = Field(True, description="gradients are copied into buckets that stay allocated")
    narrow_buckets: bool = Field(False, description="these have the training precision, and exist without ZeRO only")
    keeps_gathered: Literal["never", "without stages", "always"] = Field(
        "never",
        description="when inputs gathered for tensor-parallel products stay until the backward pass; those that always do are "
        "not gathered again",
    )
    master_bytes: int = Field(4, ge=0, le=16, description="of a parameter's copy in the optimizer's precision")
    main_gradients: bool = Field(False, description="16-bit gradients are copied to 32 bits for the optimizer's step")
    flat_bytes: int = Field(0, ge=0, le=64, description="flattened gradient copies per parameter whose states a rank owns")
    reduce_elements: float = Field(0.0, ge=0, description="elements of the reduction bucket that is allocated then")
    stand_ins: bool = Field(False, description="weight-gradient products add to buffers and return a shared dummy tensor")
    receives_all: bool = Field(True, description="a pipeline stage has a receive buffer for each microbatch")
    keeps_outputs: bool = Field(True, description="a pipeline stage keeps what it has sent until its backward pass")
    fp8_input_bytes: Literal[1, 2] = Field(
        2,
        description="bytes per element of what 8-bit products keep: inputs, and outputs' gradients until those of weights; "
        "1: 4-bit products keep 4 bits",
    )
    kept_elements: dict[str, float] = Field(
        {}, description="kept for the backward pass per element that an operator writes, in addition to what the model counts"
    )
    kept_bytes: dict[str, float] = Field({}, description="the same in bytes, of what has the same precision in all training")
    frozen_kept_bytes: dict[str, float] = Field(
        {}, description="these in layers whose own parameters are frozen, where their gradients would read some of it"
    )
    scale: float = Field(1.0, gt=0, le=100, description="factor on modelled memory, from calibration")
    context_bytes: Bytes = Field(500 * 2.0**20, alias="context", description="of the device's context and loaded kernels")
    reports: Literal["total_bytes", "reserved_bytes", "allocated_bytes"] = Field(
        "total_bytes", description="which figure the framework's logs print"
    )
    reported_rank: Literal["fullest", "first"] = Field(
        "fullest", description="whose figure that is: of the fullest rank, or of rank 0, on the first pipeline stage"
    )

    def copies_bytes(self, layer: Layer, element_bytes: int) -> float:
        """Bytes per sample that operators of a layer keep in addition to what the model counts.

        element_bytes: of an element of activations.
        """
        own_bytes, total = self.kept_bytes | (self.frozen_kept_bytes if layer.is_frozen else {}), 0.0
        for one in layer.operators:
            total += one.written * (own_bytes.get(one.name, 0.0) + element_bytes * self.kept_elements.get(one.name, 0.0))
        return total


def _with_decided_options(defaults: type[Spec]) -> type[Spec]:
    """The class with the strategy fields that a framework may decide; None leaves the strategy's own default."""
    fields: dict[str, Any] = {
        name: (Annotated[info.annotation, *info.metadata] | None, Field(None, alias=info.alias))
        for name, info in Hybrid.model_fields.items()
        # `keeps_in_pipelines` decides whether parameters are freed
        if name in decided_by_framework(Hybrid) and name != "reshard"
    }
    return create_model(
        defaults.__name__, __base__=defaults, __module__=defaults.__module__, __doc__=defaults.__doc__, **fields
    )


@_with_decided_options
class Defaults(Spec):
    """Values of strategy fields that a scenario leaves out. first_bucket: unless the scenario gives `bucket`."""

    keeps_in_pipelines: bool = Field(False, description="ZeRO 3 keeps gathered parameters for the step under pipelines")
    keeps_ends: bool = Field(
        False,
        description="ZeRO 3 keeps gathered parameters of the embedding and the head, FSDP's root, until the backward pass has "
        "used them",
    )
    bucket_parameters: float | None = Field(None, gt=0, description="parameters per gradient bucket, in place of its bytes")
    bucket_parameters_per_rank: float = Field(0.0, ge=0, description="lower bound per data-parallel rank")


class ZeroOne(Spec):
    """Synchronisation of data-parallel ranks with ZeRO's stage 1, where it differs from reduce-scatters of buckets during the
    backward pass and one all-gather."""

    sums_whole: bool = Field(
        False, description="all gradients are summed by one all-reduce after the backward pass, and each rank uses its part"
    )
    owns_tensors: bool = Field(
        False, description="each rank owns whole tensors: gradients are summed whole, and owners broadcast tensors"
    )
    broadcasts: Literal["owners", "tensors"] = Field(
        "owners", description="what has a broadcast of its own: all tensors of an owner together, or each tensor"
    )
    broadcast_s: Seconds = Field(
        0.0, alias="broadcast", description="per tensor and rank, where each tensor is gathered by broadcasts of its owners"
    )


class ShardCopies(Spec):
    """Copies of whole buffers by a processor core, in addition to the collective library's own, with ZeRO's stage 3."""

    gather: float = Field(0.0, ge=0, le=100, description="of gathered parameters, after an all-gather")
    scatter: float = Field(0.0, ge=0, le=100, description="of gradients, before a reduce-scatter")

    def of(self, op: str) -> float:
        """Copies next to a collective."""
        return {"all_gather": self.gather, "reduce_scatter": self.scatter}.get(op, 0.0)


class PipelineWaits(Spec):
    """Time in which the host waits for the other ranks of its tensor-parallel group, in pipelines over several nodes."""

    rank_s: Seconds = Field(0.0, alias="rank", description="per rank of the group and collective inside a layer")


class MessageStall(Spec):
    """Delays of messages between nodes, in jobs of at least `nodes` nodes.

    The more nodes a job has, the more likely is one whose messages stall. A pipeline waits for it in every microbatch:
    `delay_s` is that of each message of a pipeline. Replicas without a pipeline wait when they synchronise: `step_s` is the
    delay of each of their steps. The prediction is that of the median job: `nodes` is the number from which more than half of
    the jobs stalled.
    """

    nodes: Count
    delay_s: Seconds = Field(alias="delay")
    step_s: Seconds = Field(0.0, alias="step")


Kind = Literal["eager", "compiled", "megatron", "deepspeed", "jax", "paddle", "tensorflow"]


class Prevalence(Spec):
    """Who trains with it, for priors over software that is not named. Variants of one software share its weight."""

    kind: Kind
    years: tuple[int, int] = Field(description="the first and the last year in which many trained with it")
    weight: float = Field(1.0, gt=0, le=1)


class ExpertExchange(Spec):
    """A way to send tokens to experts and outputs back, by strategy fields."""

    dispatcher: Dispatcher
    overlap_shared_experts: bool = False


class Framework(Spec):
    """A version of training software. Every value that is not a default of this schema has an entry in `sources`."""

    name: str
    description: str = ""
    use: Prevalence | None = Field(None, description="its place in the prior over software that is not named; absent: none")
    supports: tuple[Feature, ...] = Field((), description="parallelism, precisions and devices that it runs on")
    recomputes: tuple[Literal["layers", "every", "modules", "products"], ...] = Field(
        (), description="forms of recomputation in addition to none, selective and full; by these fields of training.recompute"
    )
    selective: AnyRecompute = Field(
        ATTENTION_CORE, description="the recomputation that it calls selective; the core of attention if absent"
    )
    exchanges: tuple[ExpertExchange, ...] = Field(
        (), description="ways to send tokens to experts that plans try; absent: the default one alone"
    )
    host: Host = Host()
    hooks: Hooks = Hooks()
    attention: dict[str, str] = Field(
        {},
        description="version of flash attention by device generation, or 'any'; 'best' of all; 'none' writes scores to memory",
    )
    fused_softmax: bool = Field(False, description="scale, mask and softmax are one kernel where shapes are multiples of four")
    attention_passes: dict[str, ScorePass] = Field(
        {}, description="kernels between the products of attention without flash, in order; absent: one fused softmax"
    )
    pads_products: bool = Field(
        False, description="the compiler pads products whose rows are not aligned (inductor's shape_padding)"
    )
    channels_first: tuple[Literal["tf32", "bf16", "fp16"], ...] = Field(
        (),
        description="precisions in which images are stored channel by channel, so that cuDNN transposes them for tensor cores",
    )
    autocast: Autocast = Autocast()
    extra_bytes: dict[str, PerPass] = Field(
        {}, description="moved per element that an operator writes, in addition to what the model counts"
    )
    sequence_accesses: float = Field(
        0.0, ge=0, le=100,
        description="reads and writes of each element that tensor-parallel ranks gather or scatter along sequences, in copies "
        "that put a sample's parts next to one another",
    )  # fmt: skip
    parameter_bytes: PerPass = Field(PerPass(), description="copies and sums per parameter and microbatch")
    buckets: Buckets = Buckets()
    optimizer_bytes: float = Field(0.0, ge=0, le=1e4, description="moved per parameter in addition to the optimizer's formula")
    clip_bytes: float = Field(0.0, ge=0, le=1e4, description="of optimizer_bytes: for the norm of gradients and their clipping")
    host_slowdown: float = Field(
        1.0, ge=1, le=100, description="time of an offloaded optimizer's step over that of one that moves all numbers once"
    )
    gradients: GradientDefaults = GradientDefaults()
    ring: RingAttention = RingAttention()
    fp8_gathers: bool = Field(False, description="parameters of 8-bit training are gathered with a byte each")
    overlap_input_gradients: bool = Field(
        False, description="tensor-parallel ranks sum gradients of products' inputs next to weight-gradient products"
    )
    contention: bool = Field(True, description="overlapped collectives take processors and memory bandwidth from kernels")
    link_contention: bool = Field(
        True, description="collectives of replicas and those within the passes next to them share links"
    )
    rendezvous: bool = Field(True, description="collectives inside layers start with no receives queued in the network")
    shard_copies: ShardCopies = ShardCopies()
    waits_for_scatters: bool = Field(
        False, description="with ZeRO's stage 3 ranks wait for each reduce-scatter of gradients before they compute on"
    )
    power: bool = Field(True, description="overlapped collectives draw power that kernels at the device's power cap lose")
    scale: Scale = Scale()
    pipeline_waits: PipelineWaits = PipelineWaits()
    zero_1: ZeroOne = ZeroOne()
    message_stall: MessageStall | None = Field(
        None, description="delays of messages in jobs of many nodes, where they were observed"
    )
    tcp_Bps: PositiveBytesPerSecond | None = Field(
        None, alias="tcp",
        description="largest rate of a node where collectives between nodes go over TCP; absent: over the network's transport",
    )  # fmt: skip
    rpc: Rpc | None = Field(None, description="of messages between workers and servers; absent: hardware moves them")
    connections: int | None = Field(
        None, ge=1, le=10_000,
        description="of a node to the next over TCP, where it is not NCCL's own number; absent: as network.sockets says",
    )  # fmt: skip
    kernel_scale: float = Field(1.0, gt=0, le=100, description="factor on modelled kernel times, from calibration")
    host_scale: float = Field(1.0, gt=0, le=100, description="factor on modelled host times, from calibration")
    defaults: Defaults = Defaults()
    memory: MemoryBehaviour = MemoryBehaviour()
    precision: str = Field("bf16", description="of published runs without a stated precision")
    recompute: Literal["none", "selective", "full"] = Field("none", description="of published runs that do not state it")
    vocabulary: int = Field(51200, gt=0, description="of published runs without a stated vocabulary")
    model: dict[str, Any] = Field({}, description="details of the transformer that its published runs train")
    sources: dict[str, str] = Field({}, description="where each value comes from")

    def flash(self, generation: str) -> str | None:
        """Version of flash attention on a device generation; None where the framework says nothing."""
        return self.attention.get(generation, self.attention.get("any"))

    @property
    def has_flash(self) -> bool:
        """Whether attention can run without writing scores to memory."""
        return self.attention.get("any") != "none"

    def stall_s(self, nodes: int) -> float:
        """Seconds for which each message of a pipeline between nodes stalls, in a job of `nodes` nodes."""
        stall = self.message_stall
        return stall.delay_s if stall is not None and nodes >= stall.nodes else 0.0

    def step_stall_s(self, nodes: Any) -> Any:
        """Seconds for which each step of replicas without a pipeline stalls, in a job of `nodes` nodes."""
        stall = self.message_stall
        return stall.step_s * (nodes >= stall.nodes) if stall is not None else 0.0

    def reached(self, cluster: Cluster) -> Cluster:
        """The cluster as the framework's collectives reach it: its network over TCP if they do not use its own transport, and
        no faster than the framework's connections are."""
        return cluster.reached(self.tcp_Bps, self.connections)

    def transposes_images(self, generation: str, precision: str) -> bool:
        """Whether images are stored channel by channel, and transposed for the tensor cores of a generation of GPUs."""
        return precision in self.channels_first and generation not in _WITHOUT_TENSOR_CORES

    def ablated(self, mechanism: str) -> Self:
        """The framework with one mechanism of `ABLATIONS` switched off. Raises InputError for an unknown name."""
        if mechanism not in ABLATIONS:
            raise InputError(f"no mechanism is called {mechanism!r}; give one of {', '.join(ABLATIONS)}")
        update = dict(ABLATIONS[mechanism])
        for name, value in update.items():
            if isinstance(own := getattr(self, name), Spec) and isinstance(value, Mapping):
                update[name] = own.model_copy(update=value)
        return self.model_copy(update=update)


# Generations whose convolutions run without tensor cores of NVIDIA's kind.
_WITHOUT_TENSOR_CORES: Final = ("kepler", "pascal", "cdna", "tpu", "cpu")
# Attention as fast as the fastest version that is known for a device.
_BEST_ATTENTION: Final = {"any": "best"}
# No software cost: the bound that hardware sets.
IDEAL: Final = Framework(
    name="ideal", attention=_BEST_ATTENTION, contention=False, power=False, rendezvous=False, overlap_input_gradients=True,
    defaults=Defaults.model_validate({"overlap": True}),
)  # fmt: skip
# Mechanisms that can be switched off, with the fields that do so.
ABLATIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "host": {"host": Host(), "host_scale": 1.0},
    "hooks": {"hooks": Hooks()},
    "experts": {"host": {"expert_s": 0.0}},
    "dispatchers": {
        "defaults": {"dispatcher": None, "overlap_experts": None, "overlap_shared_experts": None, "dispatch_precision": None}
    },
    "attention": {"attention": _BEST_ATTENTION},
    "kernels": {"extra_bytes": {}},
    "attention passes": {"attention_passes": {}, "fused_softmax": False},
    "autocast": {"autocast": Autocast()},
    "padding": {"pads_products": False},
    "ring": {"ring": RingAttention()},
    "transposes": {"channels_first": ()},
    "copies": {"sequence_accesses": 0.0, "parameter_bytes": PerPass(), "buckets": Buckets(), "gradients": GradientDefaults()},
    "optimizer": {"optimizer_bytes": 0.0, "clip_bytes": 0.0},
    "contention": {"contention": False},
    "link contention": {"link_contention": False},
    "rendezvous": {"rendezvous": False},
    "power": {"power": False},
    "scatters": {"waits_for_scatters": False, "shard_copies": ShardCopies()},
    "slowest": {"scale": Scale()},
    "waits": {"pipeline_waits": PipelineWaits()},
    "zero 1": {"zero_1": ZeroOne()},
    "stalls": {"message_stall": None},
    "tcp": {"tcp_Bps": None},
    "connections": {"connections": None},
    "rpc": {"rpc": None},
}
