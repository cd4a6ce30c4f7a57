"""Software: what training software holds beside what theory says that it must."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

from simulator.scenario import Scenario
from simulator.strategy import Hybrid

_WIDE_BYTES: Final = 4


class Loss(NamedTuple):
    """What a loss holds of the logits: a copy from the forward to the backward pass, and `more` copies at the fullest moment.

    wide: whether copies have 32 bits where logits have 16, which then come on top.
    """

    wide: bool
    more: int

    def logit_bytes(self, element_bytes: int) -> tuple[int, int]:
        """Of each logit what is kept, and what there is beside it at the fullest moment."""
        copy = max(_WIDE_BYTES, element_bytes) if self.wide else element_bytes
        own = element_bytes if copy > element_bytes else 0
        return copy, self.more * copy + own


# log_softmax's output is kept; backward there are its gradient and that of its input. PyTorch's allocator has no other use for
# the block that 16-bit logits had, until it takes their gradient.
PYTORCH_LOSS: Final = Loss(wide=True, more=2)
# The softmax is kept, of which the gradient is made in place (megatron/core/tensor_parallel/cross_entropy.py).
MEGATRON_LOSS: Final = Loss(wide=True, more=1)
# The gradient comes from the logits at once: torch.compile, flash-attn's and Transformer Engine's kernels.
FUSED_LOSS: Final = Loss(wide=False, more=1)

# Assumption: a CUDA context with the kernels that training loads; from CUDA 11.7 on those alone. Reports lie between 300 and
# 600 MiB.
_CONTEXT_BYTES: Final = 500 * 2**20
# The same before, with all kernels of PyTorch, on an A100 (bigscience, train/tr11-176B-ml/chronicles-prequel.md).
_WHOLE_CONTEXT_BYTES: Final = 1573 * 2**20


@dataclass(frozen=True)
class Software:
    """What differs from framework to framework.

    gradients: the backward pass makes them anew in every step ("made"), or they are in buffers that stay ("buffers"), or 16-bit
    ones stay until they are made anew, beside 32-bit buffers to which they are added ("both").
    copies_buckets: whether gradients are copied into buckets, which stay. master_bytes: of a parameter's 32-bit copy.
    main_gradients: whether 16-bit gradients are copied to 32 bits for the optimizer's step. flat_bytes: of copies of gradients
    in tensors too large for blocks of other use, for each parameter whose states a rank holds, where states are shared out.
    reduce_elements: of the bucket that is there then. stand_ins: whether products add to the buffers at once, and hand on, in
    place of a gradient, one tensor for all weights of a shape, which stays.
    receives_all: whether a stage has a buffer for what it receives for each microbatch; else for the next alone. keeps_outputs:
    whether a stage holds what it has sent until the backward pass.
    products: of which products with weights the output is kept; if not of all, whatever else a block needs is made again.
    input_bytes: of what products with weights read, where they keep it in fewer bytes than the precision's.
    context_bytes: of the device's context.
    """

    loss: Loss = PYTORCH_LOSS
    gradients: Literal["made", "buffers", "both"] = "made"
    copies_buckets: bool = True
    master_bytes: int = 4
    main_gradients: bool = False
    flat_bytes: int = 0
    reduce_elements: float = 0.0
    stand_ins: bool = False
    receives_all: bool = True
    keeps_outputs: bool = True
    products: Literal["all", "every second"] = "all"
    input_bytes: int | None = None
    context_bytes: int = _CONTEXT_BYTES


# DistributedDataParallel without gradient_as_bucket_view, FSDP, torch.distributed.pipelining.
PYTORCH: Final = Software()
# torchtitan's selective recomputation (parallelize_llama.py: _save_list, every second mm).
SELECTIVE: Final = replace(PYTORCH, products="every second")
# Megatron-Core: contiguous buffers; 16-bit gradients take 20, or with the distributed optimizer 4 + 16/n bytes a parameter
# (docs, dist_optimizer); outputs are freed once they are sent (schedules.py: deallocate_output_tensor). Transformer Engine's
# layers keep a stand-in for gradients of every shape (pytorch/module/base.py: get_dummy_wgrad).
MEGATRON: Final = Software(
    loss=MEGATRON_LOSS,
    gradients="buffers",
    copies_buckets=False,
    main_gradients=True,
    stand_ins=True,
    receives_all=False,
    keeps_outputs=False,
)
# NeMo: apex's distributed Adam, later Transformer Engine's, takes 16-bit gradients as they are, and stores of 32-bit parameters
# what 16-bit ones lack (NVIDIA/NeMo, pull request 4900; Megatron-Core, optimizer: store_param_remainders); a fused loss.
NEMO: Final = replace(MEGATRON, loss=FUSED_LOSS, master_bytes=2, main_gradients=False)
# Transformer Engine keeps what products in 8 bits read in 8 bits (pytorch/module: linear.py, layernorm_linear.py).
NEMO_FP8: Final = replace(NEMO, input_bytes=1)
# Megatron-LM before version 3, which frees outputs; CUDA before it loaded kernels as they are needed.
MEGATRON_2021: Final = replace(MEGATRON, stand_ins=False, keeps_outputs=True, context_bytes=_WHOLE_CONTEXT_BYTES)
# DeepSpeed with Megatron: its pipelines hold inputs and outputs of microbatches in flight (runtime/pipe/engine.py); ZeRO
# (runtime/zero/stage_1_and_2.py) has a rank's part of the gradients twice in 16 bits (grads_in_partition, and flattened) and in
# 32 bits, and a bucket of reduce_bucket_size elements.
DEEPSPEED: Final = replace(MEGATRON_2021, gradients="made", flat_bytes=8, reduce_elements=5e8)
# Its BF16_Optimizer (runtime/bf16_optimizer.py) adds every microbatch's gradients to 32-bit ones, and clears them before the
# next backward pass; the optimizer takes a rank's part of them as it is.
DEEPSPEED_BF16: Final = replace(DEEPSPEED, gradients="both", flat_bytes=0)


def software_of(scenario: Scenario) -> Software:
    """What a scenario is trained with, if not said: hybrids whose parameters are not shared out with Megatron, all else with
    PyTorch."""
    is_megatron = isinstance(scenario.strategy, Hybrid) and scenario.training.zero < 3
    return MEGATRON if is_megatron else PYTORCH
