"""The table of a program: one row per task, in columns."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.csr import CsrLists, in_order
from scaleproof.simulator.common.parameter_server import SYNCHRONOUS, ConsistencyModel, WorkQuota
from scaleproof.simulator.common.speed_profile import Pace
from scaleproof.simulator.program.costs import PassCommunication, Prices, TaskCosts
from scaleproof.simulator.program.resources import Resources, Routes, Rows, Tenancy, Use

NO_STREAM: Final = -1
MAIN_STREAM: Final = 0
COLLECTIVE_STREAM: Final = 1
# Copies between a device and its host: of states, and of activations, to the host and back.
STATES_OUT_STREAM: Final = 2
STATES_IN_STREAM: Final = 3
ACTIVATIONS_OUT_STREAM: Final = 4
ACTIVATIONS_IN_STREAM: Final = 5


class Kind(IntEnum):
    """Kinds of tasks.

    COMPUTE occupies a rank's main stream for `amount` seconds of work (zero work: the rank only waits). TRANSFER moves `amount`
    bytes from `rank` to `peer`. COLLECTIVE moves `amount` bytes through each of its members. SERVE queues at server `rank`, see
    `ProgramBuilder.serve`.
    """

    COMPUTE = 0
    TRANSFER = 1
    COLLECTIVE = 2
    SERVE = 3


def followers(follows: Sequence[Sequence[int]]) -> list[list[int]]:
    """The tasks that follow each task: the reverse of `follows`, the tasks that each task follows."""
    result: list[list[int]] = [[] for _ in follows]
    for task, predecessors in enumerate(follows):
        for previous in predecessors:
            result[previous].append(task)
    return result


@dataclass(frozen=True)
class RankClasses:
    """Classes of equivalent ranks, one entry per class.

    multiplicity: number of ranks. late_s: seconds at which they start their first step. model_parallel_size: number of ranks
    that share each pass (the model-parallel group), so that the slowest of them determines its duration. paces: speed
    profiles of the ranks of that group; empty where all are constant.
    """

    names: tuple[str, ...]
    multiplicity: NDArray[np.int64]
    is_server: NDArray[np.bool_]
    late_s: NDArray[np.float64]
    model_parallel_size: NDArray[np.int64]
    paces: tuple[tuple[Pace, ...], ...]


@dataclass(frozen=True, eq=False)
class Program:
    """T tasks in columns of length T.

    kind: Kind. rank: rank class that owns the task. peer: receiving class of a TRANSFER, else −1. stream: of the rank;
    tasks of one rank and stream run in row order; NO_STREAM for tasks that wait for their dependencies alone. phase, stage,
    microbatch: labels for spans.

    latency_s: seconds before the task uses any resource; for a COMPUTE task, the exposed collectives of the model-parallel
    group within the work, placed before it. amount: seconds of work, or bytes. max_rate: work seconds per second (1), or bytes
    per second. weight: relative share under contention.

    requests, update_s, bucket: for SERVE tasks only. requests: number of requests that the task stands for, each of `amount`
    seconds. update_s: seconds of the update once all requests have arrived. bucket: the server's parameters that they concern;
    bucket 0 is needed first in a step.

    route: number of the task's route; a route without resources imposes no limit. slot: scheduling hint, a number above the
    slots of all tasks that the task follows within its step, −1 for none; engines may use it to skip the search for an order,
    and a wrong hint changes no time. together: number of a set of tasks that run concurrently by construction, −1 for none.

    partner: row of a transfer in the opposite direction between the same two ranks that depends on the same two tasks, −1 for
    none. Both share a connection: the transfer whose sender was ready last moves first. ready_after: task after which the
    receiver of a transfer announces that it is ready, −1 if no announcement is needed. behind: row of the last transfer that
    the receiver had sent in the opposite direction before that, −1 for none: if that transfer's own receiver had announced
    earlier, the announcement is queued behind the transfer and arrives when it has ended.

    communication, message_bytes, calls, first_layer, last_layer: labels of transfers and collectives, as in
    `simulator.common.communication.Communication`; a COMPUTE task has the layers that it passes. in_passes: computes the labels
    of the collectives within COMPUTE tasks; only runs with spans need them.

    dependencies: rows that must have ended. carried: rows of the previous step that must have ended, in addition to the
    stream's order. members: classes that take part in a COLLECTIVE. consistency: model of the servers. units: the work of a
    run in which ranks do not all take the same number of steps.

    costs: functions from which the columns `amount`, `latency_s`, `max_rate`, `weight`, `route` and `update_s` follow. prices:
    their arguments; None if all costs are numbers, or if the tasks depend on them.
    """

    ranks: RankClasses
    resources: Resources
    routes: Routes
    kind: NDArray[np.int8]
    rank: NDArray[np.int32]
    peer: NDArray[np.int32]
    stream: NDArray[np.int8]
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
    ready_after: NDArray[np.int32]
    communication: NDArray[np.int16]
    message_bytes: NDArray[np.float64]
    calls: NDArray[np.int32]
    first_layer: NDArray[np.int32]
    last_layer: NDArray[np.int32]
    dependencies: CsrLists
    carried: CsrLists
    members: CsrLists
    consistency: ConsistencyModel = SYNCHRONOUS
    units: WorkQuota | None = None
    in_passes: Callable[[], PassCommunication] | None = None
    costs: TaskCosts | None = field(default=None, repr=False)
    prices: Prices | None = field(default=None, repr=False)

    def at(self, job: Any) -> Program | None:
        """The same tasks at the prices of another job, which may differ in numbers of its cluster; None if its tasks are
        other ones."""
        prices = None if self.prices is None else self.prices.at(job)
        if prices is None or self.costs is None:
            return None
        return replace(self, **self.costs.columns(prices), prices=prices)

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def is_static(self) -> bool:
        """Whether every rank takes every step in a fixed order. Otherwise each rank has steps of its own, and each task of a
        step ends before the same task of the next step starts."""
        return self.consistency == SYNCHRONOUS

    @property
    def has_servers(self) -> bool:
        """Whether any task is served by a parameter server."""
        return bool((self.kind == Kind.SERVE).any())

    def partners(self) -> tuple[Rows, Rows, Rows, Rows]:
        """Transfers that have partners, each pair once, as arrays of shape (pairs,): the transfers' rows, their partners' rows,
        and for each of the two the task before it on its sender's rank."""
        first = np.flatnonzero(self.partner > np.arange(len(self)))
        second = self.partner[first].astype(np.int64)
        earlier = self.dependencies.take(first)
        own = self.rank[earlier.values] == self.rank[first][earlier.keys()]
        source_task, target_task = np.empty((2, len(first)), dtype=np.int64)
        source_task[earlier.keys()[own]], target_task[earlier.keys()[~own]] = earlier.values[own], earlier.values[~own]
        return first, second, source_task, target_task

    def predecessors(self) -> CsrLists:
        """For each task the tasks of its step that it follows: its dependencies and the previous task on its stream."""
        by_stream = self.streams()
        later = np.ones(len(by_stream.values), dtype=np.bool_)
        later[by_stream.offsets[:-1]] = False
        previous = np.full(len(self), -1)
        previous[by_stream.values[later]] = by_stream.values[np.flatnonzero(later) - 1]
        return self.dependencies.extended(previous)

    def carried_predecessors(self) -> CsrLists:
        """For each task the tasks of the previous step that it follows: those carried and, for the first task of a stream, the
        stream's last."""
        by_stream = self.streams()
        last = np.full(len(self), -1)
        last[by_stream.values[by_stream.offsets[:-1]]] = by_stream.values[by_stream.offsets[1:] - 1]
        return self.carried.extended(last)

    def streams(self) -> CsrLists:
        """Rows of the tasks of each stream, in order."""
        tasks = np.flatnonzero(self.stream != NO_STREAM)
        keys = self.rank[tasks].astype(np.int64) * (self.stream.max(initial=0) + 1) + self.stream[tasks]
        order = in_order(keys)
        first = np.flatnonzero(np.diff(keys[order], prepend=-1))
        return CsrLists(np.append(first, len(tasks)), tasks[order])

    def follows(self) -> list[list[int]]:
        """`predecessors` as lists."""
        return self.predecessors().lists()

    def carried_lists(self) -> list[list[int]]:
        """`carried_predecessors` as lists."""
        return self.carried_predecessors().lists()

    def uses(self) -> list[list[Use]]:
        """Resources that each task uses; tasks with the same route share one list."""
        routes = self.routes.lists()
        return [routes[route] for route in self.route.tolist()]


