"""Peak memory of each pipeline rank in a step, with the layers that it has, and of parameter servers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.memory.activations import READ, size_bytes
from scaleproof.simulator.memory.cuda_libraries import libraries_bytes
from scaleproof.simulator.memory.inputs import MemoryInputs
from scaleproof.simulator.memory.layers import LayerBytes, LayerSizes, grouped, layer_sizes
from scaleproof.simulator.memory.peak import ChunkTimeline, FullestPasses, RunningSum, columns, fullest_passes
from scaleproof.simulator.memory.result import HOLDERS, TEMPORARY, RankMemory
from scaleproof.simulator.memory.static import (
    States,
    StaticMemory,
    compressed_bytes,
    part_of,
    pipeline_bytes,
    states,
)
from scaleproof.simulator.memory.step import UpdateBytes, update
from scaleproof.simulator.model.graph import inputs_of
from scaleproof.simulator.model.layers import Layer, copied_weights
from scaleproof.simulator.model.operators import SavedActivation
from scaleproof.simulator.parallelism import GatherAverage, ParameterServer, Strategy
from scaleproof.simulator.parallelism.replicas import ReplicaStrategy
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.parameter_server.shards import buckets
from scaleproof.simulator.strategy.pipeline.stage_partition import stage_layers

Bytes = NDArray[np.float64]
# One place for each holder.
_SHARES: Final = dict(zip(HOLDERS, np.eye(len(HOLDERS)), strict=True))


def ranks(setting: MemoryInputs) -> tuple[RankMemory, ...]:
    """The peak memory of all pipeline ranks in order; of the main worker and the others with gather-average."""
    kinds = rank_kinds(setting)
    names = [f"stage {number}" for number in range(len(kinds))] if len(kinds) > 1 else ["worker"]
    result = tuple(kind.memory(name, number) for number, (kind, name) in enumerate(zip(kinds, names, strict=True)))
    if not (isinstance(setting.strategy, GatherAverage) and setting.strategy.workers > 1):
        return result
    (kind,), (worker,) = kinds, result
    # the main worker alone receives gradients and updates parameters
    without_states = {**worker.holders_bytes, "master_parameters": 0.0, "optimizer_states": 0.0}
    return kind.memory("main worker", 0, setting.strategy.workers - 1), replace(worker, holders_bytes=without_states)


def rank_kinds(setting: MemoryInputs) -> list[PipelineRank]:
    """The kind of each pipeline rank; equivalent ranks have the same one."""
    by_rank = _chunks_of_ranks(setting.strategy, setting.job)
    copies = not any(own.chunks[-1][-1] is setting.job.layers[-1] for own in by_rank)
    libraries = libraries_bytes(setting, copies)
    known: dict[tuple[object, ...], PipelineRank] = {}
    kinds = []
    for number, own in enumerate(by_rank):
        key = (number == 0, *own.key)
        if key not in known:
            known[key] = PipelineRank(setting, own, number == 0, libraries)
        kinds.append(known[key])
    return kinds


class PipelineRank:
    """Equivalent ranks: their constant memory, the layers of their chunks, bytes of gradients of each chunk, and bytes per
    trained parameter of those that its backward pass computes."""

    def __init__(self, setting: MemoryInputs, own: RankChunks, is_first: bool, libraries: dict[str, float]) -> None:
        self.setting, self.own, layers = setting, own, own.layers
        training = setting.training
        self.batch = batch_of(layers) if is_first else ()
        self.always = StaticMemory(setting, part_of(layers, training, size_bytes(self.batch, setting.size)))
        self.holders = self.always.holders_bytes() | libraries
        self.holders["communication"] += compressed_bytes(setting, layers)
        outputs = [output_elements(chunk, setting.job.layers) for chunk in own.chunks]
        self.ends = list(zip(own.entries, outputs, strict=True))
        self.gradients_bytes: list[float] = []
        self.gradient_sizes: list[float] = []
        for chunk in own.chunks:
            gradients = states(chunk, training, *setting.sharing, setting.gradient_size, setting.whole_gradients).gradients
            trained = sum(layer.trained_parameters for layer in chunk)
            each = gradients / max(1, trained) if setting.makes_gradients else setting.parameter_size
            self.gradients_bytes.append(gradients * setting.gradient_copies)
            self.gradient_sizes.append(each)

    def constant_bytes(self, number: int) -> dict[str, float]:
        """Bytes of rank `number` by holder that are constant throughout a step."""
        setting, holders = self.setting, dict.fromkeys(HOLDERS, 0.0) | self.holders
        software, microbatches = setting.software, setting.plan.microbatches
        sample_bytes = setting.samples * setting.job.stream_bytes
        for (entry, output), flight in zip(self.ends, self.fullest_passes(number).most.tolist(), strict=True):
            ends_bytes = sample_bytes * entry, sample_bytes * output
            holders["communication"] += pipeline_bytes(software, microbatches, flight, *ends_bytes)
        return holders

    def fullest_passes(self, number: int) -> FullestPasses:
        """The passes in which rank `number` may be the fullest."""
        plan, chunks = self.setting.plan, tuple(range(len(self.own.chunks)))
        return fullest_passes(plan.schedule, plan.stages, number, plan.microbatches, chunks, self.setting.pass_times)

    def layer_sizes(self, chunk: int) -> list[LayerSizes]:
        """The sizes of the layers of a chunk."""
        return layer_sizes(self.setting, self.own.chunks[chunk], self.own.entries[chunk], self.batch if chunk == 0 else ())

    def layer_bytes(self, chunk: int, sizes: LayerSizes, count: int = 1) -> LayerBytes:
        """Bytes of `count` equal layers of a chunk."""
        return sizes.bytes(self.setting, self.setting.samples, self.gradient_sizes[chunk], self.setting.gathers, count)

    @cached_property
    def _passes(self) -> Bytes:
        """Bytes by holder at the peak of each kind of pass, and those that passes add, shape (columns · chunks, holders)."""
        found = []
        for chunk in range(len(self.own.chunks)):
            groups = grouped(self.layer_sizes(chunk))
            layers = [self.layer_bytes(chunk, sizes, count) for sizes, count in zip(*groups, strict=True)]
            timeline = ChunkTimeline.of(layers, _SHARES, self.setting.makes, self.setting.splits)
            peaks = {name: self._peak(live) for name, live in timeline.passes.items()}
            found.append([{**peaks, **timeline.changes}[name] for name in columns(self.setting.splits)])
        return np.array(found).swapaxes(0, 1).reshape(-1, len(HOLDERS))

    def _peak(self, timeline: Any) -> Bytes:
        """Bytes by holder when those of the allocator are most."""
        live = np.array(timeline)
        peak: Bytes = live[np.argmax(live @ self._weights)]
        return peak

    @property
    def _weights(self) -> Bytes:
        return np.array(list(self.setting.weights.values()))

    def memory(self, name: str, number: int, others: int = 0) -> RankMemory:
        """The memory of rank `number` at its peak, by holder. others: workers whose gradients it receives."""
        setting = self.setting
        optimizer = RunningSum(_SHARES)
        update(optimizer, self.update_bytes(others))
        whole = _SHARES["gradients"] * sum(self.gradients_bytes)
        in_passes = self.fullest_passes(number).candidates @ self._passes + (0.0 if setting.makes else whole)
        temporary = self._peak([*in_passes, *(whole + live for live in optimizer.timeline)])
        holders, fragmentation = self.constant_bytes(number), (self._weights - 1) @ temporary
        fragmentation += setting.fragmentation * sum(holders[holder] for holder in TEMPORARY)
        holders = {holder: size + own for (holder, size), own in zip(holders.items(), temporary.tolist(), strict=True)}
        holders["fragmentation"] = float(fragmentation)
        sizes_bytes = {holder: setting.software.scale * float(size) for holder, size in holders.items()}
        return RankMemory(name, sizes_bytes, float(self.always.host_bytes))

    def update_bytes(self, others: int = 0) -> UpdateBytes:
        """Bytes of tensors of the optimizer's step. others: workers whose gradients it receives."""
        return self.always.update_bytes(others * sum(self.gradients_bytes))


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


