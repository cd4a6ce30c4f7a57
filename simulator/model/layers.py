"""A layer's costs, what every model family gives, and how layers are cut into pipeline stages."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.spec import Spec
from scaleproof.simulator.model.operators import Exchange, Matmul, Module, Operator, SavedActivation

ContextBy = Literal["ring", "all_gather", "ulysses"]


class Shard(NamedTuple):
    """How layers are divided among ranks that work on the same samples.

    tensor: ranks that share each layer's matrices. sequence: whether they also share what is between the matrices, along the
    sequence (arXiv 2205.05198). expert: ranks that share a mixture's experts. context: ranks that each have a part of every
    sample's tokens, beginnings and ends so that causal attention is balanced. context_by: keys and values pass around a ring
    while attention computes (arXiv 2310.01889), or are gathered before it, or tokens are exchanged for heads before attention
    and back after it (DeepSpeed-Ulysses, arXiv 2309.14509). expert_tensor: the tensor-parallel ranks that share each expert's
    matrices, if they are fewer than all.
    """

    tensor: int = 1
    sequence: bool = False
    expert: int = 1
    context: int = 1
    context_by: ContextBy = "ring"
    expert_tensor: int | None = None


WHOLE: Final = Shard()


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer, the unit in which models are timed and cut; of a sharded model, one rank's share of it.

    name: unique within the model.
    signature: equal for layers that cost the same; the key under which a measured time is found.
    operators: what its forward pass computes for one sample, in order.
    tensors: elements of each parameter tensor, in order of registration; gradient buckets are filled with these.
    output_elements: elements of the activation handed on, for one sample.
    glued: it always shares a stage with its neighbour (embeddings, stems and heads are not cut off on their own).
    kept: activations that the backward pass needs. exchanges: collectives among the ranks that share it.
    inputs: names of the layers whose outputs it reads; the one before it, if None.
    expert_parameters: how many of its parameters are experts', of which expert-parallel ranks have different ones.
    modules: parts of it that can be recomputed alone.
    """

    name: str
    signature: str
    operators: tuple[Operator, ...]
    tensors: tuple[int, ...]
    output_elements: int
    glued: bool = False
    kept: tuple[SavedActivation, ...] = ()
    exchanges: tuple[Exchange, ...] = ()
    inputs: tuple[str, ...] | None = None
    expert_parameters: int = 0
    modules: tuple[Module, ...] = ()

    @property
    def parameters(self) -> int:
        return sum(self.tensors)

    @property
    def forward_flops(self) -> float:
        """FLOPs of the forward pass for one sample (a multiply-add counts as two)."""
        return sum(operator.forward_flops for operator in self.operators)

    @property
    def backward_flops(self) -> float:
        """FLOPs of the backward pass for one sample: the gradients of inputs and of weights."""
        return sum(operator.backward_flops for operator in self.operators)


class ModelSpec(Spec, ABC):
    """A model as users describe it. Subclasses add fields, a `kind` and `build_layers()`."""

    name: str = ""
    description: str = ""

    @abstractmethod
    def build_layers(self, shard: Shard = WHOLE) -> list[Layer]:
        """The model's layers in forward order, as one of the ranks that share them has them.

        Raises FieldError where the model cannot be divided so.
        """

    def parameters(self) -> int:
        return sum(layer.parameters for layer in self.build_layers())


def refuse_to_shard(kind: str, shard: Shard) -> None:
    """Raises FieldError where a model that cannot be divided shall be."""
    for axis, given, none in zip(Shard._fields, shard, WHOLE, strict=True):
        if given != none:
            field = "sequence_parallel" if axis == "sequence" else axis
            raise FieldError(("strategy", field), f"a {kind} is not divided among ranks; leave {field} out")


def copied_weights(layer: Layer, own: Sequence[Layer], everywhere: Sequence[Layer]) -> list[int]:
    """Elements of weights of which a rank with the layers `own` has a copy, since this layer's products take them from a layer
    that another rank has: an output head's that shares the embedding's."""
    here = {tensor for one in own if one.glued for tensor in one.tensors}
    elsewhere = {tensor for one in everywhere if one.glued for tensor in one.tensors} - here
    weights = (operator.columns * operator.inner for operator in layer.operators if isinstance(operator, Matmul))
    return [elements for elements in weights if elements in elsewhere]


def glued_ends(layers: Sequence[Layer]) -> tuple[int, int]:
    """Where the blocks begin and end between the glued layers that lead and trail."""
    first, last = 0, len(layers)
    while first < last and layers[first].glued:
        first += 1
    while last > first and layers[last - 1].glued:
        last -= 1
    return first, last


class Counted(NamedTuple):
    """Which ends of a model count as one of its blocks when these are divided into stages."""

    embedding: bool = False
    loss: bool = False


NOT_COUNTED: Final = Counted()


def cut_into_stages(layers: Sequence[Layer], stages: int, counted: Counted = NOT_COUNTED) -> list[range]:
    """Contiguous layer ranges, one per stage, with block counts that differ by at most one (the first stages get more).

    Leading and trailing glued layers go with the first and the last stage; where these are counted they may be alone there.
    Raises FieldError for more stages than blocks, and where a model has no such ends.
    """
    first, last = glued_ends(layers)
    for end, has in (("embedding", first > 0), ("loss", last < len(layers))):
        if getattr(counted, end) and not has:
            message = f"the model has no {end} apart from its layers; leave it out"
            raise FieldError(("strategy", f"account_for_{end}"), message)
    blocks = last - first
    most = blocks + counted.embedding + counted.loss
    if not 1 <= stages <= most:
        raise FieldError(("strategy", "stages"), f"{stages} stages for {most} layers; give at most {most}")
    each, extra = divmod(most, stages)
    ends = (stage * each + min(stage, extra) - counted.embedding for stage in range(stages + 1))
    bounds = [first + min(max(0, end), blocks) for end in ends]
    bounds[0], bounds[-1] = 0, len(layers)
    return [range(a, b) for a, b in itertools.pairwise(bounds)]
