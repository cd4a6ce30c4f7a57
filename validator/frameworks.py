"""Frameworks: what training software does beyond a model's mathematics: kernels it does not fuse, copies, host work, overlap.

A record says what a version of a framework does, each from its source code or its documents; none of it is fitted, but for
`Constants`: `validator.framework_constants` has those that `benchmarks/frameworks.py` finds on named rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple

from simulator.errors import InputError
from simulator.memory import software
from simulator.memory.software import Software

Attention = Literal["scores", "flash 1 triton", "flash 2", "flash 3"]
# Shares of a device's peak that versions of flash attention reach forward and backward, by its generation. Version 2 on
# Ampere: arXiv 2307.08691, section 4.1 (up to 73 % and 63 %), less the ends of its range; on Hopper a third of the peak
# (335 TFLOP/s, there), and 287 to 304 TFLOP/s forward alone (pytorch/benchmark, pull request 2296). Triton's version 1 is 1.3
# to 1.5 times slower forward and twice backward (arXiv 2307.08691, section 4.1). Version 3 and cuDNN on Hopper: arXiv
# 2407.08608 (740 TFLOP/s forward, less the ends of its range; backward 1.5 to 1.75 times version 2). Blackwell's, with
# cuDNN, are round assumptions below Hopper's, as in its device file.
_FLASH_2: Final = {"ampere": (0.65, 0.55), "hopper": (0.32, 0.30), "blackwell": (0.32, 0.30)}
FLASH: Final[Mapping[str, Mapping[str, tuple[float, float]]]] = {
    "flash 1 triton": {name: (forward / 1.4, backward / 2) for name, (forward, backward) in _FLASH_2.items()},
    "flash 2": _FLASH_2,
    "flash 3": {"ampere": (0.65, 0.55), "hopper": (0.65, 0.48), "blackwell": (0.4, 0.33)},
}  # fmt: skip


class Extra(NamedTuple):
    """Bytes moved in each pass for every element that an operator writes, beside those of the kernels that the model counts."""

    forward: float = 0.0
    backward: float = 0.0


class Kernels(NamedTuple):
    """How many kernels the host issues in each pass."""

    forward: int
    backward: int


class Constants(NamedTuple):
    """What calibration finds. kernels: how much longer they take than modelled. host: the same of what the host does.
    microbatch_s: what a microbatch takes beside its kernels."""

    kernels: float = 1.0
    host: float = 1.0
    microbatch_s: float = 0.0


# What PyTorch 2's dispatcher counts for a layer written like Megatron-LM's of 2021 to 2023; about as many for a model's ends.
_BLOCK: Final = Kernels(26, 42)
_END: Final = Kernels(30, 30)
# States of random numbers that Python reads and sets, each taken to be as long on the host as a kernel. Megatron's dropout of
# attention reads and sets the state of the ranks' own numbers before and after (get_cuda_rng_tracker().fork()); a layer whose
# activations are recomputed reads those of the CPU, the GPU and the tracker forward; backward it reads them again, sets the
# first ones, passes the layer, and sets them back (CheckpointFunction; megatron/mpu/random.py, as in torch.utils.checkpoint).
_FORK: Final = 4
CHECKPOINT: Final = Kernels(3, 9)
_UNFITTED: Final = Constants()


@dataclass(frozen=True)
class Framework:
    """What it does, by its source or its documents.

    family: frameworks that share constants. model: fields that the software decides. attention: how it is computed. extras: by
    operator. again: shares of operators' forward pass that selective recomputation does again; attention alone, if empty.
    block_kernels, end_kernels: of a transformer block, and of what is before and behind all of them. kernel_host_s,
    exchange_host_s: of the host for each kernel, and for each collective. blocking: whether the host waits for each kernel.
    forward_bytes, backward_bytes: copies and sums for each parameter and microbatch. optimizer_bytes: for each parameter of a
    rank's own part. gradient_bytes: of an element that is summed over ranks. zero: the least stage of ZeRO that it uses.
    overlap, overlap_gather, overlap_tensor, overlap_sends, split_sends, context_by: as strategies' fields.
    precision, vocabulary: of runs that say none, or say that theirs is assumed; what ranks do not divide of the words is left
    out. fused_softmax: whether scale, mask and softmax are one kernel, where heads and sequences come in fours.
    memory: what it holds. told: what it reports of that, as a field of RankMemory. fp8_input_bytes: of what products in 8 bits
    keep of what they read, if not the precision's.
    """

    name: str
    family: str
    model: Mapping[str, Any] = field(default_factory=dict)
    attention: Attention = "flash 2"
    extras: Mapping[str, Extra] = field(default_factory=dict)
    again: Mapping[str, float] = field(default_factory=dict)
    fused_softmax: bool = False
    block_kernels: Kernels = _BLOCK
    end_kernels: Kernels = _END
    kernel_host_s: float = 25e-6
    exchange_host_s: float = 50e-6
    blocking: bool = False
    forward_bytes: float = 0.0
    backward_bytes: float = 6.0
    optimizer_bytes: float = 28.0
    gradient_bytes: Literal[2, 4] = 2
    zero: int = 0
    overlap: bool = False
    overlap_gather: bool = False
    overlap_tensor: bool = False
    overlap_sends: bool = False
    split_sends: bool = True
    context_by: Literal["ring", "all_gather"] = "ring"
    precision: str = "bf16"
    vocabulary: int = 51200
    memory: Software = software.PYTORCH
    told: Literal["total_bytes", "reserved_bytes", "allocated_bytes"] = "total_bytes"
    fp8_input_bytes: int | None = None
    constants: Constants = _UNFITTED

    def with_constants(self, constants: Constants) -> Framework:
        return replace(self, constants=constants)


# Norms' weights' gradients come from a kernel of their own that reads the input and the output's gradient again (PyTorch's
# layer_norm_kernel.cu, apex's layer_norm_cuda_kernel.cu); biases' gradients from one that reads the product's (PyTorch's
# addmm). Queries', keys' and values' gradients are put together by a copy; attention's output is transposed by one.
_EAGER: Final = {
    "norm": Extra(0, 4), "qkv": Extra(0, 6), "attention": Extra(4, 4), "projection": Extra(0, 2), "up": Extra(0, 2),
    "down": Extra(0, 2),
}  # fmt: skip
# The model's loss reads and writes logits once each way, in 16 bits. PyTorch turns them into 32 bits (6 bytes), log_softmax
# reads them twice and writes them (12); backward, zeros are written, read with the output, and the gradient is written (16)
# and turned back into 16 bits (6). Megatron's over ranks that share the words takes kernels for the largest, the difference,
# its exponent, the sum and the quotient, and two for the gradient (megatron/mpu/cross_entropy.py).
_PYTORCH_LOSS: Final = Extra(6 + 12 - 4, 16 + 6 - 4)
_MEGATRON_LOSS: Final = Extra(6 + 4 + 8 + 8 + 4 + 8 - 4, 8 + 6 - 4)

# The host needs 5 to 25 us for a kernel (PyTorch's dispatcher, Python's modules and hooks, CUDA's launch), of which frameworks
# with Python between the kernels are taken at the upper end: a round assumption, like twice as much for a collective.
# Masks of dropout, scores that are kept, and a kernel that adds the bias of queries, keys and values, since PyTorch before 1.12
# does not fuse it in three dimensions. A microbatch's gradients are added to a buffer: two reads and a write of 16 bits
# (megatron/model/distributed.py). The optimizer's bytes for each parameter (megatron/optimizer): gradients to 32 bits 6,
# unscaled and checked 8, their norm 4, clipped 8, fused Adam 28, weights to 16 bits 6, gradients zeroed 2.
MEGATRON: Final = Framework(
    "Megatron-LM",
    "Megatron-LM 2021",
    model={"dropout": True, "flash": False, "biases": "all", "tied": True},
    attention="scores",
    fused_softmax=True,
    block_kernels=Kernels(_BLOCK.forward + _FORK, _BLOCK.backward),
    extras=_EAGER | {"qkv": Extra(4, 6), "loss": _MEGATRON_LOSS},
    optimizer_bytes=62,
    memory=software.MEGATRON_2021,
    told="allocated_bytes",
)
# Version 3 lets products add to the buffer (gradient_accumulation_fusion: one read more), and has a later PyTorch.
MEGATRON_2022: Final = replace(
    MEGATRON,
    name="Megatron-LM 2022",
    family="Megatron-LM 2022",
    extras=_EAGER | {"loss": _MEGATRON_LOSS},
    backward_bytes=2,
    memory=replace(software.MEGATRON_2021, keeps_outputs=False),
)
# DeepSpeed's fp16 optimizer (deepspeed/runtime/fp16/fused_optimizer.py): overflow check 2, to 32 bits 6, norm 4, unscaled and
# clipped 8, fused Adam 28, to 16 bits 6. The words of GPT-2, which vTrain's model divides without padding them to a multiple
# (vocab_size in VIA-Research/vTrain, src/config.py, and vocab_size // world_size in src/model/gpt_modeling.py).
MEGATRON_DEEPSPEED: Final = replace(
    MEGATRON,
    name="Megatron-DeepSpeed",
    family="Megatron-DeepSpeed",
    optimizer_bytes=54,
    vocabulary=50257,
    memory=software.DEEPSPEED,
    told="total_bytes",
)
# The training on Jean Zay had to set CUDA_LAUNCH_BLOCKING=1, and read nvidia-smi (bigscience, train/tr11-176B-ml/
# chronicles-prequel.md).
BIGSCIENCE: Final = replace(MEGATRON_DEEPSPEED, name="Megatron-DeepSpeed 2022", family="Megatron-DeepSpeed 2022", blocking=True)
# MPT of llm-foundry: biases, learned positions, no dropout, Triton's flash attention, PyTorch's FSDP in 16 bits alone
# (scripts/train/yamls/pretrain, fsdp_config mixed_precision PURE), whose backward pass puts gradients together and divides them
# (8 bytes). Composer's DecoupledAdamW goes over parameters in ten unfused kernels (80 bytes), gradients are turned into 32
# bits (6), their norm is taken and they are clipped (12).
LLM_FOUNDRY: Final = Framework(
    "llm-foundry FSDP",
    "llm-foundry",
    model={"biases": "all", "tied": True},
    attention="flash 1 triton",
    extras=_EAGER | {"loss": _PYTORCH_LOSS},
    block_kernels=Kernels(15, 25),
    backward_bytes=8,
    optimizer_bytes=98,
    overlap=True,
    # flash-attn's loss (loss_fn: fused_crossentropy)
    memory=replace(software.PYTORCH, loss=software.FUSED_LOSS),
)
# torchtitan: PyTorch's own attention (flash 2), FSDP2, which copies what it gathers (4 bytes in each pass) and what it scatters
# (6, to 32 bits: MixedPrecisionPolicy's reduce_dtype). Its selective recomputation keeps every second product (parallelize_
# llama.py): keys', attention's projection and half of the gated MLP's first are made again, and all that is no product. Without
# torch.compile the RMS norm is seven kernels in 32 bits, rotation four, the gate two. The optimizer is foreach's AdamW (84
# bytes) after a norm and a clip (12).
TORCHTITAN: Final = Framework(
    "torchtitan",
    "torchtitan",
    attention="flash 2",
    extras={"norm": Extra(28, 40), "rotary": Extra(16, 16), "swiglu": Extra(4, 8), "loss": _PYTORCH_LOSS},
    again={"qkv": 1 / 6, "projection": 1.0, "up": 0.5, "norm": 1.0, "rotary": 1.0, "swiglu": 1.0, "residual": 1.0},
    block_kernels=Kernels(50, 90),
    forward_bytes=4,
    backward_bytes=10,
    optimizer_bytes=96,
    gradient_bytes=4,
    overlap=True,
    context_by="all_gather",
    told="reserved_bytes",
)
TORCHTITAN_COMPILED: Final = replace(
    TORCHTITAN, name="torchtitan compiled", extras={"loss": _PYTORCH_LOSS}, block_kernels=Kernels(20, 35)
)
# From April 2025 on the loss is compiled as well (pytorch/torchtitan, pull request 1033).
TORCHTITAN_2025: Final = replace(
    TORCHTITAN_COMPILED, name="torchtitan 2025", memory=replace(software.PYTORCH, loss=software.FUSED_LOSS)
)
# Megatron-Core: Transformer Engine's fused kernels and cuDNN's or version 3's attention, gradients added by the products in 32
# bits (6 bytes more), summed by the distributed optimizer while the backward pass goes on, parameters gathered while the next
# forward pass does (--overlap-grad-reduce, --overlap-param-gather), messages sent beside passes. The optimizer's bytes: norm 4,
# clip 8, fused Adam 28, to 16 bits 6.
MEGATRON_CORE: Final = Framework(
    "Megatron-Core",
    "Megatron-Core",
    model={"tied": True},
    attention="flash 3",
    extras={"loss": _MEGATRON_LOSS},
    block_kernels=Kernels(30, 45),
    backward_bytes=6,
    optimizer_bytes=46,
    gradient_bytes=4,
    overlap=True,
    overlap_gather=True,
    overlap_sends=True,
    memory=software.MEGATRON,
    told="allocated_bytes",
    fp8_input_bytes=1,
)
# With its own loss fused (--cross-entropy-loss-fusion).
MEGATRON_CORE_FUSED: Final = replace(
    MEGATRON_CORE, name="Megatron-Core, fused loss", memory=replace(software.MEGATRON, loss=software.FUSED_LOSS)
)
# NeMo and Megatron Bridge add and sum gradients in 16 bits (grad_sync_dtype: bf16 in NeMo-Megatron-Launcher's recipes;
# grad_reduce_in_fp32: false in Megatron Bridge's). Their performance summaries are of runs in 8 bits.
NEMO: Final = replace(
    MEGATRON_CORE,
    name="NeMo",
    family="NeMo",
    backward_bytes=2,
    gradient_bytes=2,
    overlap_tensor=True,
    precision="fp8",
    memory=software.NEMO,
)
# Megatron-LM's own scaling runs: gathering parameters is what the distributed optimizer does, and the sizes that its README
# states only come about with an output head of its own.
MEGATRON_CORE_SHARED: Final = replace(
    MEGATRON_CORE, name="Megatron-Core, param-gather", model={"tied": False}, overlap_tensor=True, zero=1
)

# The first whose pattern is found in a table's software.
_PATTERNS: Final[tuple[tuple[str, Framework], ...]] = (
    (r"torchtitan.*compile=True.*\b20(25-?(0[4-9]|1[0-2])|2[6-9])", TORCHTITAN_2025),
    (r"torchtitan.*compile=True", TORCHTITAN_COMPILED),
    (r"torchtitan", TORCHTITAN),
    (r"llm-foundry", LLM_FOUNDRY),
    (r"Megatron-DeepSpeed 2022", BIGSCIENCE),
    (r"Megatron-DeepSpeed", MEGATRON_DEEPSPEED),
    (r"Megatron-LM 2022", MEGATRON_2022),
    (r"Megatron-LM 20(19|20|21)", MEGATRON),
    (r"param-gather", MEGATRON_CORE_SHARED),
    (r"NeMo", NEMO),
    (r"Megatron.*_cef\b", MEGATRON_CORE_FUSED),
    (r"Megatron", MEGATRON_CORE),
)


def framework_of(software: str) -> Framework:
    """The framework that a table names. Raises InputError for one that is not known."""
    for pattern, framework in _PATTERNS:
        if re.search(pattern, software, re.IGNORECASE):
            return framework
    raise InputError(f"unknown software: {software or 'not named'}")
