"""Ranks: what each holds at the fullest moment of a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.memory.activations import size_bytes
from scaleproof.simulator.memory.backward_peak import Chunk, Moment, chunk_of
from scaleproof.simulator.memory.buffers import compressed_bytes, pipeline_bytes
from scaleproof.simulator.memory.cuda_libraries import libraries_bytes
from scaleproof.simulator.memory.inputs import MemoryInputs
from scaleproof.simulator.memory.result import COMES_AND_GOES, HOLDERS, RankMemory
from scaleproof.simulator.memory.stage_layers import Own, batch_of, output_elements, owns, part_of
from scaleproof.simulator.memory.states import Amount, states
from scaleproof.simulator.memory.static import Always
from scaleproof.simulator.strategy import GatherAverage

_NOTHING: Final = Moment(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def ranks(setting: MemoryInputs) -> tuple[RankMemory, ...]:
    """Every pipeline rank's, one after the other; the main worker first where it has more to do than others."""
    own_of = owns(setting.strategy, setting.job)
    copies = not any(own.chunks[-1][-1] is setting.job.layers[-1] for own in own_of)
    libraries = libraries_bytes(setting, copies)
    known: dict[tuple[object, ...], _RankClass] = {}
    kinds = []
    for number, own in enumerate(own_of):
        key = (number == 0, *own.key)
        if key not in known:
            known[key] = _RankClass(setting, own, number == 0, libraries)
        kinds.append(known[key])
    beside = _Beside(setting, kinds)
    names = [f"stage {number}" for number in range(len(kinds))] if len(kinds) > 1 else ["worker"]
    result = tuple(
        kind.told(name, number, max(_peaks(setting, kind, beside, number), key=lambda peak: peak.total_bytes(setting)))
        for number, (kind, name) in enumerate(zip(kinds, names, strict=True))
    )
    main = isinstance(setting.strategy, GatherAverage) and setting.strategy.workers > 1
    return _main_and_others(result[0], setting.strategy.workers) if main else result


class Peak(NamedTuple):
    """A moment of a rank: of one microbatch; bytes of the others' activations and of logits among them; of gradients that are
    there."""

    moment: Moment
    beside_bytes: Sequence[float]
    gradients_bytes: float

    def total_bytes(self, setting: MemoryInputs) -> Amount:
        """With what the allocator holds beyond it."""
        share, of_gradients = setting.fragmentation, setting.fragmentation_of_gradients
        beside_bytes = (1 + share) * self.beside_bytes[0] + (1 + of_gradients) * self.gradients_bytes
        return self.moment.reserved_bytes(share) + beside_bytes


def optimizer_step(always: Always, gradients_bytes: float) -> Peak:
    """gradients_bytes: that are there already."""
    working, gradients = always.optimizer_step_bytes()
    return Peak(_NOTHING._replace(working=working), (0.0, 0.0), gradients_bytes + gradients)


