"""The layers of the model on each pipeline rank, and their sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from scaleproof.simulator.memory.activations import READ
from scaleproof.simulator.memory.states import Amount, StateSizes, sizes
from scaleproof.simulator.model.graph import inputs_of
from scaleproof.simulator.model.layers import Layer, copied_weights
from scaleproof.simulator.model.operators import Matmul, SavedActivation
from scaleproof.simulator.parallelism import Strategy
from scaleproof.simulator.parallelism.replicas import ReplicaStrategy
from scaleproof.simulator.scenario.training import Training
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.pipeline.stage_partition import stage_layers


class RankChunks(NamedTuple):
    """The layers of a rank's chunks, and the input elements of each chunk per sample."""

    chunks: tuple[Sequence[Layer], ...]
    entries: tuple[int, ...]

    @property
    def layers(self) -> list[Layer]:
        """The layers of all chunks."""
        return [layer for chunk in self.chunks for layer in chunk]

    @property
    def key(self) -> tuple[object, ...]:
        """A key that is equal for ranks whose layers consist of the same objects, as repeated blocks do."""
        return self.entries, *((id(layer.operators), id(layer.tensors)) for chunk in self.chunks for layer in chunk)


class StageElements(NamedTuple):
    """Sizes of a rank's part of the model in elements; arrays represent many ranks.

    largest: largest trained tensor. ends: parameters of layers that are pinned to a stage end; blocks: of all other layers;
    block: of the largest of these. products: one trained weight of each shape in blocks. batch_bytes: per sample, live
    throughout a step.
    """

    sizes: StateSizes
    largest: Amount
    ends: Amount
    blocks: Amount
    block: Amount
    products: Amount
    batch_bytes: Amount

    def each(self, change: Callable[[Amount], Amount]) -> StageElements:
        """A copy with `change` applied to each number."""
        return StageElements(StateSizes(*map(change, self.sizes)), *map(change, self[1:]))


def part_of(layers: Sequence[Layer], training: Training, batch_bytes: float = 0.0) -> StageElements:
    """Sizes of some layers of a model. batch_bytes: per sample, live throughout a step."""
    blocks = [layer.parameters for layer in layers if not layer.pinned_to_end]
    distinct = {id(layer.operators): layer.operators for layer in layers if not layer.pinned_to_end}
    operators = (operator for operators in distinct.values() for operator in operators)
    products = (operator for operator in operators if isinstance(operator, Matmul) and operator.weight_gradient)
    own = sizes(layers, training.optimizer)
    return StageElements(
        own,
        max((max(layer.tensors, default=0) for layer in layers), default=0),
        own.parameters - sum(blocks),
        sum(blocks),
        max(blocks, default=0),
        sum(columns * inner for columns, inner in {(product.columns, product.inner) for product in products}),
        batch_bytes,
    )


def together(chunks: StageElements, products: Amount) -> StageElements:
    """Sizes of ranks from those of their chunks, which are in the last axis. products: of the ranks."""
    part = chunks.each(lambda numbers: numbers.sum(axis=-1))
    return part._replace(largest=chunks.largest.max(axis=-1), block=chunks.block.max(axis=-1), products=products)


def batch_of(layers: Sequence[Layer]) -> tuple[SavedActivation, ...]:
    """Activations of the first layer of the model that are live throughout a step: the batch."""
    return tuple(activation for activation in layers[0].kept if activation.name == READ)


def output_elements(chunk: Sequence[Layer], everywhere: Sequence[Layer]) -> int:
    """Elements per sample that a chunk sends to the next one; zero for the last chunk of the model."""
    return 0 if chunk[-1].name == everywhere[-1].name else chunk[-1].output_elements


def owns(strategy: Strategy, job: Job) -> list[RankChunks]:
    """The layers of each rank, including copies of weights that are shared with other ranks."""
    layers, plan = job.layers, strategy.plan
    if isinstance(strategy, ReplicaStrategy):
        ranges = stage_layers(strategy, job)
        by_rank = [[[layers[i] for i in ranges[stage]] for stage in stages] for stages in plan.stage_of]
    else:
        by_rank = [[part] for part in strategy.parts(layers)]
    read = read_elements(layers)
    return [layers_of_rank(chunks, layers, read) for chunks in by_rank]


def read_elements(layers: Sequence[Layer]) -> dict[str, int]:
    """Input elements of each layer per sample, by name; zero for the first layer, which reads the sample itself."""
    elements = {layer.name: layer.output_elements for layer in layers}
    read = {layer.name: sum(elements[name] for name in names) for layer, names in zip(layers, inputs_of(layers), strict=True)}
    return read | {layers[0].name: 0}


def layers_of_rank(chunks: Sequence[Sequence[Layer]], everywhere: Sequence[Layer], read: Mapping[str, int]) -> RankChunks:
    """The layers of one rank, including copies of weights that are shared with other ranks.

    everywhere: all layers of the model; read: input elements by name.
    """
    copied = tuple(_with_copies(chunk, chunks, everywhere) for chunk in chunks)
    return RankChunks(copied, tuple(read[chunk[0].name] for chunk in chunks))


def _with_copies(chunk: Sequence[Layer], chunks: Sequence[Sequence[Layer]], everywhere: Sequence[Layer]) -> Sequence[Layer]:
    last = chunk[-1]
    if not last.pinned_to_end:
        return chunk
    copied = copied_weights(last, [layer for layers in chunks for layer in layers], everywhere)
    return [*chunk[:-1], replace(last, tensors=(*last.tensors, *copied))] if copied else chunk
