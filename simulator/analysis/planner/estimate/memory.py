"""Memory of the fullest rank of each of many configurations.

It depends on few columns that many configurations have in common; each combination of them is evaluated once, with the
functions of `simulator.memory`: bytes of one microbatch in every chunk of pipeline ranks, for every way to divide and to
recompute layers, once for all chunks with equal contents; the passes in which a rank may be the fullest; and what is allocated
all the time.
"""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.configurations import COLUMNS, Configurations, distinct
from scaleproof.simulator.memory.activations import LayerActivations, size_bytes
from scaleproof.simulator.memory.cuda_libraries import libraries_bytes, nccl_bytes
from scaleproof.simulator.memory.inputs import Amount, MemoryInputs
from scaleproof.simulator.memory.layers import LayerGroups, LayerSizes, grouped, layer_sizes
from scaleproof.simulator.memory.peak import ChunkTimeline, FullestPasses, RunningSum, columns, fullest_passes
from scaleproof.simulator.memory.ranks import RankChunks, batch_of, layers_of_rank, output_elements, read_elements
from scaleproof.simulator.memory.static import (
    StageElements,
    StateSizes,
    StaticMemory,
    part_of,
    pipeline_bytes,
    states_of,
    together,
)
from scaleproof.simulator.memory.step import update
from scaleproof.simulator.model.layers import NOT_COUNTED, Counted, Layer, cut_into_stages
from scaleproof.simulator.model.operators import SavedActivation
from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.simulator.parallelism.stages import WHOLE, ScheduleName, stage_of

Bytes = NDArray[np.float64]
Numbers = NDArray[np.int64]
# Schedules in which a rank has at least as many forward passes before each of its backward passes as later ranks, and all ranks
# have these in the same order: of equivalent ranks the first is the fullest.
FIRST_IS_FULLEST: Final[frozenset[ScheduleName]] = frozenset({"gpipe", "1f1b", "interleaved_1f1b", "looped_bfs"})
# Representatives of consecutive layers of one kind: the first and the last are next to other kinds, those between are
# equivalent.
_REPRESENTATIVES: Final = 3


def memory_bytes(configurations: Configurations) -> Bytes:
    """Bytes of the fullest rank in each configuration, as `scaleproof.simulator.memory` computes them for one."""
    total_bytes = np.empty(len(configurations))
    for rows, placed in configurations.by_used_devices():
        total_bytes[rows] = _memory_bytes(placed)
    return total_bytes


def _memory_bytes(c: Configurations) -> Bytes:
    """Bytes of the fullest rank in some configurations, whose ranks use the same number of devices of each node."""
    others = (name for name in COLUMNS if name not in ("zero", "bucket", "order"))
    grouped = distinct(*(getattr(c, name) for name in others), _sharded(c, c.zero))
    shared = distinct(c.zero, np.where(c.zero == 2, c.bucket, 0))
    fullest = _FullestRank(
        c.take(grouped.first), [_Shared(int(c.zero[i]), c.space.buckets_bytes[c.bucket[i]]) for i in shared.first]
    )
    total_bytes: Bytes = fullest.bytes()[shared.code, grouped.code] + fullest.libraries_bytes()[c.order, grouped.code]
    return c.space.scenario.framework.memory.scale * total_bytes


def _sharded(configurations: Configurations, zero: Numbers | int) -> Numbers:
    """What ZeRO's stages shard of a backward pass: 0 for nothing, 1 for the gradients that it makes, 2 for parameters as
    well."""
    makes = configurations.space.scenario.framework.memory.gradients == "made"
    sharded: Numbers = 2 * np.equal(zero, 3).astype(np.int64) + (makes & np.equal(zero, 2))
    return sharded


class _Shared(NamedTuple):
    """How states are sharded: ZeRO's stage, and size of buckets."""

    zero: int
    bucket_bytes: float


