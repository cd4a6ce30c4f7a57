"""Chunk: consecutive layers of one pipeline rank, and the fullest moment of a microbatch's backward pass over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.memory.activations import Held, held, kept, kept_of_every_second, segments, sums_within
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


def chunk_of(
    setting: Setting, layers: Sequence[Layer], entry_elements: int, gradient_bytes: float, batch: Sequence[Kept] = ()
) -> Chunk:
    """Of `layers`, into which `entry_elements` come for a sample. gradient_bytes: of a parameter, as the pass leaves them.
    batch: what the first layer keeps that is there throughout the step."""
    return _Backward(setting, layers, entry_elements, gradient_bytes, batch).chunk()


class _Backward:
    """A backward pass over one microbatch: layers from the last to the first, bytes in arrays of shape (layers,).

    Before a layer is reached its activations and those of the layers before it are held, after it those of the layers before
    it and the gradients of its parameters. The fullest moment is one of the two, for one of the layers.
    """

    def __init__(
        self, setting: Setting, layers: Sequence[Layer], entry_elements: int, gradient_bytes: float, batch: Sequence[Kept]
    ) -> None:
        self.setting = setting
        segment = segments(layers, setting.training.recompute)
        first = np.diff(segment, prepend=-1) > 0
        entries = [entry_elements, *(layer.output_elements for layer in layers[:-1])]
        rows = self._rows(layers, first.tolist(), entries, batch)
        self.kept, self.logits, again, self.left, self.working, self.gathered, weights = np.array(rows).T
        # what was dropped is made again for one layer, or for a segment, of which the layers already passed are done with
        self.again = sums_within(again, segment) if setting.training.recompute.kind == "full" else again
        self.parameters = np.array([float(layer.parameters) for layer in layers])
        self.glued = np.array([layer.glued for layer in layers])
        self.gradients = gradient_bytes * self.parameters
        first_weights = np.minimum(self.parameters, weights)
        self.first_gradients = gradient_bytes * np.where(setting.software.stand_ins & ~self.glued, 0, first_weights)
        self.entry = setting.samples * setting.size * np.array([float(one) for one in entries])

    def _rows(
        self, layers: Sequence[Layer], first: Sequence[bool], entries: Sequence[int], batch: Sequence[Kept]
    ) -> list[Held]:
        """Layers that are made of the same, at the same place, are asked once."""
        setting, known, rows = self.setting, dict[tuple[object, ...], Held](), []
        for number, layer in enumerate(layers):
            is_first, is_last = number == 0, number == len(layers) - 1
            alike = id(layer.operators), id(layer.kept), id(layer.tensors), id(layer.exchanges)
            key = (*alike, first[number], entries[number], is_first, is_last)
            if key not in known:
                own, whole = self._keeps(layer, first[number], entries[number]), layer.kept
                if is_first:
                    own, whole = (tuple(one for one in each if one not in batch) for each in (own, whole))
                known[key] = held(layer, own, whole, is_last, setting)
            rows.append(known[key])
        return rows

    def _keeps(self, layer: Layer, first: bool, entry_elements: int) -> tuple[Kept, ...]:
        recompute = self.setting.training.recompute
        if self.setting.software.products == "every second" and recompute.kind == "none":
            return kept_of_every_second(layer)
        return kept(layer, recompute, first, entry_elements)

    def chunk(self) -> Chunk:
        nothing = np.zeros_like(self.gradients)
        behind = _behind(self.gradients)
        if self.setting.splits:
            # gradients of weights come later
            making = adding = self._fullest(nothing, nothing, nothing)
        else:
            making = self._fullest(behind + self.first_gradients, behind + self.gradients, nothing)
            adding = self._fullest(nothing, nothing, self.first_gradients)
        return Chunk(float(self.kept.sum()), float(self.logits.sum()), float(self.left.sum()), making, adding)

    def _fullest(self, before: Bytes, after: Bytes, added: Bytes) -> Moment:
        """before, after: gradients that are there as a layer is reached, and once it is passed. added: those that are made
        meanwhile, and then added to others."""
        nothing, held_before = np.zeros_like(self.kept), np.cumsum(self.kept) - self.kept
        activations = np.concatenate([held_before + self.kept, held_before])
        if self.setting.splits:
            activations = activations + np.concatenate([_behind(self.left), _behind(self.left) + self.left])
        moments = np.array(
            [
                np.concatenate([before, after]),
                activations,
                np.concatenate([np.cumsum(self.logits), np.cumsum(self.logits) - self.logits]),
                np.concatenate([self.again, nothing]),
                np.concatenate([self.working + added, self.entry]),
                np.concatenate([self.gathered, nothing]) + self._scattered(),
            ]
        )
        at = int(np.argmax(moments.sum(axis=0) - moments[2]))
        return Moment(*moments[:, at].tolist())

    def _scattered(self) -> Bytes:
        """Whole gradients on their way to who has which part: of a layer, and of the one behind it, which goes out meanwhile
        (PyTorch's FSDP). Those of what is glued wait for the end of the pass, since that was gathered together."""
        setting = self.setting
        if not setting.gathers:
            return np.zeros(2 * len(self.parameters))
        blocks, ends = np.where(self.glued, 0, self.parameters), np.where(self.glued, self.parameters, 0)
        moving = (setting.size + setting.gradient_size) * blocks + setting.gradient_size * np.append(blocks[1:], 0.0)
        waiting = setting.size * _behind(ends)
        return np.concatenate([moving + waiting, moving + waiting + setting.size * ends])


def _behind(values: Bytes) -> Bytes:
    """Sums over all that comes after each."""
    result: Bytes = np.cumsum(values[::-1])[::-1] - values
    return result
