"""Held: bytes of one microbatch in every chunk that comes up, for every way to divide and to make layers again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.memory.stage_contents import Contents, Division
from scaleproof.simulator.memory.backward_peak import Alikes, Backward, Layers, Moment, alikes_of
from scaleproof.simulator.memory.inputs import MemoryInputs
from scaleproof.simulator.memory.stage_layers import StageElements
from scaleproof.simulator.memory.states import Amount, states_of

Bytes = NDArray[np.float64]
Numbers = NDArray[np.int64]
# Of layers of a kind in a row the first and the last are next to others; those between are alike.
_TOLD: Final = 3


class LayerDivision(NamedTuple):
    """How layers are divided and made again. chunks: what of the model contents have."""

    setting: MemoryInputs
    division: Division
    contents: Contents
    chunks: StageElements

    def alikes(self, shape: _ContentShape) -> Alikes:
        """Of the first of contents that have the same layers."""
        layers, entry, batch = self.contents.all[shape.contents[0]].of(self.division)
        return alikes_of(self.setting, [layers[i] for i in shape.layers], entry, batch)

    def gradients(self, setting: MemoryInputs) -> tuple[Amount, Amount]:
        """That a pass makes in each of the contents, with what the allocator holds beyond, and of a parameter. setting: for
        many numbers of workers."""
        sizes = self.chunks.each(lambda one: one[:, None]).sizes
        gradients: Amount = states_of(
            sizes, setting.training, *setting.sharing, setting.gradient_size, setting.whole_gradients
        ).gradients
        held = (1 + setting.fragmentation_of_gradients) * setting.gradient_copies * gradients
        return held, gradients / np.maximum(1, sizes.parameters)


class Columns(NamedTuple):
    """What microbatches are like: number of the way, samples, and workers, where what they leave is shared out by them."""

    way: Numbers
    samples: Numbers
    workers: Numbers


class _ContentShape(NamedTuple):
    """Contents that have layers of the same kinds, more of them or fewer. layers: numbers in the first of these, by which all
    are told. counts: how many each stands for, shape (layers, contents)."""

    contents: Numbers
    layers: list[int]
    counts: Numbers


class MicrobatchBytes:
    """Bytes in chunks, with what the allocator holds beyond, shape (contents, rows of columns).

    kept, left: of each microbatch in flight. making, adding: at the fullest moment of its backward pass. gradients: that passes
    make. Where they are made before the first pass, making and gradients are 0.
    """

    def __init__(self, ways: Sequence[LayerDivision], columns: Columns) -> None:
        size = max(len(way.contents.all) for way in ways), len(columns.way)
        self.kept, self.left, self.making, self.adding, self.gradients = np.zeros((5, *size))
        self._columns, self._gathers = columns, np.zeros(len(columns.way), dtype=np.bool_)
        self._gradient_bytes = np.full(size, float(ways[0].setting.size))
        for number, way in enumerate(ways):
            rows, count = np.flatnonzero(columns.way == number), len(way.contents.all)
            setting = way.setting.over(columns.workers[rows], 0.0)
            self._gathers[rows] = setting.gathers
            if setting.makes_gradients:
                self.gradients[:count, rows], self._gradient_bytes[:count, rows] = way.gradients(setting)
        for shape, alikes in _together(ways):
            self._pass(ways[min(alikes)].setting, shape, alikes)

    def _pass(self, setting: MemoryInputs, shape: _ContentShape, alikes: Mapping[int, Alikes]) -> None:
        """alikes: of each of some ways, by number."""
        place = np.full(self._columns.way.max() + 1, -1)
        place[list(alikes)] = range(len(alikes))
        of_row = place[self._columns.way]
        rows = np.flatnonzero(of_row >= 0)
        at, share = np.ix_(shape.contents, rows), setting.fragmentation
        begins = np.cumsum([0, *alikes[min(alikes)].counts[:-1]])
        counts = np.add.reduceat(shape.counts, begins, axis=0)[:, :, None]
        layers = Layers.of([one.layers for one in alikes.values()]).each(of_row[rows])
        each = self._gradient_bytes[at], self._gathers[rows]
        backward = Backward(setting, layers, counts, self._columns.samples[rows], *each)
        self.kept[at], self.left[at] = (1 + share) * backward.kept, (1 + share) * backward.left
        if setting.makes_gradients:
            self.making[at] = _most(backward.making, share)
        self.adding[at] = _most(backward.adding, share)


def _most(moments: Iterable[Moment], share: float) -> Bytes:
    """Of all layers."""
    most: Bytes = np.maximum(*(some.reserved_bytes(share).max(axis=(0, 1)) for some in moments))
    return most


def _together(ways: Sequence[LayerDivision]) -> Iterable[tuple[_ContentShape, Mapping[int, Alikes]]]:
    """Passes over as many layers in some of the ways."""
    shapes: dict[tuple[int, int], list[_ContentShape]] = {}
    found: dict[tuple[object, ...], tuple[_ContentShape, dict[int, Alikes]]] = {}
    for number, way in enumerate(ways):
        setting = way.setting
        most = len(way.division.layers) if setting.training.recompute.by_place else _TOLD
        key = id(way.contents), most
        if key not in shapes:
            shapes[key] = _shapes(way.contents, most)
        for shape in shapes[key]:
            alikes = way.alikes(shape)
            passed = id(shape), alikes.counts, id(setting.software), setting.splits
            found.setdefault(passed, (shape, {}))[1][number] = alikes
    return found.values()


def _shapes(contents: Contents, most: int) -> list[_ContentShape]:
    """most: layers of a kind that are told of those that follow one another."""
    alike: dict[tuple[object, ...], list[int]] = {}
    told = [content.told(most) for content in contents.all]
    for number, (content, (layers, _)) in enumerate(zip(contents.all, told, strict=True)):
        alike.setdefault((tuple(content.kinds[i] for i in layers), content.beside), []).append(number)
    return [
        _ContentShape(np.array(numbers), told[numbers[0]][0], np.array([told[number][1] for number in numbers]).T)
        for numbers in alike.values()
    ]
