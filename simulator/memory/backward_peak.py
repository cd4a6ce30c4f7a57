"""Chunk: consecutive layers of one pipeline rank, and the fullest moment of a microbatch's backward pass over them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.memory.activations import LayerActivations, held, kept, segments
from scaleproof.simulator.memory.inputs import MemoryInputs
from scaleproof.simulator.memory.states import Amount
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import SavedActivation

Bytes = NDArray[np.float64]


class Moment(NamedTuple):
    """Bytes of one microbatch at a moment of its backward pass, by what holds them; logits are among the activations. Of many
    moments where numbers are arrays."""

    gradients: Amount
    activations: Amount
    logits: Amount
    recomputed: Amount
    working: Amount
    communication: Amount

    @property
    def total_bytes(self) -> Amount:
        # the last are the same for many chunks
        return self.gradients + self.activations + (self.recomputed + self.working + self.communication)

    def reserved_bytes(self, fragmentation: float) -> Amount:
        """With what the allocator holds beyond it, as a share of what comes and goes."""
        return (1 + fragmentation) * self.total_bytes - fragmentation * self.communication


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


class EquivalentLayers(NamedTuple):
    """Layers that follow one another and are the same to memory. parameters: of each; behind: of what is cut of the model and
    comes next. entry: elements that come into each for a sample. continues: whether they are made again together, and with the
    layer before them."""

    held: LayerActivations
    parameters: int
    behind: int
    entry: int
    glued: bool
    continues: bool


class Alikes(NamedTuple):
    """A chunk's layers, those that are alike told once, and how many they are."""

    layers: tuple[EquivalentLayers, ...]
    counts: tuple[int, ...]


def chunk_of(
    setting: MemoryInputs,
    layers: Sequence[Layer],
    entry_elements: int,
    gradient_bytes: float,
    batch: Sequence[SavedActivation] = (),
) -> Chunk:
    """Of `layers`, into which `entry_elements` come for a sample. gradient_bytes: of a parameter, as the pass leaves them.
    batch: what the first layer keeps that is there throughout the step."""
    alikes = alikes_of(setting, layers, entry_elements, batch)
    each = Layers.of([alikes.layers]), np.array(alikes.counts)[:, None], setting.samples, gradient_bytes, setting.gathers
    backward = Backward(setting, *each)
    kept_bytes, logits_bytes, left_bytes = (sums.item() for sums in (backward.kept, backward.logits, backward.left))
    making, adding = (_fullest(moments, setting.fragmentation) for moments in (backward.making, backward.adding))
    return Chunk(kept_bytes, logits_bytes, left_bytes, making, adding)


def _fullest(moments: Sequence[Moment], fragmentation: float) -> Moment:
    """With what the allocator holds beyond it."""
    reserved = [some.reserved_bytes(fragmentation) for some in moments]
    number = int(np.argmax([some.max() for some in reserved]))
    at = np.unravel_index(reserved[number].argmax(), reserved[number].shape)
    return Moment(*(float(np.broadcast_to(one, reserved[number].shape)[at]) for one in moments[number]))


def alikes_of(
    setting: MemoryInputs, layers: Sequence[Layer], entry_elements: int, batch: Sequence[SavedActivation] = ()
) -> Alikes:
    """Layers that are made of the same, at the same place, are asked once."""
    known: dict[tuple[object, ...], EquivalentLayers] = setting.alike
    recompute = setting.training.recompute
    concerned = recompute.concerned(layers)
    continues = [one == before for before, one in itertools.pairwise([-1, *segments(layers, recompute).tolist()])]
    entries = [entry_elements, *(layer.output_elements for layer in layers[:-1])]
    behind = [*(0 if layer.glued else layer.parameters for layer in layers[1:]), 0]

    def each() -> Iterator[EquivalentLayers]:
        for number, layer in enumerate(layers):
            without, is_last = batch if number == 0 else (), number == len(layers) - 1
            alike = id(layer.operators), id(layer.kept), id(layer.tensors), id(layer.exchanges)
            key = (
                *alike,
                layer.glued,
                concerned[number],
                continues[number],
                entries[number],
                behind[number],
                bool(without),
                is_last,
            )
            if key not in known:
                own = whole = layer.kept
                if concerned[number]:
                    own = kept(layer, recompute, not continues[number], entries[number])
                own, whole = (tuple(one for one in some if one not in without) for some in (own, whole))
                again = continues[number] and recompute.kind == "full"
                row = held(layer, own, whole, is_last, setting)
                known[key] = EquivalentLayers(row, layer.parameters, behind[number], entries[number], layer.glued, again)
            yield known[key]

    groups = [(alike, len(list(group))) for alike, group in itertools.groupby(each())]
    return Alikes(tuple(alike for alike, _ in groups), tuple(count for _, count in groups))


