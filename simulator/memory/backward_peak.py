"""The peak of a microbatch's backward pass over a chunk, which consists of consecutive layers of a pipeline rank."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.memory.activations import LayerActivations, kept, layer_activations, segments
from scaleproof.simulator.memory.inputs import MemoryInputs
from scaleproof.simulator.memory.states import Amount
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import SavedActivation
from scaleproof.simulator.model.recompute import Recompute

Bytes = NDArray[np.float64]


class PeakCandidate(NamedTuple):
    """Bytes of one microbatch at a peak candidate of its backward pass, by holder; activations include logits.

    Arrays represent many candidates.
    """

    gradients: Amount
    activations: Amount
    logits: Amount
    recomputed: Amount
    working: Amount
    communication: Amount

    @property
    def total_bytes(self) -> Amount:
        """Bytes of all parts."""
        # the last three are the same for many chunks
        return self.gradients + self.activations + (self.recomputed + self.working + self.communication)

    def reserved_bytes(self, fragmentation: float) -> Amount:
        """Total bytes with fragmentation, which is a share of all but communication."""
        return (1 + fragmentation) * self.total_bytes - fragmentation * self.communication


@dataclass(frozen=True)
class Chunk:
    """Bytes of a chunk per microbatch.

    kept_bytes: of each microbatch in flight, of which logits_bytes are logits. left_bytes: of each microbatch of which only the
    gradients of weights are missing. making: peak of a backward pass that allocates gradients; adding: peak of one that
    accumulates into existing gradients.
    """

    kept_bytes: float
    logits_bytes: float
    left_bytes: float
    making: PeakCandidate
    adding: PeakCandidate


class EquivalentLayers(NamedTuple):
    """Consecutive layers with equal memory use.

    parameters: trained ones of each layer; behind: of the next layer, if it is a block. entry: input elements of each layer per
    sample. continues: whether they are recomputed together with each other and with the layer before them.
    """

    activations: LayerActivations
    parameters: int
    behind: int
    entry: int
    pinned_to_end: bool
    continues: bool


class LayerGroups(NamedTuple):
    """The layers of a chunk, with consecutive equivalent layers as one entry, and the number of layers of each entry."""

    layers: tuple[EquivalentLayers, ...]
    counts: tuple[int, ...]


def chunk_of(
    setting: MemoryInputs,
    layers: Sequence[Layer],
    entry_elements: int,
    gradient_bytes: float,
    batch: Sequence[SavedActivation] = (),
) -> Chunk:
    """The chunk of some layers.

    entry_elements: input elements per sample. gradient_bytes: per parameter, after the pass. batch: activations of the first
    layer that are live throughout the step.
    """
    groups = layer_groups_of(setting, layers, entry_elements, batch)
    arrays = Layers.of([groups.layers]), np.array(groups.counts)[:, None], setting.samples, gradient_bytes, setting.gathers
    backward = Backward(setting, *arrays)
    kept_bytes, logits_bytes, left_bytes = (sums.item() for sums in (backward.kept, backward.logits, backward.left))
    making, adding = (_fullest(moments, setting.fragmentation) for moments in (backward.making, backward.adding))
    return Chunk(kept_bytes, logits_bytes, left_bytes, making, adding)


def _fullest(moments: Sequence[PeakCandidate], fragmentation: float) -> PeakCandidate:
    """The peak candidate with the most bytes, including fragmentation."""
    reserved = [moment.reserved_bytes(fragmentation) for moment in moments]
    number = int(np.argmax([sizes.max() for sizes in reserved]))
    at = np.unravel_index(reserved[number].argmax(), reserved[number].shape)
    return PeakCandidate(*(float(np.broadcast_to(size, reserved[number].shape)[at]) for size in moments[number]))


def saved(
    layer: Layer, recompute: Recompute, concerned: bool, first: bool, entry_elements: int, without: Sequence[SavedActivation]
) -> tuple[Sequence[SavedActivation], Sequence[SavedActivation]]:
    """The activations that a layer keeps for its backward pass, and those that it would keep without recomputation.

    concerned: whether it is recomputed; first, entry_elements: see `kept`. without: activations that are left out.
    """
    own = kept(layer, recompute, first, entry_elements) if concerned else layer.kept
    return [part for part in own if part not in without], [part for part in layer.kept if part not in without]


def layer_groups_of(
    setting: MemoryInputs, layers: Sequence[Layer], entry_elements: int, batch: Sequence[SavedActivation] = ()
) -> LayerGroups:
    """Groups the equivalent layers of a chunk. Arguments: see `chunk_of`. Layers with the same objects are evaluated once."""
    known: dict[tuple[object, ...], EquivalentLayers] = setting.evaluated
    recompute = setting.training.recompute
    concerned = recompute.concerned(layers)
    continues = [one == before for before, one in itertools.pairwise([-1, *segments(layers, recompute).tolist()])]
    entries = [entry_elements, *(layer.output_elements for layer in layers[:-1])]
    behind = [*(0 if layer.pinned_to_end else layer.trained_parameters for layer in layers[1:]), 0]

    def each() -> Iterator[EquivalentLayers]:
        for number, layer in enumerate(layers):
            without, is_last = batch if number == 0 else (), number == len(layers) - 1
            identity = id(layer.operators), id(layer.kept), id(layer.tensors), id(layer.exchanges)
            key = (
                *identity,
                layer.pinned_to_end,
                concerned[number],
                continues[number],
                entries[number],
                behind[number],
                bool(without),
                is_last,
            )
            if key not in known:
                first = not continues[number]
                own, whole = saved(layer, recompute, concerned[number], first, entries[number], without)
                again = continues[number] and recompute.kind == "full"
                row = layer_activations(layer, own, whole, is_last, setting)
                known[key] = EquivalentLayers(
                    row, layer.trained_parameters, behind[number], entries[number], layer.pinned_to_end, again
                )
            yield known[key]

    groups = [(layer, len(list(group))) for layer, group in itertools.groupby(each())]
    return LayerGroups(tuple(layer for layer, _ in groups), tuple(count for _, count in groups))


class Layers(NamedTuple):
    """The layers of a chunk as arrays, with ways to train them in the last axis.

    numbers: the fields of `EquivalentLayers` and of its `LayerActivations`, shape (10, layers, ways). moments: those of
    `LayerActivations`, shape (2, moments, layers, ways).
    """

    numbers: NDArray[np.float64]
    moments: NDArray[np.float64]

    @classmethod
    def of(cls, ways: Sequence[Sequence[EquivalentLayers]]) -> Layers:
        """Arrays of several ways to train the same number of layers."""
        numbers = np.array([[(*layer.activations[:5], *layer[1:]) for layer in layers] for layers in ways], dtype=np.float64)
        most = max(len(layer.activations.moments) for layers in ways for layer in layers)
        moments = [[(layer.activations.moments * most)[:most] for layer in layers] for layers in ways]
        return cls(numbers.T, np.array(moments, dtype=np.float64).T)

    def each(self, ways: NDArray[np.int64]) -> Layers:
        """The layers of each row's way, with an axis for chunks before the last."""
        return Layers(self.numbers[..., None, ways], self.moments[..., None, ways])

    def working_elements(self, samples: Amount) -> NDArray[np.float64]:
        """Elements per sample of gradients of activations, and elements of those of weights, at the peak with `samples`."""
        moments = self.moments.swapaxes(0, 1)
        fullest: NDArray[np.float64] = moments[0]
        for moment in moments[1:]:
            is_fuller = samples * moment[0] + moment[1] > samples * fullest[0] + fullest[1]
            fullest = np.where(is_fuller, moment, fullest)
        return fullest


