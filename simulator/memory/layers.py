"""Bytes that the layers of a chunk allocate for one microbatch. A chunk consists of consecutive layers of a pipeline rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scaleproof.simulator.memory.activations import (
    added_bytes,
    gathered_elements,
    is_logits,
    peak_candidates,
    saved,
    segments,
    size_bytes,
    with_narrow_inputs,
)
from scaleproof.simulator.memory.inputs import Amount, MemoryInputs
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import SavedActivation

# Bytes of one or several tensors.
Tensors = tuple[Amount, ...]


class LayerRun(NamedTuple):
    """Consecutive layers that consist of the same objects. times: number of them. entry_elements: input elements of each per
    sample. is_last: whether it is the last layer of its chunk."""

    layer: Layer
    times: int
    entry_elements: int
    is_last: bool


class RankChunk(NamedTuple):
    """Consecutive layers of a rank. entry_elements, output_elements: per sample that it receives from and sends to another one.
    batch: activations of its first layer that are live throughout a step."""

    runs: tuple[LayerRun, ...]
    entry_elements: int
    output_elements: int
    batch: tuple[SavedActivation, ...]

    @property
    def layers(self) -> list[Layer]:
        """Its layers, each as often as it occurs; equal ones have the name of the first."""
        return [run.layer for run in self.runs for _ in range(run.times)]


class LayerBytes(NamedTuple):
    """Bytes of the tensors of a layer and one microbatch.

    kept, logits: from the forward to the backward pass. recomputed: dropped and computed again; with_previous: together with
    those of the layer before. fetched: activations that the host keeps, of this layer and of the one that is copied meanwhile.
    left: kept for the gradients of weights after those of activations. gathered: from other ranks. working: gradients of
    activations that are live at the operators, in the order of the backward pass. product: of one gradient of weights, while
    it is computed. entry: gradient of the input. unsharded: gradients that are not sharded yet; reduced: the copy that is
    reduce-scattered; waiting: those that wait for the end of the pass. gradients: of the parameters. largest: no gradient of
    activations is larger, unless it is 0. times: number of consecutive equal layers. name: of the layer.
    """

    kept: Tensors
    logits: Tensors
    recomputed: Tensors
    with_previous: bool
    fetched: Tensors
    left: Tensors
    gathered: Tensors
    working: Tensors
    product: Tensors
    entry: Tensors
    unsharded: Tensors
    reduced: Tensors
    waiting: Tensors
    gradients: Tensors
    largest: int = 0
    times: int = 1
    name: str = ""

    def scaled(self, factor: float) -> LayerBytes:
        """The same with all bytes multiplied by a factor."""
        return LayerBytes._make(tuple(factor * size for size in field) if isinstance(field, tuple) else field for field in self)


class LayerSizes(NamedTuple):
    """Sizes of a layer, per sample in bytes unless another unit is named.

    kept: from the forward to the backward pass, of which `logits` are logits. again: dropped and recomputed. left: needed for
    the gradients of weights after those of activations. gathered: from other ranks, for gradients of activations. candidates:
    elements per sample of gradients of activations, and elements of those of weights, where the backward pass may be the
    fullest. parameters: trained ones. entry_elements: of the input. pinned_to_end: whether it is pinned to a stage end.
    continues: whether it is recomputed together with the layer before it. activations, whole: those that it keeps, and that it
    would keep without recomputation.
    """

    kept: float
    logits: float
    again: float
    left: float
    gathered: float
    candidates: tuple[tuple[float, int], ...]
    parameters: int
    entry_elements: int
    pinned_to_end: bool
    continues: bool
    activations: tuple[SavedActivation, ...]
    whole: tuple[SavedActivation, ...]

    def bytes(self, inputs: MemoryInputs, gradient_bytes: Amount, times: int = 1) -> LayerBytes:
        """Bytes of the layer's tensors, of which those with one holder are one tensor. gradient_bytes: per parameter."""
        samples, size, splits, gathered = inputs.samples, inputs.size, inputs.splits, inputs.gathers * self.parameters
        fullest = np.argmax([samples * working + weights for working, weights in self.candidates], axis=0)
        working, weights = np.array(self.candidates)[fullest].T
        multiplies = not splits and (self.pinned_to_end or not inputs.software.stand_ins)
        at_end, scattered = (gathered, 0) if self.pinned_to_end else (0, gathered)
        logits = samples * self.logits
        kept = _tensor(samples * self.kept - logits)
        is_sent = "activations" in inputs.training.offload and not self.pinned_to_end
        return LayerBytes(
            kept=() if is_sent else kept,
            logits=_tensor(logits),
            recomputed=_tensor(samples * self.again),
            with_previous=self.continues,
            fetched=(*kept, *kept) if is_sent else (),
            left=_tensor(samples * self.left) if splits else (),
            gathered=_tensor(samples * self.gathered),
            working=(samples * size * working,),
            product=_tensor(gradient_bytes * np.minimum(self.parameters, weights)) if multiplies else (),
            entry=_tensor(samples * size * self.entry_elements),
            unsharded=_tensor(inputs.parameter_size * scattered),
            reduced=_tensor(inputs.reduced_size * scattered),
            waiting=_tensor(inputs.parameter_size * at_end),
            gradients=_tensor(gradient_bytes * self.parameters),
            times=times,
        )