class Layers(NamedTuple):
    """A chunk's layers as arrays, of many ways to train them in the last axis. numbers: all that `EquivalentLayers` has, of
    `LayerActivations` what is
    for a sample, shape (10, layers, ways). moments: as in `LayerActivations`, shape (2, moments, layers, ways)."""

    numbers: NDArray[np.float64]
    moments: NDArray[np.float64]

    @classmethod
    def of(cls, ways: Sequence[Sequence[EquivalentLayers]]) -> Layers:
        """As many layers in each."""
        numbers = np.array([[(*one.held[:5], *one[1:]) for one in layers] for layers in ways], dtype=np.float64)
        most = max(len(one.held.moments) for layers in ways for one in layers)
        moments = [[(one.held.moments * most)[:most] for one in layers] for layers in ways]
        return cls(numbers.T, np.array(moments, dtype=np.float64).T)

    def each(self, ways: NDArray[np.int64]) -> Layers:
        """The way of each row, for columns of chunks."""
        return Layers(self.numbers[..., None, ways], self.moments[..., None, ways])

    def working_elements(self, samples: Amount) -> NDArray[np.float64]:
        """Of activations' gradients for one sample, and of weights', at the fullest moment with so many samples."""
        moments = self.moments.swapaxes(0, 1)
        fullest: NDArray[np.float64] = moments[0]
        for moment in moments[1:]:
            is_fuller = samples * moment[0] + moment[1] > samples * fullest[0] + fullest[1]
            fullest = np.where(is_fuller, moment, fullest)
        return fullest


class Backward:
    """A backward pass over one microbatch, of many chunks of the same layers: from the last to the first.

    counts: how many there are of each of `layers`. samples: of a microbatch; gradient_bytes: of a parameter; gathers: whether
    layers are gathered. All of chunks in the last axes; bytes are in arrays of shape (layers, first and last, chunks), where
    they are not the same for some.
    Before a layer is reached its activations and those of the layers before it are held, after it those of the layers before
    it and the gradients of its parameters. Between layers that are alike all this goes up or down evenly: the fullest moment is
    one of the two, for the first or the last of them.

    kept, logits, left: in sums. making, adding: as in `Chunk`, at all moments before and after a layer.
    """

    def __init__(
        self, setting: MemoryInputs, layers: Layers, counts: NDArray[np.int64], samples: Amount, gradient_bytes: Amount,
        gathers: Amount,
    ) -> None:  # fmt: skip
        numbers = layers.numbers[:, :, None]
        kept, logits, again, left, gathered = numbers[:5] * samples
        parameters, behind, entry, glued, continues = numbers[5:]
        working, weights = layers.working_elements(samples)[:, :, None]
        self.setting, self.counts = setting, counts[:, None]
        self.gradients = gradient_bytes * parameters
        self.first_gradients = gradient_bytes * np.minimum(parameters, weights)
        if setting.software.stand_ins:
            self.first_gradients = self.first_gradients * glued
        self.kept, self.logits, self.left = ((self.counts * own).sum(axis=(0, 1)) for own in (kept, logits, left))
        scattered, scattered_after = self._scattered(parameters, behind, glued, gathers)
        sample_bytes = setting.size * samples
        held, held_logits = self._before(kept), self._before(logits)
        missing = self._behind(left) if setting.splits else 0.0
        self.at = Moment(
            0.0, held + kept + missing, held_logits + logits, self._made_again(again, continues), sample_bytes * working,
            gathered + scattered,
        )  # fmt: skip
        missing = missing + left if setting.splits else 0.0
        self.after = Moment(0.0, held + missing, held_logits, 0.0, sample_bytes * entry, scattered_after)

    @cached_property
    def making(self) -> tuple[Moment, Moment]:
        if self.setting.splits:
            return self.adding
        behind = self._behind(self.gradients)
        return self.at._replace(gradients=behind + self.first_gradients), self.after._replace(gradients=behind + self.gradients)

    @cached_property
    def adding(self) -> tuple[Moment, Moment]:
        # where gradients of weights come later there are none
        first = 0.0 if self.setting.splits else self.first_gradients
        return self.at._replace(working=self.at.working + first), self.after

    def _before(self, own: Bytes) -> Bytes:
        """Sums over all layers that come before; of nothing nothing."""
        if not own.any():
            return own
        total = self.counts * own
        first = np.cumsum(total, axis=0) - total
        return np.concatenate([first, first + (self.counts - 1) * own], axis=1)

    def _behind(self, own: Bytes) -> Bytes:
        """Sums over all layers that come after; of nothing nothing."""
        if not own.any():
            return own
        total = self.counts * own
        last = np.cumsum(total[::-1], axis=0)[::-1] - total
        return np.concatenate([last + (self.counts - 1) * own, last], axis=1)

    def _made_again(self, again: Bytes, continues: Bytes) -> Bytes:
        """What was dropped is made again for one layer, or for some, of which the layers already passed are done with."""
        if not continues.any():
            return again
        each, *chunks = np.broadcast_shapes(again.shape, self.counts.shape)[1:]
        result = np.empty((len(again), 2 * each, *chunks))
        before = np.zeros(chunks)
        for number, (own, counts, goes_on) in enumerate(zip(again[:, 0], self.counts[:, 0], continues[:, 0], strict=True)):
            result[number] = before * goes_on + own, before * goes_on + np.where(goes_on, counts, 1) * own
            before = result[number, 1]
        return result

    def _scattered(self, parameters: Bytes, behind: Bytes, glued: Bytes, gathers: Amount) -> tuple[Amount, Amount]:
        """Whole gradients on their way to who has which part: of a layer, and of the one behind it, which goes out meanwhile
        (PyTorch's FSDP). Those of what is glued wait for the end of the pass, since that was gathered together."""
        if not np.any(gathers):
            return 0.0, 0.0
        setting, ends = self.setting, glued * parameters
        moving = (setting.size + setting.reduced_size) * (parameters - ends) + setting.reduced_size * behind
        scattered = gathers * (moving + setting.size * self._behind(ends))
        return scattered, scattered + gathers * setting.size * ends
