"""Bytes of communication buffers: for sending, receiving, gathering and reducing. Arrays represent many ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from scaleproof.simulator.frameworks import MemoryBehaviour
from scaleproof.simulator.memory.inputs import MemoryInputs
from scaleproof.simulator.memory.stage_layers import StageElements
from scaleproof.simulator.memory.states import MASTER_BYTES, Amount, States
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.parallelism import LocalSgd
from scaleproof.simulator.parallelism.compression import PowerSgd, TopK
from scaleproof.simulator.parallelism.replicas import ReplicaStrategy


def always_bytes(setting: MemoryInputs, part: StageElements, own: States) -> Amount:
    """Bytes of buffers that a rank has throughout a step. part: its part of the model; own: its states."""
    return _summed_bytes(setting, part, own) + _gathered_bytes(setting, part) + _outer_optimizer_bytes(setting, part)


def pipeline_bytes(
    software: MemoryBehaviour,
    microbatches: Amount,
    flight: Amount,
    entry_bytes: Amount,
    output_bytes: Amount,
    chunks: Amount = 1,
) -> Amount:
    """Bytes of boundary activations and their gradients between stages. flight: maximum of microbatches in flight.

    torch.distributed.pipelining has buffers for the inputs of all microbatches, of which those in flight count as activations,
    and for the gradients of all outputs; Megatron-LM only for the next ones.
    """
    total = chunks * microbatches
    received = (total - flight) * entry_bytes if software.receives_all else chunks * entry_bytes
    sent = total * output_bytes if software.receives_all else chunks * output_bytes
    return received + sent + (flight * output_bytes if software.keeps_outputs else 0.0)


def compressed_bytes(setting: MemoryInputs, layers: Sequence[Layer]) -> float:
    """Bytes of gradient compression: the residual for the next step, one element per parameter, and messages."""
    plan, size = setting.plan, setting.reduced_size
    if plan.compression is None or plan.workers == 1:
        return 0.0
    tensors = [tensor for layer in layers for tensor in layer.tensors]
    left = sum(tensors) * size if isinstance(plan.compression, PowerSgd | TopK) else 0
    return left + sum(wire.collective_bytes(plan.workers) for wire in plan.compression.wire(tensors, size))


def _summed_bytes(setting: MemoryInputs, part: StageElements, own: States) -> Amount:
    """Bytes of gradient buckets. With ZeRO stage 2, one bucket is filled while another is being reduce-scattered.

    Strategies that exchange something else have a flat copy of it (torch.distributed.algorithms.model_averaging).
    """
    zero, software, parameters = setting.training.zero, setting.software, part.sizes.trained
    if setting.servers:
        return 0.0
    if not isinstance(setting.strategy, ReplicaStrategy):
        return setting.averages * own.gradients
    whole, two = parameters * setting.reduced_size, np.minimum(2 * setting.bucket_bytes, parameters * setting.reduced_size)
    buckets: Any = 0.0
    if zero == 2:
        buckets = two
    elif software.narrow_buckets:
        buckets = parameters * setting.parameter_size if zero == 0 and software.copies_buckets else 0.0
    elif zero < 2 and software.copies_buckets:
        buckets = whole
    elif zero < 2 and setting.reduced_size != setting.gradient_size:
        # gradients are reduced as a copy in another precision
        buckets = two if setting.plan.overlap else whole
    return setting.averages * (
        buckets + (np.minimum(software.reduce_elements, parameters) * setting.parameter_size if zero else 0.0)
    )


def _gathered_bytes(setting: MemoryInputs, part: StageElements) -> Amount:
    """Bytes of parameters that ZeRO stage 3 all-gathers: of layers at stage ends, for the whole pass; of the layer that
    computes and those that are prefetched; or of all layers, if they are not resharded after the forward pass."""
    plan = setting.plan
    ahead = np.minimum(part.blocks, (1 + plan.prefetch) * part.block) if plan.reshard else part.blocks
    return setting.gathers * setting.parameter_size * (part.ends + ahead)


def _outer_optimizer_bytes(setting: MemoryInputs, part: StageElements) -> float:
    """Bytes of DiLoCo's outer optimizer: parameters at the beginning of a period and their momentum, in 32 bits."""
    strategy = setting.strategy
    outer = isinstance(strategy, LocalSgd) and strategy.outer == "nesterov"
    return 2.0 * max(MASTER_BYTES, setting.parameter_size) * part.sizes.trained if outer else 0.0
