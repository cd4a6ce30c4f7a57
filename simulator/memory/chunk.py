"""Chunk: consecutive layers of one pipeline rank, and the fullest moment of a microbatch's backward pass over them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.memory.activations import Held, held, kept, kept_of_every_second, segments
from simulator.memory.setting import Setting
from simulator.model.layers import Layer
from simulator.model.operators import Kept

Bytes = NDArray[np.float64]


class Moment(NamedTuple):
    """Bytes of one microbatch at a moment of its backward pass, by what holds them; logits are among the activations."""

    gradients: float
    activations: float
    logits: float
    recomputed: float
    working: float
    communication: float

    @property
    def total_bytes(self) -> float:
        return sum(self) - self.logits

    def reserved_bytes(self, fragmentation: float) -> float:
        """With what the allocator holds beyond it, as a share of what comes and goes."""
        return self.total_bytes + fragmentation * (self.total_bytes - self.communication)


@dataclass(frozen=True)
class Chunk:
    """kept_bytes: of each microbatch in flight, logits_bytes of them. left_bytes: the same once gradients of weights alone are
    missing.

    making: the fullest moment where the pass makes gradients; adding: where there are gradients, to which it adds.
    """

    kept_bytes: float
    logits_bytes: float
    left_bytes: float
    making: Moment
    adding: Moment


class Alike(NamedTuple):
    """Layers that follow one another and are the same to memory. parameters: of each; behind: of what is cut of the model and
    comes next. entry: elements that come into each for a sample. continues: whether they are made again together, and with the
    layer before them."""

    held: Held
    parameters: int
    behind: int
    entry: int
    glued: bool
    continues: bool


class Alikes(NamedTuple):
    """A chunk's layers, those that are alike told once, and how many they are."""

    layers: tuple[Alike, ...]
    counts: tuple[int, ...]


def chunk_of(
    setting: Setting, layers: Sequence[Layer], entry_elements: int, gradient_bytes: float, batch: Sequence[Kept] = ()
) -> Chunk:
    """Of `layers`, into which `entry_elements` come for a sample. gradient_bytes: of a parameter, as the pass leaves them.
    batch: what the first layer keeps that is there throughout the step."""
    alikes = alikes_of(setting, layers, entry_elements, batch)
    each = np.array([setting.samples]), np.array([gradient_bytes]), np.array([setting.gathers])
    backward = Backward(setting, alikes.layers, np.array(alikes.counts)[:, None], *each)
    kept_bytes, logits_bytes, left_bytes = (sums.item() for sums in backward.sums)
    making, adding = (Moment(*moments[:, 0].tolist()) for moments in (backward.making, backward.adding))
    return Chunk(kept_bytes, logits_bytes, left_bytes, making, adding)


def alikes_of(setting: Setting, layers: Sequence[Layer], entry_elements: int, batch: Sequence[Kept] = ()) -> Alikes:
    """Layers that are made of the same, at the same place, are asked once."""
    known: dict[tuple[object, ...], Alike] = setting.alike
    recompute = setting.training.recompute
    continues = (np.diff(segments(layers, recompute), prepend=-1) == 0).tolist()
    entries = [entry_elements, *(layer.output_elements for layer in layers[:-1])]
    behind = [*(0 if layer.glued else layer.parameters for layer in layers[1:]), 0]

    def each() -> Iterator[Alike]:
        for number, layer in enumerate(layers):
            without, is_last = batch if number == 0 else (), number == len(layers) - 1
            alike = id(layer.operators), id(layer.kept), id(layer.tensors), id(layer.exchanges)
            key = (*alike, layer.glued, continues[number], entries[number], behind[number], bool(without), is_last)
            if key not in known:
                own, whole = _keeps(setting, layer, not continues[number], entries[number]), layer.kept
                own, whole = (tuple(one for one in some if one not in without) for some in (own, whole))
                again = continues[number] and recompute.kind == "full"
                row = held(layer, own, whole, is_last, setting)
                known[key] = Alike(row, layer.parameters, behind[number], entries[number], layer.glued, again)
            yield known[key]

    groups = [(alike, len(list(group))) for alike, group in itertools.groupby(each())]
    return Alikes(tuple(alike for alike, _ in groups), tuple(count for _, count in groups))


def _keeps(setting: Setting, layer: Layer, first: bool, entry_elements: int) -> tuple[Kept, ...]:
    recompute = setting.training.recompute
    if setting.software.products == "every second" and recompute.kind == "none":
        return kept_of_every_second(layer)
    return kept(layer, recompute, first, entry_elements)


