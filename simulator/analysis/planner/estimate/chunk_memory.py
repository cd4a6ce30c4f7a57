"""Bytes of one microbatch in every chunk of pipeline ranks, for every way to divide and to recompute layers, once for all
chunks with equal contents."""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.memory.activations import LayerActivations, size_bytes
from scaleproof.simulator.memory.inputs import Amount, MemoryInputs
from scaleproof.simulator.memory.layers import LayerGroups, LayerSizes, grouped, layer_sizes
from scaleproof.simulator.memory.peak import ChunkTimeline
from scaleproof.simulator.memory.ranks import RankChunks, batch_of, layers_of_rank, output_elements, read_elements
from scaleproof.simulator.memory.static import StageElements, StateSizes, part_of, states_of, together
from scaleproof.simulator.model.layers import NOT_COUNTED, Counted, Layer, cut_into_stages
from scaleproof.simulator.model.operators import SavedActivation
from scaleproof.simulator.parallelism.stages import ScheduleName, stage_of

Bytes = NDArray[np.float64]
Numbers = NDArray[np.int64]
# Representatives of consecutive layers of one kind: the first and the last are next to other kinds, those between are
# equivalent.
_REPRESENTATIVES: Final = 3


class ShardedLayers:
    """A model's layers with one sharding."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers, self.read = layers, read_elements(layers)
        made = [
            (
                id(layer.operators),
                id(layer.kept),
                id(layer.tensors),
                id(layer.exchanges),
                layer.output_elements,
                layer.pinned_to_end,
            )
            for layer in layers
        ]
        firsts = {one: number for number, one in reversed(list(enumerate(made)))}
        # for each layer, the first that consists of the same objects
        self.kinds = tuple(firsts[one] for one in made)

    @property
    def pattern(self) -> tuple[object, ...]:
        """Equal for divisions in which the same layers are equal."""
        return self.kinds, tuple(layer.pinned_to_end for layer in self.layers)

    def own(self, rank: Sequence[range]) -> RankChunks:
        """Part of the model of a rank with these layers in its chunks."""
        return layers_of_rank([[self.layers[i] for i in chunk] for chunk in rank], self.layers, self.read)


class ChunkContent(NamedTuple):
    """Content of a chunk. rank: layers in all chunks of its rank; number: index of the chunk among them. kinds: of its layers.
    others: what else distinguishes chunks. ends: elements per sample received and sent. is_first: whether it reads samples.
    copies: whether it has copies of weights that another rank has too."""

    rank: tuple[range, ...]
    number: int
    kinds: tuple[int, ...]
    others: tuple[object, ...]
    ends: tuple[int, int]
    is_first: bool
    copies: bool

    def of(self, division: ShardedLayers) -> tuple[Sequence[Layer], int, tuple[SavedActivation, ...]]:
        """Its layers, elements that it receives, and activations of its first layer that are allocated throughout a step."""
        layers: Sequence[Layer] = [division.layers[i] for i in self.rank[self.number]]
        if self.copies:
            layers = division.own(self.rank).chunks[self.number]
        return layers, 0 if self.is_first else division.read[layers[0].name], batch_of(layers) if self.is_first else ()

    def representatives(self, most: int) -> tuple[list[int], list[int]]:
        """Layers that represent all of them, at most `most` of consecutive layers of one kind, and how many each represents:
        the one in the middle represents those that are left out."""
        layers: list[int] = []
        stand_for, end = list[int](), 0
        for _, group in itertools.groupby(self.kinds):
            run = len(list(group))
            representative = min(run, most)
            layers += range(end, end + representative)
            stand_for += [1 + run - representative if i == representative // 2 else 1 for i in range(representative)]
            end += run
        return layers, stand_for


class RankKind(NamedTuple):
    """Equivalent ranks. contents: of their chunks, by number; first: the first of these ranks."""

    contents: tuple[int, ...]
    first: int
    number: int


class ChunkContents:
    """All contents of chunks and kinds of ranks that occur, of divisions in which the same layers are equal."""

    def __init__(self, division: ShardedLayers, counted: Counted) -> None:
        self.division, self.counted = division, counted
        self.all: list[ChunkContent] = []
        self.kinds: dict[tuple[bool, tuple[int, ...]], int] = {}
        self._numbers: dict[tuple[object, ...], int] = {}
        self._cuts: dict[tuple[object, ...], list[list[RankKind]]] = {}

    def ranks(self, schedule: ScheduleName, stages: int, chunks: int) -> list[list[RankKind]]:
        """Ranks of each kind, in order."""
        places = tuple(tuple(stage_of(schedule, stages, rank, chunk) for chunk in range(chunks)) for rank in range(stages))
        if places not in self._cuts:
            self._cuts[places] = self._ranks(places)
        return self._cuts[places]

    def _ranks(self, places: Sequence[Sequence[int]]) -> list[list[RankKind]]:
        count = sum(map(len, places))
        stages = cut_into_stages(self.division.layers, count, self.counted if count > 1 else NOT_COUNTED)
        found: dict[int, list[RankKind]] = {}
        for number, own in enumerate(places):
            contents = self._contents(tuple(stages[stage] for stage in own), number == 0)
            kind = self.kinds.setdefault((number == 0, contents), len(self.kinds))
            found.setdefault(kind, []).append(RankKind(contents, number, kind))
        return list(found.values())

    def _contents(self, rank: tuple[range, ...], is_first: bool) -> tuple[int, ...]:
        own, layers, result = self.division.own(rank), self.division.layers, []
        for number, (chunk, entry, place) in enumerate(zip(own.chunks, own.entries, rank, strict=True)):
            copies = chunk[-1] is not layers[place[-1]]
            kinds = tuple(self.division.kinds[i] for i in place)
            begins = is_first and number == 0
            ends = entry, output_elements(chunk, layers)
            others = (ends, begins, chunk[-1].tensors if copies else ())
            key = (kinds, others)
            if key not in self._numbers:
                self._numbers[key] = len(self.all)
                self.all.append(ChunkContent(rank, number, kinds, others, ends, begins, copies))
            result.append(self._numbers[key])
        return tuple(result)

    def parts(self, division: ShardedLayers, inputs: MemoryInputs) -> tuple[StageElements, StageElements]:
        """Parts of the model in each chunk, and on each kind of rank, as arrays."""
        layers, chunks, batch_bytes = dict[tuple[int, int, bool], Layer](), list[list[tuple[int, int, bool]]](), list[float]()
        for content in self.all:
            own, _, batch = content.of(division)
            chunks.append([(id(layer.operators), id(layer.tensors), layer.pinned_to_end) for layer in own])
            layers.update(zip(chunks[-1], own, strict=True))
            batch_bytes.append(size_bytes(batch, inputs.size))
        number = {made: number for number, made in enumerate(layers)}
        of_layers = _stacked([part_of([one], inputs.training) for one in layers.values()])
        members = [[number[made] for made in chunk] for chunk in chunks]
        of_chunks = together(_members(of_layers, members), np.zeros(len(chunks)))
        of_chunks = of_chunks._replace(batch_bytes=np.array(batch_bytes, dtype=np.float64))
        of_ranks = _members(of_chunks, [contents for _, contents in self.kinds])
        return of_chunks, together(of_ranks, self._products(division, inputs))

    def ends(self, division: ShardedLayers) -> Numbers:
        """Elements per sample that each chunk receives, and sends, shape (2, contents)."""
        found = [content.of(division)[:2] for content in self.all]
        ends = [(entry, output_elements(layers, division.layers)) for layers, entry in found]
        return np.array(ends, dtype=np.int64).T

    def _products(self, division: ShardedLayers, inputs: MemoryInputs) -> NDArray[np.float64]:
        """Elements of one weight of each distinct shape, by kind of rank."""
        known: dict[frozenset[int], float] = {}
        result = []
        for _, contents in self.kinds:
            kinds = frozenset(kind for number in contents for kind in self.all[number].kinds)
            if kinds not in known:
                known[kinds] = part_of([division.layers[kind] for kind in kinds], inputs.training).products
            result.append(known[kinds])
        return np.array(result, dtype=np.float64)


def _stacked(parts: Sequence[StageElements]) -> StageElements:
    sizes = np.array([part.sizes for part in parts], dtype=np.float64).T
    return StageElements(StateSizes(*sizes), *np.array([part[1:] for part in parts], dtype=np.float64).T)


def _members(parts: StageElements, members: Sequence[Sequence[int]]) -> StageElements:
    """Sums' members in the last axis, padded with zeros."""
    most, none = max(map(len, members)), len(parts.largest)
    at = np.array([[*some, *[none] * (most - len(some))] for some in members])
    return parts.each(lambda one: np.append(one, 0.0)[at])