def _tensor(size_bytes: Amount) -> Tensors:
    """One tensor, none without bytes."""
    return (size_bytes,) if np.any(size_bytes) else ()


def layer_sizes(inputs: MemoryInputs, chunk: RankChunk) -> list[tuple[LayerSizes, int]]:
    """The sizes of the layers of a chunk, and the number of consecutive layers that have them.

    Layers that are recomputed together stay alone, since the last of them recomputes them all; so do those at stage ends, whose
    gradients wait for each other.
    """
    recompute = inputs.training.recompute
    key = "layer sizes", id(chunk), recompute, inputs.plan.stages == 1
    return inputs.once(key, lambda: _layer_sizes(inputs, chunk))


def _layer_sizes(inputs: MemoryInputs, chunk: RankChunk) -> list[tuple[LayerSizes, int]]:
    recompute, runs = inputs.training.recompute, chunk.runs
    if recompute.depends_on_position:
        runs = tuple(run._replace(times=1) for run in runs for _ in range(run.times))
    layers = [run.layer for run in runs]
    together = segments(layers, recompute).tolist()
    result: list[tuple[LayerSizes, int]] = []
    for number, (run, is_concerned) in enumerate(zip(runs, recompute.concerned(layers), strict=True)):
        continues = recompute.group > 1 and number > 0 and together[number] == together[number - 1]
        without = chunk.batch if number == 0 else ()
        sizes = _sizes(inputs, run, is_concerned, continues, without)
        if result and result[-1][0] == sizes and not (sizes.continues or sizes.pinned_to_end):
            result[-1] = sizes, result[-1][1] + run.times
        else:
            result.append((sizes, run.times))
    return result


def _sizes(
    inputs: MemoryInputs, run: LayerRun, is_concerned: bool, continues: bool, without: Sequence[SavedActivation]
) -> LayerSizes:
    """The sizes of a layer. is_concerned: whether it is recomputed. without: activations that are live throughout a step."""
    layer, size, loss = run.layer, inputs.size, inputs.software.loss
    activations, whole = saved(layer, inputs.training.recompute, is_concerned, not continues, run.entry_elements, without)
    logit_bytes, _ = loss.logit_bytes(size)
    names = {activation.name for activation in whole}
    remaining = [activation for activation in activations if activation.name in names]
    again = size_bytes(whole, size, logit_bytes) - size_bytes(remaining, size, logit_bytes)
    counted = with_narrow_inputs(activations, inputs.input_bytes) if inputs.input_bytes < size else activations
    fullest: dict[int, float] = {}
    for working, weights in peak_candidates(layer, size, run.is_last, loss):
        fullest[weights] = max(working, fullest.get(weights, working))
    # products in few bits keep both in few bits
    needed_bytes = size if layer.pinned_to_end else inputs.input_bytes
    return LayerSizes(
        kept=size_bytes(counted, size, logit_bytes) + (0.0 if again else added_bytes(layer, inputs)),
        logits=size_bytes(filter(is_logits, counted), size, logit_bytes),
        again=again,
        # the input of a product with weights, and the gradient of its output
        left=needed_bytes * sum(product.read + product.written for product in layer.operators if product.trained_weights),
        gathered=size * gathered_elements(layer, inputs.plan.context),
        candidates=tuple((working, weights) for weights, working in fullest.items()),
        parameters=layer.trained_parameters,
        entry_elements=run.entry_elements,
        pinned_to_end=layer.pinned_to_end,
        continues=continues and inputs.training.recompute.kind == "full",
        activations=tuple(activations),
        whole=tuple(whole),
    )
