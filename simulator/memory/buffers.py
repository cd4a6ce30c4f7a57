"""Buffers: in which lies what is sent, received, gathered and summed. Of many ranks at once where numbers are arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from scaleproof.simulator.frameworks import MemoryBehaviour
from scaleproof.simulator.memory.inputs import MemoryInputs
from scaleproof.simulator.memory.stage_layers import StageElements
from scaleproof.simulator.memory.states import MASTER_BYTES, Amount, States
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.strategy import LocalSgd
from scaleproof.simulator.strategy.data_parallel.compression import PowerSgd, TopK
from scaleproof.simulator.strategy.replica_strategy import Replicated


def always_bytes(setting: MemoryInputs, part: StageElements, held: States) -> Amount:
    """What a rank with a part of the model, and what it holds for parameters, has throughout a step."""
    return _summed_bytes(setting, part, held) + _gathered_bytes(setting, part) + _apart_bytes(setting, part)


def pipeline_bytes(
    software: MemoryBehaviour,
    microbatches: Amount,
    flight: Amount,
    entry_bytes: Amount,
    output_bytes: Amount,
    chunks: Amount = 1,
) -> Amount:
    """What comes into chunks and goes out to other stages. flight: microbatches that all of them hold at most.

    torch.distributed.pipelining has buffers for what every microbatch receives, of which those in flight are activations,
    and for the gradients of all outputs; Megatron-LM for the next of each.
    """
    every = chunks * microbatches
    comes = (every - flight) * entry_bytes if software.receives_all else chunks * entry_bytes
    goes = every * output_bytes if software.receives_all else chunks * output_bytes
    return comes + goes + (flight * output_bytes if software.keeps_outputs else 0.0)


def compressed_bytes(setting: MemoryInputs, layers: Sequence[Layer]) -> float:
    """What compression leaves over for the next step, an element for each parameter, and what is sent and comes."""
    plan, size = setting.plan, setting.reduced_size
    if plan.compression is None or plan.workers == 1:
        return 0.0
    tensors = [tensor for layer in layers for tensor in layer.tensors]
    left = sum(tensors) * size if isinstance(plan.compression, PowerSgd | TopK) else 0
    return left + sum(wire.collective_bytes(plan.workers) for wire in plan.compression.wire(tensors, size))


def _summed_bytes(setting: MemoryInputs, part: StageElements, held: States) -> Amount:
    """Bytes of buckets of gradients. Of those that ZeRO's second stage scatters one fills while another is on its way.
    Strategies that exchange something else have a copy of it, flat (torch.distributed.algorithms.model_averaging)."""
    zero, software, parameters = setting.training.zero, setting.software, part.sizes.parameters
    if setting.servers:
        return 0.0
    if not isinstance(setting.strategy, Replicated):
        return setting.averages * held.gradients
    whole, two = parameters * setting.reduced_size, np.minimum(2 * setting.bucket_bytes, parameters * setting.reduced_size)
    buckets: Any = 0.0
    if zero == 2:
        buckets = two
    elif zero < 2 and software.copies_buckets:
        buckets = whole
    elif zero < 2 and setting.reduced_size != setting.gradient_size:
        # what is summed is a copy in another precision
        buckets = two if setting.plan.overlap else whole
    return setting.averages * (buckets + (np.minimum(software.reduce_elements, parameters) * setting.size if zero else 0.0))


def _gathered_bytes(setting: MemoryInputs, part: StageElements) -> Amount:
    """Parameters that ZeRO's third stage gathers: of what is glued, together and for the whole pass; of the layer that
    computes and those that are gathered ahead; or of all, where they are not dropped after the forward pass."""
    plan = setting.plan
    ahead = np.minimum(part.blocks, (1 + plan.prefetch) * part.block) if plan.reshard else part.blocks
    return setting.gathers * setting.size * (part.ends + ahead)


def _apart_bytes(setting: MemoryInputs, part: StageElements) -> float:
    """What workers that go apart keep to find together again: DiLoCo's parameters of the period's begin and their momentum,
    in 32 bits."""
    strategy = setting.strategy
    outer = isinstance(strategy, LocalSgd) and strategy.outer == "nesterov"
    return 2.0 * max(MASTER_BYTES, setting.size) * part.sizes.parameters if outer else 0.0
