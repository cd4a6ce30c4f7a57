"""Own: which layers of the model each pipeline rank has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from scaleproof.simulator.memory.activations import READ
from scaleproof.simulator.memory.states import Amount, StateSizes, sizes
from scaleproof.simulator.model.graph import inputs_of
from scaleproof.simulator.model.layers import Layer, copied_weights
from scaleproof.simulator.model.operators import Matmul, SavedActivation
from scaleproof.simulator.scenario.schema import Training
from scaleproof.simulator.strategy import Strategy
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.replica_strategy import Replicated


class Own(NamedTuple):
    """What a rank has of the model: the layers of its chunks, and elements that come into each of them for a sample."""

    chunks: tuple[Sequence[Layer], ...]
    entries: tuple[int, ...]

    @property
    def layers(self) -> list[Layer]:
        return [layer for chunk in self.chunks for layer in chunk]

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for ranks whose layers are made of the same objects, as repeated blocks are."""
        return self.entries, *((id(layer.operators), id(layer.tensors)) for chunk in self.chunks for layer in chunk)


class StageElements(NamedTuple):
    """What a rank has of the model, in elements; arrays, where it is of many ranks.

    largest: of the tensors. ends: parameters of what is glued, blocks: of all else, block: of the largest layer of it.
    products: one weight of each shape that blocks have. batch_bytes: of a sample, there throughout a step.
    """

    sizes: StateSizes
    largest: Amount
    ends: Amount
    blocks: Amount
    block: Amount
    products: Amount
    batch_bytes: Amount

    def each(self, change: Callable[[Amount], Amount]) -> StageElements:
        """With every number changed."""
        return StageElements(StateSizes(*map(change, self.sizes)), *map(change, self[1:]))


def part_of(layers: Sequence[Layer], training: Training, batch_bytes: float = 0.0) -> StageElements:
    """What some of a model's layers hold, for batches of `batch_bytes`."""
    blocks = [layer.parameters for layer in layers if not layer.glued]
    made = {id(layer.operators): layer.operators for layer in layers if not layer.glued}
    products = (one for operators in made.values() for one in operators if isinstance(one, Matmul))
    own = sizes(layers, training.optimizer)
    return StageElements(
        own,
        max((max(layer.tensors, default=0) for layer in layers), default=0),
        own.parameters - sum(blocks),
        sum(blocks),
        max(blocks, default=0),
        sum(columns * inner for columns, inner in {(one.columns, one.inner) for one in products}),
        batch_bytes,
    )


def together(chunks: StageElements, products: Amount) -> StageElements:
    """Of ranks whose chunks are in the last axis."""
    part = chunks.each(lambda one: one.sum(axis=-1))
    return part._replace(largest=chunks.largest.max(axis=-1), block=chunks.block.max(axis=-1), products=products)


def batch_of(layers: Sequence[Layer]) -> tuple[SavedActivation, ...]:
    """What the first layer of the model keeps that is there throughout a step."""
    return tuple(one for one in layers[0].kept if one.name == READ)


def output_elements(chunk: Sequence[Layer], everywhere: Sequence[Layer]) -> int:
    """Of a sample, that go out of a chunk to another."""
    return 0 if chunk[-1].name == everywhere[-1].name else chunk[-1].output_elements


def owns(strategy: Strategy, job: Job) -> list[Own]:
    """Each rank's, with copies of weights that another has too."""
    layers, plan = job.layers, strategy.plan
    if isinstance(strategy, Replicated):
        ranges = strategy.ranges(job)
        of_rank = [[[layers[i] for i in ranges[stage]] for stage in stages] for stages in plan.stage_of]
    else:
        of_rank = [[part] for part in strategy.parts(job)]
    read = read_elements(layers)
    return [own_of(chunks, layers, read) for chunks in of_rank]


def read_elements(layers: Sequence[Layer]) -> dict[str, int]:
    """Of what each layer reads for a sample, by names; nothing, where it reads the sample itself."""
    elements = {layer.name: layer.output_elements for layer in layers}
    read = {layer.name: sum(elements[name] for name in names) for layer, names in zip(layers, inputs_of(layers), strict=True)}
    return read | {layers[0].name: 0}


def own_of(chunks: Sequence[Sequence[Layer]], everywhere: Sequence[Layer], read: Mapping[str, int]) -> Own:
    """Of one rank, with copies of weights that another has too. everywhere: all layers, which `read` so much."""
    copied = tuple(_with_copies(chunk, chunks, everywhere) for chunk in chunks)
    return Own(copied, tuple(read[chunk[0].name] for chunk in chunks))


def _with_copies(chunk: Sequence[Layer], chunks: Sequence[Sequence[Layer]], everywhere: Sequence[Layer]) -> Sequence[Layer]:
    last = chunk[-1]
    if not last.glued:
        return chunk
    copied = copied_weights(last, [layer for one in chunks for layer in one], everywhere)
    return [*chunk[:-1], replace(last, tensors=(*last.tensors, *copied))] if copied else chunk
