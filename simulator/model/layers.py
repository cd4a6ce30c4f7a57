"""Layers and their costs, the base class of model families, and the division of layers into pipeline stages, with the
activations that pass between them."""

from __future__ import annotations

import functools
import itertools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.spec import Spec
from scaleproof.simulator.model.operators import Exchange, Matmul, Module, Operator, SavedActivation, is_added
from scaleproof.simulator.model.recommender.lookups import RowTable
from scaleproof.simulator.model.recommender.placement import Tables

ContextBy = Literal["ring", "all_gather", "ulysses"]


class Shard(NamedTuple):
    """How layers are divided among ranks that work on the same samples.

    tensor: number of ranks that share each layer's matrices. sequence: whether they also divide the activations between the
    matrices, along the sequence (arXiv 2205.05198). expert: number of ranks that share a mixture's experts. context: number of
    ranks that share the tokens of every sample, balanced for causal attention. context_by: keys and values pass around a ring
    while attention computes (arXiv 2310.01889), or are gathered before it, or tokens are exchanged for heads before attention
    and back after it (DeepSpeed-Ulysses, arXiv 2309.14509). expert_tensor: number of tensor-parallel ranks that share each
    expert's matrices, if not all do. regathers: whether the backward pass gathers sequences again that the forward
    pass gathered. repeats_keys: whether context-parallel ranks repeat keys and values to the number of query heads before
    they exchange them. deduplicated: whether a token is sent once to each rank with some of its experts, and copied there.
    tables: how embedding tables are divided over `workers` data-parallel workers; each has all if None.
    """

    tensor: int = 1
    sequence: bool = False
    expert: int = 1
    context: int = 1
    context_by: ContextBy = "ring"
    expert_tensor: int | None = None
    regathers: bool = True
    repeats_keys: bool = False
    deduplicated: bool = False
    tables: Tables | None = None
    workers: int = 1


WHOLE: Final = Shard()


