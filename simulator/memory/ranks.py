"""Peak memory of each pipeline rank in a step, with the layers that it has, and of parameter servers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from scaleproof.simulator.memory.activations import READ, size_bytes
from scaleproof.simulator.memory.cuda_libraries import libraries_bytes
from scaleproof.simulator.memory.inputs import MemoryInputs
from scaleproof.simulator.memory.layers import LayerBytes, LayerRun, RankChunk, layer_sizes
from scaleproof.simulator.memory.peak import FullestPasses, Live, RunningSum, fullest, fullest_passes, pass_bytes
from scaleproof.simulator.memory.result import HOLDERS, TEMPORARY, RankMemory
from scaleproof.simulator.memory.static import (
    States,
    StaticMemory,
    compressed_bytes,
    elements_of,
    pipeline_bytes,
    states,
    states_of,
)
from scaleproof.simulator.memory.step import update
from scaleproof.simulator.model.layers import Layer, copied_weights, inputs_of
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
        plan, zero = inputs.plan, inputs.training.zero
        key = (
            "static", id(kind), zero, plan.workers, plan.bucket_bytes if zero == 2 else 0.0, plan.gathering(zero),
            inputs.whole_gradients,
        )  # fmt: skip
        self.static = inputs.once(key, self._static)
        self.gradient_sizes = [self._gradient_size(chunk) for chunk in self.chunks]

    def _static(self) -> StaticMemory:
        runs = ((run.layer, run.times) for chunk in self.chunks for run in chunk.runs)
        part = elements_of(runs, self.inputs.training.optimizer)
        return StaticMemory(self.inputs, part, size_bytes(self.chunks[0].batch, self.inputs.size))

    def _gradient_size(self, chunk: RankChunk) -> float:
        inputs = self.inputs
        if not inputs.makes_gradients:
            return inputs.parameter_size
        if inputs.training.zero < 2 or inputs.whole_gradients:
            return inputs.gradient_size
        runs = ((run.layer, run.times) for run in chunk.runs)
        elements = inputs.once(("elements", id(chunk)), lambda: elements_of(runs, inputs.training.optimizer))
        sharded = states_of(elements, inputs.training, inputs.sharing, inputs.gradient_size)
        return sharded.gradients / max(1, elements.trained)

    @property
    def layers(self) -> list[Layer]:
        """The layers of all chunks."""
        return [layer for chunk in self.chunks for layer in chunk.layers]

    def fullest_passes(self, number: int) -> FullestPasses:
        """The passes in which rank `number` may be the fullest."""
        plan = self.inputs.plan
        return fullest_passes(plan.schedule, plan.stages, number, plan.microbatches, plan.chunks, self.inputs.pass_times)

    def constant_bytes(self, passes: FullestPasses) -> dict[str, float]:
        """Bytes of a rank by holder that are constant throughout a step, without those of libraries."""
        inputs, holders = self.inputs, self.static.holders_bytes.copy()
        sample_bytes = inputs.samples * inputs.job.stream_bytes
        for chunk, most in zip(self.chunks, passes.most.tolist(), strict=True):
            ends_bytes = sample_bytes * chunk.entry_elements, sample_bytes * chunk.output_elements
            holders["communication"] += pipeline_bytes(inputs.software, inputs.plan.microbatches, most, *ends_bytes)
        if inputs.plan.compression is not None:
            holders["communication"] += compressed_bytes(inputs, self.layers)
        return holders

    def layer_bytes(self, place: int) -> list[LayerBytes]:
        """Bytes of the layers of a chunk, of which those with one holder are one tensor, and equal layers one entry."""
        gradient_bytes = self.gradient_sizes[place]
        return [
            layer.bytes(self.inputs, gradient_bytes, count) for layer, count in layer_sizes(self.inputs, self.chunks[place])
        ]

    def temporary_bytes(self, passes: FullestPasses, by_holder: bool = False, others: int = 0) -> Live:
        """Bytes of a rank that passes and the optimizer's step allocate, at their peak: weighted, or of each holder. others:
        workers whose gradients it receives."""
        inputs, shares = self.inputs, _SHARES if by_holder else self.inputs.weights
        training = inputs.training.recompute, inputs.splits, inputs.gathers, inputs.samples, inputs.plan.stages == 1
        chunk_bytes = np.array(
            [
                inputs.once(
                    ("passes", by_holder, id(chunk), gradient_size, *training),
                    partial(self._pass_bytes, place, shares),
                )
                for place, (chunk, gradient_size) in enumerate(zip(self.chunks, self.gradient_sizes, strict=True))
            ]
        )
        whole = shares["gradients"] * self.static.gradients_bytes
        candidates = passes.candidates.reshape(len(passes.candidates), -1) @ chunk_bytes.reshape(-1, *chunk_bytes.shape[2:])
        in_passes = fullest(candidates, inputs.weights) + (0.0 if inputs.makes else whole)
        optimizer = inputs.once(("optimizer", by_holder, id(self.static), others), lambda: self._optimizer(shares, others))
        return fullest([in_passes, whole + optimizer], inputs.weights)

    def _pass_bytes(self, place: int, shares: Mapping[str, Any]) -> list[Live]:
        return pass_bytes(self.inputs, self.layer_bytes(place), shares)

    def _optimizer(self, shares: Mapping[str, Any], others: int) -> Live:
        """Bytes that the optimizer's step allocates, at their peak."""
        optimizer = RunningSum(shares)
        update(optimizer, self.static.update_bytes(others * self.static.gradients_bytes))
        return fullest(optimizer.timeline, self.inputs.weights)

    def memory(self, name: str, number: int, libraries: dict[str, float], others: int = 0) -> RankMemory:
        """The memory of rank `number` at its peak, by holder. libraries: bytes of libraries. others: workers whose gradients it
        receives."""
        inputs, passes = self.inputs, self.fullest_passes(number)
        temporary = self.temporary_bytes(passes, True, others)
        constant = dict.fromkeys(HOLDERS, 0.0) | self.constant_bytes(passes) | libraries
        fragmentation = float((np.array(list(inputs.weights.values())) - 1) @ temporary)
        fragmentation += inputs.fragmentation * sum(constant[holder] for holder in TEMPORARY)
        holders = {holder: size + most for (holder, size), most in zip(constant.items(), temporary.tolist(), strict=True)}
        holders["fragmentation"] = fragmentation
        sizes_bytes = {holder: inputs.software.scale * float(size) for holder, size in holders.items()}
        return RankMemory(name, sizes_bytes, float(self.static.host_bytes))

    def reserved_bytes(self, number: int) -> float:
        """Bytes of rank `number` at its peak, without those of libraries."""
        inputs, passes = self.inputs, self.fullest_passes(number)
        constant, temporary = self.constant_bytes(passes), self.temporary_bytes(passes)
        fragmentation = inputs.fragmentation * sum(constant[holder] for holder in TEMPORARY if holder in constant)
        return inputs.software.scale * (sum(constant.values()) + fragmentation + float(temporary))


