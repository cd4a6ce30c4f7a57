"""Activations: bytes that layers keep from the forward to the backward pass, and working memory of the backward pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.frameworks import Loss
from scaleproof.simulator.memory.inputs import MemoryInputs
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import Matmul, MemoryBound, SavedActivation
from scaleproof.simulator.model.recompute import Recompute, kept_activations

# Names of the saved activations that the loss needs.
_LOGITS: Final = ("logits", "probabilities")
_LOSS: Final = "loss"
_HEAD: Final = "head"
# Ring attention: parts of keys and values that are in use and being received, with their gradients in the backward pass.
_RING_PARTS: Final = 4
# All-gathered keys and values, with their gradients.
_GATHERED_PARTS: Final = 2


def saved(
    layer: Layer, recompute: Recompute, concerned: bool, first: bool, entry_elements: int, without: Sequence[SavedActivation]
) -> tuple[Sequence[SavedActivation], Sequence[SavedActivation]]:
    """The activations that a layer keeps for its backward pass, and those that it would keep without recomputation.

    concerned: whether it is recomputed; first, entry_elements: see `kept_activations`. without: activations that are left out.
    """
    own = kept_activations(layer, recompute, first, entry_elements) if concerned else layer.kept
    return [part for part in own if part not in without], [part for part in layer.kept if part not in without]


def with_narrow_inputs(kept: Sequence[SavedActivation], element_bytes: float) -> tuple[SavedActivation, ...]:
    """Saved activations if matrix products keep their inputs with `element_bytes` per element: outputs of norms and activation
    functions, and an additional copy of the attention output, which the backward pass of attention reads as well."""
    result: list[SavedActivation] = []
    for activation in kept:
        narrow = activation._replace(element_bytes=element_bytes)
        if activation.name in ("norms", "activation", "expert inputs"):
            result.append(narrow)
        else:
            result += [activation, narrow] if activation.name == "attention output" else [activation]
    return tuple(result)


def size_bytes(activations: Iterable[SavedActivation], element_bytes: int, logit_bytes: int | None = None) -> float:
    """Bytes of saved activations per sample. logit_bytes: bytes per element of logits; as of other activations if None."""

    def bytes_of(activation: SavedActivation) -> float:
        own = activation.element_bytes or element_bytes
        return activation.elements * (logit_bytes if logit_bytes is not None and is_logits(activation) else own)

    return sum(map(bytes_of, activations))


def is_logits(activation: SavedActivation) -> bool:
    """Whether an activation is a logit or a probability."""
    return activation.name in _LOGITS


def segments(layers: Sequence[Layer], recompute: Recompute) -> NDArray[np.int64]:
    """The number of the recomputed group of each layer, shape (layers,)."""
    number, counted, result = -1, 0, []
    for layer in layers:
        counted = 0 if layer.pinned_to_end else counted + 1
        number += layer.pinned_to_end or (counted - 1) % recompute.group == 0
        result.append(number)
    return np.array(result)


def added_bytes(layer: Layer, inputs: MemoryInputs) -> float:
    """Bytes per sample that the framework keeps in addition to what the model counts: copies, and parts of gathered inputs that
    other ranks own."""
    software, plan = inputs.software, inputs.plan
    copies_bytes = software.copies_bytes(layer, inputs.size)
    if software.keeps_gathered == "always" or (software.keeps_gathered == "without stages" and plan.stages == 1):
        gathers = (one for one in layer.exchanges if (one.op, one.axis, one.backward) == ("all_gather", "tensor", False))
        # whole inputs in place of a rank's own part
        copies_bytes += inputs.size * (1 - 1 / plan.tensor) * sum(gather.elements for gather in gathers)
    return copies_bytes


def gathered_elements(layer: Layer, context: int) -> float:
    """Elements per sample in collectives: gathered sequences with sequence parallelism, keys and values of other ranks with
    context parallelism, and tokens that are exchanged for heads by an all-to-all."""
    sent = [exchange.elements for exchange in layer.exchanges if (exchange.op, exchange.axis) == ("alltoall", "context")]
    gathers = [exchange for exchange in layer.exchanges if exchange.op == "all_gather"]
    tokens = max((gather.elements for gather in gathers if gather.axis in ("tensor", "expert_tensor")), default=0)
    parts = (
        gather.elements * (_RING_PARTS / context if gather.hidden else _GATHERED_PARTS)
        for gather in gathers
        if gather.axis == "context"
    )
    return tokens + max([*parts, *sent], default=0.0)


def peak_candidates(layer: Layer, size: int, is_last: bool, loss: Loss) -> Iterator[tuple[float, int]]:
    """Peak candidates of a layer: elements per sample of gradients of activations, and elements of gradients of weights, while
    all activations of the layer are live.

    They are live until the backward pass of the last product with weights, whose input is then freed. An activation function at
    the end of a layer that is not the last reads its output again, which the next layer kept. Parameters without a product are
    embeddings, which are looked up.
    """
    if not layer.has_backward:
        yield 0.0, 0
        return
    looked_up = layer.trained_parameters if not any(operator.trained_weights for operator in layer.operators) else 0
    chunks = loss.chunks if layer.operators and layer.operators[-1].name == _LOSS else 1
    yield layer.output_elements / chunks, looked_up
    again = 0
    if not is_last and layer.operators and isinstance(last := layer.operators[-1], MemoryBound):
        again = max(0, min(last.backward_read - last.written, layer.output_elements))
    for index in range(len(layer.operators) - 1, -1, -1):
        operator = layer.operators[index]
        weights = operator.trained_weights
        is_loss = isinstance(operator, MemoryBound) and operator.name == _LOSS
        working: float = operator.gradient_elements
        if is_loss:
            working *= loss.logit_bytes(size)[1] / size / 2
        elif operator.name == _HEAD:
            working /= chunks
        yield working + again, weights
        again = 0
        if weights:
            read = operator.rows * operator.inner if isinstance(operator, Matmul) else 0
            yield max((earlier.gradient_elements for earlier in layer.operators[:index]), default=0) - read, weights
            break
