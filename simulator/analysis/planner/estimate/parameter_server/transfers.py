"""Transfers between workers and servers in a step, read from the program that a strategy compiles to.

Configurations of the same servers differ only in the duration of passes, so that one program is enough for all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.engine.durations import durations_s
from scaleproof.simulator.engine.replay_servers import servers_of
from scaleproof.simulator.program import Kind, Program
from scaleproof.simulator.run.run import Phase

Times = NDArray[np.float64]
Numbers = NDArray[np.int64]
RankNumbers = NDArray[np.int32]


class TransferShape(NamedTuple):
    """What programs have in common whose steps are timed together.

    group_of, server_of: worker group and server of each connection, sorted by server. links: index of the link on its route
    that is busiest with pushes, and with pulls. broadcasts: whether groups of several workers sum and broadcast what they have.
    groups, servers, buckets: their numbers.
    """

    group_of: tuple[int, ...]
    server_of: tuple[int, ...]
    links: tuple[tuple[int, ...], ...]
    broadcasts: bool
    groups: int
    servers: int
    buckets: int


class PushPullTimes(NamedTuple):
    """Seconds of pushes and pulls, each of shape (connections, buckets) or (links, buckets), −∞ where nothing is sent."""

    pushes_s: Times
    pulls_s: Times


@dataclass(frozen=True)
class ServerTransfers:
    """Seconds of transfers between workers and servers.

    slowdown: factor of passes where ranks share cores, shape (groups,). alone, shared: messages without contention, or sharing
    links evenly with all messages for the same bucket; links: time for which links are busy. services_s: service of each
    connection's requests, shape (connections, buckets); updates_s: shape (servers, buckets). sums_s, broadcasts_s: collectives
    inside nodes, shape (groups, buckets). busy_s: time for which some link is busy with pushes of the first n buckets and with
    the pull of the first, shape (buckets,).
    """

    shape: TransferShape
    slowdown: Times
    alone: PushPullTimes
    shared: PushPullTimes
    links: PushPullTimes
    services_s: Times
    updates_s: Times
    sums_s: Times
    broadcasts_s: Times
    busy_s: Times


def server_transfers(program: Program) -> ServerTransfers:
    """Transfers of a program of synchronous servers."""
    alone_s, kind = durations_s(program), program.kind
    shared_s = _shared_s(program, alone_s)
    up, down = (np.flatnonzero((kind == Kind.TRANSFER) & (program.phase == phase)) for phase in (Phase.SEND, Phase.RECEIVE))
    groups, servers = np.unique(program.rank[up]), np.unique(program.peer[up])
    connections = _connections(program.peer[up], program.rank[up], program.together[up])
    server_of, group_of, _ = np.array(sorted(set(connections))).T
    whose = tuple(np.searchsorted(groups, group_of).tolist()), tuple(np.searchsorted(servers, server_of).tolist())
    pushes = _Direction(program, up, connections)
    pulls = _Direction(program, down, _connections(program.rank[down], program.peer[down], program.together[down]))
    updates_s = np.zeros((len(servers), pushes.buckets))
    for one in servers_of(program):
        updates_s[np.searchsorted(servers, one.rank), one.bucket] = one.update_s
    collectives = np.flatnonzero(kind == Kind.COLLECTIVE)
    sums_s, broadcasts_s = _collectives(alone_s, program.rank[collectives], collectives, groups, pushes.buckets)
    found, links = np.unique([pushes.busiest, pulls.busiest], return_inverse=True)
    counts = len(groups), len(servers), pushes.buckets
    shape = TransferShape(*whose, tuple(map(tuple, links.reshape(2, -1).tolist())), len(collectives) > 0, *counts)
    return ServerTransfers(
        shape, _slowdown(program, alone_s, groups),
        PushPullTimes(pushes.table(alone_s[up]), pulls.table(alone_s[down])),
        PushPullTimes(pushes.table(shared_s[up]), pulls.table(shared_s[down])),
        PushPullTimes(*(np.where(way.work_s[:, found] > 0, way.work_s[:, found], -np.inf).T for way in (pushes, pulls))),
        pushes.table(alone_s[kind == Kind.SERVE], 0.0), updates_s, sums_s, broadcasts_s,
        (np.cumsum(pushes.work_s, axis=0) + pulls.work_s[0]).max(axis=1, initial=0.0),
    )  # fmt: skip


class _Direction:
    """Messages of one direction by connection and bucket.

    work_s: time for which each resource is busy with a bucket, shape (buckets, resources). busiest: for each connection, the
    busiest resource on its route.
    """

    def __init__(self, program: Program, rows: Numbers, connections: Sequence[_Connection]) -> None:
        numbers = {key: number for number, key in enumerate(sorted(set(connections)))}
        self.connection = np.array([numbers[key] for key in connections])
        self.bucket = program.together[rows] // 2
        self.buckets, resources = 1 + int(self.bucket.max()), len(program.resources.capacity) + 1
        which, resource, per_unit = program.routes.used(program.route[rows])
        took_s = program.amount[rows][which] * per_unit / program.resources.capacity[resource]
        key = self.bucket[which].astype(np.int64) * resources + resource
        self.work_s: Times = np.zeros((self.buckets, resources))
        np.add.at(self.work_s.ravel(), key, took_s)
        # transfers without resources map to a dummy resource, the last
        self.busiest = np.full(len(numbers), resources - 1)
        order = np.argsort(self.work_s.sum(axis=0)[resource], kind="stable")
        self.busiest[self.connection[which[order]]] = resource[order]

    def table(self, values: Times, nothing: float = -np.inf) -> Times:
        """Values of its messages, shape (connections, buckets)."""
        result = np.full((len(self.busiest), self.buckets), nothing)
        result[self.connection, self.bucket] = values
        return result


# Of a message: its server, its group, and its index among their messages for a bucket.
_Connection = tuple[int, int, int]


def _connections(server: RankNumbers, group: RankNumbers, together: RankNumbers) -> list[_Connection]:
    """The connection of each message. A group sends two messages to equivalent servers, one for its own nodes and one for
    others, in the same order for all buckets."""
    seen: Counter[tuple[int, int, int]] = Counter()
    found = []
    for one in zip(server.tolist(), group.tolist(), together.tolist(), strict=True):
        found.append((*one[:2], seen[one]))
        seen[one] += 1
    return found


def _slowdown(program: Program, alone_s: Times, groups: RankNumbers) -> Times:
    """Factor by which each group's passes take longer than their work."""
    works = np.flatnonzero((program.phase == Phase.BACKWARD) & (program.amount > 0))
    slower = dict(zip(program.rank[works].tolist(), (alone_s[works] / program.amount[works]).tolist(), strict=True))
    return np.array([slower.get(group, 1.0) for group in groups.tolist()])