def distinct(program: Program) -> Routes:
    """A program's routes with one resource of each group that has the same capacity, tenants and uses, such as the network
    cards of a node over which each message is spread, or links in series."""
    routes, resources = program.routes, program.resources
    is_used = np.zeros(len(routes.resources), dtype=np.bool_)
    is_used[program.route] = True
    route = routes.resources.keys()
    entries = np.flatnonzero(is_used[route])
    entries = entries[in_order(routes.resources.values[entries])]
    used, route, per_unit = routes.resources.values[entries], route[entries], routes.per_unit[entries]
    bounds = np.searchsorted(used, np.arange(len(resources.names) + 1)).tolist()
    kinds = zip(resources.capacity.tolist(), resources.incast.tolist(), strict=True)
    tenancies: dict[int, tuple[Tenancy, ...]] = {}
    for tenancy in resources.tenancies:
        tenancies[tenancy.resource] = (*tenancies.get(tenancy.resource, ()), tenancy._replace(resource=0))
    first: dict[tuple[Hashable, ...], int] = {}
    keep = np.zeros(len(resources.names), dtype=np.bool_)
    for resource, (capacity, incast) in enumerate(kinds):
        uses = slice(bounds[resource], bounds[resource + 1])
        key = (capacity, incast, tenancies.get(resource), route[uses].tobytes(), per_unit[uses].tobytes())
        keep[resource] = first.setdefault(key, resource) == resource
    kept = keep[routes.resources.values]
    offsets = np.append(0, np.cumsum(kept))[routes.resources.offsets]
    return Routes(CsrLists(offsets, routes.resources.values[kept]), routes.per_unit[kept])
