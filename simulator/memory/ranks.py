"""Peak memory of each pipeline rank in a step, with the layers that it has, and of parameter servers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.memory.activations import size_bytes
from scaleproof.simulator.memory.cuda_libraries import libraries_bytes
from scaleproof.simulator.memory.inputs import Amount, MemoryInputs
from scaleproof.simulator.memory.layers import LayerBytes, LayerRun, RankChunk, layer_sizes
from scaleproof.simulator.memory.peak import FullestPasses, Live, RunningSum, fullest, fullest_passes, pass_bytes
from scaleproof.simulator.memory.result import HOLDERS, TEMPORARY, RankMemory
from scaleproof.simulator.memory.static import (
    StageElements,
    States,
    StaticMemory,
    compressed_bytes,
    elements_of,
    pipeline_bytes,
    states,
    states_of,
)
from scaleproof.simulator.memory.step import update
from scaleproof.simulator.model.layers import Layer, copied_weights, inputs_of, with_frozen_copy
from scaleproof.simulator.model.recompute import READ
from scaleproof.simulator.parallelism import GatherAverage, ParameterServer
from scaleproof.simulator.parallelism.replicas import ReplicaStrategy
from scaleproof.simulator.parallelism.stages import ScheduleName
from scaleproof.simulator.strategy.parameter_server.shards import buckets
from scaleproof.simulator.strategy.plan_costs import cut

# One place for each holder.
_SHARES: Final = dict(zip(HOLDERS, np.eye(len(HOLDERS)), strict=True))
# Schedules in which a rank has at least as many forward passes before each of its backward passes as later ranks, and all ranks
# have these in the same order: of equivalent ranks the first is the fullest.
FIRST_IS_FULLEST: Final[frozenset[ScheduleName]] = frozenset({"gpipe", "1f1b", "interleaved_1f1b", "looped_bfs"})


class RankKind(NamedTuple):
    """Chunks of equivalent pipeline ranks. copies: whether they have copies of weights that another rank has. numbers: of the
    ranks."""

    chunks: tuple[RankChunk, ...]
    copies: bool
    numbers: list[int]


class PipelineRank:
    """Equivalent pipeline ranks in a step.

    static: memory that is allocated throughout it. gradient_sizes: bytes of the gradients that passes compute, per trained
    parameter of each chunk.
    """

    def __init__(self, inputs: MemoryInputs, kind: RankKind) -> None:
        self.inputs, self.kind, self.chunks = inputs, kind, kind.chunks
        part = inputs.once(("elements", id(kind)), partial(self._elements, kind.chunks))
        self.static = StaticMemory(inputs, part, size_bytes(self.chunks[0].batch, inputs.size))
        self.gradient_sizes = [self._gradient_size(chunk) for chunk in self.chunks]

    def _elements(self, chunks: Sequence[RankChunk]) -> StageElements:
        runs = ((run.layer, run.times) for chunk in chunks for run in chunk.runs)
        return elements_of(runs, self.inputs.training.optimizer, self.inputs.parameter_size)

    def _gradient_size(self, chunk: RankChunk) -> Amount:
        inputs = self.inputs
        if not inputs.makes_gradients:
            return inputs.parameter_size
        elements = inputs.once(("elements", id(chunk)), partial(self._elements, [chunk]))
        sharded = states_of(elements, inputs.training, inputs.zero, inputs.sharing, inputs.gradient_size)
        is_whole = (inputs.zero < 2) | inputs.whole_gradients
        own = np.where(is_whole, inputs.gradient_size, sharded.gradients / max(1, elements.trained))
        return own * ~inputs.sends_gradients

    @property
    def layers(self) -> list[Layer]:
        """The layers of all chunks."""
        return [layer for chunk in self.chunks for layer in chunk.layers]

    def fullest_passes(self, number: int, microbatches: int) -> FullestPasses:
        """The passes in which rank `number` may be the fullest."""
        plan = self.inputs.plan
        return fullest_passes(plan.schedule, plan.stages, number, microbatches, plan.chunks, self.inputs.pass_times)

    def constant_bytes(self, in_flight: Sequence[Amount]) -> dict[str, Amount]:
        """Bytes of a rank by holder that are constant throughout a step, without those of libraries. in_flight: maximum of
        microbatches in flight, by chunk."""
        inputs = self.inputs
        sample_bytes = inputs.samples * inputs.job.stream_bytes
        communication = 0.0 if inputs.plan.compression is None else compressed_bytes(inputs, self.layers)
        for chunk, most in zip(self.chunks, in_flight, strict=True):
            ends_bytes = sample_bytes * chunk.entry_elements, sample_bytes * chunk.output_elements
            communication = communication + pipeline_bytes(inputs.software, inputs.microbatches, most, *ends_bytes)
        holders = self.static.holders_bytes
        return holders | {"communication": holders["communication"] + communication}

    def layer_bytes(self, place: int) -> list[LayerBytes]:
        """Bytes of the layers of a chunk, of which those with one holder are one tensor, and equal layers one entry."""
        gradient_bytes = self.gradient_sizes[place]
        return [
            layer.bytes(self.inputs, gradient_bytes, count) for layer, count in layer_sizes(self.inputs, self.chunks[place])
        ]

    def chunk_bytes(
        self, known: dict[int, list[Live]], shares: Mapping[str, Any], weights: Mapping[str, float] | None
    ) -> Iterator[list[Live]]:
        """Yields bytes of passes over each chunk, as `pass_bytes` returns them. known: those of chunks by identity, also of
        other ranks with the same inputs, shares and weights; what is missing is added."""
        for place, chunk in enumerate(self.chunks):
            if id(chunk) not in known:
                known[id(chunk)] = pass_bytes(self.inputs, self.layer_bytes(place), shares, weights)
            yield known[id(chunk)]

    def temporary_bytes(
        self, in_passes: Live, shares: Mapping[str, Any], weights: Mapping[str, float] | None, others: int = 0
    ) -> Live:
        """Bytes of a rank that passes and the optimizer's step allocate, at their peak. in_passes: those that passes allocate
        at theirs. others: workers whose gradients it receives. shares, weights: see `pass_bytes`."""
        whole = shares["gradients"] * self.static.gradients_bytes
        optimizer = RunningSum(shares)
        update(optimizer, self.static.update_bytes(others * self.static.gradients_bytes))
        in_update = whole + fullest(optimizer.timeline, weights)
        return fullest([in_passes + (0.0 if self.inputs.makes else whole), in_update], weights)

    def memory(self, name: str, number: int, libraries: dict[str, float], others: int = 0) -> RankMemory:
        """The memory of rank `number` at its peak, by holder. libraries: bytes of libraries. others: workers whose gradients it
        receives."""
        inputs, passes = self.inputs, self.fullest_passes(number, self.inputs.microbatches)
        chunk_bytes = np.array([*self.chunk_bytes({}, _SHARES, inputs.weights)])
        in_passes = fullest(passes.live(chunk_bytes), inputs.weights)
        temporary = self.temporary_bytes(in_passes, _SHARES, inputs.weights, others)
        constant = dict.fromkeys(HOLDERS, 0.0) | self.constant_bytes(passes.most.tolist()) | libraries
        fragmentation = float((np.array(list(inputs.weights.values())) - 1) @ temporary)
        fragmentation += inputs.fragmentation * sum(constant[holder] for holder in TEMPORARY)
        holders = {holder: size + most for (holder, size), most in zip(constant.items(), temporary.tolist(), strict=True)}
        holders["fragmentation"] = fragmentation
        sizes_bytes = {holder: inputs.software.scale * float(size) for holder, size in holders.items()}
        return RankMemory(name, sizes_bytes, float(self.static.host_bytes) + self._sent_bytes(passes.most.tolist()))

    def _sent_bytes(self, in_flight: Sequence[int]) -> float:
        """Bytes of activations that the host keeps. in_flight: microbatches of each chunk."""
        by_place = enumerate(in_flight)
        return sum(
            most * float(sum(one.fetched[:1])) * one.times for place, most in by_place for one in self.layer_bytes(place)
        )

    def reserved_bytes(self, numbers: Sequence[int], known: dict[int, list[Live]]) -> NDArray[np.float64]:
        """Bytes of the fullest of some of the ranks at its peak, without those of libraries, by column of the inputs. known:
        see `chunk_bytes`."""
        inputs, weights = self.inputs, self.inputs.weights
        columns = len(inputs.samples)
        passes_bytes = self.chunk_bytes(known, weights, None)
        chunk_bytes = np.array([[np.broadcast_to(one, columns) for one in chunk] for chunk in passes_bytes])
        result = np.zeros(columns)
        for number in numbers:
            in_flight, in_passes = np.empty((len(self.chunks), columns)), np.empty(columns)
            for microbatches in np.unique(inputs.microbatches).tolist():
                at = np.flatnonzero(inputs.microbatches == microbatches)
                passes = self.fullest_passes(number, microbatches)
                in_flight[:, at] = passes.most[:, None]
                in_passes[at] = passes.live(chunk_bytes[:, :, at]).max(axis=0)
            constant, temporary = self.constant_bytes([*in_flight]), self.temporary_bytes(in_passes, weights, None)
            fragmentation = inputs.fragmentation * sum(constant[holder] for holder in TEMPORARY if holder in constant)
            result = np.maximum(result, inputs.software.scale * (sum(constant.values()) + fragmentation + temporary))
        return result


def ranks(inputs: MemoryInputs) -> tuple[RankMemory, ...]:
    """The peak memory of all pipeline ranks in order; of the main worker and the others with gather-average."""
    kinds = rank_kinds(inputs)
    libraries = libraries_bytes(inputs, any(kind.copies for kind in kinds))
    by_kind = [PipelineRank(inputs, kind) for kind in kinds]
    by_number = {number: rank for rank in by_kind for number in rank.kind.numbers}
    names = [f"stage {number}" for number in range(len(by_number))] if len(by_number) > 1 else ["worker"]
    result = tuple(by_number[number].memory(name, number, libraries) for number, name in enumerate(names))
    if not (isinstance(inputs.strategy, GatherAverage) and inputs.strategy.workers > 1):
        return result
    (worker,) = result
    # the main worker alone receives gradients and updates parameters
    without_states = {**worker.holders_bytes, "master_parameters": 0.0, "optimizer_states": 0.0}
    main = by_number[0].memory("main worker", 0, libraries, inputs.strategy.workers - 1)
    return main, replace(worker, holders_bytes=without_states)


def fullest_rank_bytes(inputs: MemoryInputs, among: Collection[int] | None = None) -> NDArray[np.float64]:
    """Bytes of the rank that needs the most memory, as `ranks` has them for each, without those of libraries, by column of the
    inputs. among: pipeline ranks that are considered, all if None."""
    stores, result = inputs.software.receives_all or inputs.software.keeps_outputs, np.zeros(len(inputs.samples))
    known: dict[int, list[Live]] = {}
    for kind in rank_kinds(inputs):
        # unless the software stores received and sent activations of different size
        varies = stores and any(chunk.entry_elements != chunk.output_elements for chunk in kind.chunks)
        first_is_fullest = inputs.plan.schedule in FIRST_IS_FULLEST and not varies
        numbers = [number for number in kind.numbers if among is None or number in among]
        numbers = numbers[: 1 if first_is_fullest else None]
        if not numbers:
            continue
        result = np.maximum(result, PipelineRank(inputs, kind).reserved_bytes(numbers, known))
    return result


def server(inputs: MemoryInputs) -> RankMemory | None:
    """The memory of the fullest server: its shard with optimizer states, the sum of gradients, and pushes of the workers; None
    without servers."""
    strategy = inputs.strategy
    if not isinstance(strategy, ParameterServer):
        return None
    # workers have the frozen parameters, and rows of tables alone
    own, workers = inputs.scenario.layers(strategy.plan.shard), strategy.workers
    layers = [layer.without_frozen for layer in own]
    (pushed,) = buckets(
        layers, strategy.servers, strategy.shard, inputs.parameter_size, math.inf, strategy.sparse, workers,
        inputs.job.samples_per_worker,
    )  # fmt: skip
    fullest = int(pushed.stored.argmax())
    stored = float(pushed.stored[fullest])
    holders = States(*(stored / max(1.0, pushed.stored.sum()) * part for part in states(layers, inputs.training)))._asdict()
    every = holders["gradients"] * float(pushed.touched_by_all[fullest]) / max(1.0, stored)
    # of the first push the buffer becomes the sum
    pushes = float(pushed.pushed_bytes[fullest]) * (workers - 1)
    return RankMemory("server", holders | {"gradients": every, "communication": pushes})


def stage_names(inputs: MemoryInputs, number: int) -> list[list[str]]:
    """Names of the layers in each chunk of rank `number`."""
    return [[layer.name for layer in chunk] for chunk in _layers_of_ranks(inputs)[number]]


def _layers_of_ranks(inputs: MemoryInputs) -> Sequence[Sequence[Sequence[Layer]]]:
    """The layers in each chunk of each rank."""
    layers, strategy, plan = inputs.job.layers, inputs.strategy, inputs.plan
    if not isinstance(strategy, ReplicaStrategy):
        return [[part] for part in strategy.parts(layers)]
    stages = cut(inputs.job, plan)
    return [[[layers[i] for i in stages[stage]] for stage in chunks] for chunks in plan.stage_of]


def rank_kinds(inputs: MemoryInputs) -> list[RankKind]:
    """The kinds of pipeline ranks."""
    plan = inputs.plan
    return inputs.once(("ranks", plan.schedule, plan.stages, plan.chunks, plan.balance), lambda: _rank_kinds(inputs))


def _rank_kinds(inputs: MemoryInputs) -> list[RankKind]:
    layers = inputs.job.layers
    read = inputs.once(("read",), lambda: _read_elements(layers))
    kinds: dict[tuple[bool, tuple[int, ...]], RankKind] = {}
    for number, chunks in enumerate(_layers_of_ranks(inputs)):
        of_rank = [layer for chunk in chunks for layer in chunk]
        copied = [copied_weights(chunk[-1], of_rank, layers) if chunk[-1].pinned_to_end else [] for chunk in chunks]
        parts = tuple(
            _chunk(inputs, [*chunk[:-1], with_frozen_copy(chunk[-1], of_rank)], copies, read, is_first=number == place == 0)
            for place, (chunk, copies) in enumerate(zip(chunks, copied, strict=True))
        )
        kind = kinds.setdefault((number == 0, tuple(map(id, parts))), RankKind(parts, any(copied), []))
        kind.numbers.append(number)
    return list(kinds.values())


def _read_elements(layers: Sequence[Layer]) -> dict[str, int]:
    """Input elements of each layer per sample, by name; zero for the first layer, which reads the sample itself."""
    elements = {layer.name: layer.output_elements for layer in layers}
    read = {layer.name: sum(elements[name] for name in names) for layer, names in zip(layers, inputs_of(layers), strict=True)}
    return read | {layers[0].name: 0}


def _chunk(
    inputs: MemoryInputs, layers: Sequence[Layer], copies: Sequence[int], read: Mapping[str, int], is_first: bool
) -> RankChunk:
    """A chunk with some layers, the same for chunks whose layers consist of the same objects. copies: elements of the weights
    that its last layer shares with one of another rank. is_first: whether it reads samples."""
    output = 0 if layers[-1].name == inputs.job.layers[-1].name else layers[-1].output_elements
    entries = [read[layers[0].name], *(layer.output_elements for layer in layers[:-1])]
    objects = [
        (
            id(layer.operators), id(layer.kept), id(layer.tensors), id(layer.exchanges), layer.frozen_parameters,
            layer.frozen_bytes, layer.table_bytes, layer.expert_parameters, number if layer.pinned_to_end else -1, entry,
            is_first and number == 0, number == len(layers) - 1,
        )
        for number, (layer, entry) in enumerate(zip(layers, entries, strict=True))
    ]  # fmt: skip

    def chunk() -> RankChunk:
        # activations of the first layer that are live throughout a step: the batch
        batch = tuple(activation for activation in layers[0].kept if activation.name == READ) if is_first else ()
        runs = []
        for _, run in itertools.groupby(range(len(layers)), key=objects.__getitem__):
            numbers = list(run)
            first, is_last = numbers[0], numbers[-1] == len(layers) - 1
            layer = layers[first]
            if is_last and copies:
                layer = replace(layer, tensors=(*layer.tensors, *copies))
            runs.append(LayerRun(layer, len(numbers), entries[first], is_last))
        return RankChunk(tuple(runs), entries[0], output, batch)

    return inputs.once(("chunk", *objects, output, *copies), chunk)
