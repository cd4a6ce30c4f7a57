"""Own: which layers of the model each pipeline rank has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from simulator.model.graph import inputs_of
from simulator.model.layers import Layer, copied_weights
from simulator.strategy import Strategy
from simulator.strategy.costs import Job
from simulator.strategy.replicated import Replicated


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


def owns(strategy: Strategy, job: Job) -> list[Own]:
    """Each rank's, with copies of weights that another has too."""
    layers, plan = job.layers, strategy.plan
    if isinstance(strategy, Replicated):
        ranges = strategy.ranges(job)
        of_rank = [[[layers[i] for i in ranges[stage]] for stage in stages] for stages in plan.stage_of]
    else:
        of_rank = [[part] for part in strategy.parts(job)]
    elements = {layer.name: layer.output_elements for layer in layers}
    read = {layer.name: sum(elements[name] for name in names) for layer, names in zip(layers, inputs_of(layers), strict=True)}
    read[of_rank[0][0][0].name] = 0
    return [
        Own(
            tuple(_with_copies(chunk, chunks, layers) for chunk in chunks) if plan.stages > 1 else tuple(chunks),
            tuple(read[chunk[0].name] for chunk in chunks),
        )
        for chunks in of_rank
    ]


def _with_copies(chunk: Sequence[Layer], chunks: Sequence[Sequence[Layer]], everywhere: Sequence[Layer]) -> Sequence[Layer]:
    last = chunk[-1]
    if not last.glued:
        return chunk
    copied = copied_weights(last, [layer for one in chunks for layer in one], everywhere)
    return [*chunk[:-1], replace(last, tensors=(*last.tensors, *copied))] if copied else chunk
