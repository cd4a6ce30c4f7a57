"""Bytes of one microbatch in every chunk, for every way to divide and to recompute layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.memory.stage_contents import ChunkContents, ShardedLayers
from scaleproof.simulator.memory.backward_peak import Backward, LayerGroups, Layers, PeakCandidate, layer_groups_of
from scaleproof.simulator.memory.inputs import MemoryInputs
from scaleproof.simulator.memory.stage_layers import StageElements
from scaleproof.simulator.memory.states import Amount, states_of

Bytes = NDArray[np.float64]
Numbers = NDArray[np.int64]
# Representatives of consecutive layers of one kind: the first and the last are next to other kinds, those between are
# equivalent.
_REPRESENTATIVES: Final = 3


class RecomputedLayers(NamedTuple):
    """Layers with a sharding and recomputation. chunks: the parts of the model in each chunk."""

    inputs: MemoryInputs
    division: ShardedLayers
    contents: ChunkContents
    chunks: StageElements

    def alikes(self, shape: _ContentShape) -> LayerGroups:
        """Equal layers of the first of some chunks that have the same kinds of layers."""
        layers, entry, batch = self.contents.all[shape.contents[0]].of(self.division)
        return layer_groups_of(self.inputs, [layers[i] for i in shape.layers], entry, batch)

    def gradients(self, inputs: MemoryInputs) -> tuple[Amount, Amount]:
        """Bytes of gradients that a backward pass makes in each chunk, with fragmentation, and bytes per parameter. inputs: for
        several numbers of workers."""
        sizes = self.chunks.each(lambda one: one[:, None]).sizes
        gradients: Amount = states_of(
            sizes, inputs.training, *inputs.sharing, inputs.gradient_size, inputs.whole_gradients
        ).gradients
        allocated = (1 + inputs.fragmentation_of_gradients) * inputs.gradient_copies * gradients
        return allocated, gradients / np.maximum(1, sizes.parameters)


class MicrobatchColumns(NamedTuple):
    """Columns that describe microbatches: index of the variant of layers, samples, and workers, if these shard what a
    microbatch leaves."""

    variant: Numbers
    samples: Numbers
    workers: Numbers


class _ContentShape(NamedTuple):
    """Chunks that have layers of the same kinds, in different numbers. layers: representatives in the first of these chunks.
    counts: number of layers that each represents, shape (layers, contents)."""

    contents: Numbers
    layers: list[int]
    counts: Numbers


class MicrobatchBytes:
    """Bytes in chunks, with fragmentation, shape (contents, rows of columns).

    kept: activations of a microbatch in flight; left: inputs of its weights' gradients. making, adding: peak of a backward pass
    that is the first to make gradients, or a later one. gradients: that passes make. If gradients are allocated before the
    first pass, making and gradients are 0.
    """

    def __init__(self, variants: Sequence[RecomputedLayers], columns: MicrobatchColumns) -> None:
        size = max(len(variant.contents.all) for variant in variants), len(columns.variant)
        self.kept, self.left, self.making, self.adding, self.gradients = np.zeros((5, *size))
        self._columns, self._gathers = columns, np.zeros(len(columns.variant), dtype=np.bool_)
        self._gradient_bytes = np.full(size, float(variants[0].inputs.size))
        for number, variant in enumerate(variants):
            rows, count = np.flatnonzero(columns.variant == number), len(variant.contents.all)
            inputs = variant.inputs.over(columns.workers[rows], 0.0)
            self._gathers[rows] = inputs.gathers
            if inputs.makes_gradients:
                self.gradients[:count, rows], self._gradient_bytes[:count, rows] = variant.gradients(inputs)
        for shape, alikes in _grouped(variants):
            self._pass(variants[min(alikes)].inputs, shape, alikes)

    def _pass(self, inputs: MemoryInputs, shape: _ContentShape, alikes: Mapping[int, LayerGroups]) -> None:
        """Computes the bytes of chunks of one shape. alikes: equal layers, by index of variant."""
        place = np.full(self._columns.variant.max() + 1, -1)
        place[list(alikes)] = range(len(alikes))
        of_row = place[self._columns.variant]
        rows = np.flatnonzero(of_row >= 0)
        at, share = np.ix_(shape.contents, rows), inputs.fragmentation
        begins = np.cumsum([0, *alikes[min(alikes)].counts[:-1]])
        counts = np.add.reduceat(shape.counts, begins, axis=0)[:, :, None]
        layers = Layers.of([one.layers for one in alikes.values()]).each(of_row[rows])
        each = self._gradient_bytes[at], self._gathers[rows]
        backward = Backward(inputs, layers, counts, self._columns.samples[rows], *each)
        self.kept[at], self.left[at] = (1 + share) * backward.kept, (1 + share) * backward.left
        if inputs.makes_gradients:
            self.making[at] = _peak_bytes(backward.making, share)
        self.adding[at] = _peak_bytes(backward.adding, share)


def _peak_bytes(moments: Iterable[PeakCandidate], share: float) -> Bytes:
    """Maximum over all layers."""
    most: Bytes = np.maximum(*(some.reserved_bytes(share).max(axis=(0, 1)) for some in moments))
    return most


def _grouped(variants: Sequence[RecomputedLayers]) -> Iterable[tuple[_ContentShape, Mapping[int, LayerGroups]]]:
    """Groups of variants whose chunks of one shape can be computed together."""
    shapes: dict[tuple[int, int], list[_ContentShape]] = {}
    found: dict[tuple[object, ...], tuple[_ContentShape, dict[int, LayerGroups]]] = {}
    for number, variant in enumerate(variants):
        inputs = variant.inputs
        most = len(variant.division.layers) if inputs.training.recompute.depends_on_position else _REPRESENTATIVES
        key = id(variant.contents), most
        if key not in shapes:
            shapes[key] = _shapes(variant.contents, most)
        for shape in shapes[key]:
            alikes = variant.alikes(shape)
            passed = id(shape), alikes.counts, id(inputs.software), inputs.splits
            found.setdefault(passed, (shape, {}))[1][number] = alikes
    return found.values()


def _shapes(contents: ChunkContents, most: int) -> list[_ContentShape]:
    """Shapes of chunks. most: number of representatives of consecutive layers of one kind."""
    by_layers: dict[tuple[object, ...], list[int]] = {}
    representatives = [content.representatives(most) for content in contents.all]
    for number, (content, (layers, _)) in enumerate(zip(contents.all, representatives, strict=True)):
        by_layers.setdefault((tuple(content.kinds[i] for i in layers), content.others), []).append(number)
    return [
        _ContentShape(
            np.array(numbers), representatives[numbers[0]][0], np.array([representatives[number][1] for number in numbers]).T
        )
        for numbers in by_layers.values()
    ]