class _EquivalentRows(NamedTuple):
    """Rows whose ranks have the same chunks and pass them in the same order, sorted by number of microbatches.

    begins: index at which each number of microbatches begins. ranks: those that may be the fullest.
    """

    rows: Numbers
    schedule: ScheduleName
    stages: int
    microbatches: Numbers
    begins: Numbers
    ranks: Sequence[RankKind]

    def fullest_passes(self, kind: RankKind, groups: tuple[int, ...]) -> Iterator[tuple[slice, FullestPasses]]:
        """The passes in which a rank of a kind may be the fullest, with the rows that have them. groups: of equal chunks, by
        chunk."""
        found = [
            (begin, fullest_passes(self.schedule, self.stages, kind.first, number, groups))
            for begin, number in zip(self.begins.tolist(), self.microbatches[self.begins].tolist(), strict=True)
        ]
        # they are the same for large numbers of microbatches
        grouped = [next(same) for _, same in itertools.groupby(found, key=lambda one: id(one[1]))]
        ends = [*(begin for begin, _ in grouped[1:]), len(self.rows)]
        for (begin, own), end in zip(grouped, ends, strict=True):
            yield slice(begin, end), own


class _FullestRank:
    """Memory of configurations that differ in more than how states are sharded and in the order of their ranks."""

    def __init__(self, configurations: Configurations, shared: Sequence[_Shared]) -> None:
        self.c, self.shared = configurations, shared
        c = configurations
        self.sharded = _sharded(c, c.zero)
        splits = np.array([schedule not in WHOLE for schedule in c.space.schedules], dtype=np.int64)[c.schedule]
        # a framework may keep the parameters that ZeRO's stage 3 gathers in pipelines, or gathered inputs without
        keeps_gathered = c.space.scenario.framework.memory.keeps_gathered
        keeps = (c.stages > 1) & (c.space.kept["reshard"] is None or keeps_gathered)
        division = c.tensor, c.context, c.expert, c.expert_tensor, c.sequence_parallel, keeps.astype(np.int64)
        self.division_of = distinct(*division)
        self.inputs_of = distinct(self.division_of.code, splits, self.sharded)
        self.variant_of = distinct(self.inputs_of.code, c.recompute)
        self.inputs = [_inputs(c, row) for row in self.inputs_of.first.tolist()]
        self.divisions = [ShardedLayers(self._inputs(row).job.layers) for row in self.division_of.first]
        self.microbatch_of = distinct(self.variant_of.code, c.samples, np.where(self.sharded, c.workers, 0))
        patterns: dict[Any, ChunkContents] = {}
        self.contents = [
            patterns.setdefault(division.pattern, ChunkContents(division, c.space.counted)) for division in self.divisions
        ]
        self.groups = list(self._groups())
        self.workers = distinct(c.workers)
        self.microbatch_bytes = self._microbatch_bytes([self._inputs(row) for row in self.variant_of.first])

    def _microbatch_bytes(self, inputs: Sequence[MemoryInputs]) -> MicrobatchBytes:
        c, at = self.c, self.division_of.code[self.variant_of.first]
        parts = [
            contents.parts(division, self.inputs[0]) for contents, division in zip(self.contents, self.divisions, strict=True)
        ]
        self.parts = [kinds for _, kinds in parts]
        most = max(len(contents.all) for contents in self.contents)
        ends = np.zeros((2, most, len(self.division_of)))
        for number, (contents, division) in enumerate(zip(self.contents, self.divisions, strict=True)):
            ends[:, : len(contents.all), number] = contents.ends(division)
        first = self.microbatch_of.first
        self.ends_bytes = ends[:, :, self.division_of.code[first]] * (c.samples[first] * self.inputs[0].job.stream_bytes)
        recomputes = (c.space.recompute[number] for number in c.recompute[self.variant_of.first])
        variants = [
            RecomputedLayers(one.trained(recompute=recompute), self.divisions[i], self.contents[i], parts[i][0])
            for one, recompute, i in zip(inputs, recomputes, at, strict=True)
        ]
        return MicrobatchBytes(variants, self.variant_of.code[first], c.samples[first], c.workers[first])

    def _groups(self) -> Iterator[_EquivalentRows]:
        c, space = self.c, self.c.space
        numbers = {id(contents): number for number, contents in enumerate(self.contents)}
        pattern = np.array([numbers[id(contents)] for contents in self.contents])[self.division_of.code]
        key = distinct(c.stages, c.chunks, c.schedule, self.sharded, pattern)
        # numpy sorts short integers faster
        in_order = np.lexsort([one.astype(np.min_scalar_type(one.max())) for one in (c.microbatches, key.code)])
        for rows in np.split(in_order, np.cumsum(np.bincount(key.code))[:-1]):
            row = rows[0]
            schedule, stages = space.schedules[c.schedule[row]], int(c.stages[row])
            kinds = self.contents[self.division_of.code[row]].ranks(schedule, stages, int(c.chunks[row]))
            fullest_by_kind = [self._fullest_of(schedule, ranks, row) for ranks in kinds]
            microbatches, fullest = c.microbatches[rows], [kind for some in fullest_by_kind for kind in some]
            begins = np.append(0, 1 + np.flatnonzero(np.diff(microbatches)))
            yield _EquivalentRows(rows, schedule, stages, microbatches, begins, fullest)

    def _fullest_of(self, schedule: ScheduleName, ranks: Sequence[RankKind], row: int) -> Sequence[RankKind]:
        """Of equivalent ranks, those that may be the fullest: the first, unless the software stores received and sent
        activations of different size."""
        software = self._inputs(row).software
        ends = [self.contents[self.division_of.code[row]].all[content].ends for content in ranks[0].contents]
        varies = (software.receives_all or software.keeps_outputs) and any(entry != output for entry, output in ends)
        return ranks[:1] if schedule in FIRST_IS_FULLEST and not varies else ranks

    def bytes(self) -> Bytes:
        """Bytes of the fullest rank without libraries, shape (ways to shard, configurations)."""
        result = np.zeros((len(self.shared), len(self.c)))
        of_stage = np.array([_sharded(self.c, shared.zero) for shared in self.shared])
        constants = np.stack([self._constants(shared) for shared in self.shared], axis=2)
        for group in self.groups:
            rows = group.rows
            inputs = self._inputs(rows[0])
            sharings = np.flatnonzero(of_stage == self.sharded[rows[0]])
            at = self.division_of.code[rows] * len(self.workers) + self.workers.code[rows]
            contents, found = list({content: None for kind in group.ranks for content in kind.contents}), []
            columns = self._columns(group, contents, inputs)
            for kind in group.ranks:
                own = list(dict.fromkeys(kind.contents))
                passes, pipeline = self._passes(group, kind, columns[:, [contents.index(content) for content in own]], inputs)
                always, gradients, optimizer = constants[kind.number][:, sharings][:, :, at]
                found.append(always + pipeline + np.maximum(passes if inputs.makes else passes + gradients, optimizer))
            for sharing, most in zip(sharings.tolist(), np.maximum.reduce(found), strict=True):
                result[sharing, rows] = most
        return result

    def _constants(self, shared: _Shared) -> Bytes:
        """Bytes that are allocated all the time, of gradients, and of the optimizer's step, shape (kinds of ranks, 3, ways to
        divide · numbers of workers)."""
        workers = self.c.workers[self.workers.first]
        kinds = max(len(contents.kinds) for contents in self.contents)
        result = np.zeros((kinds, 3, len(self.division_of), len(workers)))
        for row in self.inputs_of.first[self.sharded[self.inputs_of.first] == _sharded(self.c, shared.zero)]:
            division_code = self.division_of.code[row]
            inputs = self._inputs(row).trained(zero=shared.zero).over(workers, shared.bucket_bytes)
            always = StaticMemory(inputs, self.parts[division_code].each(lambda one: one[:, None]))
            gradients = inputs.weights["gradients"] * always.states.gradients * inputs.gradient_copies
            optimizer = RunningSum(inputs.weights)
            update(optimizer, always.update_bytes())
            own = result[: len(self.contents[division_code].kinds), :, division_code]
            own[:, 0] = always.reserved_bytes()
            own[:, 1] = gradients
            own[:, 2] = gradients + functools.reduce(np.maximum, optimizer.timeline)
        return result.reshape(kinds, 3, -1)

    def _columns(self, group: _EquivalentRows, contents: Sequence[int], inputs: MemoryInputs) -> Bytes:
        """Bytes in some chunks that the columns of `FullestPasses` multiply, then of activations received and sent, shape (…,
        contents, rows)."""
        at = self.microbatch_of.code[group.rows]
        parts = [self.microbatch_bytes.by_column[name] for name in columns(inputs.splits)]
        return np.array([part[contents][:, at] for part in (*parts, *self.ends_bytes)])

    def _passes(self, group: _EquivalentRows, kind: RankKind, columns: Bytes, inputs: MemoryInputs) -> tuple[Bytes, Bytes]:
        """Peak bytes of passes over microbatches on a rank of a kind, and of its send and receive buffers."""
        own = list(dict.fromkeys(kind.contents))
        groups = tuple(own.index(content) for content in kind.contents)
        *_, entries, outputs = columns
        parts, passes, most = columns[:-2].reshape(-1, len(group.rows)), np.empty(len(group.rows)), np.empty_like(entries)
        for some, one in group.fullest_passes(kind, groups):
            passes[some], most[:, some] = (one.candidates @ parts[:, some]).max(axis=0), one.most[:, None]
        chunks = np.array([[groups.count(number)] for number in range(len(own))])
        return passes, pipeline_bytes(inputs.software, group.microbatches, most, entries, outputs, chunks).sum(axis=0)

    def libraries_bytes(self) -> Bytes:
        """Bytes that libraries allocate, the same on all ranks, shape (orders, configurations)."""
        c, space = self.c, self.c.space
        copies = np.zeros(len(c), dtype=np.int64)
        for group in self.groups:
            contents = self.contents[self.division_of.code[group.rows[0]]].all
            copies[group.rows] = any(contents[one].copies for kind in group.ranks for one in kind.contents)
        cluster, fixed = space.scenario.cluster, libraries_bytes(self.inputs[0], False)
        fixed_bytes = fixed["workspace"] + fixed["context"]
        key = distinct(c.tensor, c.context, c.expert, c.workers, c.stages, copies)
        degrees = np.array([c.workers, c.stages, c.tensor, c.context, c.expert])[:, key.first].T.tolist()
        found = np.array(
            [
                [
                    nccl_bytes(cluster, Plan(workers, stages, 1, tensor, context, expert, order=order), bool(copied))
                    for (workers, stages, tensor, context, expert), copied in zip(degrees, copies[key.first], strict=True)
                ]
                for order in space.orders
            ]
        )
        result: Bytes = fixed_bytes + found[:, key.code]
        return result

    def _inputs(self, row: int) -> MemoryInputs:
        return self.inputs[int(self.inputs_of.code[row])]


