"""Costs: what the parts of a model cost on a device, derived once and used by every strategy; Job: what is compiled."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.device.device import ELEMENT_BYTES, Amount, Optimizer, Precision, is_narrow
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.spec import Spec, Width
from scaleproof.simulator.common.units import Seconds
from scaleproof.simulator.frameworks import IDEAL, Execution, Framework, TrainingWork
from scaleproof.simulator.frameworks.scale import slowest
from scaleproof.simulator.model.graph import handed_on
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import Exchange, Matmul, Operator
from scaleproof.simulator.model.recompute import NO_RECOMPUTE, Recompute, again
from scaleproof.simulator.program.perturbations import EVEN, Perturbations
from scaleproof.simulator.strategy.data_parallel.data_loading import Input


@dataclass(frozen=True)
class Costs:
    """Per layer, for one microbatch: arrays of shape (layers,).

    forward_s, backward_s: of compute; what is recomputed counts as backward. first_forward_s, last_backward_s: by which the
    first forward and the last backward pass of a step take longer. forward_exchange_s, backward_exchange_s: of the
    collectives among ranks that share a layer, as far as the rank waits for them. output_bytes: activations handed to the
    layers behind it, for the microbatch. parameters: elements.
    """

    forward_s: NDArray[np.float64]
    backward_s: NDArray[np.float64]
    first_forward_s: NDArray[np.float64]
    last_backward_s: NDArray[np.float64]
    forward_exchange_s: NDArray[np.float64]
    backward_exchange_s: NDArray[np.float64]
    output_bytes: NDArray[np.float64]
    parameters: NDArray[np.int64]


class MeasuredStep(Spec):
    """What a training step of the whole model took on one device by itself, for so many samples, without recomputation."""

    samples: Width
    time_s: Seconds = Field(alias="time", gt=0)


class GradientSizes(NamedTuple):
    """Bytes of gradients, for each parameter.

    accumulated: in the buffer to which microbatches add their gradients. reduced: of what ranks sum. added: read and written
    by a microbatch to add to the whole buffer, beside what the product of the gradient itself moves.
    """

    accumulated: int
    reduced: int
    added: int = 0


class Exchanging(Protocol):
    """How ranks that share layers exchange what they must."""

    def seconds(self, exchange: Exchange, layer: Layer, samples: float, job: Job) -> float:
        """Seconds for which the layer's pass is held up by one of its exchanges, for so many samples."""


class Contending(Protocol):
    """How collectives of replicas that run next to passes slow these down."""

    def slowed(self, computing_s: NDArray[np.float64], samples: float, job: Job) -> tuple[Any, Any]:
        """Seconds by which each layer's passes of every microbatch take longer, shape (2, layers), and in addition the first
        forward and the last backward pass of a step; computing_s: what they take alone."""