class RankChunks(NamedTuple):
    """The layers of a rank's chunks, and the input elements of each chunk per sample."""

    chunks: tuple[Sequence[Layer], ...]
    entries: tuple[int, ...]

    @property
    def layers(self) -> list[Layer]:
        """The layers of all chunks."""
        return [layer for chunk in self.chunks for layer in chunk]

    @property
    def key(self) -> tuple[object, ...]:
        """A key that is equal for ranks whose layers consist of the same objects, as repeated blocks do."""
        return self.entries, *((id(layer.operators), id(layer.tensors)) for chunk in self.chunks for layer in chunk)


def batch_of(layers: Sequence[Layer]) -> tuple[SavedActivation, ...]:
    """Activations of the first layer of the model that are live throughout a step: the batch."""
    return tuple(activation for activation in layers[0].kept if activation.name == READ)


def output_elements(chunk: Sequence[Layer], everywhere: Sequence[Layer]) -> int:
    """Elements per sample that a chunk sends to the next one; zero for the last chunk of the model."""
    return 0 if chunk[-1].name == everywhere[-1].name else chunk[-1].output_elements


def _chunks_of_ranks(strategy: Strategy, job: Job) -> list[RankChunks]:
    """The layers of each rank, including copies of weights that are shared with other ranks."""
    layers, plan = job.layers, strategy.plan
    if isinstance(strategy, ReplicaStrategy):
        ranges = stage_layers(strategy, job)
        by_rank = [[[layers[i] for i in ranges[stage]] for stage in stages] for stages in plan.stage_of]
    else:
        by_rank = [[part] for part in strategy.parts(layers)]
    read = read_elements(layers)
    return [layers_of_rank(chunks, layers, read) for chunks in by_rank]


def read_elements(layers: Sequence[Layer]) -> dict[str, int]:
    """Input elements of each layer per sample, by name; zero for the first layer, which reads the sample itself."""
    elements = {layer.name: layer.output_elements for layer in layers}
    read = {layer.name: sum(elements[name] for name in names) for layer, names in zip(layers, inputs_of(layers), strict=True)}
    return read | {layers[0].name: 0}


def layers_of_rank(chunks: Sequence[Sequence[Layer]], everywhere: Sequence[Layer], read: Mapping[str, int]) -> RankChunks:
    """The layers of one rank, including copies of weights that are shared with other ranks.

    everywhere: all layers of the model; read: input elements by name.
    """
    copied = tuple(_with_copies(chunk, chunks, everywhere) for chunk in chunks)
    return RankChunks(copied, tuple(read[chunk[0].name] for chunk in chunks))


def _with_copies(chunk: Sequence[Layer], chunks: Sequence[Sequence[Layer]], everywhere: Sequence[Layer]) -> Sequence[Layer]:
    last = chunk[-1]
    if not last.pinned_to_end:
        return chunk
    copied = copied_weights(last, [layer for layers in chunks for layer in layers], everywhere)
    return [*chunk[:-1], replace(last, tensors=(*last.tensors, *copied))] if copied else chunk