class Backward:
    """A backward pass over one microbatch, of many chunks of the same layers: from the last to the first.

    counts: how many there are of each of `alikes`, shape (alikes, chunks). samples: of a microbatch; gradient_bytes: of a
    parameter; gathers: whether layers are gathered; shape (chunks,).
    Before a layer is reached its activations and those of the layers before it are held, after it those of the layers before
    it and the gradients of its parameters. Between layers that are alike all this goes up or down evenly: the fullest moment is
    one of the two, for the first or the last of them. Bytes are in arrays of shape (alikes, first and last, chunks).

    sums: kept, logits of them, and left, shape (3, chunks). making, adding: as in `Chunk`, shape (holders, chunks).
    """

    def __init__(
        self, setting: Setting, alikes: Sequence[Alike], counts: NDArray[np.int64], samples: Bytes, gradient_bytes: Bytes,
        gathers: NDArray[np.bool_],
    ) -> None:  # fmt: skip
        self.setting, self.alikes, self.counts, self.gathers = setting, alikes, counts, gathers
        per_sample = np.array([[*one.held[:5], setting.size * one.entry] for one in alikes]).T[:, :, None, None]
        kept, logits, again, left, gathered, entry = per_sample * samples
        working, weights = np.array([one.held.working_elements(samples) for one in alikes]).transpose(1, 0, 2)[:, :, None]
        self.glued = np.array([one.glued for one in alikes])[:, None, None]
        self.parameters = np.array([float(one.parameters) for one in alikes])[:, None, None]
        stands_in = setting.software.stand_ins & ~self.glued
        self.gradients = gradient_bytes * self.parameters
        self.first_gradients = np.where(stands_in, 0, gradient_bytes * np.minimum(self.parameters, weights))
        self.sums = (counts * np.stack([kept, logits, left])[:, :, 0]).sum(axis=1)
        self.held = np.zeros((6, 2, len(alikes), 2, len(samples)))
        self._hold(kept, logits, left)
        self.held[3, 0] = self._made_again(again)
        self.held[4, 0], self.held[4, 1] = samples * setting.size * working, entry
        self.held[5] = self._scattered()
        self.held[5, 0] += gathered

    @cached_property
    def making(self) -> Bytes:
        if self.setting.splits:
            return self.adding
        behind, held = self._behind(self.gradients), self.held.copy()
        held[0] = behind + self.first_gradients, behind + self.gradients
        return self._fullest(held)

    @cached_property
    def adding(self) -> Bytes:
        held = self.held.copy()
        if not self.setting.splits:
            # else gradients of weights come later
            held[4, 0] += self.first_gradients
        return self._fullest(held)

    def _hold(self, kept: Bytes, logits: Bytes, left: Bytes) -> None:
        for holder, own in ((1, kept), (2, logits)):
            before = self._before(own)
            self.held[holder] = before + own, before
        if self.setting.splits:
            behind = self._behind(left)
            self.held[1] += behind, behind + left

    def _fullest(self, held: Bytes) -> Bytes:
        """With what the allocator holds beyond it."""
        moments = held.reshape(6, -1, held.shape[-1])
        at = np.argmax(Moment(*moments).reserved_bytes(self.setting.fragmentation), axis=0)
        return np.take_along_axis(moments, at[None, None], axis=1)[:, 0]

    def _before(self, own: Bytes) -> Bytes:
        """Sums over all layers that come before."""
        total = self.counts * own[:, 0]
        first = np.cumsum(total, axis=0) - total
        return np.stack([first, first + (self.counts - 1) * own[:, 0]], axis=1)

    def _behind(self, own: Bytes) -> Bytes:
        """Sums over all layers that come after."""
        total = self.counts * own[:, 0]
        last = np.cumsum(total[::-1], axis=0)[::-1] - total
        return np.stack([last + (self.counts - 1) * own[:, 0], last], axis=1)

    def _made_again(self, again: Bytes) -> Bytes:
        """What was dropped is made again for one layer, or for some, of which the layers already passed are done with."""
        result = np.repeat(again, 2, axis=1)
        for number, one in enumerate(self.alikes):
            if one.continues:
                before, own = result[number - 1, 1], again[number, 0]
                result[number] = before + own, before + self.counts[number] * own
        return result

    def _scattered(self) -> Bytes:
        """Whole gradients on their way to who has which part: of a layer, and of the one behind it, which goes out meanwhile
        (PyTorch's FSDP). Those of what is glued wait for the end of the pass, since that was gathered together."""
        setting = self.setting
        blocks, ends = np.where(self.glued, 0, self.parameters), np.where(self.glued, self.parameters, 0)
        behind = np.array([float(one.behind) for one in self.alikes])[:, None, None]
        moving = (setting.size + setting.gradient_size) * blocks + setting.gradient_size * behind
        waiting = setting.size * self._behind(ends)
        scattered: Bytes = self.gathers * np.stack([moving + waiting, moving + waiting + setting.size * ends])
        return scattered
