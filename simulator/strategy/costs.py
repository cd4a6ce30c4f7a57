"""Costs: what the parts of a model cost on a device, derived once and used by every strategy; Job: what is compiled."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from simulator.cluster import Cluster
from simulator.cluster.device import ELEMENT_BYTES, Optimizer, Precision
from simulator.errors import FieldError
from simulator.input import Input
from simulator.model.graph import handed_on
from simulator.model.layers import Layer
from simulator.model.operators import Exchange, Matmul
from simulator.recompute import NO_RECOMPUTE, Recompute
from simulator.spec import Spec, Width
from simulator.unevenness import EVEN, Unevenness
from simulator.units import Seconds


@dataclass(frozen=True)
class Costs:
    """Per layer, for one microbatch: arrays of shape (layers,).

    forward_s, backward_s: of compute; what is recomputed counts as backward. forward_exchange_s, backward_exchange_s: of the
    collectives among ranks that share a layer, as far as the rank waits for them. output_bytes: activations handed to the
    layers behind it, for the microbatch. parameters: elements.
    """

    forward_s: NDArray[np.float64]
    backward_s: NDArray[np.float64]
    forward_exchange_s: NDArray[np.float64]
    backward_exchange_s: NDArray[np.float64]
    output_bytes: NDArray[np.float64]
    parameters: NDArray[np.int64]


class MeasuredStep(Spec):
    """What a training step of the whole model took on one device by itself, for so many samples, without recomputation."""

    samples: Width
    time_s: Seconds = Field(alias="time", gt=0)


class Exchanging(Protocol):
    """How ranks that share layers exchange what they must."""

    def seconds(self, exchange: Exchange, layer: Layer, samples: float, job: Job) -> float:
        """Seconds for which the layer's pass is held up by one of its exchanges, for so many samples."""


