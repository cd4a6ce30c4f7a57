"""Bytes of states: parameters, gradients, master copies and optimizer states."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.scenario.training import Training

# Elements per parameter that an optimizer keeps: none, a velocity, or two moments. Adafactor is counted by tensor.
_STATES: Final = {"sgd": 0, "momentum": 1, "adam": 2, "lamb": 2}
# Bytes per element of master copies and states in mixed precision, arXiv 1910.02054, section 3.1.
MASTER_BYTES: Final = 4
# A number, or an array with one for each of many ranks.
Amount = Any


class States(NamedTuple):
    """Bytes of parameters, gradients, master copies and optimizer states."""

    parameters: float
    gradients: float
    master_parameters: float
    optimizer_states: float


class StateSizes(NamedTuple):
    """Elements of parameters, of trained ones and experts among them, and of optimizer states; arrays represent many ranks."""

    parameters: Amount
    trained: Amount
    experts: Amount
    states: Amount


def sizes(layers: Sequence[Layer], optimizer: str) -> StateSizes:
    """Elements of parameters, of trained ones and of experts among them, and of optimizer states of some layers."""
    trained = sum(layer.trained_parameters for layer in layers)
    # Adafactor keeps sums of rows and columns (arXiv 1804.04235); tensors are assumed square, since their shapes are unknown
    if optimizer == "adafactor":
        elements = sum(2 * math.sqrt(tensor) for layer in layers for tensor in layer.tensors)
    else:
        elements = _STATES[optimizer] * trained
    parameters, experts = (
        sum(count) for count in zip(*((one.parameters, one.expert_parameters) for one in layers), strict=True)
    )
    return StateSizes(parameters, trained, experts, elements)


def states(
    layers: Sequence[Layer],
    training: Training,
    replicas: int = 1,
    expert_replicas: int | None = None,
    gradient_bytes: int | None = None,
    whole_gradients: bool = False,
) -> States:
    """Bytes of states of some layers on one of `replicas` ranks, which shard them by the ZeRO stage (arXiv 1910.02054, section
    5).

    expert_replicas: ranks that shard the states of experts; `replicas` if None. gradient_bytes: per element; by the training
    precision if None. whole_gradients: whether gradients are sharded only at the end of a step.
    """
    counts = replicas, expert_replicas or replicas
    return states_of(sizes(layers, training.optimizer), training, *counts, gradient_bytes, whole_gradients)


def states_of(
    own: StateSizes, training: Training, replicas: Amount, expert_replicas: Amount, gradient_bytes: int | None = None,
    whole_gradients: bool = False,
) -> States:  # fmt: skip
    """Bytes of states from sizes; arguments: see `states`. With ZeRO stage 3 and 32-bit gradients, the sharded and gathered
    parameters are the master copies (PyTorch's FSDP), and there are no others. Frozen parameters have no gradients, no master
    copies and no optimizer states."""
    size = training.parameter_bytes
    gradient_size = gradient_bytes or size

    def shared(elements: Amount, stage: int) -> Amount:
        """Elements of one rank, sharded from a stage of ZeRO on."""
        is_sharded = training.zero >= stage
        return (elements - own.experts) / replicas + own.experts / expert_replicas if is_sharded else elements

    only_master = training.master and training.zero == 3 and gradient_size > size
    optimizer = shared(own.trained, 1)
    parameters = shared(own.parameters, 3)
    return States(
        (parameters - shared(own.trained, 3)) * MASTER_BYTES if only_master else parameters * size,
        (own.trained if whole_gradients else shared(own.trained, 2)) * gradient_size,
        optimizer * MASTER_BYTES if training.master and size < MASTER_BYTES else 0.0,
        own.states * optimizer / np.maximum(1, own.trained) * (max(size, MASTER_BYTES) if training.master else size),
    )
