"""Costs: what the parts of a model cost on a device, derived once and used by every strategy; Job: what is compiled."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from simulator.cluster import Cluster
from simulator.cluster.device import ELEMENT_BYTES, Optimizer, Precision
from simulator.errors import FieldError
from simulator.input import Input
from simulator.model.graph import handed_on
from simulator.model.layers import Layer
from simulator.recompute import NO_RECOMPUTE, Recompute
from simulator.spec import Spec, Width
from simulator.unevenness import EVEN, Unevenness
from simulator.units import Seconds


@dataclass(frozen=True)
class Costs:
    """Per layer, for one microbatch: arrays of shape (layers,).

    forward_s, backward_s: on a device of its own; what is recomputed counts as backward. output_bytes: activations handed to
    the layers behind it, for the microbatch. parameters: elements.
    """

    forward_s: NDArray[np.float64]
    backward_s: NDArray[np.float64]
    output_bytes: NDArray[np.float64]
    parameters: NDArray[np.int64]


class MeasuredStep(Spec):
    """What a training step of the whole model took on one device by itself, for so many samples, without recomputation."""

    samples: Width
    time_s: Seconds = Field(alias="time", gt=0)


@dataclass(frozen=True)
class Job:
    """A model to train on a cluster: what a strategy compiles. samples_per_worker: of one step.

    zero: the stage of ZeRO, from 1 on replicas share the optimizer's step. measured_step: where given, layers take their shares
    of it, and not the times that the device's model says.
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
    measured_step: MeasuredStep | None = None

    def apart(self, ranks: int) -> Collection[int]:
        """Ranks that nothing may be folded with: those that are told apart; all, where times are drawn at random."""
        return range(ranks) if self.unevenness.is_random else self.unevenness.named

    @property
    def element_bytes(self) -> int:
        return ELEMENT_BYTES[self.precision]

    def costs(self, microbatches: int = 1) -> Costs:
        """Costs of each layer for one of `microbatches` equal parts of a worker's samples."""
        samples = self.samples_per_worker / microbatches
        forward_s, backward_s = self._layers_s(samples) * self._scale()
        return Costs(
            forward_s=forward_s,
            backward_s=backward_s,
            output_bytes=np.array(handed_on(self.layers)) * samples * self.element_bytes,
            parameters=np.array([layer.parameters for layer in self.layers], dtype=np.int64),
        )

    def _layers_s(self, samples: float) -> NDArray[np.float64]:
        """Seconds of the forward passes and of the backward passes, shape (2, layers)."""
        distinct = {layer.signature: layer for layer in self.layers}
        times_s = {signature: self._layer_s(layer, samples) for signature, layer in distinct.items()}
        return np.array([times_s[layer.signature] for layer in self.layers]).T

    def _scale(self) -> float:
        """What to multiply the times of layers with so that they make the step that was measured. Raises FieldError."""
        if self.measured_step is None:
            return 1.0
        left_s = self.measured_step.time_s - self.optimizer_s(sum(layer.parameters for layer in self.layers))
        if left_s <= 0:
            message = "the optimizer alone takes longer by the device's memory bandwidth; give the time of a whole step"
            raise FieldError(("training", "measured_step", "time"), message)
        return left_s / float(replace(self, recompute=NO_RECOMPUTE)._layers_s(self.measured_step.samples).sum())

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