@dataclass(frozen=True)
class Job:
    """A model to train on a cluster: what a strategy compiles. samples_per_worker: of one step.

    zero: the stage of ZeRO, from 1 on replicas share the optimizer's step. measured_step: where given, layers take their shares
    of it, and not the times that the device's model says. exchange: how ranks that share layers exchange what they must.
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
    exchange: Exchanging | None = None

    def apart(self, ranks: int) -> Collection[int]:
        """Ranks that nothing may be folded with: those that are told apart; all, where no rank is like another."""
        return range(ranks) if self.unevenness.parts_all else self.unevenness.named

    @property
    def element_bytes(self) -> int:
        return ELEMENT_BYTES[self.precision]

    def costs(self, microbatches: int = 1) -> Costs:
        """Costs of each layer for one of `microbatches` equal parts of a worker's samples."""
        samples = self.samples_per_worker / microbatches
        forward_s, backward_s = self.computing_s(samples)
        forward_exchange_s, backward_exchange_s = self.exchanging_s(samples)
        return Costs(
            forward_s=forward_s,
            backward_s=backward_s,
            forward_exchange_s=forward_exchange_s,
            backward_exchange_s=backward_exchange_s,
            output_bytes=self.handed_on_bytes(samples),
            parameters=np.array([layer.parameters for layer in self.layers], dtype=np.int64),
        )

    def computing_s(self, samples: float) -> NDArray[np.float64]:
        """Seconds that each layer computes in the forward and in the backward pass, shape (2, layers)."""
        result: NDArray[np.float64] = self._of_layers(self._layer_s, samples) * self._scale()
        return result

    def exchanging_s(self, samples: float) -> NDArray[np.float64]:
        """Seconds that each layer's exchanges hold up either pass, shape (2, layers)."""
        return self._of_layers(self._exchanges_s, samples)

    def handed_on_bytes(self, samples: float) -> NDArray[np.float64]:
        """What is handed to the layers behind each layer, shape (layers,)."""
        result: NDArray[np.float64] = np.array(handed_on(self.layers)) * (samples * self.element_bytes)
        return result

    def weights_s(self, microbatches: int = 1) -> NDArray[np.float64]:
        """Seconds of each layer's backward pass that are gradients of weights, shape (layers,)."""
        samples = self.samples_per_worker / microbatches

        def of_layer(layer: Layer, samples: float) -> tuple[float]:
            return (self.cluster.device.weights_s(layer, samples, self.precision),)

        result: NDArray[np.float64] = self._of_layers(of_layer, samples)[0] * self._scale()
        return result

    def weights_share(self) -> float:
        """Share of what a microbatch keeps that gradients of weights still need once those of inputs are made: what products
        read, and the gradients of what they wrote (arXiv 2401.10241, table 1)."""
        sizes = [item.elements * (item.element_bytes or self.element_bytes) for layer in self.layers for item in layer.kept]
        products = [one for layer in self.layers for one in layer.operators if isinstance(one, Matmul)]
        needed = sum(one.rows * one.count * (one.inner + one.columns) for one in products) * self.element_bytes
        return min(1.0, needed / sum(sizes)) if sizes else 1.0

    def _of_layers(self, of_layer: Callable[[Layer, float], tuple[float, ...]], samples: float) -> NDArray[np.float64]:
        """What `of_layer` says of each layer, shape (values, layers); it is asked once about those that are alike."""
        distinct = {layer.signature: layer for layer in self.layers}
        values = {signature: of_layer(layer, samples) for signature, layer in distinct.items()}
        return np.array([values[layer.signature] for layer in self.layers]).T

    def _exchanges_s(self, layer: Layer, samples: float) -> tuple[float, float]:
        """Seconds of a layer's exchanges in both passes; what is recomputed exchanges again."""
        if self.exchange is None or not layer.exchanges:
            return 0.0, 0.0
        forward_s, backward_s = (
            sum(self.exchange.seconds(one, layer, samples, self) for one in layer.exchanges if one.backward == backward)
            for backward in (False, True)
        )
        again_s = forward_s if self.recompute.kind == "full" and not layer.glued else 0.0
        return forward_s, backward_s + again_s

    def _scale(self) -> float:
        """What to multiply the times of layers with so that they make the step that was measured. Raises FieldError."""
        if self.measured_step is None:
            return 1.0
        left_s = self.measured_step.time_s - self.optimizer_s(sum(layer.parameters for layer in self.layers))
        if left_s <= 0:
            message = "the optimizer alone takes longer by the device's memory bandwidth; give the time of a whole step"
            raise FieldError(("training", "measured_step", "time"), message)
        plain = replace(self, recompute=NO_RECOMPUTE)
        return left_s / float(plain._of_layers(plain._layer_s, self.measured_step.samples).sum())

    def _layer_s(self, layer: Layer, samples: float) -> tuple[float, float]:
        """Seconds of a layer's forward pass, and of its backward pass with what is recomputed in it."""
        device = self.cluster.device
        forward_s, backward_s = device.layer_s(layer, samples, self.precision)
        if self.recompute.kind == "none" or layer.glued:
            return forward_s, backward_s
        again_s = forward_s if self.recompute.kind == "full" else device.scores_s(layer, samples, self.precision)
        return forward_s, backward_s + again_s

    def optimizer_s(self, parameters: float) -> float:
        """Seconds of the optimizer's step over the `parameters` parameters that a device updates."""
        return self.cluster.device.optimizer_s(parameters, self.optimizer, self.precision)


class Bucket(NamedTuple):
    """Gradients that are summed together. layer: number of the one that completes it. tensors: elements of each."""

    layer: int
    tensors: tuple[int, ...]


def buckets(layers: Sequence[Layer], element_bytes: int, first_bytes: float, bucket_bytes: float) -> list[Bucket]:
    """Gradient buckets as DistributedDataParallel fills them, in order.

    Tensors are taken in reverse order; a bucket closes once it holds its limit or more; the first has a limit of its own,
    so that communication starts early.
    """
    tensors = [tensor for layer in reversed(layers) for tensor in reversed(layer.tensors)]
    owners = [index for index in reversed(range(len(layers))) for _ in layers[index].tensors]
    filled = list(itertools.accumulate(tensors))
    result: list[Bucket] = []
    begin, before, limit_bytes = 0, 0, first_bytes
    while before < (filled[-1] if filled else 0):
        end = bisect.bisect_left(filled, before + limit_bytes / element_bytes, begin) + 1
        result.append(Bucket(owners[end - 1] if end <= len(owners) else 0, tuple(tensors[begin:end])))
        begin, before, limit_bytes = end, filled[min(end, len(filled)) - 1], bucket_bytes
    return result
