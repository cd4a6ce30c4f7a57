"""Costs: what the parts of a model cost on a device, derived once and used by every strategy; Job: what is compiled."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.cluster import Cluster
from simulator.cluster.device import ELEMENT_BYTES, Optimizer, Precision
from simulator.input import Input
from simulator.model.layers import Layer
from simulator.recompute import NO_RECOMPUTE, Recompute
from simulator.unevenness import EVEN, Unevenness


@dataclass(frozen=True)
class Costs:
    """Per layer, for one microbatch: arrays of shape (layers,).

    forward_s, backward_s: on a device of its own; what is recomputed counts as backward. output_bytes: activation handed to
    the next layer, for the microbatch. parameters: elements.
    """

    forward_s: NDArray[np.float64]
    backward_s: NDArray[np.float64]
    output_bytes: NDArray[np.float64]
    parameters: NDArray[np.int64]


@dataclass(frozen=True)
class Job:
    """A model to train on a cluster: what a strategy compiles. samples_per_worker: of one step.

    zero: the stage of ZeRO, from 1 on replicas share the optimizer's step.
    """

    layers: Sequence[Layer]
    cluster: Cluster
    samples_per_worker: int
    precision: Precision
    optimizer: Optimizer
    unevenness: Unevenness = EVEN
    recompute: Recompute = NO_RECOMPUTE
    zero: int = 0
    input: Input | None = None

    def apart(self, ranks: int) -> Collection[int]:
        """Ranks that nothing may be folded with: those that are told apart; all, where times are drawn at random."""
        return range(ranks) if self.unevenness.is_random else self.unevenness.named

    @property
    def element_bytes(self) -> int:
        return ELEMENT_BYTES[self.precision]

    def costs(self, microbatches: int = 1) -> Costs:
        """Costs of each layer for one of `microbatches` equal parts of a worker's samples."""
        samples = self.samples_per_worker / microbatches
        distinct = {layer.signature: layer for layer in self.layers}
        times_s = {signature: self._layer_s(layer, samples) for signature, layer in distinct.items()}
        forward_s, backward_s = np.array([times_s[layer.signature] for layer in self.layers]).T
        return Costs(
            forward_s=forward_s,
            backward_s=backward_s,
            output_bytes=np.array([layer.output_elements for layer in self.layers]) * samples * self.element_bytes,
            parameters=np.array([layer.parameters for layer in self.layers], dtype=np.int64),
        )

    def _layer_s(self, layer: Layer, samples: float) -> tuple[float, float]:
        """Seconds of a layer's forward pass, and of its backward pass with what is recomputed in it."""
        device = self.cluster.device
        forward_s, backward_s = device.layer_s(layer, samples, self.precision)
        if self.recompute.kind == "none" or layer.glued:
            return forward_s, backward_s
        again_s = forward_s if self.recompute.kind == "full" else device.scores_s(layer, samples, self.precision)
        return forward_s, backward_s + again_s

    def optimizer_s(self, parameters: float, replicas: int = 1) -> float:
        """Seconds of the optimizer's step over `parameters` parameters that so many devices hold."""
        own = parameters / replicas if self.zero else parameters
        return self.cluster.device.optimizer_s(own, self.optimizer, self.precision)


def buckets(layers: Sequence[Layer], element_bytes: int, first_bytes: float, bucket_bytes: float) -> list[tuple[int, float]]:
    """Gradient buckets as DistributedDataParallel fills them: (layer whose backward completes it, bytes), in order.

    Tensors are taken in reverse order; a bucket closes once it holds its limit or more; the first has a limit of its own,
    so that communication starts early.
    """
    result: list[tuple[int, float]] = []
    filled_bytes, limit_bytes = 0.0, first_bytes
    for index in range(len(layers) - 1, -1, -1):
        for tensor in reversed(layers[index].tensors):
            filled_bytes += tensor * element_bytes
            if filled_bytes >= limit_bytes:
                result.append((index, filled_bytes))
                filled_bytes, limit_bytes = 0.0, bucket_bytes
    if filled_bytes > 0:
        result.append((0, filled_bytes))
    return result
