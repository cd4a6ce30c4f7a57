"""Sketch: a program without its numbers. What ranks do, and after what, follows from a plan and a model; how long it takes,
from the cluster's numbers. So what is compiled for clusters that differ in these alone is drawn once, and filled in for each.

While a program is drawn, a Draft keeps what its numbers were asked of: paths of the fabric, times of the job. To fill it in is
to ask again. What comes of it is, to the last bit, what drawing it anew would come to.
"""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.cost import library_of
from scaleproof.simulator.common.batched import numbers, put
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.program import Path, Program, ProgramBuilder, Resources, Routes, Rows
from scaleproof.simulator.program.perturbations import Perturbations
from scaleproof.simulator.strategy.job import Costs, Job
from scaleproof.simulator.strategy.layout.resource_map import ResourceMap
from scaleproof.simulator.strategy.pipeline.schedule import PassTimes
from scaleproof.simulator.strategy.plan import Plan

# Sketches that are kept, and tasks of the largest of them: some 200 bytes each.
_KEPT: Final = 8
_MOST_TASKS: Final = 20_000
# Clusters of which a sketch knows how bytes move: one, and two of those in which something of it is slower.
_CLUSTERS: Final = 3
# The columns that say how bytes move; what computes has the last three of its own.
_COLUMNS: Final = ("max_rate", "weight", "amount", "route", "latency_s")
_OF_WORK: Final = _COLUMNS[2:]

# Bytes that move, and how.
Moved = tuple[float, Path]


class JobCosts:
    """A job, and what workers' microbatches cost in it."""

    def __init__(self, job: Job, microbatches: int) -> None:
        self.job, self.microbatches = job, microbatches
        self._costs: dict[int, Costs] = {}

    def of(self, samples: int) -> Job:
        """The job of a worker that has so many samples of a step."""
        return replace(self.job, samples_per_worker=samples)

    def costs(self, samples: int) -> Costs:
        """Of such a worker's microbatches."""
        if samples not in self._costs:
            self._costs[samples] = self.of(samples).costs(self.microbatches)
        return self._costs[samples]


# Seconds of work, and of exchanges within it, of some tasks; each as one number, or one for each task.
Times = Callable[[JobCosts], tuple[ArrayLike, ArrayLike]]


class TemplateRecorder:
    """Asks a fabric for paths while a program is drawn, and keeps what was asked, in order.

    found: what came of it, by number. The numbers of tasks that are not told of are those of the program as it was drawn.
    """

    def __init__(self, fabric: ResourceMap) -> None:
        self._fabric = fabric
        self.found: list[Moved] = []
        self.asked: list[Callable[[ResourceMap], Moved | int]] = []
        self.moving: list[tuple[Rows, Rows]] = []
        self.timed: list[tuple[Rows, Rows, Times]] = []

    def rank(self, add: Callable[[ResourceMap], int]) -> int:
        """Adds a rank class; its number."""
        self.asked.append(add)
        return add(self._fabric)

    def ask(self, path: Callable[[ResourceMap], Moved]) -> int:
        """The number of what is asked for."""
        self.asked.append(path)
        self.found.append(path(self._fabric))
        return len(self.found) - 1

    def moves(self, rows: ArrayLike, numbers: ArrayLike) -> None:
        """Tasks that move what was asked for by these numbers; they broadcast together."""
        row, number = np.broadcast_arrays(rows, numbers)
        self.moving.append((row.ravel(), number.ravel()))

    def times(self, rows: ArrayLike, ranks: ArrayLike, told: Times) -> None:
        """Tasks of these rank classes that compute for as long as is told."""
        row, rank = np.broadcast_arrays(rows, ranks)
        self.timed.append((row, rank, told))


class _Transfers(NamedTuple):
    """What follows from a fabric. of: the parts of a cluster that it is for. builder: with the fabric's ranks and resources.
    columns: of a program, by name."""

    of: tuple[object, ...]
    builder: ProgramBuilder
    columns: dict[str, NDArray[Any]]
    resources: Resources
    routes: Routes


