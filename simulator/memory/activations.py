"""Activations: what layers keep from the forward to the backward pass, and what is there beside it while that passes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.frameworks import Loss
from scaleproof.simulator.memory.inputs import MemoryInputs
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import Attention, Convolution, Matmul, MemoryBound, Operator, SavedActivation
from scaleproof.simulator.model.recompute import Recompute, again

# The names under which layers keep what they read, and what the loss needs.
READ: Final = "input"
_LOGITS: Final = ("logits", "probabilities")
_LOSS: Final = "loss"
# Parts of keys and values that go round a ring: one computes and one comes, with their gradients in the backward pass.
_RING_PARTS: Final = 4
# Of gathered keys and values the gradients are there as well.
_GATHERED_PARTS: Final = 2


def kept(layer: Layer, recompute: Recompute, first: bool = True, entry_elements: int = 0) -> tuple[SavedActivation, ...]:
    """A layer's activations that are held from its forward to its backward pass.

    first: whether it is the first of those that are made again together, whose input alone is then kept; entry_elements: of
    that input for one sample, which counts where the layer itself does not say that it keeps it.
    """
    if recompute.kind == "none" or layer.glued:
        return layer.kept
    if recompute.kind == "selective":
        return again(layer, recompute).kept
    if not first:
        return ()
    return tuple(one for one in layer.kept if one.group == "input") or (SavedActivation(READ, entry_elements, group="input"),)


def with_narrow_inputs(kept: Sequence[SavedActivation], element_bytes: int) -> tuple[SavedActivation, ...]:
    """The same where products keep what they read in fewer bytes: outputs of norms and of activation functions, and that of
    attention, which its own backward pass reads as well."""
    result: list[SavedActivation] = []
    for one in kept:
        if one.name in ("norms", "activation", "expert inputs"):
            result.append(one._replace(element_bytes=element_bytes))
        else:
            result += [one, one._replace(element_bytes=element_bytes)] if one.name == "attention output" else [one]
    return tuple(result)


def size_bytes(activations: Iterable[SavedActivation], element_bytes: int, logit_bytes: int | None = None) -> int:
    """Bytes of kept activations for one sample. logit_bytes: of an element of what the loss needs; its own if None."""
    return sum(one.elements * _element_bytes(one, element_bytes, logit_bytes) for one in activations)


def _element_bytes(one: SavedActivation, element_bytes: int, logit_bytes: int | None) -> int:
    own = one.element_bytes or element_bytes
    return logit_bytes if logit_bytes is not None and one.name in _LOGITS else own


def segments(layers: Sequence[Layer], recompute: Recompute) -> NDArray[np.int64]:
    """A number for each layer, equal for those that are made again together, shape (layers,)."""
    number, counted, result = -1, 0, []
    for layer in layers:
        counted = 0 if layer.glued else counted + 1
        number += layer.glued or (counted - 1) % recompute.group == 0
        result.append(number)
    return np.array(result)


def working_elements(operator: Operator) -> int:
    """Elements for one sample of the gradients that an operator's backward pass reads and writes."""
    match operator:
        case Matmul():
            read = operator.inner if operator.input_gradient else 0
            return operator.rows * operator.count * (operator.columns + read)
        case Convolution():
            read = operator.input_elements if operator.input_gradient else 0
            return operator.positions * operator.outputs + read
        case Attention():
            inputs = operator.queries * operator.heads * operator.width
            inputs += operator.keys * operator.key_heads * (operator.width + operator.value_width)
            scores = 0 if operator.flash else 2 * operator.scores
            return inputs + operator.queries * operator.heads * operator.value_width + scores
        case _:
            return operator.written + operator.backward_written


class LayerActivations(NamedTuple):
    """Bytes for a layer and one sample.

    kept: from the forward to the backward pass; logits of them. again: what was dropped, and is made again. left: what the
    gradients of weights need, once those of activations are made. gathered: what other ranks have of the gradients of
    activations. moments: those that may be the fullest while all activations are there, as elements of activations' gradients
    for a sample, and of weights'.
    """

    kept: float
    logits: float
    again: float
    left: float
    gathered: float
    moments: tuple[tuple[float, int], ...]


