"""Bytes that the layers of a chunk allocate for one microbatch. A chunk consists of consecutive layers of a pipeline rank."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scaleproof.simulator.memory.activations import LayerActivations, layer_activations, saved, segments
from scaleproof.simulator.memory.inputs import Amount, MemoryInputs
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import SavedActivation

# Bytes of one or several tensors.
Tensors = tuple[Amount, ...]


class LayerBytes(NamedTuple):
    """Bytes of the tensors of a layer and one microbatch: numbers, or arrays that represent many chunks.

    kept, logits: from the forward to the backward pass. recomputed: dropped and computed again; with_previous: together with
    those of the layer before. left: kept for the gradients of weights after those of activations. gathered: from other ranks.
    working: gradients of activations that are live at the operators, in the order of the backward pass. product: of one
    gradient of weights, while it is computed. entry: gradient of the input. unsharded: gradients that are not sharded yet;
    reduced: the copy that is reduce-scattered; waiting: those that wait for the end of the pass. gradients: of the parameters.
    largest: no gradient of activations is larger, unless it is 0. count: number of consecutive equal layers. name: of the
    layer.
    """

    kept: Tensors
    logits: Tensors
    recomputed: Tensors
    with_previous: bool
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
    count: Amount = 1
    name: str = ""

    def scaled(self, factor: float) -> LayerBytes:
        """The same with all bytes multiplied by a factor."""
        return LayerBytes._make(tuple(factor * size for size in field) if isinstance(field, tuple) else field for field in self)


class LayerSizes(NamedTuple):
    """Sizes of a layer, per sample: numbers, or arrays that represent ways to train it.

    parameters: trained ones. entry: input elements. pinned_to_end: whether it is pinned to a stage end. continues: whether it
    is recomputed together with the layer before it.
    """

    activations: LayerActivations
    parameters: Amount
    entry: Amount
    pinned_to_end: Amount
    continues: bool

    def bytes(
        self, setting: MemoryInputs, samples: Amount, gradient_bytes: Amount, gathers: Amount, count: Amount = 1
    ) -> LayerBytes:
        """Bytes of the layer's tensors, of which those with one holder are one tensor.

        samples: of a microbatch; gradient_bytes: per parameter; gathers: whether layers are all-gathered.
        """
        own, size, splits = self.activations, setting.size, setting.splits
        working, weights = _fullest(own.moments, samples)
        product = 0.0 if splits else gradient_bytes * np.minimum(self.parameters, weights)
        if setting.software.stand_ins:
            product = product * self.pinned_to_end
        at_end = self.parameters * self.pinned_to_end
        scattered = gathers * (self.parameters - at_end)
        logits = samples * own.logits
        return LayerBytes(
            kept=_tensor(samples * own.kept - logits),
            logits=_tensor(logits),
            recomputed=_tensor(samples * own.again),
            with_previous=self.continues,
            left=_tensor(samples * own.left) if splits else (),
            gathered=_tensor(samples * own.gathered),
            working=(samples * size * working,),
            product=_tensor(product),
            entry=_tensor(samples * size * self.entry),
            unsharded=_tensor(setting.parameter_size * scattered),
            reduced=_tensor(setting.reduced_size * scattered),
            waiting=_tensor(setting.parameter_size * gathers * at_end),
            gradients=_tensor(gradient_bytes * self.parameters),
            count=count,
        )


def _tensor(size_bytes: Amount) -> Tensors:
    """One tensor, none without bytes."""
    return (size_bytes,) if np.ndim(size_bytes) or size_bytes else ()


class LayerGroups(NamedTuple):
    """The layers of a chunk, with consecutive equal layers as one entry, and the number of layers of each entry."""

    layers: tuple[LayerSizes, ...]
    counts: tuple[int, ...]


def _fullest(moments: Sequence[tuple[Amount, Amount]], samples: Amount) -> tuple[Amount, Amount]:
    """The peak candidate with the most elements: elements per sample of gradients of activations, and elements of gradients of
    weights."""
    if np.ndim(samples) == 0:
        return max(moments, key=lambda moment: float(samples * moment[0] + moment[1]))
    working, weights = moments[0]
    for moment in moments[1:]:
        is_fuller = samples * moment[0] + moment[1] > samples * working + weights
        working, weights = np.where(is_fuller, moment[0], working), np.where(is_fuller, moment[1], weights)
    return working, weights


def grouped(layers: Sequence[LayerSizes]) -> LayerGroups:
    """Consecutive equal layers of a chunk, as one entry each. Layers that are recomputed together stay alone, since the last of
    them recomputes them all; so do those at stage ends, whose gradients wait for each other."""

    def key(one: tuple[int, LayerSizes]) -> object:
        number, layer = one
        return layer, (layer.continues or layer.pinned_to_end) and number

    groups = [list(group) for _, group in itertools.groupby(enumerate(layers), key)]
    return LayerGroups(tuple(group[0][1] for group in groups), tuple(len(group) for group in groups))


def layer_sizes(
    setting: MemoryInputs, layers: Sequence[Layer], entry_elements: int, batch: Sequence[SavedActivation] = ()
) -> list[LayerSizes]:
    """The sizes of each layer of a chunk; those with the same objects are evaluated once.

    entry_elements: input elements per sample. batch: activations of the first layer that are live throughout the step.
    """
    result = []
    known: dict[tuple[object, ...], LayerSizes] = setting.evaluated
    recompute = setting.training.recompute
    concerned = recompute.concerned(layers)
    continues = [one == before for before, one in itertools.pairwise([-1, *segments(layers, recompute).tolist()])]
    entries = [entry_elements, *(layer.output_elements for layer in layers[:-1])]
    for number, layer in enumerate(layers):
        without, is_last = batch if number == 0 else (), number == len(layers) - 1
        identity = id(layer.operators), id(layer.kept), id(layer.tensors), id(layer.exchanges)
        chosen = layer.pinned_to_end, concerned[number], continues[number], entries[number], bool(without), is_last
        key = *identity, *chosen
        if key not in known:
            own, whole = saved(layer, recompute, concerned[number], not continues[number], entries[number], without)
            again = continues[number] and recompute.kind == "full"
            row = layer_activations(layer, own, whole, is_last, setting)
            known[key] = LayerSizes(row, layer.trained_parameters, entries[number], layer.pinned_to_end, again)
        result.append(known[key])
    return result
