"""Held: bytes of one microbatch in every chunk that comes up, for every way to divide and to make layers again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.estimate.contents import Contents, Division
from simulator.memory.chunk import Backward, Moment, alikes_of
from simulator.memory.own import Part
from simulator.memory.setting import Setting
from simulator.memory.states import states_of

Bytes = NDArray[np.float64]
Numbers = NDArray[np.int64]
# Of layers of a kind in a row the first and the last are next to others; those between are alike.
_TOLD: Final = 3


@dataclass(frozen=True)
class Way:
    """How layers are divided and made again. chunks: what of the model contents have."""

    setting: Setting
    division: Division
    contents: Contents
    chunks: Part


class Columns(NamedTuple):
    """What microbatches are like: number of the way, samples, and workers, where what they leave is shared out by them."""

    way: Numbers
    samples: Numbers
    workers: Numbers


class _Shape(NamedTuple):
    """Contents that have layers of the same kinds, more of them or fewer. layers: numbers in the first of these, by which all
    are told. counts: how many each stands for, shape (layers, contents)."""

    contents: Numbers
    layers: list[int]
    counts: Numbers


class Held:
    """Bytes in chunks, by indices as `at` has them.

    kept, left: of each microbatch in flight. making, adding: at the fullest moment of its backward pass, with what the
    allocator holds beyond. gradients: that passes make. Where they are made before the first pass, making and gradients are 0.
    """

    def __init__(self, ways: Sequence[Way], columns: Columns, used: NDArray[np.bool_]) -> None:
        """used: which contents come up, shape (rows of columns, contents)."""
        self._at = np.cumsum(used).reshape(used.shape) - 1
        self.kept, self.left, self.making, self.adding, self.gradients = np.zeros((5, int(used.sum())))
        shapes: dict[tuple[int, int], list[_Shape]] = {}
        for number, way in enumerate(ways):
            rows = np.flatnonzero(columns.way == number)
            most = _TOLD if way.setting.training.recompute.every == 1 else len(way.division.layers)
            key = id(way.contents), most
            if key not in shapes:
                shapes[key] = _shapes(way.contents, most)
            for shape in shapes[key]:
                row, which = np.nonzero(used[np.ix_(rows, shape.contents)])
                if len(row):
                    self._pass(way, shape, which, rows[row], columns)

    def at(self, row: Numbers, content: int) -> Numbers:
        at: Numbers = self._at[row, content]
        return at

    def _pass(self, way: Way, shape: _Shape, which: Numbers, row: Numbers, columns: Columns) -> None:
        setting, samples = way.setting, columns.samples[row].astype(np.float64)
        content, share = shape.contents[which], setting.fragmentation
        at, each = self._at[row, content], np.full(len(row), float(setting.size))
        if setting.makes_gradients:
            setting = setting.over(columns.workers[row], 0.0)
            sizes = way.chunks.each(lambda one: one[content]).sizes
            gradients = states_of(sizes, setting.training, *setting.sharing, setting.plan.gradient_bytes).gradients
            self.gradients[at], each = gradients * setting.gradient_copies, gradients / np.maximum(1, sizes.parameters)
        layers, entry, batch = way.contents.all[shape.contents[0]].of(way.division)
        alikes = alikes_of(way.setting, [layers[i] for i in shape.layers], entry, batch)
        begins = np.cumsum([0, *alikes.counts[:-1]])
        counts = np.add.reduceat(shape.counts, begins, axis=0)[:, which]
        backward = Backward(setting, alikes.layers, counts, samples, each, np.broadcast_to(setting.gathers, row.shape))
        self.kept[at], _, self.left[at] = backward.sums
        if setting.makes_gradients:
            self.making[at] = Moment(*backward.making).reserved_bytes(share)
        self.adding[at] = Moment(*backward.adding).reserved_bytes(share)


def _shapes(contents: Contents, most: int) -> list[_Shape]:
    """most: layers of a kind that are told of those that follow one another."""
    alike: dict[tuple[object, ...], list[int]] = {}
    told = [content.told(most) for content in contents.all]
    for number, (content, (layers, _)) in enumerate(zip(contents.all, told, strict=True)):
        alike.setdefault((tuple(content.kinds[i] for i in layers), content.beside), []).append(number)
    return [
        _Shape(np.array(numbers), told[numbers[0]][0], np.array([told[number][1] for number in numbers]).T)
        for numbers in alike.values()
    ]