class Backward:
    """The backward pass over one microbatch for many chunks of the same layers, from the last layer to the first.

    counts: number of each of `layers`. samples: of a microbatch; gradient_bytes: per parameter; gathers: whether layers are
    all-gathered. Chunks are in the last axes; bytes are arrays of shape (layers, first and last, chunks), or broadcast to it.
    Before a layer's backward pass, its activations and those of the layers before it are live; after it, those of the layers
    before it and the gradients of its parameters. Over equivalent layers this changes linearly, so that the peak is before or
    after the pass of the first or the last of them.

    kept, logits, left: totals. making, adding: see `Chunk`, at all peak candidates before and after a layer.
    """

    def __init__(
        self, setting: MemoryInputs, layers: Layers, counts: NDArray[np.int64], samples: Amount, gradient_bytes: Amount,
        gathers: Amount,
    ) -> None:  # fmt: skip
        numbers = layers.numbers[:, :, None]
        kept, logits, again, left, gathered = numbers[:5] * samples
        parameters, behind, entry, pinned_to_end, continues = numbers[5:]
        working, weights = layers.working_elements(samples)[:, :, None]
        self.setting, self.counts = setting, counts[:, None]
        self.gradients = gradient_bytes * parameters
        self.first_gradients = gradient_bytes * np.minimum(parameters, weights)
        if setting.software.stand_ins:
            self.first_gradients = self.first_gradients * pinned_to_end
        self.kept, self.logits, self.left = ((self.counts * own).sum(axis=(0, 1)) for own in (kept, logits, left))
        scattered, scattered_after = self._scattered(parameters, behind, pinned_to_end, gathers)
        sample_bytes = setting.size * samples
        kept_before, logits_before = self._before(kept), self._before(logits)
        missing = self._behind(left) if setting.splits else 0.0
        self.at = PeakCandidate(
            0.0, kept_before + kept + missing, logits_before + logits, self._made_again(again, continues),
            sample_bytes * working, gathered + scattered,
        )  # fmt: skip
        missing = missing + left if setting.splits else 0.0
        self.after = PeakCandidate(0.0, kept_before + missing, logits_before, 0.0, sample_bytes * entry, scattered_after)

    @cached_property
    def making(self) -> tuple[PeakCandidate, PeakCandidate]:
        """Peak candidates at and after a backward pass that allocates its weight gradients."""
        if self.setting.splits:
            return self.adding
        behind = self._behind(self.gradients)
        return self.at._replace(gradients=behind + self.first_gradients), self.after._replace(gradients=behind + self.gradients)

    @cached_property
    def adding(self) -> tuple[PeakCandidate, PeakCandidate]:
        """Peak candidates at and after a backward pass that adds to existing weight gradients."""
        # no gradients of weights if they are computed in separate passes
        first = 0.0 if self.setting.splits else self.first_gradients
        return self.at._replace(working=self.at.working + first), self.after

    def _before(self, own: Bytes) -> Bytes:
        """Sums over all layers before each; unchanged if all are zero."""
        if not own.any():
            return own
        total = self.counts * own
        first = np.cumsum(total, axis=0) - total
        return np.concatenate([first, first + (self.counts - 1) * own], axis=1)

    def _behind(self, own: Bytes) -> Bytes:
        """Sums over all layers after each; unchanged if all are zero."""
        if not own.any():
            return own
        total = self.counts * own
        last = np.cumsum(total[::-1], axis=0)[::-1] - total
        return np.concatenate([last + (self.counts - 1) * own, last], axis=1)

    def _made_again(self, again: Bytes, continues: Bytes) -> Bytes:
        """Bytes of recomputed activations: of one layer, or of a group without the layers that have been passed."""
        if not continues.any():
            return again
        each, *chunks = np.broadcast_shapes(again.shape, self.counts.shape)[1:]
        result = np.empty((len(again), 2 * each, *chunks))
        before = np.zeros(chunks)
        for number, (own, counts, goes_on) in enumerate(zip(again[:, 0], self.counts[:, 0], continues[:, 0], strict=True)):
            result[number] = before * goes_on + own, before * goes_on + np.where(goes_on, counts, 1) * own
            before = result[number, 1]
        return result

    def _scattered(self, parameters: Bytes, behind: Bytes, pinned_to_end: Bytes, gathers: Amount) -> tuple[Amount, Amount]:
        """Bytes of unsharded gradients that are being reduce-scattered: of a layer, and of the one after it, which is sent at
        the same time (PyTorch's FSDP). Those of layers at stage ends wait for the end of the pass, since they are one unit."""
        if not np.any(gathers):
            return 0.0, 0.0
        setting, ends = self.setting, pinned_to_end * parameters
        moving = (setting.parameter_size + setting.reduced_size) * (parameters - ends) + setting.reduced_size * behind
        scattered = gathers * (moving + setting.parameter_size * self._behind(ends))
        return scattered, scattered + gathers * setting.parameter_size * ends