class ProgramTemplate:
    """A program as it was drawn, to be filled in for other jobs of the same shape."""

    def __init__(self, program: Program, draft: TemplateRecorder, microbatches: int) -> None:
        self.program, self._microbatches = program, microbatches
        self._asked, self._timed = draft.asked, draft.timed
        self._rows, self._numbers = (
            np.concatenate([np.zeros(0, dtype=np.int64), *(pair[side] for pair in draft.moving)]) for side in (0, 1)
        )
        self._moves: list[_Transfers] = []

    def filled(self, job: Job) -> Program:
        """What the job compiles to."""
        moves, sheet = self._moved(job.cluster), JobCosts(job, self._microbatches)
        columns: dict[str, Any] = moves.columns | {name: moves.columns[name].copy() for name in _OF_WORK}
        for rows, ranks, told in self._timed:
            work_s, exchange_s = told(sheet)
            found = moves.builder.computing(ranks, work_s) | {"latency_s": exchange_s}
            for name, values in found.items():
                columns[name] = put(columns[name], rows, np.broadcast_to(values, rows.shape))
        return replace(self.program, resources=moves.resources, routes=moves.routes, **columns)

    def _moved(self, cluster: Cluster) -> _Transfers:
        """That of one of the last clusters still holds where another one's links, nodes and library are the same."""
        of = cluster.network, cluster.node, cluster.nodes, cluster.collectives, cluster.shared_cores, cluster.device.name
        same = (moves for moves in self._moves if all(map(operator.is_, of, moves.of)))
        moves = next(same, None) or self._asked_of(cluster, of)
        self._moves = [*(one for one in self._moves if one is not moves), moves][-_CLUSTERS:]
        return moves

    def _asked_of(self, cluster: Cluster, of: tuple[object, ...]) -> _Transfers:
        builder = ProgramBuilder()
        fabric = ResourceMap(cluster, builder)
        found = [one for one in (ask(fabric) for ask in self._asked) if not isinstance(one, int)]
        kinds = [builder.along(path, size_bytes) for size_bytes, path in found]
        columns = {name: getattr(self.program, name) for name in _COLUMNS}
        for name, column in columns.items():
            values = numbers([kind[name] for kind in kinds], column.dtype.type)
            columns[name] = put(column.copy(), self._rows, values[self._numbers])
        empty = builder.build()
        return _Transfers(of, builder, columns, empty.resources, empty.routes)


class TemplateKey(NamedTuple):
    """All that a plan's program follows from but numbers of the cluster. layers: their identity; an equal one is another."""

    plan: Plan
    ranges: tuple[range, ...]
    layers: int
    samples_per_worker: int
    precision: str
    reduced_bytes: int
    zero: int
    unevenness: Perturbations
    times: PassTimes
    devices: int
    cards: int
    is_uniform: bool
    library: str

    @classmethod
    def of(cls, plan: Plan, job: Job, ranges: Sequence[range]) -> TemplateKey:
        cluster, node = job.cluster, job.cluster.node
        return cls(
            plan, tuple(ranges), id(job.layers), job.samples_per_worker, job.precision, job.reduced_bytes, job.zero,
            job.unevenness, plan.pass_times(job), node.devices, node.cards_used, cluster.is_uniform, library_of(cluster),
        )  # fmt: skip


class _CachedTemplate(NamedTuple):
    # so that no others get their identity
    layers: Sequence[Layer]
    sketch: ProgramTemplate


_SKETCHES: Final[OrderedDict[TemplateKey, _CachedTemplate]] = OrderedDict()


def kept(shape: TemplateKey) -> ProgramTemplate | None:
    """The sketch of a shape, if it is still there."""
    if shape not in _SKETCHES:
        return None
    _SKETCHES.move_to_end(shape)
    return _SKETCHES[shape].sketch


def keep(shape: TemplateKey, layers: Sequence[Layer], sketch: ProgramTemplate) -> None:
    """Keeps it for a while, unless it is too large, or was drawn for numbers that vary."""
    if len(sketch.program) > _MOST_TASKS or any(getattr(sketch.program, name).ndim > 1 for name in _COLUMNS):
        return
    _SKETCHES[shape] = _CachedTemplate(layers, sketch)
    if len(_SKETCHES) > _KEPT:
        _SKETCHES.popitem(last=False)
