"""Job: a model to train on a cluster, with the costs of its layers, which are derived once and used by every strategy."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.groups import LinkLevel
from scaleproof.simulator.cluster.device.device import (
    ELEMENT_BYTES,
    OPTIMIZER_STATES,
    Amount,
    Optimizer,
    Precision,
    StateBits,
    state_bytes,
)
from scaleproof.simulator.cluster.device.kernels.products import Recipe
from scaleproof.simulator.cluster.host import required_host
from scaleproof.simulator.cluster.perturbations import EVEN, Perturbations
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.frameworks import IDEAL, Execution, Framework, TrainingWork, execution_of
from scaleproof.simulator.frameworks.framework import ShardCopies, slowest
from scaleproof.simulator.model.autocast import stream_bytes
from scaleproof.simulator.model.layers import Layer, boundary_elements
from scaleproof.simulator.model.muon import newton_schulz
from scaleproof.simulator.model.operators import Matmul, Operator, SavedActivation
from scaleproof.simulator.model.recompute import NO_RECOMPUTE, Recompute, kept_activations
from scaleproof.simulator.scenario.training import GradientSizes, Input, MeasuredStep, Offloaded, has_only_master

if TYPE_CHECKING:
    from scaleproof.simulator.strategy.data_parallel.contention import Contention
    from scaleproof.simulator.strategy.model_parallel.layer_collectives import LayerCollectives


@dataclass(frozen=True)
class Costs:
    """Costs of each layer for one microbatch; arrays of shape (layers,).

    forward_s, backward_s: seconds of compute; recomputation counts as backward. first_forward_s, last_backward_s: additional
    seconds in the first forward and the last backward pass of a step. made_s, bucketed_s: the same in the first and in the last
    pass that computes gradients of weights, as in `Job.gradients_s`. forward_exchange_s, backward_exchange_s: exposed seconds
    of the collectives among ranks that share a layer. output_bytes: boundary activations, passed to later layers.
    parameters: trained ones, elements. replica_delay: share by which collectives of replicas take longer next to forward and
    to backward passes, shape (2, layers).
    """

    forward_s: NDArray[np.float64]
    backward_s: NDArray[np.float64]
    first_forward_s: NDArray[np.float64]
    last_backward_s: NDArray[np.float64]
    made_s: NDArray[np.float64]
    bucketed_s: NDArray[np.float64]
    forward_exchange_s: NDArray[np.float64]
    backward_exchange_s: NDArray[np.float64]
    output_bytes: NDArray[np.float64]
    parameters: NDArray[np.int64]
    replica_delay: NDArray[np.float64]


def exposed_exchanges_s(within_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Exposed seconds of the collectives within passes, of all links, shape (passes, layers); within_s: shape (levels, 2,
    passes, layers)."""
    result: NDArray[np.float64] = within_s[:, 1].sum(axis=0)
    return result