def _inputs(configurations: Configurations, row: int) -> MemoryInputs:
    scenario = configurations.scenario(row)
    return MemoryInputs(scenario)


class ShardedLayers:
    """A model's layers with one sharding."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers, self.read = layers, read_elements(layers)
        made = [
            (
                id(layer.operators),
                id(layer.kept),
                id(layer.tensors),
                id(layer.exchanges),
                layer.output_elements,
                layer.pinned_to_end,
            )
            for layer in layers
        ]
        firsts = {one: number for number, one in reversed(list(enumerate(made)))}
        # for each layer, the first that consists of the same objects
        self.kinds = tuple(firsts[one] for one in made)

    @property
    def pattern(self) -> tuple[object, ...]:
        """Equal for divisions in which the same layers are equal."""
        return self.kinds, tuple(layer.pinned_to_end for layer in self.layers)

    def own(self, rank: Sequence[range]) -> RankChunks:
        """Part of the model of a rank with these layers in its chunks."""
        return layers_of_rank([[self.layers[i] for i in chunk] for chunk in rank], self.layers, self.read)


class ChunkContent(NamedTuple):
    """Content of a chunk. rank: layers in all chunks of its rank; number: index of the chunk among them. kinds: of its layers.
    others: what else distinguishes chunks. ends: elements per sample received and sent. is_first: whether it reads samples.
    copies: whether it has copies of weights that another rank has too."""

    rank: tuple[range, ...]
    number: int
    kinds: tuple[int, ...]
    others: tuple[object, ...]
    ends: tuple[int, int]
    is_first: bool
    copies: bool

    def of(self, division: ShardedLayers) -> tuple[Sequence[Layer], int, tuple[SavedActivation, ...]]:
        """Its layers, elements that it receives, and activations of its first layer that are allocated throughout a step."""
        layers: Sequence[Layer] = [division.layers[i] for i in self.rank[self.number]]
        if self.copies:
            layers = division.own(self.rank).chunks[self.number]
        return layers, 0 if self.is_first else division.read[layers[0].name], batch_of(layers) if self.is_first else ()

    def representatives(self, most: int) -> tuple[list[int], list[int]]:
        """Layers that represent all of them, at most `most` of consecutive layers of one kind, and how many each represents:
        the one in the middle represents those that are left out."""
        layers: list[int] = []
        stand_for, end = list[int](), 0
        for _, group in itertools.groupby(self.kinds):
            run = len(list(group))
            representative = min(run, most)
            layers += range(end, end + representative)
            stand_for += [1 + run - representative if i == representative // 2 else 1 for i in range(representative)]
            end += run
        return layers, stand_for


class RankKind(NamedTuple):
    """Equivalent ranks. contents: of their chunks, by number; first: the first of these ranks."""

    contents: tuple[int, ...]
    first: int
    number: int


class ChunkContents:
    """All contents of chunks and kinds of ranks that occur, of divisions in which the same layers are equal."""

    def __init__(self, division: ShardedLayers, counted: Counted) -> None:
        self.division, self.counted = division, counted
        self.all: list[ChunkContent] = []
        self.kinds: dict[tuple[bool, tuple[int, ...]], int] = {}
        self._numbers: dict[tuple[object, ...], int] = {}
        self._cuts: dict[tuple[object, ...], list[list[RankKind]]] = {}

    def ranks(self, schedule: ScheduleName, stages: int, chunks: int) -> list[list[RankKind]]:
        """Ranks of each kind, in order."""
        places = tuple(tuple(stage_of(schedule, stages, rank, chunk) for chunk in range(chunks)) for rank in range(stages))
        if places not in self._cuts:
            self._cuts[places] = self._ranks(places)
        return self._cuts[places]

    def _ranks(self, places: Sequence[Sequence[int]]) -> list[list[RankKind]]:
        count = sum(map(len, places))
        stages = cut_into_stages(self.division.layers, count, self.counted if count > 1 else NOT_COUNTED)
        found: dict[int, list[RankKind]] = {}
        for number, own in enumerate(places):
            contents = self._contents(tuple(stages[stage] for stage in own), number == 0)
            kind = self.kinds.setdefault((number == 0, contents), len(self.kinds))
            found.setdefault(kind, []).append(RankKind(contents, number, kind))
        return list(found.values())

    def _contents(self, rank: tuple[range, ...], is_first: bool) -> tuple[int, ...]:
        own, layers, result = self.division.own(rank), self.division.layers, []
        for number, (chunk, entry, place) in enumerate(zip(own.chunks, own.entries, rank, strict=True)):
            copies = chunk[-1] is not layers[place[-1]]
            kinds = tuple(self.division.kinds[i] for i in place)
            begins = is_first and number == 0
            ends = entry, output_elements(chunk, layers)
            others = (ends, begins, chunk[-1].tensors if copies else ())
            key = (kinds, others)
            if key not in self._numbers:
                self._numbers[key] = len(self.all)
                self.all.append(ChunkContent(rank, number, kinds, others, ends, begins, copies))
            result.append(self._numbers[key])
        return tuple(result)

    def parts(self, division: ShardedLayers, inputs: MemoryInputs) -> tuple[StageElements, StageElements]:
        """Parts of the model in each chunk, and on each kind of rank, as arrays."""
        layers, chunks, batch_bytes = dict[tuple[int, int, bool], Layer](), list[list[tuple[int, int, bool]]](), list[float]()
        for content in self.all:
            own, _, batch = content.of(division)
            chunks.append([(id(layer.operators), id(layer.tensors), layer.pinned_to_end) for layer in own])
            layers.update(zip(chunks[-1], own, strict=True))
            batch_bytes.append(size_bytes(batch, inputs.size))
        number = {made: number for number, made in enumerate(layers)}
        of_layers = _stacked([part_of([one], inputs.training) for one in layers.values()])
        members = [[number[made] for made in chunk] for chunk in chunks]
        of_chunks = together(_members(of_layers, members), np.zeros(len(chunks)))
        of_chunks = of_chunks._replace(batch_bytes=np.array(batch_bytes, dtype=np.float64))
        of_ranks = _members(of_chunks, [contents for _, contents in self.kinds])
        return of_chunks, together(of_ranks, self._products(division, inputs))

    def ends(self, division: ShardedLayers) -> Numbers:
        """Elements per sample that each chunk receives, and sends, shape (2, contents)."""
        found = [content.of(division)[:2] for content in self.all]
        ends = [(entry, output_elements(layers, division.layers)) for layers, entry in found]
        return np.array(ends, dtype=np.int64).T

    def _products(self, division: ShardedLayers, inputs: MemoryInputs) -> NDArray[np.float64]:
        """Elements of one weight of each distinct shape, by kind of rank."""
        known: dict[frozenset[int], float] = {}
        result = []
        for _, contents in self.kinds:
            kinds = frozenset(kind for number in contents for kind in self.all[number].kinds)
            if kinds not in known:
                known[kinds] = part_of([division.layers[kind] for kind in kinds], inputs.training).products
            result.append(known[kinds])
        return np.array(result, dtype=np.float64)


def _stacked(parts: Sequence[StageElements]) -> StageElements:
    sizes = np.array([part.sizes for part in parts], dtype=np.float64).T
    return StageElements(StateSizes(*sizes), *np.array([part[1:] for part in parts], dtype=np.float64).T)


def _members(parts: StageElements, members: Sequence[Sequence[int]]) -> StageElements:
    """Sums' members in the last axis, padded with zeros."""
    most, none = max(map(len, members)), len(parts.largest)
    at = np.array([[*some, *[none] * (most - len(some))] for some in members])
    return parts.each(lambda one: np.append(one, 0.0)[at])


