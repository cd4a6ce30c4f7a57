"""The table of a program: its tasks, a row each, in columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.csr import Ragged, in_order
from scaleproof.simulator.program.consistency import SYNCHRONOUS, Gate, WorkQuota
from scaleproof.simulator.program.resources import Resources, Routes, Rows, Use
from scaleproof.simulator.program.speed_profile import Pace

NO_LANE: Final = -1
MAIN_LANE: Final = 0
COLLECTIVE_LANE: Final = 1


class Kind(IntEnum):
    """COMPUTE holds a rank's main lane for `amount` seconds of work (zero work: the rank only waits).
    TRANSFER moves `amount` bytes from `rank` to `peer`. COLLECTIVE moves `amount` bytes through each of its members.
    SERVE queues at server `rank`, see `ProgramBuilder.serve`."""

    COMPUTE = 0
    TRANSFER = 1
    COLLECTIVE = 2
    SERVE = 3


def followers(follows: Sequence[Sequence[int]]) -> list[list[int]]:
    """The reverse of what each task follows: for each task the tasks that follow it."""
    result: list[list[int]] = [[] for _ in follows]
    for task, before in enumerate(follows):
        for previous in before:
            result[previous].append(task)
    return result


@dataclass(frozen=True)
class RankClasses:
    """Ranks that do the same are one class. names, multiplicity (how many ranks), is_server, late_s (when they begin their
    first step), lockstep (ranks that share each pass, so that the slowest of them sets its pace), paces (how fast those of them
    work as time passes; none where all are steady): one entry per class."""

    names: tuple[str, ...]
    multiplicity: NDArray[np.int64]
    is_server: NDArray[np.bool_]
    late_s: NDArray[np.float64]
    lockstep: NDArray[np.int64]
    paces: tuple[tuple[Pace, ...], ...]


@dataclass(frozen=True)
class Program:
    """T tasks in T-long columns.

    kind: Kind. rank: class that owns the task. peer: receiving class of a TRANSFER, else −1. lane: tasks of one rank and lane
    run in row order; NO_LANE for tasks that wait for their dependencies alone. phase, stage, microbatch: labels for spans.
    latency_s: passes before anything is used; of a COMPUTE task it is what the ranks of the class exchange with one another
    within the work, told as if it came first. amount: seconds of work, or bytes. max_rate: work seconds per second (1), or
    bytes per second. weight: share under contention relative to others. requests, update_s, bucket: of SERVE tasks only: how
    many requests the task stands for, each `amount` seconds; the seconds of the update once all have come; which of the
    server's parameters they are for, the first needed of a step being bucket 0.
    route: number of the route that the task takes; a route that uses nothing limits nothing.
    slot: hint of an order, −1 for none: a number above those of all that the task follows in its step. Engines may save
    themselves the search for an order; a hint that is wrong changes no time.
    together: number of a set of tasks that run at the same time by construction, −1 for none.
    partner: row of a transfer the other way between the same two ranks that follows the same two tasks, −1 for none: they share
    a connection, so that first moves what the rank sends that came last, then the other.
    told_after: task after which the receiver of a transfer tells that it is ready, −1 where that need not be told.
    behind: row of the last transfer that the receiver had sent the other way before that, −1 for none: the word is queued
    behind it, if its own receiver had told before, and comes when it has ended.
    dependencies: rows that must have ended. carried: rows of the step before that must have ended, beside what lanes say.
    members: classes that take part in a COLLECTIVE.
    gate: when servers answer. units: what a run is made of, where ranks do not all take the same number of steps.

    Of a program that was compiled for several points at once (`simulator.common.batched`), columns of numbers that differ
    between them have the points as a last axis.
    """

    ranks: RankClasses
    resources: Resources
    routes: Routes
    kind: NDArray[np.int8]
    rank: NDArray[np.int32]
    peer: NDArray[np.int32]
    lane: NDArray[np.int8]
    phase: NDArray[np.int8]
    stage: NDArray[np.int32]
    microbatch: NDArray[np.int32]
    latency_s: NDArray[np.float64]
    amount: NDArray[np.float64]
    max_rate: NDArray[np.float64]
    weight: NDArray[np.float64]
    requests: NDArray[np.int32]
    update_s: NDArray[np.float64]
    bucket: NDArray[np.int32]
    route: NDArray[np.int32]
    slot: NDArray[np.int32]
    together: NDArray[np.int32]
    partner: NDArray[np.int32]
    behind: NDArray[np.int32]
    told_after: NDArray[np.int32]
    dependencies: Ragged
    carried: Ragged
    members: Ragged
    gate: Gate = SYNCHRONOUS
    units: WorkQuota | None = None

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def is_static(self) -> bool:
        """Whether every rank takes every step, in an order that is fixed; else each rank has steps of its own, and a task of
        one step has always ended before the same of the next begins."""
        return self.gate == SYNCHRONOUS

    @property
    def has_servers(self) -> bool:
        return bool((self.kind == Kind.SERVE).any())

    def partners(self) -> tuple[Rows, Rows, Rows, Rows]:
        """Transfers that have partners, each pair once: their rows, their partners', and of either the task before it that its
        sender does."""
        first = np.flatnonzero(self.partner > np.arange(len(self)))
        second = self.partner[first].astype(np.int64)
        before = self.dependencies.take(first)
        own = self.rank[before.values] == self.rank[first][before.keys()]
        made, other = np.empty((2, len(first)), dtype=np.int64)
        made[before.keys()[own]], other[before.keys()[~own]] = before.values[own], before.values[~own]
        return first, second, made, other

    def predecessors(self) -> Ragged:
        """For each task the tasks of its step that it follows: its dependencies, and the one before it in its lane."""
        lanes = self.lanes()
        later = np.ones(len(lanes.values), dtype=np.bool_)
        later[lanes.offsets[:-1]] = False
        previous = np.full(len(self), -1)
        previous[lanes.values[later]] = lanes.values[np.flatnonzero(later) - 1]
        return self.dependencies.extended(previous)

    def carried_predecessors(self) -> Ragged:
        """For each task the tasks of the step before that it follows: those carried, and for a lane's first task its last."""
        lanes = self.lanes()
        last = np.full(len(self), -1)
        last[lanes.values[lanes.offsets[:-1]]] = lanes.values[lanes.offsets[1:] - 1]
        return self.carried.extended(last)

    def lanes(self) -> Ragged:
        """The tasks of each lane, in order."""
        tasks = np.flatnonzero(self.lane != NO_LANE)
        keys = self.rank[tasks].astype(np.int64) * (self.lane.max(initial=0) + 1) + self.lane[tasks]
        order = in_order(keys)
        first = np.flatnonzero(np.diff(keys[order], prepend=-1))
        return Ragged(np.append(first, len(tasks)), tasks[order])

    def follows(self) -> list[list[int]]:
        """`predecessors` as lists."""
        return self.predecessors().lists()

    def carried_with_lanes(self) -> list[list[int]]:
        """`carried_predecessors` as lists."""
        return self.carried_predecessors().lists()

    def uses(self) -> list[list[Use]]:
        """What each task uses; tasks that take one route share one list."""
        routes = self.routes.lists()
        return [routes[route] for route in self.route.tolist()]