def ranks(inputs: MemoryInputs) -> tuple[RankMemory, ...]:
    """The peak memory of all pipeline ranks in order; of the main worker and the others with gather-average."""
    kinds = rank_kinds(inputs)
    libraries = libraries_bytes(inputs, any(kind.copies for kind in kinds))
    by_number = {number: PipelineRank(inputs, kind) for kind in kinds for number in kind.numbers}
    names = [f"stage {number}" for number in range(len(by_number))] if len(by_number) > 1 else ["worker"]
    result = tuple(by_number[number].memory(name, number, libraries) for number, name in enumerate(names))
    if not (isinstance(inputs.strategy, GatherAverage) and inputs.strategy.workers > 1):
        return result
    (worker,) = result
    # the main worker alone receives gradients and updates parameters
    without_states = {**worker.holders_bytes, "master_parameters": 0.0, "optimizer_states": 0.0}
    main = by_number[0].memory("main worker", 0, libraries, inputs.strategy.workers - 1)
    return main, replace(worker, holders_bytes=without_states)


def fullest_rank_bytes(inputs: MemoryInputs) -> float:
    """Bytes of the rank that needs the most memory, as `ranks` has them for each, without those of libraries.

    What inputs varied from one scenario have in common is computed once, which makes this fast enough for plans.
    """
    stores, result = inputs.software.receives_all or inputs.software.keeps_outputs, 0.0
    for kind in rank_kinds(inputs):
        # unless the software stores received and sent activations of different size
        varies = stores and any(chunk.entry_elements != chunk.output_elements for chunk in kind.chunks)
        first_is_fullest = inputs.plan.schedule in FIRST_IS_FULLEST and not varies
        rank = PipelineRank(inputs, kind)
        result = max(result, *(rank.reserved_bytes(number) for number in kind.numbers[: 1 if first_is_fullest else None]))
    return result


def server(inputs: MemoryInputs) -> RankMemory | None:
    """The memory of the fullest server: its shard with optimizer states, and gradients that workers push; None without
    servers."""
    strategy = inputs.strategy
    if not isinstance(strategy, ParameterServer):
        return None
    # workers have the frozen parameters
    layers, workers = [replace(layer, frozen_parameters=0) for layer in inputs.job.layers], strategy.workers
    (whole,) = buckets(layers, strategy.servers, strategy.shard, inputs.parameter_size, math.inf, None, workers)
    share = float(whole.touched.max() / max(1.0, whole.touched.sum()))
    holders = States(*(share * part for part in states(layers, inputs.training)))._asdict()
    return RankMemory("server", holders | {"communication": holders["gradients"] * (workers - 1)})


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
    return inputs.once(("ranks", plan.schedule, plan.stages, plan.chunks), lambda: _rank_kinds(inputs))


def _rank_kinds(inputs: MemoryInputs) -> list[RankKind]:
    layers = inputs.job.layers
    read = inputs.once(("read",), lambda: _read_elements(layers))
    kinds: dict[tuple[bool, tuple[int, ...]], RankKind] = {}
    for number, chunks in enumerate(_layers_of_ranks(inputs)):
        of_rank = [layer for chunk in chunks for layer in chunk]
        copied = [copied_weights(chunk[-1], of_rank, layers) if chunk[-1].pinned_to_end else [] for chunk in chunks]
        parts = tuple(
            _chunk(inputs, chunk, copies, read, is_first=number == place == 0)
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
            layer.expert_parameters, number if layer.pinned_to_end else -1, entry, is_first and number == 0,
            number == len(layers) - 1,
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
