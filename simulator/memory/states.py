"""States: bytes that are held for parameters from step to step, and of their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from simulator.cluster.device import ELEMENT_BYTES
from simulator.model.layers import Layer
from simulator.scenario import Training

# Elements per parameter that an optimizer keeps: none, a velocity, or two moments. Adafactor is counted by tensor.
_STATES: Final = {"sgd": 0, "momentum": 1, "adam": 2, "lamb": 2}
# Of mixed precision's master copies and states, arXiv 1910.02054, section 3.1.
MASTER_BYTES: Final = 4


class States(NamedTuple):
    """Bytes of what is held for parameters from step to step, and of their gradients."""

    parameters: float
    gradients: float
    master_parameters: float
    optimizer_states: float


def states(
    layers: Sequence[Layer],
    training: Training,
    replicas: int = 1,
    expert_replicas: int | None = None,
    gradient_bytes: int | None = None,
) -> States:
    """What `layers` hold on one of `replicas` ranks that have the same, which share it out by ZeRO's stage (arXiv 1910.02054,
    section 5).

    expert_replicas: ranks that have the same experts, as many if None. gradient_bytes: of an element, the training precision's
    if None. Where ZeRO's third stage has 32-bit gradients, the master copies are what is shared out and gathered (PyTorch's
    FSDP), and there are no others.
    """
    size = ELEMENT_BYTES[training.precision]
    gradient_size = gradient_bytes or size
    own = [_own_parameters(layers, training.zero >= stage, replicas, expert_replicas) for stage in (3, 2, 1)]
    total = max(1, sum(layer.parameters for layer in layers))
    once = training.zero == 3 and gradient_size > size
    return States(
        0.0 if once else own[0] * size,
        own[1] * gradient_size,
        own[2] * MASTER_BYTES if size < MASTER_BYTES else 0.0,
        _state_elements(layers, training.optimizer) * own[2] / total * max(size, MASTER_BYTES),
    )


def _own_parameters(layers: Sequence[Layer], shared: bool, replicas: int, expert_replicas: int | None) -> float:
    """Parameters of which a rank holds what is shared out."""
    parameters = sum(layer.parameters for layer in layers)
    if not shared:
        return parameters
    experts = sum(layer.expert_parameters for layer in layers)
    return (parameters - experts) / replicas + experts / (expert_replicas or replicas)


def _state_elements(layers: Sequence[Layer], optimizer: str) -> float:
    """Adafactor keeps sums of rows and columns (arXiv 1804.04235): of a square, since tensors do not tell their shape."""
    if optimizer == "adafactor":
        return sum(2 * math.sqrt(tensor) for layer in layers for tensor in layer.tensors)
    return _STATES[optimizer] * sum(layer.parameters for layer in layers)
