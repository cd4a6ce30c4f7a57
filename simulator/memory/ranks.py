"""Peak memory of each pipeline rank in a step, and of parameter servers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.memory.activations import size_bytes
from scaleproof.simulator.memory.backward_peak import Chunk, PeakCandidate, chunk_of
from scaleproof.simulator.memory.buffers import compressed_bytes, pipeline_bytes
from scaleproof.simulator.memory.cuda_libraries import libraries_bytes
from scaleproof.simulator.memory.inputs import MemoryInputs
from scaleproof.simulator.memory.result import HOLDERS, TEMPORARY, RankMemory
from scaleproof.simulator.memory.stage_layers import RankChunks, batch_of, output_elements, owns, part_of
from scaleproof.simulator.memory.states import Amount, States, states
from scaleproof.simulator.memory.static import StaticMemory
from scaleproof.simulator.parallelism import GatherAverage, ParameterServer
from scaleproof.simulator.strategy.parameter_server.shards import buckets

_NOTHING: Final = PeakCandidate(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def ranks(setting: MemoryInputs) -> tuple[RankMemory, ...]:
    """The peak memory of all pipeline ranks in order; of the main worker and the others with gather-average."""
    kinds = rank_kinds(setting)
    others = _OtherMicrobatches(setting, kinds)
    names = [f"stage {number}" for number in range(len(kinds))] if len(kinds) > 1 else ["worker"]
    result = tuple(
        kind.memory_at(name, number, max(_peaks(setting, kind, others, number), key=lambda peak: peak.total_bytes(setting)))
        for number, (kind, name) in enumerate(zip(kinds, names, strict=True))
    )
    if not (isinstance(setting.strategy, GatherAverage) and setting.strategy.workers > 1):
        return result
    (kind,), (worker,) = kinds, result
    candidates = (*_peaks(setting, kind, others, 0), _gathering(kind, setting.strategy.workers))
    main = kind.memory_at("main worker", 0, max(candidates, key=lambda peak: peak.total_bytes(setting)))
    # the main worker alone updates parameters
    without_states = {**worker.holders_bytes, "master_parameters": 0.0, "optimizer_states": 0.0}
    return main, replace(worker, holders_bytes=without_states)


def rank_kinds(setting: MemoryInputs) -> list[PipelineRank]:
    """The kind of each pipeline rank; equivalent ranks have the same one."""
    layers_of_rank = owns(setting.strategy, setting.job)
    copies = not any(own.chunks[-1][-1] is setting.job.layers[-1] for own in layers_of_rank)
    libraries = libraries_bytes(setting, copies)
    known: dict[tuple[object, ...], PipelineRank] = {}
    kinds = []
    for number, own in enumerate(layers_of_rank):
        key = (number == 0, *own.key)
        if key not in known:
            known[key] = PipelineRank(setting, own, number == 0, libraries)
        kinds.append(known[key])
    return kinds


class Peak(NamedTuple):
    """A peak candidate of a rank.

    moment: of one microbatch in its backward pass. others_bytes: activations of the other microbatches, and logits among them.
    gradients_bytes: allocated gradients.
    """

    moment: PeakCandidate
    others_bytes: Sequence[float]
    gradients_bytes: float

    def total_bytes(self, setting: MemoryInputs) -> Amount:
        """Total bytes, with fragmentation."""
        share, gradients_share = setting.fragmentation, setting.fragmentation_of_gradients
        others_bytes = (1 + share) * self.others_bytes[0] + (1 + gradients_share) * self.gradients_bytes
        return self.moment.reserved_bytes(share) + others_bytes


def optimizer_step(always: StaticMemory, gradients_bytes: float) -> Peak:
    """The peak candidate of the optimizer step. gradients_bytes: allocated gradients."""
    working, gradients = always.optimizer_step_bytes()
    return Peak(_NOTHING._replace(working=working), (0.0, 0.0), gradients_bytes + gradients)


class PipelineRank:
    """Equivalent ranks: their memory throughout a step, their chunks, bytes of gradients of each chunk, and bytes per trained
    parameter of those that its backward pass computes."""

    def __init__(self, setting: MemoryInputs, own: RankChunks, is_first: bool, libraries: dict[str, float]) -> None:
        self.setting, self.own, layers = setting, own, own.layers
        training = setting.training
        self.batch = batch_of(layers) if is_first else ()
        self.always = StaticMemory(setting, part_of(layers, training, size_bytes(self.batch, setting.size)))
        self.holders = self.always.holders_bytes() | libraries
        self.holders["communication"] += compressed_bytes(setting, layers)
        outputs = [output_elements(chunk, setting.job.layers) for chunk in own.chunks]
        self.ends = list(zip(own.entries, outputs, strict=True))
        self.chunks: list[Chunk] = []
        self.gradients_bytes: list[float] = []
        self.gradient_sizes: list[float] = []
        for number, (chunk, entry) in enumerate(zip(own.chunks, own.entries, strict=True)):
            gradients = states(chunk, training, *setting.sharing, setting.gradient_size, setting.whole_gradients).gradients
            trained = sum(layer.trained_parameters for layer in chunk)
            each = gradients / max(1, trained) if setting.makes_gradients else setting.parameter_size
            self.chunks.append(chunk_of(setting, chunk, entry, each, self.batch if number == 0 else ()))
            self.gradients_bytes.append(gradients * setting.gradient_copies)
            self.gradient_sizes.append(each)

    def constant_bytes(self, number: int) -> dict[str, float]:
        """Bytes of rank `number` by holder that are constant throughout a step."""
        setting, holders = self.setting, dict.fromkeys(HOLDERS, 0.0) | self.holders
        software, microbatches, sample_bytes = (
            setting.software,
            setting.plan.microbatches,
            setting.samples * setting.job.stream_bytes,
        )
        for (entry, output), flight in zip(self.ends, setting.flights.most[number], strict=True):
            ends_bytes = sample_bytes * entry, sample_bytes * output
            holders["communication"] += pipeline_bytes(software, microbatches, flight, *ends_bytes)
        return holders

    def memory_at(self, name: str, number: int, peak: Peak) -> RankMemory:
        """The memory of rank `number` at a peak, by holder."""
        setting, moment, holders = self.setting, peak.moment, self.constant_bytes(number)
        logits = moment.logits + peak.others_bytes[1]
        holders["gradients"] += peak.gradients_bytes + moment.gradients
        holders["activations"] += moment.activations + peak.others_bytes[0] - logits
        holders["logits"] += logits
        holders["recomputed"] += moment.recomputed
        holders["working"] += moment.working
        holders["communication"] += moment.communication
        temporary_bytes = sum(holders[holder] for holder in TEMPORARY)
        holders["fragmentation"] = setting.fragmentation * (moment.gradients + temporary_bytes)
        holders["fragmentation"] += setting.fragmentation_of_gradients * peak.gradients_bytes
        sizes_bytes = {holder: setting.software.scale * float(size) for holder, size in holders.items()}
        return RankMemory(name, sizes_bytes, float(self.always.host_bytes))

    def optimizer_step(self) -> Peak:
        """The peak candidate of the optimizer step."""
        return optimizer_step(self.always, sum(self.gradients_bytes))


class _OtherMicrobatches:
    """Maximum bytes of the other microbatches in flight, and of logits among them: lists of pairs, by rank and chunk."""

    def __init__(self, setting: MemoryInputs, kinds: Sequence[PipelineRank]) -> None:
        weights = np.array(
            [[*(chunk.kept_bytes for chunk in kind.chunks), *(chunk.left_bytes for chunk in kind.chunks)] for kind in kinds]
        )
        logits = np.array([[*(chunk.logits_bytes for chunk in kind.chunks), *[0.0] * len(kind.chunks)] for kind in kinds])
        counts = setting.flights
        self.first = _most(counts.first[:, :, None], weights[:, None], logits[:, None])
        self.later = _most(counts.later, weights[:, None], logits[:, None])
        self.between = _most(counts.between, weights, logits)


def _most(counts: NDArray[np.int64], weights: NDArray[np.float64], logits: NDArray[np.float64]) -> list[Any]:
    """Bytes at the largest of the peak candidates, and of logits there, as lists. counts: shape (…, candidates, 2 · chunks)."""
    total = np.matmul(counts, weights[..., None])[..., 0]
    at = np.argmax(total, axis=-1)[..., None]
    logits_total = np.matmul(counts, logits[..., None])[..., 0]
    largest = [np.take_along_axis(sizes, at, axis=-1) for sizes in (total, logits_total)]
    result: list[Any] = np.concatenate(largest, axis=-1).tolist()
    return result


def _peaks(setting: MemoryInputs, kind: PipelineRank, others: _OtherMicrobatches, rank: int) -> Iterator[Peak]:
    """The peak candidates: first backward pass over each chunk, later ones, between passes, and the optimizer step."""
    by_chunk = kind.gradients_bytes
    makes = setting.makes_gradients and not setting.splits
    for number, chunk in enumerate(kind.chunks):
        done = setting.flights.done[rank][number]
        allocated = sum(size for size, is_done in zip(by_chunk, done, strict=True) if is_done or not makes)
        yield Peak(chunk.making if makes else chunk.adding, others.first[rank][number], allocated)
        if setting.plan.microbatches > 1:
            yield Peak(chunk.adding, others.later[rank][number], sum(by_chunk))
    if setting.splits:
        # between passes; otherwise the next backward pass needs at least as much
        yield Peak(_NOTHING, others.between[rank], sum(by_chunk))
    yield kind.optimizer_step()


def _gathering(kind: PipelineRank, workers: int) -> Peak:
    """The peak candidate of the main worker when it has its own gradients and has received those of all others."""
    own_bytes = sum(kind.gradients_bytes)
    return Peak(_NOTHING._replace(communication=(workers - 1) * own_bytes), (0.0, 0.0), own_bytes)


def server(setting: MemoryInputs) -> RankMemory | None:
    """The memory of the fullest server: its shard with optimizer states, and gradients that workers push; None without
    servers."""
    strategy = setting.strategy
    if not isinstance(strategy, ParameterServer):
        return None
    # workers have the frozen parameters
    layers, workers = [replace(layer, frozen_parameters=0) for layer in setting.job.layers], strategy.workers
    (whole,) = buckets(layers, strategy.servers, strategy.shard, setting.parameter_size, math.inf, None, workers)
    share = float(whole.touched.max() / max(1.0, whole.touched.sum()))
    own = States(*(share * part for part in states(layers, setting.training)))._asdict()
    return RankMemory("server", own | {"communication": own["gradients"] * (workers - 1)})