def held(
    layer: Layer, own: Sequence[SavedActivation], whole: Sequence[SavedActivation], is_last: bool, setting: MemoryInputs
) -> LayerActivations:
    """own: of what it keeps (`whole`) what is not made again. is_last: whether no layer of the chunk is behind it."""
    size = setting.size
    logit_bytes, _ = setting.software.loss.logit_bytes(size)
    names = {one.name for one in whole}
    dropped_bytes = size_bytes(whole, size, logit_bytes)
    dropped_bytes -= size_bytes((one for one in own if one.name in names), size, logit_bytes)
    if setting.input_bytes < size:
        own = with_narrow_inputs(own, setting.input_bytes)
    key = id(layer.operators), id(layer.tensors), id(layer.exchanges), is_last
    if key not in setting.passed:
        setting.passed[key] = _passed(layer, is_last, setting)
    return LayerActivations(
        size_bytes(own, size, logit_bytes),
        size_bytes((one for one in own if one.name in _LOGITS), size, logit_bytes),
        dropped_bytes,
        *setting.passed[key],
    )


def _passed(layer: Layer, is_last: bool, setting: MemoryInputs) -> tuple[float, float, tuple[tuple[float, int], ...]]:
    """What is left and gathered, and moments, whatever is made again."""
    size, fullest = setting.size, dict[int, float]()
    for working, weights in _moments(layer, size, is_last, setting.software.loss):
        fullest[weights] = max(working, fullest.get(weights, working))
    left, gathered = size * sum(map(_needed_elements, layer.operators)), size * _gathered_elements(layer, setting.plan.context)
    return left, gathered, tuple((working, weights) for weights, working in fullest.items())


def _needed_elements(operator: Operator) -> int:
    """What the gradients of weights are made of: what the product read, and its output's gradient."""
    match operator:
        case Matmul():
            return operator.rows * operator.count * (operator.inner + operator.columns)
        case Convolution():
            return operator.input_elements + operator.positions * operator.outputs
        case _:
            return 0


def _gathered_elements(layer: Layer, context: int) -> float:
    """Elements for a sample that tensor-parallel ranks have of a sequence that they share, that ranks have of others' keys and
    values, and that are sent where tokens are exchanged for heads."""
    sent = [one.elements for one in layer.exchanges if (one.op, one.axis) == ("alltoall", "context")]
    gathers = [one for one in layer.exchanges if one.op == "all_gather"]
    tokens = max((one.elements for one in gathers if one.axis in ("tensor", "expert_tensor")), default=0)
    parts = (
        one.elements * (_RING_PARTS / context if one.hidden else _GATHERED_PARTS) for one in gathers if one.axis == "context"
    )
    return tokens + max([*parts, *sent], default=0.0)


def _weights(operator: Operator) -> int:
    match operator:
        case Matmul():
            return operator.columns * operator.inner * operator.count
        case Convolution():
            return operator.weights
        case _:
            return 0


def _moments(layer: Layer, size: int, is_last: bool, loss: Loss) -> Iterator[tuple[float, int]]:
    """Elements of activations' gradients for a sample, and of weights', at moments with all the layer's activations.

    They are there until the first product with weights is passed: what it reads is then let go. An activation at the end of a
    layer that is not the last reads its output again, which the next layer held. Parameters without a product are looked up.
    """
    looked_up = layer.parameters if not any(map(_weights, layer.operators)) else 0
    yield float(layer.output_elements), looked_up
    again = 0
    if not is_last and layer.operators and isinstance(last := layer.operators[-1], MemoryBound):
        again = max(0, min(last.backward_read - last.written, layer.output_elements))
    for index in range(len(layer.operators) - 1, -1, -1):
        operator = layer.operators[index]
        weights = _weights(operator)
        is_loss = isinstance(operator, MemoryBound) and operator.name == _LOSS
        working = working_elements(operator) / 2 * loss.logit_bytes(size)[1] / size if is_loss else working_elements(operator)
        yield working + again, weights
        again = 0
        if weights:
            read = operator.rows * operator.inner if isinstance(operator, Matmul) else 0
            yield max(map(working_elements, layer.operators[:index]), default=0) - read, weights
            break