class RecomputedLayers(NamedTuple):
    """Layers with a sharding and recomputation. chunks: the parts of the model in each chunk."""

    inputs: MemoryInputs
    division: ShardedLayers
    contents: ChunkContents
    chunks: StageElements

    def equal_layers(self, shape: _ContentShape) -> LayerGroups:
        """Equal layers of the first of some chunks that have the same kinds of layers."""
        layers, entry, batch = self.contents.all[shape.contents[0]].of(self.division)
        return grouped(layer_sizes(self.inputs, [layers[i] for i in shape.layers], entry, batch))

    def gradient_bytes(self, inputs: MemoryInputs) -> Amount:
        """Bytes per parameter of gradients that a backward pass makes in each chunk. inputs: for several numbers of workers."""
        sizes = self.chunks.each(lambda one: one[:, None]).sizes
        gradients: Amount = states_of(
            sizes, inputs.training, *inputs.sharing, inputs.gradient_size, inputs.whole_gradients
        ).gradients
        return gradients / np.maximum(1, sizes.trained)


class _ContentShape(NamedTuple):
    """Chunks that have layers of the same kinds, in different numbers. layers: representatives in the first of these chunks.
    counts: number of layers that each represents, shape (layers, contents)."""

    contents: Numbers
    layers: list[int]
    counts: Numbers