@dataclass(frozen=True)
class Layer:
    """A layer, the unit in which models are timed and divided into stages; one rank's share of it if the model is sharded.

    Families of transformers put layers together from parts: layers without a name, whose sum is a layer.

    name: unique within the model.
    signature: equal for layers of equal cost; the key of measured times.
    operators: operators of the forward pass for one sample, in order.
    tensors: elements of each trained parameter tensor, in order of registration, in which gradient buckets are filled.
    frozen_parameters: number of parameters that are not trained: without gradients, optimizer states or sums.
    frozen_bytes: their bytes, if their elements do not have the size of trained ones.
    output_elements: elements of the output activation of one sample.
    pinned_to_end: whether it is pinned to the end of a stage, next to its neighbour (embeddings, stems and heads).
    kept: activations that are kept for the backward pass. exchanges: collectives among the ranks that share the layer.
    inputs: names of the layers whose outputs it reads; the previous layer if None.
    expert_parameters: number of its parameters that belong to experts and differ between expert-parallel ranks.
    modules: parts of it that can be recomputed alone.
    table_bytes: of its embedding tables that are divided over workers, with optimizer states, on the device of the worker with
    the most; lookups train them. host_table_bytes: those on its host. row_tables: those among its tensors.
    """

    name: str = ""
    signature: str = ""
    operators: tuple[Operator, ...] = ()
    tensors: tuple[int, ...] = ()
    output_elements: int = 0
    pinned_to_end: bool = False
    kept: tuple[SavedActivation, ...] = ()
    exchanges: tuple[Exchange, ...] = ()
    inputs: tuple[str, ...] | None = None
    expert_parameters: int = 0
    modules: tuple[Module, ...] = ()
    frozen_parameters: int = 0
    frozen_bytes: float | None = None
    table_bytes: float = 0.0
    host_table_bytes: float = 0.0
    row_tables: tuple[RowTable, ...] = ()

    def __add__(self, other: Layer) -> Layer:
        """This part, followed by another one."""
        before = len(self.operators), len(self.kept), len(self.exchanges)
        return Layer(
            operators=self.operators + other.operators,
            tensors=self.tensors + other.tensors,
            kept=self.kept + other.kept,
            exchanges=self.exchanges + other.exchanges,
            expert_parameters=self.expert_parameters + other.expert_parameters,
            modules=self.modules + tuple(module.shifted(*before) for module in other.modules),
            table_bytes=self.table_bytes + other.table_bytes,
            host_table_bytes=self.host_table_bytes + other.host_table_bytes,
            row_tables=self.row_tables
            + tuple(table._replace(tensor=table.tensor + len(self.tensors)) for table in other.row_tables),
        )

    def module(
        self, name: str, operators: Collection[str] | None = None, kept: Collection[str] | None = None, exchanges: bool = True
    ) -> Layer:
        """This part, marked as a module that can be recomputed alone.

        operators, kept: names of the recomputed operators and of the activations that then need not be kept; all if None.
        exchanges: whether the part's collectives belong to the module.
        """
        module = Module(
            name,
            tuple(i for i, operator in enumerate(self.operators) if operators is None or operator.name in operators),
            tuple(i for i, activation in enumerate(self.kept) if kept is None or activation.name in kept),
            tuple(range(len(self.exchanges) if exchanges else 0)),
        )
        return replace(self, modules=(*self.modules, module))

    def named(
        self,
        name: str,
        signature: str,
        output_elements: int,
        *,
        pinned_to_end: bool = False,
        inputs: tuple[str, ...] | None = None,
    ) -> Layer:
        """The layer that consists of this part."""
        return replace(
            self, name=name, signature=signature, output_elements=output_elements, pinned_to_end=pinned_to_end, inputs=inputs
        )

    @functools.cached_property
    def parameters(self) -> int:
        """Number of parameters, frozen ones included."""
        return self.trained_parameters + self.frozen_parameters

    @functools.cached_property
    def trained_parameters(self) -> int:
        """Number of parameters that have gradients."""
        return sum(self.tensors)

    @functools.cached_property
    def full_parameters(self) -> int:
        """Number of parameters whose elements have the size of trained ones."""
        return self.trained_parameters + (self.frozen_parameters if self.frozen_bytes is None else 0)

    @property
    def without_frozen(self) -> Layer:
        """The layer with its trained parameters alone."""
        return replace(self, frozen_parameters=0, frozen_bytes=None)

    def parameter_bytes(self, element_bytes: float) -> float:
        """Bytes of all parameters. element_bytes: of an element of trained ones."""
        return self.full_parameters * element_bytes + (self.frozen_bytes or 0.0)

    def gathered_elements(self, element_bytes: float) -> int:
        """Number of elements of a size with the bytes of all parameters, if trained ones have that size."""
        return self.full_parameters + round((self.frozen_bytes or 0.0) / element_bytes)

    @functools.cached_property
    def has_backward(self) -> bool:
        """Whether it has a backward pass: for gradients of its own parameters, or of those of an earlier layer."""
        return bool(self.tensors) or any(operator.has_backward for operator in self.operators)

    @functools.cached_property
    def is_frozen(self) -> bool:
        """Whether its own parameters are frozen; those of adapters may be trained."""
        products = (operator for operator in self.operators if not is_added(operator))
        return self.frozen_parameters > 0 and not any(operator.trained_weights for operator in products)

    @functools.cached_property
    def can_be_recomputed(self) -> bool:
        """Whether it is a block whose backward pass reads activations."""
        return not self.pinned_to_end and self.has_backward

    @functools.cached_property
    def forward_flops(self) -> float:
        """FLOPs of the forward pass for one sample (a multiply-add counts as two)."""
        return sum(operator.forward_flops for operator in self.operators)

    @functools.cached_property
    def backward_flops(self) -> float:
        """FLOPs of the backward pass for one sample: the gradients of inputs and of weights that are needed."""
        return sum(operator.backward_flops for operator in self.operators)


class ModelSpec(Spec, ABC):
    """A model as users describe it. Subclasses add fields, a `kind` and `build_layers()`."""

    name: str = ""
    description: str = ""

    @abstractmethod
    def build_layers(self, shard: Shard = WHOLE) -> list[Layer]:
        """The layers in forward order, with the share of one of the ranks. Raises FieldError if the model cannot be divided
        so."""

    def parameters(self) -> int:
        """Number of parameters of the whole model."""
        return sum(layer.parameters for layer in self.build_layers())


def has_operator(model: ModelSpec, words: str) -> bool:
    """Whether the name of an operator or of a kept activation of the model contains some words."""
    return any(words in one.name for layer in model.build_layers() for one in (*layer.operators, *layer.kept))


def kind_of(model: ModelSpec) -> str:
    """The kind of a model, as scenarios name it."""
    return str(type(model).model_fields["kind"].default)


def refuse_to_shard(kind: str, shard: Shard) -> None:
    """Raises FieldError if `shard` divides a model of a kind that cannot be divided."""
    for axis, given, undivided in zip(Shard._fields, shard, WHOLE, strict=True):
        if given != undivided:
            field = "sequence_parallel" if axis == "sequence" else axis
            raise FieldError(("strategy", field), f"a {kind} cannot be divided among ranks; leave {field} out")


