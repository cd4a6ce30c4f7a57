"""Bytes of the single tensors that a rank allocates, from the totals of the memory model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from scaleproof.simulator.memory.activations import is_logits, size_bytes, working_elements
from scaleproof.simulator.memory.backward_peak import Backward, EquivalentLayers, Layers, layer_groups_of, saved
from scaleproof.simulator.memory.inputs import MemoryInputs
from scaleproof.simulator.memory.ranks import PipelineRank
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import SavedActivation
from scaleproof.simulator.parallelism import GatherAverage

# Holders whose bytes are divided like the parameters.
STATES: Final = ("parameters", "gradients", "master_parameters", "optimizer_states")


class LayerTensors(NamedTuple):
    """Bytes of the tensors of a layer and one microbatch.

    kept: from the forward to the backward pass, in addition to logits. recomputed: dropped and computed again; with_previous:
    together with those of the layer before. left: kept for the gradients of weights after those of activations. gathered: from
    other ranks. working: gradients of activations that are live at the operators, in the order of the backward pass. product:
    of one gradient of weights, while it is computed. largest: no gradient of activations is larger. entry: gradient of the
    input. scattered: all unsharded gradients; reduced: of the layer's, the copy that is reduce-scattered; waiting: of the
    layer's, those that wait for the end of the pass. gradients: of the parameters.
    """

    name: str
    kept: tuple[int, ...]
    logits: int
    recomputed: tuple[int, ...]
    with_previous: bool
    left: int
    gathered: int
    working: tuple[int, ...]
    product: int
    largest: int
    entry: int
    scattered: int
    reduced: int
    waiting: int
    gradients: tuple[int, ...]


class RankTensors(NamedTuple):
    """Bytes of the tensors of a rank.

    constant: by holder, that are allocated before the first step; states: those of the optimizer, which its first step
    allocates. chunks: the layers of each. working, copies: temporaries and copies of gradients of the optimizer's step.
    makes_gradients: whether backward passes allocate the gradients.
    """

    constant: dict[str, tuple[int, ...]]
    states: tuple[int, ...]
    chunks: tuple[tuple[LayerTensors, ...], ...]
    working: int
    copies: tuple[int, ...]
    makes_gradients: bool

    def scaled(self, factor: float) -> RankTensors:
        """A copy in which the bytes of all tensors are multiplied by a factor."""
        constant = {holder: _scaled(sizes, factor) for holder, sizes in self.constant.items()}
        chunks = tuple(
            tuple(LayerTensors._make(_scaled(field, factor) for field in layer) for layer in chunk) for chunk in self.chunks
        )
        others = {name: _scaled(getattr(self, name), factor) for name in ("states", "working", "copies")}
        return self._replace(constant=constant, chunks=chunks, **others)


def _scaled(value: Any, factor: float) -> Any:
    """Bytes, or a tuple of bytes, multiplied by a factor; names and flags as they are."""
    if isinstance(value, tuple):
        return tuple(round(factor * size) for size in value)
    return round(factor * value) if isinstance(value, int) and not isinstance(value, bool) else value


def rank_tensors(setting: MemoryInputs, kind: PipelineRank, number: int) -> RankTensors:
    """The tensors of pipeline rank `number`."""
    makes = setting.makes_gradients and not setting.splits
    constant_bytes = kind.constant_bytes(number)
    if not makes:
        constant_bytes["gradients"] += sum(kind.gradients_bytes)
    if isinstance(setting.strategy, GatherAverage):
        # the main worker receives the gradients of all others
        constant_bytes["communication"] += (setting.strategy.workers - 1) * sum(kind.gradients_bytes)
    elements = [tensor for layer in kind.own.layers for tensor in layer.tensors]
    of_holder = dict.fromkeys(STATES, elements)
    of_holder["parameters"] = [*elements, *(layer.frozen_parameters for layer in kind.own.layers)]
    constant = {holder: divided(total, of_holder.get(holder, (1,))) for holder, total in constant_bytes.items() if total}
    working, copies = kind.always.optimizer_step_bytes()
    chunks = []
    for chunk, layers in enumerate(kind.own.chunks):
        batch = kind.batch if chunk == 0 else ()
        chunks.append(_chunk_tensors(setting, layers, kind.own.entries[chunk], kind.gradient_sizes[chunk], batch))
    for outside in ("library", "context"):
        constant.pop(outside, None)
    states = constant.pop("optimizer_states", ())
    tensors = RankTensors(constant, states, tuple(chunks), int(working), divided(copies, elements), makes)
    return tensors if setting.software.scale == 1.0 else tensors.scaled(setting.software.scale)


def divided(total_bytes: float, elements: Sequence[float]) -> tuple[int, ...]:
    """Bytes of tensors that share a total in proportion to their elements."""
    whole = sum(elements)
    return tuple(round(total_bytes * each / whole) for each in elements if each) if total_bytes > 0 and whole else ()


def _chunk_tensors(
    setting: MemoryInputs, layers: Sequence[Layer], entry: int, gradient_bytes: float, batch: Sequence[SavedActivation]
) -> tuple[LayerTensors, ...]:
    """The tensors of the layers of a chunk. Arguments: see `chunk_of`."""
    groups = layer_groups_of(setting, layers, entry, batch)
    each = [layer for layer, count in zip(*groups, strict=True) for _ in range(count)]
    counts = np.ones((len(each), 1), dtype=np.int64)
    backward = Backward(setting, Layers.of([each]), counts, setting.samples, gradient_bytes, setting.gathers)
    columns = (
        backward.at.working, backward.first_gradients, backward.after.working, backward.at.communication,
        backward.after.communication,
    )  # fmt: skip
    numbers = np.array([np.broadcast_to(column, (len(each), 2, 1))[:, 0, 0] for column in columns]).T.tolist()
    concerned = setting.training.recompute.concerned(layers)
    result = []
    for index, (layer, own) in enumerate(zip(layers, each, strict=True)):
        without = batch if index == 0 else ()
        saved_and_all = saved(layer, setting.training.recompute, concerned[index], not own.continues, own.entry, without)
        result.append(_layer_tensors(setting, layer, own, saved_and_all, gradient_bytes, numbers[index]))
    return tuple(result)


def _layer_tensors(
    setting: MemoryInputs,
    layer: Layer,
    own: EquivalentLayers,
    saved_and_all: tuple[Sequence[SavedActivation], Sequence[SavedActivation]],
    gradient_bytes: float,
    numbers: Sequence[float],
) -> LayerTensors:
    """The tensors of a layer. numbers: bytes of working memory, of one gradient of weights, of the input's gradient, and of
    communication at and after the layer's backward pass."""
    working, product, entry, at_communication, after_communication = numbers
    kept, whole = saved_and_all
    names, size, activations = {one.name for one in kept}, setting.samples, own.activations
    gathered, logits = size * activations.gathered, size * activations.logits
    reduced = 0 if layer.pinned_to_end else int(setting.gathers * setting.reduced_size * layer.trained_parameters)
    return LayerTensors(
        layer.name,
        _as_tensors(setting, kept, size * activations.kept - logits, logits=False),
        int(logits),
        _as_tensors(setting, [one for one in whole if one.name not in names], size * activations.again, logits=True),
        own.continues,
        int(size * activations.left) if setting.splits else 0,
        int(gathered),
        tuple(_working_bytes(setting, layer, working)),
        0 if setting.splits else int(product),
        int(max(size * setting.size * max([layer.output_elements, *(one.elements for one in whole)]), logits)),
        int(entry),
        int(at_communication - gathered),
        reduced,
        int(after_communication - at_communication + gathered),
        divided(gradient_bytes * layer.trained_parameters, layer.tensors),
    )


def _as_tensors(
    setting: MemoryInputs, activations: Iterable[SavedActivation], total_bytes: float, logits: bool
) -> tuple[int, ...]:
    """Bytes of activations with a given total; what is not among the activations is one more tensor. logits: whether those
    count."""
    sizes = [setting.samples * size_bytes([one], setting.size) for one in activations if logits or not is_logits(one)]
    known = sum(sizes)
    if known <= total_bytes:
        return tuple(int(size) for size in (*sizes, total_bytes - known) if size >= 1)
    return divided(total_bytes, sizes)


def _working_bytes(setting: MemoryInputs, layer: Layer, most: float) -> list[int]:
    """Bytes of gradients of activations that each operator reads and writes, last operator first; the maximum is given."""
    sizes = [min(most, setting.samples * setting.size * working_elements(one)) for one in reversed(layer.operators)] or [most]
    sizes[sizes.index(max(sizes))] = most
    return [int(size) for size in sizes]