class MicrobatchBytes:
    """Bytes of microbatches in chunks, with fragmentation: by column of `FullestPasses`, arrays of shape (contents,
    microbatches).

    variant_of, samples: index of the variant of layers of each microbatch, and its samples. workers: which may shard what a
    microbatch leaves.
    """

    def __init__(self, variants: Sequence[RecomputedLayers], variant_of: Numbers, samples: Numbers, workers: Numbers) -> None:
        size = max(len(variant.contents.all) for variant in variants), len(variant_of)
        self.by_column: dict[str, Bytes] = defaultdict(lambda: np.zeros(size))
        self._variant_of, self._samples = variant_of, samples
        self._gathers = np.zeros(len(variant_of), dtype=np.bool_)
        self._gradient_bytes = np.full(size, float(variants[0].inputs.parameter_size))
        for number, variant in enumerate(variants):
            rows, count = np.flatnonzero(variant_of == number), len(variant.contents.all)
            inputs = variant.inputs.over(workers[rows], 0.0)
            self._gathers[rows] = inputs.gathers
            if inputs.makes_gradients:
                self._gradient_bytes[:count, rows] = variant.gradient_bytes(inputs)
        for shape, groups in _grouped(variants):
            self._pass(variants[min(groups)].inputs, shape, groups)

    def _pass(self, inputs: MemoryInputs, shape: _ContentShape, groups: Mapping[int, LayerGroups]) -> None:
        """Computes the bytes of chunks of one shape. groups: equal layers, by index of variant."""
        place = np.full(self._variant_of.max() + 1, -1)
        place[list(groups)] = range(len(groups))
        of_row = place[self._variant_of]
        rows = np.flatnonzero(of_row >= 0)
        at = np.ix_(shape.contents, rows)
        begins = np.cumsum([0, *groups[min(groups)].counts[:-1]])
        counts = np.add.reduceat(shape.counts, begins, axis=0)[:, :, None]
        samples, gradient_bytes, gathers = self._samples[rows], self._gradient_bytes[at], self._gathers[rows]
        layers = [
            sizes.bytes(inputs, samples, gradient_bytes, gathers, count)
            for sizes, count in zip(_of_rows([one.layers for one in groups.values()], of_row[rows]), counts, strict=True)
        ]
        timeline = ChunkTimeline.of(layers, inputs.weights, inputs.makes, inputs.splits)
        for name, live in timeline.passes.items():
            self.by_column[name][at] = functools.reduce(np.maximum, live)
        for name, change in timeline.changes.items():
            self.by_column[name][at] = change


