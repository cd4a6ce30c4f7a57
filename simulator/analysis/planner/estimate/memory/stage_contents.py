"""Contents: what pipeline ranks have of a model, told once for all that are alike, however its layers are divided."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.memory.activations import size_bytes
from scaleproof.simulator.memory.inputs import MemoryInputs
from scaleproof.simulator.memory.stage_layers import (
    Own,
    StageElements,
    batch_of,
    output_elements,
    own_of,
    part_of,
    read_elements,
    together,
)
from scaleproof.simulator.memory.states import StateSizes
from scaleproof.simulator.model.layers import NOT_COUNTED, Counted, Layer, cut_into_stages
from scaleproof.simulator.model.operators import SavedActivation
from scaleproof.simulator.strategy.pipeline.schedule import ScheduleName, stage_of

Numbers = NDArray[np.int64]


class Division:
    """A model's layers, as ranks have them that divide them in some way."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers, self.read = layers, read_elements(layers)
        made = [
            (id(layer.operators), id(layer.kept), id(layer.tensors), id(layer.exchanges), layer.output_elements, layer.glued)
            for layer in layers
        ]
        firsts = {one: number for number, one in reversed(list(enumerate(made)))}
        # of each layer, the first that is made of the same
        self.kinds = tuple(firsts[one] for one in made)

    @property
    def pattern(self) -> tuple[object, ...]:
        """Equal for divisions that leave the same layers alike."""
        return self.kinds, tuple(layer.glued for layer in self.layers)

    def own(self, rank: Sequence[range]) -> Own:
        """Of a rank with these layers in its chunks."""
        return own_of([[self.layers[i] for i in chunk] for chunk in rank], self.layers, self.read)


class Content(NamedTuple):
    """What a chunk has. rank: layers in the chunks of the rank, of which it is one by `number`. kinds: of its layers. beside:
    what else tells chunks apart. ends: elements of a sample that come in and go out. is_first: whether samples come in. copies:
    whether it has copies of weights that another rank has too."""

    rank: tuple[range, ...]
    number: int
    kinds: tuple[int, ...]
    beside: tuple[object, ...]
    ends: tuple[int, int]
    is_first: bool
    copies: bool

    def of(self, division: Division) -> tuple[Sequence[Layer], int, tuple[SavedActivation, ...]]:
        """Its layers, elements that come into it, and what the first of them keeps that is there throughout a step."""
        layers: Sequence[Layer] = [division.layers[i] for i in self.rank[self.number]]
        if self.copies:
            layers = division.own(self.rank).chunks[self.number]
        return layers, 0 if self.is_first else division.read[layers[0].name], batch_of(layers) if self.is_first else ()

    def told(self, most: int) -> tuple[list[int], list[int]]:
        """Layers by which all are told, `most` of those of a kind that follow one another; and how many each stands for, itself
        beside others of its kind that have others before and behind."""
        layers: list[int] = []
        stand_for, end = list[int](), 0
        for _, group in itertools.groupby(self.kinds):
            run = len(list(group))
            told = min(run, most)
            layers += range(end, end + told)
            stand_for += [1 + run - told if i == told // 2 else 1 for i in range(told)]
            end += run
        return layers, stand_for


class RankKind(NamedTuple):
    """Ranks that are alike. contents: of their chunks, by number; first: of these ranks."""

    contents: tuple[int, ...]
    first: int
    number: int


class Contents:
    """All chunks and kinds of ranks that come up, of divisions that leave the same layers alike."""

    def __init__(self, division: Division, counted: Counted) -> None:
        self.division, self.counted = division, counted
        self.all: list[Content] = []
        self.kinds: dict[tuple[bool, tuple[int, ...]], int] = {}
        self._numbers: dict[tuple[object, ...], int] = {}
        self._cuts: dict[tuple[object, ...], list[list[RankKind]]] = {}

    def ranks(self, schedule: ScheduleName, stages: int, chunks: int) -> list[list[RankKind]]:
        """Ranks of each kind, the first of them first."""
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
            beside = (ends, begins, chunk[-1].tensors if copies else ())
            key = (kinds, beside)
            if key not in self._numbers:
                self._numbers[key] = len(self.all)
                self.all.append(Content(rank, number, kinds, beside, ends, begins, copies))
            result.append(self._numbers[key])
        return tuple(result)

    def parts(self, division: Division, setting: MemoryInputs) -> tuple[StageElements, StageElements]:
        """What each chunk has of the model, and each kind of ranks: arrays."""
        layers, chunks, batch_bytes = dict[tuple[int, int, bool], Layer](), list[list[tuple[int, int, bool]]](), list[int]()
        for content in self.all:
            own, _, batch = content.of(division)
            chunks.append([(id(layer.operators), id(layer.tensors), layer.glued) for layer in own])
            layers.update(zip(chunks[-1], own, strict=True))
            batch_bytes.append(size_bytes(batch, setting.size))
        number = {made: number for number, made in enumerate(layers)}
        of_layers = _stacked([part_of([one], setting.training) for one in layers.values()])
        members = [[number[made] for made in chunk] for chunk in chunks]
        of_chunks = together(_members(of_layers, members), np.zeros(len(chunks)))
        of_chunks = of_chunks._replace(batch_bytes=np.array(batch_bytes, dtype=np.float64))
        of_ranks = _members(of_chunks, [contents for _, contents in self.kinds])
        return of_chunks, together(of_ranks, self._products(division, setting))

    def ends(self, division: Division) -> Numbers:
        """Elements of a sample that come into each chunk, and that go out, shape (2, contents)."""
        found = [content.of(division)[:2] for content in self.all]
        ends = [(entry, output_elements(layers, division.layers)) for layers, entry in found]
        return np.array(ends, dtype=np.int64).T

    def _products(self, division: Division, setting: MemoryInputs) -> NDArray[np.float64]:
        """Of each kind of ranks: of a shape that several chunks have one counts."""
        known: dict[frozenset[int], float] = {}
        result = []
        for _, contents in self.kinds:
            kinds = frozenset(kind for number in contents for kind in self.all[number].kinds)
            if kinds not in known:
                known[kinds] = part_of([division.layers[kind] for kind in kinds], setting.training).products
            result.append(known[kinds])
        return np.array(result, dtype=np.float64)


def _stacked(parts: Sequence[StageElements]) -> StageElements:
    sizes = np.array([part.sizes for part in parts], dtype=np.float64).T
    return StageElements(StateSizes(*sizes), *np.array([part[1:] for part in parts], dtype=np.float64).T)


def _members(parts: StageElements, members: Sequence[Sequence[int]]) -> StageElements:
    """Of each the members, in the last axis."""
    most, none = max(map(len, members)), len(parts.largest)
    at = np.array([[*some, *[none] * (most - len(some))] for some in members])
    return parts.each(lambda one: np.append(one, 0.0)[at])