@dataclass(frozen=True)
class Job:
    """A model to train on a cluster: what a strategy compiles. samples_per_worker: of one step.

    zero: the stage of ZeRO, from 1 on replicas share the optimizer's step. measured_step: where given, layers take their shares
    of it, and not the times that the device's model says. framework: what runs the layers; recipe: how it scales 8-bit
    products. ranks: that wait for each other in each step; group: that wait for each other within each pass. exchange: how
    ranks that share layers exchange what they must. contend: how collectives next to passes slow these down.
    recomputed: whether each layer is recomputed, where that depends on stages; all blocks are, if None.
    gradients: bytes of their elements, of the training precision if None. scatter: when ZeRO's stages 2 and 3 scatter them.
    """

    layers: Sequence[Layer]
    cluster: Cluster
    samples_per_worker: int
    precision: Precision
    optimizer: Optimizer
    unevenness: Perturbations = EVEN
    recompute: Recompute = NO_RECOMPUTE
    zero: int = 0
    input: Input | None = None
    measured_step: MeasuredStep | None = None
    framework: Framework = IDEAL
    recipe: str = "delayed"
    ranks: int = 1
    group: int = 1
    exchange: Exchanging | None = None
    contend: Contending | None = None
    recomputed: tuple[bool, ...] | None = None
    gradients: GradientSizes | None = None
    scatter: Literal["microbatch", "step"] = "microbatch"

    def apart(self, ranks: int) -> Collection[int]:
        """Ranks that nothing may be folded with: those that are told apart; all, where no rank is like another."""
        return range(ranks) if self.unevenness.parts_all else self.unevenness.named

    @property
    def element_bytes(self) -> int:
        return ELEMENT_BYTES[self.precision]

    @property
    def scatters(self) -> bool:
        """Whether each microbatch's gradients are scattered."""
        return self.zero >= 2 and self.scatter == "microbatch"

    @property
    def gathered_bytes(self) -> int:
        """Bytes of an element of parameters that ranks gather; embeddings, which stay in 16 bits, are counted alike."""
        return 1 if is_narrow(self.precision) and self.framework.fp8_gathers else self.element_bytes

    @property
    def reduced_bytes(self) -> int:
        """Bytes of an element of gradients that ranks sum."""
        return self.element_bytes if self.gradients is None else self.gradients.reduced

    def costs(self, microbatches: int = 1) -> Costs:
        """Costs of each layer for one of `microbatches` equal parts of a worker's samples."""
        samples = self.samples_per_worker / microbatches
        computing_s = self.computing_s(samples)
        once_s = np.zeros_like(computing_s)
        if self.contend is not None:
            each_s, once_s = self.contend.slowed(computing_s, samples, self)
            computing_s = computing_s + each_s
        forward_s, backward_s = computing_s
        forward_exchange_s, backward_exchange_s = self.exchanging_s(samples)
        return Costs(
            forward_s=forward_s,
            backward_s=backward_s,
            first_forward_s=once_s[0],
            last_backward_s=once_s[1],
            forward_exchange_s=forward_exchange_s,
            backward_exchange_s=backward_exchange_s,
            output_bytes=self.handed_on_bytes(samples),
            parameters=np.array([layer.parameters for layer in self.layers], dtype=np.int64),
        )

    def computing_s(self, samples: float) -> NDArray[np.float64]:
        """Seconds that each layer computes in the forward and in the backward pass, shape (2, layers)."""
        forward_s, backward_s = self._of_layers(self._layer_s, samples)
        if self.recompute.kind != "none":
            backward_s = backward_s + self._where_recomputed(self._of_layers(self._again_s, samples)[0])
        result: NDArray[np.float64] = np.stack([forward_s, backward_s]) * (self._scale() * self.slowest)
        return result

    @property
    def slowest(self) -> float:
        """Time of the slowest of the ranks that wait for each other, over the mean."""
        return slowest(self.framework.scale, self.ranks, self.group) if self._is_described else 1.0

    @cached_property
    def _is_described(self) -> bool:
        """Whether devices' times come from a model of their kernels."""
        device = self.cluster.device
        return device.kernels is not None and device.kernels.generation != "cpu" and device.efficiency is None

    def exchanging_s(self, samples: float) -> NDArray[np.float64]:
        """Seconds that each layer's exchanges hold up either pass, shape (2, layers); what is recomputed exchanges again."""
        return self.with_again(self.exchanges_s(samples), samples)

    def exchanges_s(self, samples: float) -> NDArray[np.float64]:
        """The same without what is exchanged again."""
        return self._of_layers(self._exchanges_s, samples)

    def with_again(self, exchanges_s: NDArray[np.float64], samples: float) -> NDArray[np.float64]:
        """Seconds of exchanges, as `exchanges_s` gives them, with those that recomputation repeats in the backward pass."""
        if self.recompute.kind == "none" or self.exchange is None:
            return exchanges_s
        forward_s, backward_s = exchanges_s
        again_s = forward_s if self.recompute.kind == "full" else self._of_layers(self._exchanges_again_s, samples)[0]
        return np.stack([forward_s, backward_s + self._where_recomputed(again_s)])

    def recomputing(self, stages: Iterable[Sequence[int]]) -> Job:
        """The same job where recomputation concerns some layers of each stage, given by numbers of layers."""
        found = [False] * len(self.layers)
        for stage in stages:
            for number, concerned in zip(stage, self.recompute.concerned([self.layers[i] for i in stage]), strict=True):
                found[number] = concerned
        return replace(self, recomputed=tuple(found))

    def _where_recomputed(self, again_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds of recomputation of each layer, zero where it is not recomputed."""
        concerned = self.recomputed or [not layer.glued for layer in self.layers]
        return np.where(concerned, again_s, 0.0)

    def handed_on_bytes(self, samples: float) -> NDArray[np.float64]:
        """What is handed to the layers behind each layer, shape (layers,)."""
        result: NDArray[np.float64] = np.array(handed_on(self.layers)) * (samples * self.element_bytes)
        return result

    def weights_s(self, microbatches: int = 1) -> NDArray[np.float64]:
        """Seconds of each layer's backward pass that are gradients of weights, shape (layers,)."""
        samples = self.samples_per_worker / microbatches

        def of_layer(layer: Layer, samples: float) -> tuple[float]:
            key = "weights", layer.signature, samples, self._work
            (weights_s,) = self._on_device(key, lambda execution: (execution.weights_s(layer, samples),))
            return (weights_s + self._added_s(layer),)

        result: NDArray[np.float64] = self._of_layers(of_layer, samples)[0] * (self._scale() * self.slowest)
        return result

    def weights_share(self) -> float:
        """Share of what a microbatch keeps that gradients of weights still need once those of inputs are made: what products
        read, and the gradients of what they wrote (arXiv 2401.10241, table 1)."""
        sizes = [item.elements * (item.element_bytes or self.element_bytes) for layer in self.layers for item in layer.kept]
        products = [one for layer in self.layers for one in layer.operators if isinstance(one, Matmul)]
        needed = sum(one.rows * one.count * (one.inner + one.columns) for one in products) * self.element_bytes
        return min(1.0, needed / sum(sizes)) if sizes else 1.0

    def of_layers(self, of_layer: Callable[[Layer], Sequence[float]]) -> NDArray[np.float64]:
        """What `of_layer` says of each layer, shape (values, layers); it is called once for layers that are equivalent."""
        return self._of_layers(lambda layer, _: of_layer(layer), 0.0)

    def _of_layers(self, of_layer: Callable[[Layer, float], Sequence[float]], samples: float) -> NDArray[np.float64]:
        """What `of_layer` says of each layer, shape (values, layers); it is asked once about those that are alike."""
        distinct, which = self._distinct
        return np.array([of_layer(layer, samples) for layer in distinct])[which].T

    @cached_property
    def _distinct(self) -> tuple[list[Layer], NDArray[np.int64]]:
        """Layers of which no two are alike, and which of them each is like."""
        layers = {layer.signature: layer for layer in self.layers}
        numbers = {signature: number for number, signature in enumerate(layers)}
        return list(layers.values()), np.array([numbers[layer.signature] for layer in self.layers])

    def _exchanges_s(self, layer: Layer, samples: float) -> tuple[float, float]:
        """Seconds of a layer's exchanges in both passes."""
        if self.exchange is None or not layer.exchanges:
            return 0.0, 0.0
        both = [0.0, 0.0]
        for one in layer.exchanges:
            both[one.backward] += self.exchange.seconds(one, layer, samples, self)
        return both[False], both[True]

    def _exchanges_again_s(self, layer: Layer, samples: float) -> tuple[float]:
        """Seconds of a layer's exchanges that selective recomputation repeats."""
        if self.exchange is None:
            return (0.0,)
        repeated = again(layer, self.recompute).exchanges
        return (sum((self.exchange.seconds(one, layer, samples, self) for one in repeated), 0.0),)

    def _scale(self) -> float:
        """What to multiply the times of layers with so that they make the step that was measured. Raises FieldError."""
        if self.measured_step is None:
            return 1.0
        left_s = self.measured_step.time_s - self.optimizer_s(sum(layer.parameters for layer in self.layers))
        if left_s <= 0:
            message = "the optimizer alone takes longer by the device's memory bandwidth; give the time of a whole step"
            raise FieldError(("training", "measured_step", "time"), message)
        return left_s / float(self._of_layers(self._layer_s, self.measured_step.samples).sum())

    @property
    def _work(self) -> TrainingWork:
        return TrainingWork(self.precision, self.optimizer, self.recompute, self.recipe)

    def _on_device(self, key: Hashable, function: Callable[[Execution], Sequence[float]]) -> Sequence[float]:
        """What `function` says of the device as the framework drives it."""
        framework, work = self.framework, self._work
        return self.cluster.device.of_each(key, lambda device: function(Execution(device, framework, work)))

    def _layer_s(self, layer: Layer, samples: float) -> Sequence[float]:
        """Seconds of a layer's forward and backward pass, without recomputation."""
        key = "layer", layer.signature, samples, self._work
        forward_s, backward_s = self._on_device(key, lambda execution: execution.layer_s(layer, samples))
        return forward_s, backward_s + self._added_s(layer)

    def _added_s(self, layer: Layer) -> float:
        """Seconds in which a microbatch's gradients of a layer are added to the buffer of all microbatches. Where each
        microbatch scatters them a rank adds its own part alone, which is left out."""
        if self.gradients is None or not self.gradients.added or self.scatters:
            return 0.0
        moved_bytes = layer.parameters * self.gradients.added
        return self.cluster.device.of_each(("added", moved_bytes), lambda device: (device.moved_s(moved_bytes),))[0]

    def _again_s(self, layer: Layer, samples: float) -> Sequence[float]:
        """Seconds of what recomputation of a layer adds to its backward pass."""
        key = "again", layer.signature, samples, self._work
        return self._on_device(key, lambda execution: (execution.again_s(layer, samples),))

    def operators_s(self, layer: Layer, operators: Sequence[Operator], samples: float) -> Sequence[float]:
        """Seconds of some of a layer's operators in the forward and the backward pass."""
        key = "operators", layer.signature, tuple(one.name for one in operators), samples, self._work
        return self._on_device(key, lambda execution: execution.operators_s(layer, operators, samples))

    def memory_share(self, layer: Layer, samples: float) -> float:
        """Share of a layer's kernel time that memory bandwidth bounds."""
        key = "memory share", layer.signature, samples, self._work
        return self._on_device(key, lambda execution: (execution.memory_share(layer, samples),))[0]

    def mean_memory_share(self, samples: float) -> float:
        """The same over all blocks of the model."""
        if not self.framework.contention:
            return 0.0
        layers, which = self._distinct
        counts = np.bincount(which).tolist()
        blocks = [(layer, count) for layer, count in zip(layers, counts, strict=True) if not layer.glued]
        total = sum(self.memory_share(layer, samples) * count for layer, count in blocks)
        return float(total / max(1, sum(count for _, count in blocks)))

    def optimizer_s(self, parameters: Amount) -> Amount:
        """Seconds of the optimizer's step over the `parameters` parameters that a device updates."""
        if isinstance(parameters, np.ndarray):
            none_s, one_s = (self._optimizer_s(count) for count in (0.0, 1.0))
            return self.slowest * (none_s + (one_s - none_s) * parameters)
        return self.slowest * self._optimizer_s(parameters)

    def _optimizer_s(self, parameters: float) -> float:
        key = "optimizer", parameters, self._work
        return self._on_device(key, lambda execution: (execution.optimizer_s(parameters),))[0]