class RecomputedLayers(NamedTuple):
    """Layers with a sharding and recomputation. chunks: the parts of the model in each chunk."""

    inputs: MemoryInputs
    division: ShardedLayers
    contents: ChunkContents
    chunks: StageElements

    def equal_layers(self, shape: _ContentShape) -> LayerGroups:
        """Equal layers of the first of some chunks that have the same kinds of layers."""
        layers, entry, batch = self.contents.all[shape.contents[0]].of(self.division)
        return grouped(layer_sizes(self.inputs, [layers[i] for i in shape.layers], entry, batch))

    def gradient_bytes(self, inputs: MemoryInputs) -> Amount:
        """Bytes per parameter of gradients that a backward pass makes in each chunk. inputs: for several numbers of workers."""
        sizes = self.chunks.each(lambda one: one[:, None]).sizes
        gradients: Amount = states_of(
            sizes, inputs.training, *inputs.sharing, inputs.gradient_size, inputs.whole_gradients
        ).gradients
        return gradients / np.maximum(1, sizes.trained)


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
    """Bytes in chunks, with fragmentation: by column of `FullestPasses`, arrays of shape (contents, rows of columns)."""

    def __init__(self, variants: Sequence[RecomputedLayers], microbatches: MicrobatchColumns) -> None:
        size = max(len(variant.contents.all) for variant in variants), len(microbatches.variant)
        self.by_column: dict[str, Bytes] = defaultdict(lambda: np.zeros(size))
        self._microbatches, self._gathers = microbatches, np.zeros(len(microbatches.variant), dtype=np.bool_)
        self._gradient_bytes = np.full(size, float(variants[0].inputs.parameter_size))
        for number, variant in enumerate(variants):
            rows, count = np.flatnonzero(microbatches.variant == number), len(variant.contents.all)
            inputs = variant.inputs.over(microbatches.workers[rows], 0.0)
            self._gathers[rows] = inputs.gathers
            if inputs.makes_gradients:
                self._gradient_bytes[:count, rows] = variant.gradient_bytes(inputs)
        for shape, groups in _grouped(variants):
            self._pass(variants[min(groups)].inputs, shape, groups)

    def _pass(self, inputs: MemoryInputs, shape: _ContentShape, groups: Mapping[int, LayerGroups]) -> None:
        """Computes the bytes of chunks of one shape. groups: equal layers, by index of variant."""
        place = np.full(self._microbatches.variant.max() + 1, -1)
        place[list(groups)] = range(len(groups))
        of_row = place[self._microbatches.variant]
        rows = np.flatnonzero(of_row >= 0)
        at = np.ix_(shape.contents, rows)
        begins = np.cumsum([0, *groups[min(groups)].counts[:-1]])
        counts = np.add.reduceat(shape.counts, begins, axis=0)[:, :, None]
        samples, gradient_bytes, gathers = self._microbatches.samples[rows], self._gradient_bytes[at], self._gathers[rows]
        layers = [
            sizes.bytes(inputs, samples, gradient_bytes, gathers, count)
            for sizes, count in zip(_of_rows([one.layers for one in groups.values()], of_row[rows]), counts, strict=True)
        ]
        timeline = ChunkTimeline.of(layers, inputs.weights, inputs.makes, inputs.splits)
        for name, live in timeline.passes.items():
            self.by_column[name][at] = functools.reduce(np.maximum, live)
        for name, change in timeline.changes.items():
            self.by_column[name][at] = change


def _of_rows(ways: Sequence[Sequence[LayerSizes]], of_row: Numbers) -> list[LayerSizes]:
    """Sizes of layers as arrays of rows, each of which trains them in one of some ways. of_row: the way of each row."""
    result = []
    for layers in zip(*ways, strict=True):
        most = max(len(layer.activations.moments) for layer in layers)
        moments = np.array([(layer.activations.moments * most)[:most] for layer in layers], dtype=np.float64)[of_row]
        kept, logits, again, left, gathered, *others = np.array(
            [(*layer.activations[:-1], *layer[1:-1]) for layer in layers], dtype=np.float64
        )[of_row].T
        pairs = tuple((working, weights) for working, weights in moments.transpose(1, 2, 0))
        activations = LayerActivations(kept, logits, again, left, gathered, pairs)
        parameters, entry, pinned_to_end = others
        result.append(LayerSizes(activations, parameters, entry, pinned_to_end, layers[0].continues))
    return result


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
            groups = variant.equal_layers(shape)
            continues = tuple(layer.continues for layer in groups.layers)
            passed = id(shape), groups.counts, continues, id(inputs.software), inputs.splits
            found.setdefault(passed, (shape, {}))[1][number] = groups
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