@dataclass(frozen=True)
class Job:
    """A model to train on a cluster: the input of a strategy's compilation. samples_per_worker: per step.

    zero: stage of ZeRO; from 1 on, replicas shard the optimizer's step. measured_step: if given, layer times are scaled to add
    up to it. framework: the training software; recipe: how it scales 8 or 4 bits. ranks: number of ranks that wait for each
    other in each step; group: within each pass. pipelined_ranks, splits_backward, autocast, master, state_bits, ema, clips: as
    in `TrainingWork`. imbalance: work of the worker with the longest samples over the mean.
    exchange: times of the collectives among ranks that share layers. contend: slowdown by collectives next to passes.
    recomputed: whether each layer is recomputed, where that depends on stages; all blocks if None. gradients: bytes of their
    elements, of the training precision if None. averages: whether ranks sum gradients. scatter: when ZeRO's stages 2 and 3
    scatter gradients. shares_links: whether an engine models that messages share links; else workers whose messages take equal
    times are one class. is_emulated: whether ranks wait for the time of their compute instead of using cores. trained_bytes: of
    a trained parameter, of the training precision if None. offload, uses_drives, delays_update: what hosts have, whether drives
    do, and whether an offloaded step of the optimizer overlaps with the next step. reading_nodes: those that read the data set.
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
    reading_nodes: int = 1
    measured_step: MeasuredStep | None = None
    framework: Framework = IDEAL
    recipe: Recipe = "delayed"
    master: bool = True
    state_bits: StateBits | None = None
    ema: Precision | None = None
    clips: bool | None = None
    offload: tuple[Offloaded, ...] = ()
    uses_drives: bool = False
    delays_update: bool = False
    ranks: int = 1
    group: int = 1
    pipelined_ranks: int = 0
    splits_backward: bool = False
    exchange: LayerCollectives | None = None
    contend: Contention | None = None
    recomputed: tuple[bool, ...] | None = None
    gradients: GradientSizes | None = None
    averages: bool = False
    scatter: Literal["microbatch", "step"] = "microbatch"
    shares_links: bool = True
    is_emulated: bool = False
    autocast: bool = False
    imbalance: float = 1.0
    trained_bytes: int | None = None

    def distinguishable_ranks(self, ranks: int) -> Collection[int]:
        """Ranks that must not be folded into a class with others."""
        return range(ranks) if self.unevenness.separates_all_ranks else self.unevenness.named

    @property
    def element_bytes(self) -> int:
        """Bytes of an element in the training precision."""
        return ELEMENT_BYTES[self.precision]

    @property
    def parameter_bytes(self) -> int:
        """Bytes of an element of trained parameters and of their gradients."""
        return self.trained_bytes or (ELEMENT_BYTES["fp32"] if self.autocast else self.element_bytes)

    @cached_property
    def stream_bytes(self) -> int:
        """Bytes of an element that passes from layer to layer."""
        return stream_bytes(self.layers, self.element_bytes) if self.autocast else self.element_bytes

    @property
    def scatters(self) -> bool:
        """Whether gradients are scattered after each microbatch."""
        return self.zero >= 2 and self.scatter == "microbatch"

    def is_gathered_again(self, layer: Layer) -> bool:
        """Whether ZeRO's stage 3 gathers a layer's parameters again for its backward pass, if it frees any after the forward
        pass: layers below the first trained one are not passed backward, and a framework may keep those at the ends."""
        return layer.has_backward and not self.is_kept_between_passes(layer)

    def is_kept_between_passes(self, layer: Layer) -> bool:
        """Whether ZeRO's stage 3 keeps a layer's gathered parameters after the forward pass, whether or not it keeps others."""
        return layer.pinned_to_end and self.framework.defaults.keeps_ends

    @property
    def waits_for_scatters(self) -> bool:
        """Whether ranks wait for each reduce-scatter of ZeRO's stage 3 before their next pass."""
        return self.zero == 3 and self.framework.waits_for_scatters

    @property
    def shard_copies(self) -> ShardCopies:
        """Copies of whole buffers next to the collectives of ZeRO's stage 3."""
        return self.framework.shard_copies if self.zero == 3 else ShardCopies()

    @property
    def sums_whole(self) -> bool:
        """Whether ZeRO 1 sums whole gradients by all-reduces after the backward pass, instead of scattering them during it."""
        return self.zero == 1 and self.framework.zero_1.sums_whole

    @property
    def owns_tensors(self) -> bool:
        """Whether each rank owns whole tensors with ZeRO 1, which it broadcasts after it has updated them."""
        return self.zero == 1 and self.framework.zero_1.owns_tensors

    def broadcasts(self, layers: Sequence[Layer], ranks: int) -> int:
        """Number of broadcasts of these layers' parameters from the ranks that own a tensor, if ranks own whole tensors."""
        tensors = sum(len(layer.tensors) for layer in layers)
        return tensors if self.framework.zero_1.broadcasts == "tensors" else min(ranks, tensors)

    @property
    def gathered_bytes(self) -> int:
        """Bytes per element of gathered parameters. Embeddings stay in 16 bits but are counted with the same size."""
        return 1 if self.precision == "fp8" and self.framework.fp8_gathers else self.parameter_bytes

    @property
    def reduced_bytes(self) -> int:
        """Bytes per element of the gradients that ranks sum."""
        return self.parameter_bytes if self.gradients is None else self.gradients.reduced

    def costs(self, microbatches: int = 1) -> Costs:
        """Costs of each layer for one of `microbatches` equal parts of a worker's samples."""
        samples = self.samples_per_worker / microbatches
        computing_s = self.computing_s(samples)
        once_per_step_s, replica_delay = np.zeros((2, *computing_s.shape))
        within_s = self.with_again(self.within_passes_s(samples))
        if self.contend is not None:
            every_microbatch_s, once_per_step_s, replica_delay = self.contend.delays(computing_s, within_s, samples, self)
            computing_s = computing_s + every_microbatch_s
        collectives_s = exposed_exchanges_s(within_s)
        forward_exchange_s, backward_exchange_s = collectives_s
        forward_s, backward_s = np.maximum(computing_s, self.least_s(samples) - collectives_s)
        made_s, bucketed_s = self.gradients_s(samples)
        return Costs(
            forward_s=forward_s,
            backward_s=backward_s,
            first_forward_s=once_per_step_s[0],
            last_backward_s=once_per_step_s[1],
            made_s=made_s,
            bucketed_s=bucketed_s * self.averages,
            forward_exchange_s=forward_exchange_s,
            backward_exchange_s=backward_exchange_s,
            output_bytes=self.boundary_bytes(samples),
            parameters=np.array([layer.trained_parameters for layer in self.layers], dtype=np.int64),
            replica_delay=replica_delay,
        )

    def computing_s(self, samples: float) -> NDArray[np.float64]:
        """Compute seconds of each layer in the forward and the backward pass, shape (2, layers)."""
        forward_s, backward_s = self._layers_s(samples)
        if self.recompute.kind != "none":
            backward_s = backward_s + self.where_recomputed(self._executed(Execution.again_s, samples))
        result: NDArray[np.float64] = np.stack([forward_s, backward_s]) * (self._scale() * self.slowest_pass)
        return result

    def gradients_s(self, samples: float) -> NDArray[np.float64]:
        """Seconds by which each layer's first backward pass of a step is longer, negative where it makes gradients to which
        others add theirs, and the last one, where replicas copy gradients into buckets; shape (2, layers)."""
        made_s = self._made_s()
        bucketed_s = self._executed(Execution.bucketing_s, samples, self.reduced_bytes)
        result: NDArray[np.float64] = np.stack([made_s, bucketed_s]) * (self._scale() * self.slowest_pass)
        return result

    def _made_s(self) -> NDArray[np.float64]:
        """Seconds by which each layer's first backward pass of a step is longer, at most 0, before scaling, shape (layers,)."""
        result: NDArray[np.float64] = -self._accumulation_s() * (self.gradients is not None and self.gradients.makes)
        return result

    def least_s(self, samples: float) -> NDArray[np.float64]:
        """Seconds that each layer's passes take at least, collectives included, shape (2, layers): those of the host."""
        if not self.pipelined_ranks:
            return np.zeros((2, len(self.layers)))
        return self._executed(Execution.least_s, samples)

    @property
    def slowest(self) -> float:
        """Time of the slowest device of the ranks that wait for each other, relative to the mean; 1 unless device times come
        from a model of a GPU's kernels."""
        device = self.cluster.device
        is_described = device.kernels is not None and device.kernels.generation != "cpu" and device.efficiency is None
        return slowest(self.framework.scale, self.ranks, self.group) if is_described else 1.0

    @property
    def slowest_pass(self) -> float:
        """Time of a pass of the slowest of the ranks that wait for each other, relative to the mean: of the slowest device,
        with the longest samples."""
        return self.imbalance * self.slowest

    def within_passes_s(self, samples: float) -> NDArray[np.float64]:
        """Seconds of each layer's collectives, and those of them that are exposed, by the links that limit them: in the forward
        and the backward pass, and those that recomputation would repeat; shape (levels, 2, 3, layers)."""
        shape = len(LinkLevel), 2, 3

        def of_layer(layer: Layer) -> Sequence[float]:
            if self.exchange is None or not layer.exchanges:
                return [0.0] * math.prod(shape)
            row: list[float] = self.exchange.by_links_s(layer, samples, self).ravel().tolist()
            return row

        return self.of_layers(of_layer).reshape(*shape, len(self.layers))

    def with_again(self, within_passes_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """The times of `within_passes_s` in both passes, with repeated collectives in the backward pass of the layers that are
        recomputed, shape (levels, 2, 2, layers)."""
        forward_s, backward_s, repeated_s = np.moveaxis(within_passes_s, -2, 0)
        return np.stack([forward_s, backward_s + self.where_recomputed(repeated_s)], axis=-2)

    def recomputing(self, stages: Iterable[Sequence[int]]) -> Job:
        """The job with recomputation decided stage by stage. stages: indices of the layers of each stage."""
        recomputed = [False] * len(self.layers)
        for stage in stages:
            for number, is_recomputed in zip(stage, self.recompute.concerned([self.layers[i] for i in stage]), strict=True):
                recomputed[number] = is_recomputed
        return replace(self, recomputed=tuple(recomputed))

    def where_recomputed(self, repeated_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Values of the recomputation of each layer, zero where it is not recomputed; layers are the last axis."""
        is_recomputed = self.recomputed or [layer.can_be_recomputed for layer in self.layers]
        return np.where(is_recomputed, repeated_s, 0.0)

    def boundary_bytes(self, samples: float) -> NDArray[np.float64]:
        """Bytes of the boundary activations behind each layer, shape (layers,)."""
        result: NDArray[np.float64] = np.array(boundary_elements(self.layers)) * (samples * self.stream_bytes)
        return result

    def weights_s(self, microbatches: int = 1) -> NDArray[np.float64]:
        """Seconds of weight gradients in each layer's backward pass, shape (layers,)."""
        weights_s = self._executed(Execution.weights_s, self.samples_per_worker / microbatches) + self._accumulation_s()
        result: NDArray[np.float64] = weights_s * (self._scale() * self.slowest_pass)
        return result

    def weights_share(self) -> float:
        """Share of a microbatch's kept activations that weight gradients still need after the input gradients: inputs of matrix
        products and gradients of their outputs (arXiv 2401.10241, table 1)."""
        sizes = [item.elements * (item.element_bytes or self.element_bytes) for layer in self.layers for item in layer.kept]
        operators = (operator for layer in self.layers for operator in layer.operators)
        products = [product for product in operators if isinstance(product, Matmul) and product.weight_gradient]
        needed = sum(x.rows * x.count * (x.inner + x.columns) for x in products) * self.element_bytes
        return min(1.0, needed / sum(sizes)) if sizes else 1.0

    def of_layers(self, of_layer: Callable[[Layer], Sequence[float]]) -> NDArray[np.float64]:
        """Values of `of_layer` for all layers, shape (values, layers); called once per class of equivalent layers."""
        distinct, index = self._distinct_layers
        return np.array([of_layer(layer) for layer in distinct])[index].T

    @property
    def distinct_layers(self) -> list[Layer]:
        """One layer of each class of equivalent layers."""
        return self._distinct_layers[0]

    @cached_property
    def _distinct_layers(self) -> tuple[list[Layer], NDArray[np.int64]]:
        """One layer of each class of equivalent layers, and the index of each layer's class."""
        layers = {layer.signature: layer for layer in self.layers}
        numbers = {signature: number for number, signature in enumerate(layers)}
        return list(layers.values()), np.array([numbers[layer.signature] for layer in self.layers])

    def _scale(self) -> float:
        """Factor on layer times that makes them add up to the measured step. Raises FieldError."""
        if self.measured_step is None:
            return 1.0
        left_s = self.measured_step.time_s - self.device_optimizer_s(sum(layer.trained_parameters for layer in self.layers))
        if left_s <= 0:
            message = (
                "is shorter than the optimizer's step alone at the device's memory bandwidth; give the time of a whole step"
            )
            raise FieldError(("training", "measured_step", "time"), message)
        return left_s / float(np.sum(self._layers_s(self.measured_step.samples)) + np.sum(self._made_s()))

    @cached_property
    def _execution(self) -> Execution:
        """The device as the framework uses it."""
        work = TrainingWork(
            self.precision, self.optimizer, self.recompute, self.recipe, self.pipelined_ranks, self.splits_backward,
            self.autocast, self.master, self.state_bits, self.ema, self.clips, self.zero,
            self.exchange is not None and self.exchange.plan.overlap_tensor,
        )  # fmt: skip
        return execution_of(self.cluster.device, self.framework, work)

    def _executed(self, method: Callable[..., Any], samples: float, *more: Hashable) -> NDArray[np.float64]:
        """Values of a method of `Execution` for all layers; layers are the last axis. more: arguments of the method."""
        layers, index = self._distinct_layers
        return np.array(self._execution.each(method, layers, samples, *more), dtype=np.float64)[index].T

    def _layers_s(self, samples: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Seconds of each layer's forward and backward pass, without recomputation; both of shape (layers,)."""
        forward_s, backward_s = self._executed(Execution.layer_s, samples)
        return forward_s, backward_s + self._accumulation_s()

    def _accumulation_s(self) -> NDArray[np.float64]:
        """Seconds in which a microbatch's gradients of each layer are added to the buffer of all microbatches, shape (layers,).
        Neglected where each microbatch scatters them, since a rank then adds only its own shard."""
        if self.gradients is None or not self.gradients.added or self.scatters:
            return np.zeros(len(self.layers))
        added_bytes = self.gradients.added
        (seconds,) = self.of_layers(lambda layer: (self.cluster.device.moved_s(layer.trained_parameters * added_bytes),))
        result: NDArray[np.float64] = seconds
        return result

    def layer_passes_s(self, layer: Layer, samples: float) -> tuple[float, float, float]:
        """Compute seconds of a layer's forward and backward pass, and of its recomputation, without sums of microbatches'
        gradients."""
        scale = self._scale()
        forward_s, backward_s = self._execution.once(Execution.layer_s, layer, samples)
        again_s = 0.0 if self.recompute.kind == "none" else self._execution.once(Execution.again_s, layer, samples)
        return scale * forward_s, scale * backward_s, scale * again_s

    def operators_s(self, layer: Layer, operators: Sequence[Operator], samples: float) -> Sequence[float]:
        """Seconds of some of a layer's operators in the forward and the backward pass."""
        return self._execution.once(Execution.operators_s, layer, tuple(operators), samples)

    def memory_shares(self, samples: float) -> NDArray[np.float64]:
        """Share of each layer's kernel time that is bound by memory bandwidth, shape (layers,)."""
        return self._executed(Execution.memory_share, samples)

    def mean_memory_share(self, samples: float) -> float:
        """Mean share of the kernel time of all blocks of the model that is bound by memory bandwidth."""
        if not self.framework.contention:
            return 0.0
        layers, index = self._distinct_layers
        counts = np.bincount(index).tolist()
        blocks = [(layer, count) for layer, count in zip(layers, counts, strict=True) if not layer.pinned_to_end]
        shares = self._execution.each(Execution.memory_share, [layer for layer, _ in blocks], samples)
        total = sum(share * count for share, (_, count) in zip(shares, blocks, strict=True))
        return float(total / max(1, sum(count for _, count in blocks)))

    def optimizer_s(self, parameters: Amount) -> Amount:
        """Seconds of the optimizer's step over the `parameters` parameters that a rank updates: on its device; or on its host,
        with the copies before and after it, next to those of the node's other ranks."""
        if "optimizer" not in self.offload:
            return self.device_optimizer_s(parameters)
        sent_s: Amount = parameters * self.accumulated_bytes / self.host_link_Bps(self.ranks)
        return sent_s + self.host_optimizer_s(parameters, self.ranks)

    def host_optimizer_s(self, parameters: Amount, ranks: int) -> Amount:
        """Seconds of the optimizer's step on a host, and of the copy of parameters to the device, for each of `ranks` ranks,
        which share nodes; of that copy alone if the step overlaps with the next one's passes."""
        each_s = 0.0 if "parameters" in self.offload else self.shard_bytes / self.host_link_Bps(ranks)
        each_s += 0.0 if self.delays_update else self.host_update_s(1.0, ranks)
        result: Amount = each_s * parameters
        return result

    def host_update_s(self, parameters: Amount, ranks: int) -> Amount:
        """Seconds in which a host updates the `parameters` parameters of each of `ranks` ranks, which share nodes, without
        copies."""
        on_node = min(self.cluster.node.devices, ranks)
        result: Amount = parameters * (on_node / required_host(self.cluster).updated_per_s(*self.host_update_bytes))
        return result

    def host_link_Bps(self, ranks: int) -> float:
        """Bytes per second between each of `ranks` devices and its host, if all copy at the same time."""
        host = required_host(self.cluster)
        return (host.link_Bps or 0.0) / min(self.cluster.node.devices, ranks, host.devices_per_link)

    @cached_property
    def host_update_bytes(self) -> tuple[float, float]:
        """Bytes per parameter of the optimizer's step on a host: those that it reads and writes in memory, and those of states
        that it reads from drives and writes there."""
        states = state_bytes(self.precision, self.master, self.state_bits) * OPTIMIZER_STATES[self.optimizer]
        stored = state_bytes(self.precision, self.master) + states + (0 if self.ema is None else ELEMENT_BYTES[self.ema])
        return self._execution.host_optimizer_bytes, stored if self.uses_drives else 0.0

    @property
    def accumulated_bytes(self) -> int:
        """Bytes of an element of accumulated gradients."""
        return self.parameter_bytes if self.gradients is None else self.gradients.accumulated

    @property
    def shard_bytes(self) -> int:
        """Bytes of an element of the parameters that a rank keeps between passes: of master copies if it has no others."""
        only_master = has_only_master(self.zero, self.master, self.offload, self.accumulated_bytes, self.parameter_bytes)
        return ELEMENT_BYTES["fp32"] if only_master else self.parameter_bytes

    def kept_bytes(self, samples: float) -> NDArray[np.float64]:
        """Bytes of the activations that each block keeps until its backward pass, shape (layers,); 0 of layers at the ends of
        stages."""
        software, entries = self.framework.memory, [0, *boundary_elements(self.layers)]
        result = np.zeros(len(self.layers))
        for number, (layer, entry) in enumerate(zip(self.layers, entries, strict=False)):
            if layer.pinned_to_end:
                continue
            kept: Sequence[SavedActivation] = layer.kept
            if self.recompute.kind != "none" and (self.recomputed is None or self.recomputed[number]):
                kept = kept_activations(layer, self.recompute, entry_elements=entry)
            else:
                result[number] = software.copies_bytes(layer, self.element_bytes)
            result[number] += sum(one.elements * (one.element_bytes or self.element_bytes) for one in kept)
        return samples * result

    def device_optimizer_s(self, parameters: Amount) -> Amount:
        """Seconds of the optimizer's step over the `parameters` parameters that a device updates."""
        if isinstance(parameters, np.ndarray):
            fixed_s, with_one_s = map(self._execution.optimizer_s, (0.0, 1.0))
            return self.slowest * (fixed_s + (with_one_s - fixed_s) * parameters)
        return self.slowest * self._execution.optimizer_s(parameters)

    def orthogonalising_s(self, layers: Iterable[Layer]) -> float:
        """Seconds of Muon's products over the matrices of some layers, in bf16 where the device has it; 0 with other
        optimizers."""
        if self.optimizer != "muon":
            return 0.0
        narrow = "bf16" in self.cluster.device.peak_flops and self.element_bytes > ELEMENT_BYTES["bf16"]
        execution = replace(self, precision="bf16")._execution if narrow else self._execution
        each = (execution.once(Execution.operators_s, layer, newton_schulz(layer), 1.0)[0] for layer in layers)
        return self.slowest * sum(each)

    def broadcasts_s(self, tensors: Any, ranks: Any) -> Any:
        """Additional seconds in which `ranks` data-parallel ranks gather parameters in ZeRO's stage 1, tensor by tensor."""
        return self.framework.zero_1.broadcast_s * tensors * ranks if self.zero == 1 else 0.0

    def gradient_host_s(self, tensors: Amount, replicas: Amount) -> Amount:
        """Seconds of the host for the gradient tensors of all devices that its process drives, after replicas have summed them;
        0 for a single replica."""
        framework, driven = self.framework, np.minimum(replicas, self.cluster.node.devices)
        result: Amount = framework.host_scale * framework.host.gradient_s * tensors * driven * (replicas > 1)
        return result