def copied_weights(layer: Layer, own: Sequence[Layer], everywhere: Sequence[Layer]) -> list[int]:
    """Elements of the weights that a rank with the layers `own` has a copy of, since this layer shares them with a layer of
    another rank: those of an output head that shares the embedding's weights. everywhere: all layers of the model."""
    here = {tensor for end in own if end.pinned_to_end for tensor in end.tensors}
    elsewhere = {tensor for end in everywhere if end.pinned_to_end for tensor in end.tensors} - here
    weights = (operator.columns * operator.inner for operator in layer.operators if isinstance(operator, Matmul))
    return [elements for elements in weights if elements in elsewhere]


def with_frozen_copy(layer: Layer, own: Sequence[Layer]) -> Layer:
    """The layer with a copy of the frozen weights that its output head shares with a layer of another rank. own: layers of the
    rank."""
    products = (operator for operator in layer.operators if isinstance(operator, Matmul) and operator.name == "head")
    needed = sum(product.weights for product in products if not product.weight_gradient)
    if needed <= sum(end.parameters for end in own if end.pinned_to_end):
        return layer
    size_bytes = None
    if layer.frozen_bytes is not None:
        size_bytes = layer.frozen_bytes * (1 + needed / layer.frozen_parameters)
    return replace(layer, frozen_parameters=layer.frozen_parameters + needed, frozen_bytes=size_bytes)


def block_range(layers: Sequence[Layer]) -> tuple[int, int]:
    """Begin and end of the blocks between the leading and trailing layers that are pinned to a stage's end."""
    first, last = 0, len(layers)
    while first < last and layers[first].pinned_to_end:
        first += 1
    while last > first and layers[last - 1].pinned_to_end:
        last -= 1
    return first, last


class Counted(NamedTuple):
    """Ends of a model that count as a block when blocks are divided into stages."""

    embedding: bool = False
    loss: bool = False


NOT_COUNTED: Final = Counted()


def cut_into_stages(layers: Sequence[Layer], stages: int, counted: Counted = NOT_COUNTED) -> list[range]:
    """Contiguous layer ranges, one per stage, with block counts that differ by at most one (the first stages get more).

    Layers before and after the blocks belong to the first and the last stage; if they are counted they may be alone there.
    Raises FieldError for more stages than blocks, and for a counted end that the model does not have.
    """
    first, last = block_range(layers)
    for end, exists in (("embedding", first > 0), ("loss", last < len(layers))):
        if getattr(counted, end) and not exists:
            message = f"the model has no separate {end} layer; leave it out"
            raise FieldError(("strategy", f"account_for_{end}"), message)
    blocks = last - first
    total = blocks + counted.embedding + counted.loss
    if not 1 <= stages <= total:
        raise FieldError(("strategy", "stages"), f"{stages} stages for {total} layers; give at most {total}")
    per_stage, extra = divmod(total, stages)
    ends = (stage * per_stage + min(stage, extra) - counted.embedding for stage in range(stages + 1))
    bounds = [first + min(max(0, end), blocks) for end in ends]
    bounds[0], bounds[-1] = 0, len(layers)
    return [range(a, b) for a, b in itertools.pairwise(bounds)]


def inputs_of(layers: Sequence[Layer]) -> list[tuple[str, ...]]:
    """Names of the layers whose outputs each layer reads; empty for a layer that reads only input data."""
    return [
        layer.inputs if layer.inputs is not None else (previous.name,) if previous else ()
        for previous, layer in zip([None, *layers[:-1]], layers, strict=True)
    ]


def boundary_elements(layers: Sequence[Layer]) -> list[int]:
    """Elements per sample of the boundary activations behind each layer, which later layers read. Each activation counts
    once."""
    number = {layer.name: i for i, layer in enumerate(layers)}
    last_reader = list(range(len(layers)))
    for reader, inputs in enumerate(inputs_of(layers)):
        for name in inputs:
            last_reader[number[name]] = max(last_reader[number[name]], reader)
    change = [0] * (len(layers) + 1)
    for i, layer in enumerate(layers):
        change[i] += layer.output_elements
        change[last_reader[i]] -= layer.output_elements
    return list(itertools.accumulate(change[:-1]))


def owners_of(layers: Sequence[Layer]) -> dict[int, int]:
    """For each layer that shares another's weights, the number of that layer, by the layer's number.

    A layer without weights of its own shares those of the layer with the same signature: the first those of the first, and so
    on.
    """
    owners: dict[str, list[int]] = {}
    for i, layer in enumerate(layers):
        if layer.parameters:
            owners.setdefault(layer.signature, []).append(i)
    shared: dict[int, int] = {}
    count: Counter[str] = Counter()
    for i, layer in enumerate(layers):
        if not layer.parameters and layer.signature in owners:
            candidates = owners[layer.signature]
            shared[i] = candidates[count[layer.signature] % len(candidates)]
            count[layer.signature] += 1
    return shared