def _collectives(alone_s: Times, rank: RankNumbers, rows: Numbers, groups: RankNumbers, buckets: int) -> tuple[Times, Times]:
    """Seconds of each group's sums of buckets, from the last to the first, and of its broadcasts, from the first to the
    last."""
    sums_s, broadcasts_s = np.zeros((2, len(groups), buckets))
    for number, group in enumerate(groups):
        own = alone_s[rows[rank == group]]
        if len(own):
            sums_s[number], broadcasts_s[number] = own[:buckets][::-1], own[buckets:]
    return sums_s, broadcasts_s


def _shared_s(program: Program, alone_s: Times) -> Times:
    """Seconds of each task if concurrent messages begin together and share each resource evenly: a message ends once it and all
    larger ones have transferred its amount, and all smaller ones have ended."""
    together, resources = program.together, program.resources
    task, resource, per_unit = program.routes.used(program.route)
    of_set = together[task] >= 0
    task, resource, per_unit = task[of_set], resource[of_set], per_unit[of_set]
    key = together[task].astype(np.int64) * len(resources.capacity) + resource
    order = np.lexsort((program.amount[task], key))
    task, resource, per_unit, key = task[order], resource[order], per_unit[order], key[order]
    amount = program.amount[task]
    first = np.flatnonzero(np.diff(key, prepend=-1))
    group = np.cumsum(np.diff(key, prepend=-1) > 0) - 1
    smaller, users = _running(per_unit * amount, first, group), _running(per_unit, first, group)
    wanted = np.add.reduceat(per_unit, first)[group] if len(first) else per_unit
    left = resources.capacity[resource] / (1 + resources.incast[resource] * np.maximum(0.0, wanted - 1))
    longest_s = alone_s.copy()
    np.maximum.at(longest_s, task, program.latency_s[task] + (smaller + amount * (wanted - users)) / left)
    return longest_s


def _running(values: Times, first: Numbers, group: Numbers) -> Times:
    """Running sums within each group."""
    total = np.cumsum(values)
    result: Times = total - (total - values)[first][group]
    return result
