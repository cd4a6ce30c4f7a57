"""Ranks: what each holds at the fullest moment of a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.memory.activations import READ, size_bytes
from simulator.memory.buffers import Buffers
from simulator.memory.chunk import Chunk, Moment, chunk_of
from simulator.memory.libraries import libraries_bytes
from simulator.memory.own import Own, owns
from simulator.memory.result import HOLDERS, RankMemory
from simulator.memory.setting import Setting
from simulator.memory.states import MASTER_BYTES, states
from simulator.model.operators import Matmul
from simulator.strategy import GatherAverage

# Assumption: what the caching allocator holds beyond what is in use, as a share of what comes and goes within a step.
_FRAGMENTATION: Final = 0.05
_COMES_AND_GOES: Final = ("activations", "logits", "recomputed", "working")
_NOTHING: Final = Moment(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def ranks(setting: Setting) -> tuple[RankMemory, ...]:
    """Every pipeline rank's, one after the other; the main worker first where it has more to do than others."""
    own_of = owns(setting.strategy, setting.job)
    copies = not any(own.chunks[-1][-1] is setting.job.layers[-1] for own in own_of)
    libraries = libraries_bytes(setting, copies)
    known: dict[tuple[object, ...], _Kind] = {}
    kinds = []
    for number, own in enumerate(own_of):
        key = (number == 0, *own.key)
        if key not in known:
            known[key] = _Kind(setting, own, number == 0, libraries)
        kinds.append(known[key])
    beside = _Beside(setting, kinds)
    names = [f"stage {number}" for number in range(len(kinds))] if len(kinds) > 1 else ["worker"]
    result = tuple(
        kind.told(name, number, max(_peaks(setting, kind, beside, number), key=lambda peak: peak.total_bytes))
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

    @property
    def total_bytes(self) -> float:
        return self.moment.total_bytes + self.beside_bytes[0] + self.gradients_bytes


class _Kind:
    """What alike ranks hold all the time, their chunks, and bytes of gradients of each chunk."""

    def __init__(self, setting: Setting, own: Own, is_first: bool, libraries: dict[str, float]) -> None:
        self.setting, self.layers = setting, own.layers
        self.batch = tuple(one for one in self.layers[0].kept if one.name == READ) if is_first else ()
        training, plan = setting.training, setting.plan
        self.held = states(self.layers, training, *setting.sharing, plan.gradient_bytes)
        self.buffers = Buffers(setting, own, self.held)
        self.chunks: list[Chunk] = []
        self.gradients_bytes: list[float] = []
        for number, (chunk, entry) in enumerate(zip(own.chunks, own.entries, strict=True)):
            gradients = states(chunk, training, *setting.sharing, plan.gradient_bytes).gradients
            each = gradients / max(1, sum(layer.parameters for layer in chunk)) if setting.makes_gradients else setting.size
            self.chunks.append(chunk_of(setting, chunk, entry, each, self.batch if number == 0 else ()))
            self.gradients_bytes.append(gradients * (1 + setting.size / setting.gradient_size if self._has_both else 1))
        self.always = self._always() | libraries

    def told(self, name: str, number: int, peak: Peak) -> RankMemory:
        """A rank at its peak, by holders."""
        moment, holders = peak.moment, dict.fromkeys(HOLDERS, 0.0) | self.always
        logits = moment.logits + peak.beside_bytes[1]
        made = moment.gradients + (peak.gradients_bytes if self.setting.software.gradients == "made" else 0.0)
        holders["gradients"] += peak.gradients_bytes + moment.gradients
        holders["activations"] += moment.activations + peak.beside_bytes[0] - logits
        holders["logits"] += logits
        holders["recomputed"] += moment.recomputed
        holders["working"] += moment.working
        holders["communication"] += moment.communication + self.buffers.pipeline_bytes(number)
        if self.setting.is_gpu:
            holders["fragmentation"] = _FRAGMENTATION * (made + sum(holders[one] for one in _COMES_AND_GOES))
        offload, held = self.setting.training.offload, self.held
        host = held.master_parameters + held.optimizer_states if "optimizer" in offload else 0.0
        return RankMemory(name, holders, host + (held.parameters if "parameters" in offload else 0.0))

    def optimizer_step(self) -> Peak:
        """Gradients copied to 32 bits, unless that has been done; torch's Adam makes two of the size of one tensor after
        another, unless it is fused."""
        setting, main = self.setting, self._copies and self.setting.software.main_gradients and not self._flattens
        unfused = setting.training.optimizer == "adam" and not setting.is_gpu and not setting.strategy.servers
        working = 2.0 * setting.size * self._largest if unfused else 0.0
        gradients_bytes = sum(self.gradients_bytes) + (self.held.master_parameters if main else 0.0)
        return Peak(_NOTHING._replace(working=working), (0.0, 0.0), gradients_bytes)

    def _always(self) -> dict[str, float]:
        """By holders, what stays the same throughout a step."""
        setting, software, held = self.setting, self.setting.software, self.held
        offload, updates = setting.training.offload, self._updates
        mastered = held.master_parameters / MASTER_BYTES if updates else 0.0
        return {
            "parameters": 0.0 if "parameters" in offload else held.parameters,
            "gradients": software.flat_bytes * mastered if self._flattens else 0.0,
            "master_parameters": software.master_bytes * mastered,
            "optimizer_states": held.optimizer_states if updates else 0.0,
            "activations": setting.samples_per_worker * size_bytes(self.batch, setting.size),
            "working": self._gradients_apart_bytes(),
            "communication": self.buffers.always_bytes,
        }

    def _gradients_apart_bytes(self) -> float:
        """What stands for gradients that are in the buffers already; one gradient after another in the buffers' precision."""
        setting, total = self.setting, 0
        if setting.software.stand_ins:
            products = (one for layer in self.layers if not layer.glued for one in layer.operators if isinstance(one, Matmul))
            total += setting.size * sum(columns * inner for columns, inner in {(one.columns, one.inner) for one in products})
        return float(total + (setting.gradient_size * self._largest if self._has_both else 0))

    @property
    def _updates(self) -> bool:
        """Whether the rank's device updates parameters."""
        return "optimizer" not in self.setting.training.offload and self.setting.strategy.servers == 0

    @property
    def _copies(self) -> bool:
        """Whether gradients that the optimizer takes have fewer bits than it has."""
        size = self.setting.size
        return self._updates and size < MASTER_BYTES and self.setting.gradient_size == size

    @property
    def _flattens(self) -> bool:
        """Whether copies of gradients are flat tensors that stay."""
        return self._copies and self.setting.training.zero > 0 and self.setting.software.flat_bytes > 0

    @property
    def _has_both(self) -> bool:
        """Whether there are gradients of two precisions."""
        return self.setting.software.gradients == "both" and self.setting.gradient_size > self.setting.size

    @property
    def _largest(self) -> int:
        """Elements of the largest tensor."""
        return max((tensor for layer in self.layers for tensor in layer.tensors), default=0)


class _Beside:
    """The most that other microbatches hold beside one, and logits among it: lists of pairs of bytes, by rank and chunk."""

    def __init__(self, setting: Setting, kinds: Sequence[_Kind]) -> None:
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


def _peaks(setting: Setting, kind: _Kind, beside: _Beside, rank: int) -> Iterator[Peak]:
    """The fullest moments: of the first backward pass over each chunk, of later ones, between passes, of the optimizer."""
    of_chunk = kind.gradients_bytes
    makes = setting.makes_gradients and not setting.splits
    for number, chunk in enumerate(kind.chunks):
        done = setting.flights.done[rank][number]
        there = sum(one for one, is_done in zip(of_chunk, done, strict=True) if is_done or not makes)
        yield Peak(chunk.making if makes else chunk.adding, beside.first[rank][number], there)
        if setting.plan.microbatches > 1:
            yield Peak(chunk.adding, beside.later[rank][number], sum(of_chunk))
    yield Peak(_NOTHING, beside.between[rank], 0.0 if makes else sum(of_chunk))
    yield kind.optimizer_step()


def _main_and_others(worker: RankMemory, workers: int) -> tuple[RankMemory, ...]:
    """The main worker has all workers' gradients; it alone updates parameters."""
    held = worker.holders_bytes
    gathered = held["communication"] + (workers - 1) * held["gradients"]
    main = replace(worker, name="main worker", holders_bytes={**held, "communication": gathered})
    return main, replace(worker, holders_bytes={**held, "master_parameters": 0.0, "optimizer_states": 0.0})
