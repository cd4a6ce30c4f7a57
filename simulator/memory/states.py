"""States: bytes that are held for parameters from step to step, and of their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from scaleproof.simulator.cluster.device.device import ELEMENT_BYTES
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.scenario.schema import Training

# Elements per parameter that an optimizer keeps: none, a velocity, or two moments. Adafactor is counted by tensor.
_STATES: Final = {"sgd": 0, "momentum": 1, "adam": 2, "lamb": 2}
# Of mixed precision's master copies and states, arXiv 1910.02054, section 3.1.
MASTER_BYTES: Final = 4
# A number, or an array of one for each of many ranks.
Amount = Any


class States(NamedTuple):
    """Bytes of what is held for parameters from step to step, and of their gradients."""

    parameters: float
    gradients: float
    master_parameters: float
    optimizer_states: float


class StateSizes(NamedTuple):
    """Elements of parameters, of experts' among them, and of what an optimizer keeps; arrays, where they are of many ranks."""

    parameters: Amount
    experts: Amount
    states: Amount


def sizes(layers: Sequence[Layer], optimizer: str) -> StateSizes:
    """Parameters, those of experts among them, and elements of the optimizer's states."""
    parameters = sum(layer.parameters for layer in layers)
    # Adafactor keeps sums of rows and columns (arXiv 1804.04235): of a square, since tensors do not tell their shape
    if optimizer == "adafactor":
        elements = sum(2 * math.sqrt(tensor) for layer in layers for tensor in layer.tensors)
    else:
        elements = _STATES[optimizer] * parameters
    return StateSizes(parameters, sum(layer.expert_parameters for layer in layers), elements)


def states(
    layers: Sequence[Layer],
    training: Training,
    replicas: int = 1,
    expert_replicas: int | None = None,
    gradient_bytes: int | None = None,
    whole_gradients: bool = False,
) -> States:
    """What `layers` hold on one of `replicas` ranks that have the same, which share it out by ZeRO's stage (arXiv 1910.02054,
    section 5).

    expert_replicas: ranks that have the same experts, as many if None. gradient_bytes: of an element, the training precision's
    if None. whole_gradients: whether gradients are shared out at the end of a step alone.
    """
    each = replicas, expert_replicas or replicas
    return states_of(sizes(layers, training.optimizer), training, *each, gradient_bytes, whole_gradients)


def states_of(
    own: StateSizes, training: Training, replicas: Amount, expert_replicas: Amount, gradient_bytes: int | None = None,
    whole_gradients: bool = False,
) -> States:  # fmt: skip
    """The same by sizes. Where ZeRO's third stage has 32-bit gradients, the master copies are what is shared out and gathered
    (PyTorch's FSDP), and there are no others."""
    size = ELEMENT_BYTES[training.precision]
    gradient_size = gradient_bytes or size
    shared = (own.parameters - own.experts) / replicas + own.experts / expert_replicas
    here = [shared if training.zero >= stage else own.parameters for stage in (3, 2, 1)]
    once = training.zero == 3 and gradient_size > size
    return States(
        0.0 if once else here[0] * size,
        (own.parameters if whole_gradients else here[1]) * gradient_size,
        here[2] * MASTER_BYTES if size < MASTER_BYTES else 0.0,
        own.states * here[2] / np.maximum(1, own.parameters) * max(size, MASTER_BYTES),
    )
