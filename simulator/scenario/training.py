"""How a model is trained: samples per step and where they come from, precision, optimizer, sharding and recomputation; and the
precision in which gradients are accumulated over microbatches and reduced over ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

from pydantic import Field, PositiveFloat, field_validator, model_validator

from scaleproof.simulator.cluster.device.device import ELEMENT_BYTES, OPTIMIZER_STATES, Optimizer, Precision, StateBits
from scaleproof.simulator.cluster.device.kernels.products import Fp4Recipe, Fp8Recipe
from scaleproof.simulator.common.spec import Count, Spec, Width
from scaleproof.simulator.common.units import Bytes, PositiveBytesPerSecond, Seconds
from scaleproof.simulator.common.yaml_file import FieldPath
from scaleproof.simulator.frameworks import Framework
from scaleproof.simulator.model.adapters import Adapters
from scaleproof.simulator.model.fine_tuning import BasePrecision, FineTuning
from scaleproof.simulator.model.recompute import NO_RECOMPUTE, AnyRecompute
from scaleproof.simulator.parallelism import Strategy
from scaleproof.simulator.parallelism.option_rules import BY_FRAMEWORK
from scaleproof.simulator.parallelism.replicas import ReplicaStrategy
from scaleproof.simulator.parallelism.stages import WHOLE
from scaleproof.simulator.scenario.lengths import Lengths

Offloaded = Literal["optimizer", "parameters", "activations"]


class Batch(Spec):
    """Samples per step: the total of all workers, or the number per worker; and their lengths."""

    total: Width | None = None
    per_worker: Width | None = None
    lengths: Lengths | None = Field(
        None, description="of samples that are shorter than model.sequence; all are as long if absent"
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.total is None) == (self.per_worker is None):
            raise ValueError("give total or per_worker" + ("" if self.total is None else ", not both"))
        return self

    def with_total(self, samples: int) -> Batch:
        """Other samples of all workers per step, with the same lengths."""
        return self.model_copy(update={"total": samples, "per_worker": None})


# Of the share of reads that a page cache has, which converges to its smallest fixed point.
_ITERATIONS: Final = 300


class Storage(Spec):
    """Source of samples: a disk on each node, or a file system or an object store that all nodes share."""

    sample_bytes: Bytes = Field(alias="sample", description="stored size of a sample")
    bandwidth_Bps: PositiveBytesPerSecond = Field(
        alias="bandwidth", description="total of all readers; per node if shared by node"
    )
    shared_by: Literal["node", "cluster"] = "node"
    latency_s: Seconds = Field(0.0, alias="latency", description="time until the first byte of a read arrives")
    read_bytes: Bytes | None = Field(
        None,
        alias="read",
        gt=0,
        description="bytes of a read, with latency: a part of a shard of many samples (tar, TFRecord); one sample if absent",
    )
    in_flight: Count = Field(1, description="reads that a node has begun and not ended, with latency")
    dataset_bytes: Bytes | None = Field(None, alias="dataset", gt=0, description="stored size of all samples, for page_cache")
    page_cache_bytes: Bytes = Field(
        0, alias="page_cache", description="memory of a node that keeps what it has read in earlier epochs; 0 for the first"
    )

    @model_validator(mode="after")
    def _acts(self) -> Self:
        if self.latency_s == 0 and {"read_bytes", "in_flight"} & self.model_fields_set:
            raise ValueError("read and in_flight have no effect without latency; give latency or leave them out")
        if (self.dataset_bytes is None) != (self.page_cache_bytes == 0):
            raise ValueError("give dataset and page_cache, or neither")
        return self

    @property
    def read_Bps(self) -> float:
        """Bytes per second of a node whose reads in flight wait for their first byte (Little's law); infinite without
        latency."""
        read_bytes = self.read_bytes or self.sample_bytes
        return self.in_flight * read_bytes / (self.latency_s + read_bytes / self.bandwidth_Bps) if self.latency_s else math.inf

    def cached_share(self, nodes: int) -> float:
        """Share of a node's reads that its page cache has, after several epochs in new orders.

        Each of the nodes reads another random part of the data set in each epoch. What is read evicts a random page: 54 % of
        the reads of one node miss where 65 % of the data set fit, as measured for Linux (53 %; Mohan et al. 2021, arXiv
        2007.06775, recalled). Pages used least recently would be found less often, pages that are never evicted more often.
        """
        share = 0.0 if self.dataset_bytes is None else self.page_cache_bytes / self.dataset_bytes
        if not 0 < share < 1:
            return min(share, 1.0)
        found, own = 0.0, 1 / nodes
        for _ in range(_ITERATIONS):
            # evictions of a page in the reads of an epoch; it is read again after a triangular number of them
            evicted = (1 - found) * own / share
            kept = (-math.expm1(-evicted) / evicted) ** 2
            found = own * kept / (1 - (1 - own) * math.exp(-evicted))
        return found


class Input(Spec):
    """Samples that a worker's first stage needs before each step, read from storage, decoded and augmented on cores of its
    node, and copied to the device.

    The samples of a batch pass these parts in a pipeline, so the slowest of them determines the loading time. prefetch:
    batches that may be loaded ahead; with 0 loading begins when the step begins. If all steps take the same time, one batch
    ahead is as good as several.
    """

    description: str = ""
    storage: Storage | None = Field(None, description="if absent, samples are in memory and only decoded")
    decode_s: Seconds = Field(0.0, alias="decode", description="core time per sample, or a device's decoder's")
    decode_on: Literal["cores", "device"] = Field(
        "cores", description="device: a decoder of each device, next to its kernels (nvJPEG from A100 on)"
    )
    parse_s: Seconds = Field(
        0.0, alias="parse", description="core time per sample before a device decodes it (DALI's mixed decoder)"
    )
    augment_s: Seconds = Field(0.0, alias="augment", description="core time per sample after decoding")
    cores: Annotated[float, Field(gt=0, le=1_000_000)] = Field(1, description="cores of a node that do nothing else")
    copied_bytes: Bytes = Field(
        0, alias="copied", description="prepared size of a sample, which is copied over cluster.node.host.link"
    )
    prefetch: Annotated[int, Field(ge=0, le=1000)] = 1

    @model_validator(mode="after")
    def _takes_time(self) -> Self:
        if self.storage is None and not (self.decode_s or self.augment_s or self.copied_bytes):
            raise ValueError("input has no effect; give storage, decode or both, or leave input out")
        if self.decode_on == "device" and self.decode_s == 0:
            raise ValueError("decode_on: device has no effect; give decode, the seconds of a device's decoder per sample")
        if self.parse_s and self.decode_on == "cores":
            raise ValueError("parse: on cores, decode is all of decoding; add it to decode, or give decode_on: device")
        return self


class MeasuredStep(Spec):
    """Measured time of a training step of the whole model on one device, without recomputation."""

    samples: Width
    time_s: Seconds = Field(alias="time", gt=0)


class Training(Spec):
    """Precision, optimizer, ZeRO stage, recomputation and data of the training."""

    precision: Precision = "fp32"
    autocast: Annotated[bool | None, BY_FRAMEWORK] = Field(
        None,
        description="training in 16 bits by torch.autocast, with parameters, gradients, norms and the residual stream in 32; "
        "the framework's if absent",
    )
    fp8_recipe: Fp8Recipe = Field("delayed", description="how 8-bit matrix products are scaled, with precision fp8")
    fp4_recipe: Fp4Recipe | None = Field(
        None,
        description="how 4-bit matrix products are scaled, with precision fp4: nvfp4 on NVIDIA GPUs, mxfp4 on others if absent",
    )
    optimizer: Optimizer = "sgd"
    master: bool = Field(
        True,
        description="with 16 bits: parameters have master copies in fp32, and the optimizer states fp32; "
        "false: neither, so that bf16 parameters are updated in bf16, as torch's optimizers do by themselves",
    )
    state_bits: StateBits | None = Field(
        None,
        description="of optimizer states, in place of what master says; 8: quantised by blocks, as bitsandbytes does (arXiv "
        "2110.02861), 32 in tensors of fewer than 4096 elements",
    )
    ema: Precision | None = Field(
        None, description="precision of an exponential moving average of the parameters, as another state; true: fp32"
    )
    clip_gradients: bool | None = Field(
        None, description="whether gradients are clipped by their norm; if absent, as the framework's optimizer step counts it"
    )
    adapters: Adapters | None = Field(
        None, description="low-rank products next to frozen ones, which are trained in place of the model's parameters (LoRA)"
    )
    freeze: tuple[str, ...] = Field(
        (),
        description="layers that are not trained, by name as in `scaleproof model`: block3, all of a kind (block), those in a "
        "module (group1), or by pattern (block[0-7])",
    )
    base_precision: BasePrecision | None = Field(
        None,
        description="in which frozen parameters are stored; nf4, int8 and fp8: those of products, which are dequantised before "
        "each product; with adapters the training's 16 bits if absent, else that of trained parameters",
    )
    double_quantization: bool = Field(False, description="with base_precision nf4: whether scales of blocks have 8 bits")
    learning_rate: PositiveFloat = 0.01
    seed: int = Field(0, ge=0, lt=2**31)
    data: str | None = Field(None, description="a text file whose bytes are the tokens; random data from the seed if absent")
    recompute: AnyRecompute = NO_RECOMPUTE
    zero: int = Field(
        0, ge=0, le=3, description="sharded over workers: 1 optimizer states, 2 also gradients, 3 also parameters"
    )
    accumulate_precision: Precision | None = Field(
        None, description="of the buffer in which gradients of microbatches accumulate: fp32, or the training precision"
    )
    reduce_precision: Precision | None = Field(
        None, description="of gradients that are reduced over ranks: fp32, or the training precision"
    )
    fused_accumulation: bool | None = Field(
        None, description="whether matrix products add gradients of weights to the buffer themselves"
    )
    offload: tuple[Offloaded, ...] = Field(
        (),
        description="what is kept in pinned host memory: optimizer (its states and its step), parameters that are sharded, "
        "activations of blocks",
    )
    offload_to: Literal["host", "nvme"] = Field(
        "host", description="where offloaded states are: nvme: on drives, from which they pass through host memory"
    )
    delay_update: bool = Field(
        False,
        description="an offloaded optimizer's step overlaps with the next step's passes, which use older parameters (arXiv "
        "2101.06840, section 5.2)",
    )
    warmup_steps: int = Field(3, ge=0, le=1_000_000, description="steps run before the measured ones")
    measured_step: MeasuredStep | None = Field(None, description="measured on one device, instead of its model")

    @property
    def parameter_bytes(self) -> int:
        """Bytes of an element of trained parameters, and of gradients as passes compute them."""
        own = None if self.adapters is None else self.adapters.precision
        return ELEMENT_BYTES[own or ("fp32" if self.autocast else self.precision)]

    @property
    def has_wide_stream(self) -> bool:
        """Whether autocast has norms and the residual stream in 32 bits, since parameters of norms and embeddings have."""
        base = self.base_precision or ("bf16" if self.adapters else "fp32")
        return bool(self.autocast) and base not in ("bf16", "fp16")

    def fine_tuning(self, is_fused: bool) -> FineTuning | None:
        """What is trained of the model; None if all of it is. is_fused: whether its software has queries, keys and values in
        one product."""
        if self.adapters is None and not self.freeze:
            return None
        return FineTuning(
            self.adapters, self.freeze, self.base_precision, self.double_quantization, ELEMENT_BYTES[self.precision],
            self.parameter_bytes, self.has_wide_stream, bool(self.autocast), is_fused,
        )  # fmt: skip

    @field_validator("ema", mode="before")
    @classmethod
    def _ema_by_truth_value(cls, value: Any) -> Any:
        """Accepts whether there is an average, in place of its precision."""
        return ("fp32" if value else None) if isinstance(value, bool) else value

    @field_validator("offload", "freeze", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        """Accepts one kind of states, or one layer, without a list."""
        return (value,) if isinstance(value, str) else value


def state_problems(training: Training, strategy: Strategy) -> Iterator[tuple[FieldPath, str]]:
    """Optimizers and states that do not suit each other or the strategy, and messages that say what to do."""
    optimizer, bits = training.optimizer, training.state_bits
    if bits is not None and not OPTIMIZER_STATES[optimizer]:
        message = f"{optimizer} has no states of the size of parameters; leave it out, or give adam, lion or momentum"
        yield ("training", "state_bits"), message
    if training.offload and strategy.servers:
        yield ("training", "offload"), f"hosts have the states of a {strategy.kind}; leave offload out, or use data_parallel"
    others = {"parameters", "activations"} & {*training.offload}
    if others and not isinstance(strategy, ReplicaStrategy):
        yield (
            ("training", "offload"),
            f"{min(others)} are not offloaded by the strategy {strategy.kind}; leave them out, or use data_parallel",
        )
    if "activations" in training.offload and strategy.plan.schedule not in WHOLE:
        message = f"activations are not offloaded with the schedule {strategy.plan.schedule}; leave them out, or give 1f1b"
        yield ("training", "offload"), message
    for field, value in (("offload_to", training.offload_to == "nvme"), ("delay_update", training.delay_update)):
        if value and "optimizer" not in training.offload:
            yield ("training", field), "the optimizer is not offloaded; set training.offload=[optimizer], or leave it out"
    if training.delay_update and not isinstance(strategy, ReplicaStrategy):
        yield ("training", "delay_update"), f"not modelled with a {strategy.kind}; leave it out, or use data_parallel"
    if "optimizer" in training.offload and optimizer == "muon":
        yield ("training", "offload"), "muon's products on hosts are not modelled; give adam, or leave offload out"
    if bits == 8 and optimizer == "muon":
        yield ("training", "state_bits"), "muon in 8 bits is not modelled; give 16 or 32, or optimizer=adam"
    if strategy.servers and (bits or training.ema or training.clip_gradients is not None or optimizer == "muon"):
        field = next(name for name in ("state_bits", "ema", "clip_gradients", "optimizer") if name in training.model_fields_set)
        message = f"servers update parameters in fp32, with states of their own; leave {field} out, or use data_parallel"
        yield ("training", field), message
    elif optimizer == "muon" and not isinstance(strategy, ReplicaStrategy):
        message = f"muon is not modelled with the strategy {strategy.kind}; give adam, or use data_parallel, pipeline or hybrid"
        yield ("training", "optimizer"), message


class GradientSizes(NamedTuple):
    """Bytes of gradients per parameter.

    accumulated: in the buffer to which microbatches add their gradients. reduced: in the sums over ranks. added: read and
    written by a microbatch to add to the buffer, in addition to the traffic of the gradient's matrix product. makes: whether
    the first microbatch's gradients are the buffer, to which others add theirs.
    """

    accumulated: int
    reduced: int
    added: int = 0
    makes: bool = False


def gradient_sizes(training: Training, strategy: Strategy, framework: Framework) -> GradientSizes:
    """Bytes per parameter of gradients, from the fields of `training`, or from the framework where these are absent. Without
    master weights, gradients have the training precision unless the fields say otherwise.

    A fused product reads and writes the accumulation buffer instead of writing a gradient; otherwise an addition reads the
    gradient and the buffer and writes the buffer. If a framework specifies neither, accumulation costs nothing.
    """
    size, usual = training.parameter_bytes, framework.gradients
    # a framework's wider gradients go with its master weights
    decides = averages_gradients(strategy) and training.master
    usually_reduced, usually_accumulated = (
        choice.element_bytes(training.precision) if decides else None for choice in (usual.reduce, usual.accumulate)
    )
    reduced = _size(training.reduce_precision) or max(usually_reduced or 0, size)
    accumulated = _size(training.accumulate_precision) or max(usually_accumulated or reduced, size)
    fused = training.fused_accumulation if training.fused_accumulation is not None else usual.fused
    if training.accumulate_precision is None and (fused is None or not averages_gradients(strategy)):
        return GradientSizes(accumulated, reduced)
    added = 2 * accumulated - size if fused else size + 2 * accumulated
    makes = framework.memory.gradients == "made" and training.accumulate_precision is None
    return GradientSizes(accumulated, reduced, added, makes)


def has_only_master(zero: Any, master: bool, offload: Sequence[Offloaded], gradient_bytes: int, size: int) -> Any:
    """Whether the master copies are the sharded parameters too, which are cast when they are gathered (PyTorch's FSDP); not
    where hosts have the master copies, and devices the parameters. size: bytes of an element of gathered parameters."""
    return (zero == 3) & (master and gradient_bytes > size and ("optimizer" not in offload or "parameters" in offload))


def averages_gradients(strategy: Strategy) -> bool:
    """Whether ranks average their gradients among them, so that they may shard states."""
    return isinstance(strategy, ReplicaStrategy) and not strategy.servers


def _size(precision: str | None) -> int | None:
    return None if precision is None else ELEMENT_BYTES[precision]
