"""Configurations on nodes of different kinds, estimated by the closed forms of equal nodes.

Either each worker is on nodes of one kind, and workers of a kind have the same share of the samples, or each stage of a
pipeline is on nodes of one kind, and stages have numbers of blocks by kind. A step takes as long as that of the slowest kind of
workers, which is estimated as if all workers were such; its lower bound is one of the step, as all of them wait for each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.configurations import (
    Configurations,
    Numbers,
    Space,
    Values,
    degrees_of,
    is_valid_schedule,
    suits,
)
from scaleproof.simulator.analysis.planner.estimate.layer_times import LayerTimes
from scaleproof.simulator.analysis.planner.estimate.memory import memory_bytes
from scaleproof.simulator.analysis.planner.estimate.step_times import StepTimes, step_times
from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.model.layers import Layer, block_range
from scaleproof.simulator.parallelism.mesh import DeviceMesh
from scaleproof.simulator.scenario.schema import Scenario

# Configurations that are estimated at once, those with the fastest slowest stages first.
_AT_ONCE: Final = 5_000
# By how much more than the shortest estimate the time of the slowest stage may be; estimates are that far off at most, mostly.
_MARGIN: Final = 1.15


@dataclass(frozen=True, eq=False)
class MixedConfigurations:
    """Configurations of a space, in which either workers or stages are on nodes of one kind each.

    table: the configurations, as if all nodes were of the first kind. most: samples of a microbatch of the workers on each kind
    of nodes; of several, some may have one less. shape (configurations, kinds). by_stage: whether kinds have stages. known:
    what `memory_bytes` and `step_times` return, where that was computed.
    """

    table: Configurations
    most: Numbers
    by_stage: bool
    known: NDArray[np.float64] | None = None

    @property
    def space(self) -> Space:
        """The space of the configurations."""
        return self.table.space

    @property
    def cluster(self) -> Cluster:
        """The nodes."""
        return self.space.scenario.cluster

    def __len__(self) -> int:
        return len(self.table)

    def take(self, rows: Any) -> MixedConfigurations:
        """The configurations in some rows."""
        known = None if self.known is None else self.known[:, rows]
        return replace(self, table=self.table.take(rows), most=self.most[rows], known=known)

    def evaluated(self) -> MixedConfigurations:
        """The configurations with their memory and step times."""
        return replace(self, known=np.array([self.memory_bytes(), *self.step_times()]))

    def on(self, cluster: Cluster) -> MixedConfigurations:
        """The same configurations on another cluster."""
        scenario = self.space.scenario.model_copy(update={"cluster": cluster})
        return replace(self, table=replace(self.table, space=replace(self.space, scenario=scenario)), known=None)

    def row(self, row: int) -> dict[str, Any]:
        """One configuration, with the names and values of scenario fields. samples, shares: by kind of nodes."""
        found = self.table.row(row)
        if self.by_stage:
            return found
        kinds = list(dict.fromkeys(self.cluster.kind_of(node) for node in range(self.cluster.nodes)))
        most = self.most[row, kinds]
        return found | {
            "samples": "/".join(map(str, most.tolist())), "shares": "/".join(map(str, (most * found["microbatches"]).tolist())),
        }  # fmt: skip

    def scenario(self, row: int) -> Scenario:
        """The scenario of one configuration. Raises FieldError if it turns out to be invalid."""
        return self.table.scenario(row, None if self.by_stage else self._shares(row))

    def _shares(self, row: int) -> tuple[int, ...]:
        """Samples of each worker in a step. Of the workers on the kind of nodes with the most samples too many, the last have
        less."""
        (values,) = self.table.values(np.array([row]))
        kinds, total = self._kinds_of_workers(values), self.space.scenario.total_samples // values["microbatches"]
        samples = self.most[row][kinds]
        excess = int(samples.sum()) - total
        counts = np.bincount(kinds, minlength=self.most.shape[1])
        fewer = next(
            kind for kind in range(len(counts))[::-1] if counts[kind] > excess and (not excess or self.most[row][kind] > 1)
        )
        samples[np.flatnonzero(kinds == fewer)[counts[fewer] - excess :]] -= 1
        return tuple((values["microbatches"] * samples).tolist())

    def _kinds_of_workers(self, values: Values) -> Numbers:
        mesh = self.space.plan(values).grid_on(self.cluster)
        return mesh.kinds_on(self.cluster)[:, 0]

    @cached_property
    def _kinds(self) -> range:
        return range(self.most.shape[1])

    def _as_if(self, kind: int) -> Configurations:
        """The configurations as if all workers were on nodes of one kind."""
        return replace(self.table, space=replace(self.space, kind=kind), samples=self.most[:, kind])

    def nodes(self) -> Numbers:
        """Number of nodes of each configuration."""
        return np.full(len(self), self.cluster.nodes)

    def memory_bytes(self) -> NDArray[np.float64]:
        """Bytes of the rank that needs the largest share of its device, in each configuration, if all devices had the capacity
        of the cluster's first kind."""
        if self.known is not None:
            known: NDArray[np.float64] = self.known[0].copy()
            return known
        result = np.zeros(len(self))
        for kind in self._kinds:
            own = self.cluster.with_device_of(kind)
            # where the kind has fewer devices, more nodes of it have all ranks
            own = own.model_copy(update={"nodes": max(own.nodes, -(-self.space.ranks[0] // own.node.devices))})
            scenario = self.space.scenario.model_copy(update={"cluster": own})
            view = replace(self.table, space=replace(self.space, scenario=scenario), samples=self.most[:, kind])
            scale = self.cluster.device.capacity_bytes / own.device.capacity_bytes
            result = np.maximum(result, scale * memory_bytes(view, self._among(kind)))
        return result

    def _among(self, kind: int) -> Any:
        def stages(values: Values) -> Collection[int] | None:
            if not self.by_stage:
                return None
            mesh = self.space.plan(values).grid_on(self.cluster)
            return np.flatnonzero(mesh.kinds_on(self.cluster)[0] == kind).tolist()

        return stages

    def step_times(self) -> StepTimes:
        """Expected and least seconds of a step in each configuration."""
        if self.known is not None:
            return StepTimes(*self.known[1:])
        if self.by_stage:
            return step_times(self.table)
        by_kind = [step_times(self._as_if(kind)) for kind in self._kinds]
        return StepTimes(*(np.max(one, axis=0) for one in zip(*by_kind, strict=True)))

    def promising(self, limit_bytes: float, best_s: float) -> tuple[MixedConfigurations, float]:
        """Of divisions into stages, those whose slowest stage alone does not take far longer than the best estimate, and the
        shortest time of the slowest stage of the others. limit_bytes: that a rank may need, in terms of `memory_bytes`. best_s:
        estimate of the best other configuration."""
        work_s = self._slowest_stages_s()
        ordered, kept, known = np.argsort(work_s, kind="stable"), 0, [np.empty((3, 0))]
        while kept < len(ordered) and work_s[ordered[kept]] < _MARGIN * best_s:
            some = self.take(ordered[kept : kept + _AT_ONCE]).evaluated()
            assert some.known is not None
            kept, known = kept + len(some), [*known, some.known]
            own_bytes, expected_s, _ = some.known
            best_s = min(best_s, float(expected_s[own_bytes <= limit_bytes].min(initial=np.inf)))
        left_s = float(work_s[ordered[kept]]) if kept < len(ordered) else np.inf
        return replace(self.take(ordered[:kept]), known=np.concatenate(known, axis=1)), left_s

    def _slowest_stages_s(self) -> NDArray[np.float64]:
        """Seconds of all passes over the blocks of the slowest stage."""
        result = np.zeros(len(self))
        for kind in self._kinds:
            times = LayerTimes(self.table, kind)
            first, _ = block_range(times.base.layers)
            block_s = (times.forward_s + times.backward_s)[:, [first, first + 1]]
            blocks = self._blocks_on(kind)
            result = np.maximum(result, self.table.microbatches * blocks * np.diff(block_s, axis=1)[times.code, 0])
        return result

    def _blocks_on(self, kind: int) -> Numbers:
        """Blocks of the stage with the most on a kind of nodes, by configuration."""
        divided = self.table.distinct("blocks", "stages", "workers", "tensor", "context", "order")
        most = []
        for values in self.table.values(divided.first):
            stages = self._among(kind)(values)
            balance = self.space.balance(values)
            most.append(max((balance[stage] for stage in stages), default=0) if isinstance(balance, tuple) else 0)
        return np.array(most)[divided.code]


def every_mixed(space: Space, has_shares: bool) -> list[MixedConfigurations]:
    """All configurations of a space in which each worker is on nodes of one kind, if `has_shares`, and all in which each stage
    is. The samples of workers and the blocks of stages are searched; tensor parallelism includes that of sequences."""
    found = []
    for number, order in enumerate(space.orders):
        own = replace(space, orders=(order,))
        by_worker, by_stage = _Rows(), _Rows()
        for degrees, layers in degrees_of(own, divides=False):
            if number and (degrees["stages"] == 1 or degrees["workers"] == 1):
                continue
            if degrees["tensor"] > 1 and not degrees["sequence_parallel"]:
                continue
            kinds = _kinds(own, degrees)
            if kinds is None:
                continue
            if (kinds == kinds[:, :1]).all():
                if has_shares:
                    _add_shares(by_worker, own, degrees, layers, kinds[:, 0])
            elif (kinds == kinds[:1]).all():
                own = _add_blocks(by_stage, own, degrees, layers, kinds[0])
        found += [rows.configurations(own, rows is by_stage) for rows in (by_worker, by_stage) if rows.blocks]
    return found


class _Rows:
    """Rows of a table, and samples of microbatches by kind."""

    def __init__(self) -> None:
        self.blocks: list[Numbers] = []
        self.most: list[Numbers] = []

    def add(self, degrees: Mapping[str, int], passes: Numbers, most: Numbers, others: Numbers) -> None:
        """Adds all combinations of some passes (chunks, samples, schedules, microbatches and blocks) with other choices."""
        count, rest = len(passes), len(others)
        own = np.tile([*degrees.values()], (count * rest, 1))
        repeated = np.repeat(passes, rest, axis=0)
        self.blocks.append(np.hstack([own, repeated[:, :4], np.tile(others[:, :4], (count, 1)), repeated[:, 4:]]))
        self.most.append(np.repeat(most, rest, axis=0))

    def configurations(self, space: Space, by_stage: bool) -> MixedConfigurations:
        """The configurations of all rows."""
        columns = np.ascontiguousarray(np.concatenate(self.blocks).T)
        return MixedConfigurations(Configurations(space, *columns), np.concatenate(self.most), by_stage)


def _kinds(space: Space, degrees: Mapping[str, int]) -> Numbers | None:
    """Kind of the nodes of each worker and stage; None if ranks that share layers would be on several nodes."""
    cluster, size = space.scenario.cluster, degrees["tensor"] * degrees["context"]
    if degrees["expert"] > 1 or any(cluster.devices_of(node) % size for node in range(cluster.nodes)):
        return None
    sizes = {name: degrees[name] for name in ("workers", "stages", "tensor", "context")}
    mesh = DeviceMesh(
        **sizes, devices=cluster.node.devices, order=space.orders[0], device_numbers=cluster.device_numbers(space.ranks[0])
    )
    return mesh.kinds_on(cluster)


def _others(space: Space, degrees: Mapping[str, int], layers: Sequence[Layer]) -> Numbers:
    """Choices that suit some degrees: stages of ZeRO, recomputation, buckets and the order of axes."""
    indices = (range(len(choices)) for choices in (space.recompute, space.buckets_bytes))
    others = np.array(list(itertools.product(space.zero, *indices, [0], [0])), dtype=np.int64)
    return others[suits(space, degrees, layers, others.T)]


def _microbatches(total: int) -> list[int]:
    return [number for number in range(1, total + 1) if total % number == 0]


def _add_shares(rows: _Rows, space: Space, degrees: Mapping[str, int], layers: Sequence[Layer], kinds: Numbers) -> None:
    """Adds configurations with each division of the samples in which workers on the same kind of nodes have the same number in
    a microbatch, but for what is left over."""
    total, stages, counts = space.scenario.total_samples, degrees["stages"], np.bincount(kinds)
    first, last = block_range(layers)
    found: list[tuple[int, ...]] = []
    shares: list[tuple[int, ...]] = []
    for microbatches in _microbatches(total):
        divisions = list(_divisions(total // microbatches, counts.tolist()))
        for chunks, (number, schedule) in itertools.product(space.chunks, enumerate(space.schedules)):
            if stages * chunks <= last - first and is_valid_schedule(schedule, stages, microbatches, chunks):
                found += [(chunks, division[0], number, microbatches, 0) for division in divisions]
                shares += divisions
    others = _others(space, degrees, layers)
    if found and len(others):
        rows.add(degrees, np.array(found), np.array(shares), others)


def _divisions(samples: int, counts: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Most samples of a worker on each kind of nodes, so that `samples` are divided and none could be one less. counts: workers
    by kind."""
    *before, last = counts
    for most in itertools.product(*(range(1, samples // count + 1) for count in before)):
        left = samples - sum(count * own for count, own in zip(before, most, strict=True))
        if left >= last:
            yield *most, -(-left // last)


def _add_blocks(rows: _Rows, space: Space, degrees: Mapping[str, int], layers: Sequence[Layer], kinds: Numbers) -> Space:
    """Adds configurations with each division of the blocks in which stages on the same kind of nodes have the same number, but
    for what is left over, which the first of them have. Returns the space with these divisions."""
    first, last = block_range(layers)
    runs = [(kind, len(list(run))) for kind, run in itertools.groupby(kinds.tolist())]
    known = {blocks: number for number, blocks in enumerate(space.blocks)}
    numbers = []
    for parts in _parts(last - first, [length for _, length in runs]):
        blocks = tuple(
            part // length + (place < part % length)
            for part, (_, length) in zip(parts, runs, strict=True) for place in range(length)
        )  # fmt: skip
        numbers.append(known.setdefault(blocks, len(known)))
    found = []
    for microbatches in _microbatches(space.scenario.total_samples // degrees["workers"]):
        rest = space.scenario.total_samples % (degrees["workers"] * microbatches)
        for number, schedule in enumerate(space.schedules):
            if not rest and is_valid_schedule(schedule, degrees["stages"], microbatches, 1):
                samples = space.scenario.total_samples // degrees["workers"] // microbatches
                found += [(1, samples, number, microbatches, blocks) for blocks in numbers]
    others = _others(space, degrees, layers)
    if found and len(others):
        passes = np.array(found)
        rows.add(degrees, passes, np.repeat(passes[:, 1:2], len(space.scenario.cluster.all_devices), axis=1), others)
    return replace(space, blocks=tuple(known))


def _parts(blocks: int, lengths: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Ways to divide blocks over runs of stages, at least one for each stage."""
    *before, last = lengths
    for parts in itertools.product(*(range(length, blocks + 1) for length in before)):
        if blocks - sum(parts) >= last:
            yield *parts, blocks - sum(parts)
