"""Costs: what the parts of a model cost on a device, derived once and used by every strategy; Job: what is compiled."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.cluster import Cluster
from simulator.cluster.device import ELEMENT_BYTES, Optimizer, Precision, state_bytes
from simulator.model.layers import Layer
from simulator.unevenness import EVEN, Unevenness


@dataclass(frozen=True)
class Costs:
    """Per layer, for one microbatch: arrays of shape (layers,).

    forward_s, backward_s: on a device of its own. output_bytes: activation handed to the next layer, for the microbatch.
    parameters: elements.
    """

    forward_s: NDArray[np.float64]
    backward_s: NDArray[np.float64]
    output_bytes: NDArray[np.float64]
    parameters: NDArray[np.int64]


@dataclass(frozen=True)
class Job:
    """A model to train on a cluster: what a strategy compiles. samples_per_worker: of one step."""

    layers: Sequence[Layer]
    cluster: Cluster
    samples_per_worker: int
    precision: Precision
    optimizer: Optimizer
    unevenness: Unevenness = EVEN

    def apart(self, ranks: int) -> Collection[int]:
        """Ranks that nothing may be folded with: those that are told apart; all, where times are drawn at random."""
        return range(ranks) if self.unevenness.is_random else self.unevenness.named

    @property
    def element_bytes(self) -> int:
        return ELEMENT_BYTES[self.precision]

    def costs(self, microbatches: int = 1) -> Costs:
        """Costs of each layer for one of `microbatches` equal parts of a worker's samples."""
        samples = self.samples_per_worker / microbatches
        times = [self.cluster.device.layer_s(layer, samples, self.precision) for layer in self.layers]
        return Costs(
            forward_s=np.array([forward for forward, _ in times]),
            backward_s=np.array([backward for _, backward in times]),
            output_bytes=np.array([layer.output_elements for layer in self.layers]) * samples * self.element_bytes,
            parameters=np.array([layer.parameters for layer in self.layers], dtype=np.int64),
        )

    def optimizer_s(self, parameters: float) -> float:
        """Seconds of the optimizer's step over `parameters` parameters on one device."""
        return self.cluster.device.optimizer_s(parameters, self.optimizer, self.precision)

    def state_bytes(self, parameters: int) -> float:
        """Bytes that `parameters` parameters hold on a device between steps."""
        return state_bytes(parameters, self.precision, self.optimizer)


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