class _RankClass:
    """What alike ranks hold all the time, their chunks, and bytes of gradients of each chunk."""

    def __init__(self, setting: MemoryInputs, own: Own, is_first: bool, libraries: dict[str, float]) -> None:
        self.setting, layers = setting, own.layers
        training = setting.training
        self.batch = batch_of(layers) if is_first else ()
        self.always = Always(setting, part_of(layers, training, size_bytes(self.batch, setting.size)))
        self.holders = self.always.holders_bytes() | libraries
        self.holders["communication"] += compressed_bytes(setting, layers)
        outputs = [output_elements(chunk, setting.job.layers) for chunk in own.chunks]
        self.ends = list(zip(own.entries, outputs, strict=True))
        self.chunks: list[Chunk] = []
        self.gradients_bytes: list[float] = []
        for number, (chunk, entry) in enumerate(zip(own.chunks, own.entries, strict=True)):
            gradients = states(chunk, training, *setting.sharing, setting.gradient_size, setting.whole_gradients).gradients
            each = gradients / max(1, sum(layer.parameters for layer in chunk)) if setting.makes_gradients else setting.size
            self.chunks.append(chunk_of(setting, chunk, entry, each, self.batch if number == 0 else ()))
            self.gradients_bytes.append(gradients * setting.gradient_copies)

    def told(self, name: str, number: int, peak: Peak) -> RankMemory:
        """A rank at its peak, by holders."""
        setting, moment, holders = self.setting, peak.moment, dict.fromkeys(HOLDERS, 0.0) | self.holders
        logits = moment.logits + peak.beside_bytes[1]
        holders["gradients"] += peak.gradients_bytes + moment.gradients
        holders["activations"] += moment.activations + peak.beside_bytes[0] - logits
        holders["logits"] += logits
        holders["recomputed"] += moment.recomputed
        holders["working"] += moment.working
        holders["communication"] += moment.communication
        software, microbatches, sample_bytes = setting.software, setting.plan.microbatches, setting.samples * setting.size
        for (entry, output), flight in zip(self.ends, setting.flights.most[number], strict=True):
            ends_bytes = sample_bytes * entry, sample_bytes * output
            holders["communication"] += pipeline_bytes(software, microbatches, flight, *ends_bytes)
        holders["fragmentation"] = setting.fragmentation * (moment.gradients + sum(holders[one] for one in COMES_AND_GOES))
        holders["fragmentation"] += setting.fragmentation_of_gradients * peak.gradients_bytes
        return RankMemory(name, {each: float(size) for each, size in holders.items()}, float(self.always.host_bytes))

    def optimizer_step(self) -> Peak:
        return optimizer_step(self.always, sum(self.gradients_bytes))


class _Beside:
    """The most that other microbatches hold beside one, and logits among it: lists of pairs of bytes, by rank and chunk."""

    def __init__(self, setting: MemoryInputs, kinds: Sequence[_RankClass]) -> None:
        weights = np.array(
            [[*(one.kept_bytes for one in kind.chunks), *(one.left_bytes for one in kind.chunks)] for kind in kinds]
        )
        logits = np.array([[*(one.logits_bytes for one in kind.chunks), *[0.0] * len(kind.chunks)] for kind in kinds])
        found = setting.flights
        self.first = _most(found.first[:, :, None], weights[:, None], logits[:, None])
        self.later = _most(found.later, weights[:, None], logits[:, None])
        self.between = _most(found.between, weights, logits)


def _most(counts: NDArray[np.int64], weights: NDArray[np.float64], logits: NDArray[np.float64]) -> list[Any]:
    """Bytes at the fullest of the moments, and of logits then, as lists. counts: shape (…, moments, 2 · chunks)."""
    held = np.matmul(counts, weights[..., None])[..., 0]
    at = np.argmax(held, axis=-1)[..., None]
    of_logits = np.matmul(counts, logits[..., None])[..., 0]
    result: list[Any] = np.concatenate([np.take_along_axis(each, at, axis=-1) for each in (held, of_logits)], axis=-1).tolist()
    return result


def _peaks(setting: MemoryInputs, kind: _RankClass, beside: _Beside, rank: int) -> Iterator[Peak]:
    """The fullest moments: of the first backward pass over each chunk, of later ones, between passes, of the optimizer."""
    of_chunk = kind.gradients_bytes
    makes = setting.makes_gradients and not setting.splits
    for number, chunk in enumerate(kind.chunks):
        done = setting.flights.done[rank][number]
        there = sum(one for one, is_done in zip(of_chunk, done, strict=True) if is_done or not makes)
        yield Peak(chunk.making if makes else chunk.adding, beside.first[rank][number], there)
        if setting.plan.microbatches > 1:
            yield Peak(chunk.adding, beside.later[rank][number], sum(of_chunk))
    if setting.splits:
        # between passes; else the backward pass that follows holds as much and more
        yield Peak(_NOTHING, beside.between[rank], sum(of_chunk))
    yield kind.optimizer_step()


def _main_and_others(worker: RankMemory, workers: int) -> tuple[RankMemory, ...]:
    """The main worker has all workers' gradients; it alone updates parameters."""
    held = worker.holders_bytes
    gathered = held["communication"] + (workers - 1) * held["gradients"]
    main = replace(worker, name="main worker", holders_bytes={**held, "communication": gathered})
    return main, replace(worker, holders_bytes={**held, "master_parameters": 0.0, "optimizer_states": 0.0})