def _of_rows(ways: Sequence[Sequence[LayerSizes]], of_row: Numbers) -> list[LayerSizes]:
    """Sizes of layers as arrays of rows, each of which trains them in one of some ways. of_row: the way of each row."""
    result = []
    for layers in zip(*ways, strict=True):
        most = max(len(layer.activations.moments) for layer in layers)
        moments = np.array([(layer.activations.moments * most)[:most] for layer in layers], dtype=np.float64)[of_row]
        kept, logits, again, left, gathered, *others = np.array(
            [(*layer.activations[:-1], *layer[1:-1]) for layer in layers], dtype=np.float64
        )[of_row].T
        pairs = tuple((working, weights) for working, weights in moments.transpose(1, 2, 0))
        activations = LayerActivations(kept, logits, again, left, gathered, pairs)
        parameters, entry, pinned_to_end = others
        result.append(LayerSizes(activations, parameters, entry, pinned_to_end, layers[0].continues))
    return result


def _grouped(variants: Sequence[RecomputedLayers]) -> Iterable[tuple[_ContentShape, Mapping[int, LayerGroups]]]:
    """Groups of variants whose chunks of one shape can be computed together."""
    shapes: dict[tuple[int, int], list[_ContentShape]] = {}
    found: dict[tuple[object, ...], tuple[_ContentShape, dict[int, LayerGroups]]] = {}
    for number, variant in enumerate(variants):
        inputs = variant.inputs
        most = len(variant.division.layers) if inputs.training.recompute.depends_on_position else _REPRESENTATIVES
        key = id(variant.contents), most
        if key not in shapes:
            shapes[key] = _shapes(variant.contents, most)
        for shape in shapes[key]:
            groups = variant.equal_layers(shape)
            continues = tuple(layer.continues for layer in groups.layers)
            passed = id(shape), groups.counts, continues, id(inputs.software), inputs.splits
            found.setdefault(passed, (shape, {}))[1][number] = groups
    return found.values()


def _shapes(contents: ChunkContents, most: int) -> list[_ContentShape]:
    """Shapes of chunks. most: number of representatives of consecutive layers of one kind."""
    by_layers: dict[tuple[object, ...], list[int]] = {}
    representatives = [content.representatives(most) for content in contents.all]
    for number, (content, (layers, _)) in enumerate(zip(contents.all, representatives, strict=True)):
        by_layers.setdefault((tuple(content.kinds[i] for i in layers), content.others), []).append(number)
    return [
        _ContentShape(
            np.array(numbers), representatives[numbers[0]][0], np.array([representatives[number][1] for number in numbers]).T
        )
        for numbers in by_layers.values()
    ]
