"""The order in which replay times the tasks of a program: by level, all tasks of a level at once.

The level of a task is above those of all its dependencies in the same step. Some tasks of a level are delayed in addition: by
shared connections, ready messages of receivers, ranks whose speed changes with time, and queues of servers.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.csr import CsrLists, in_order
from scaleproof.simulator.common.speed_profile import SpeedProfiles
from scaleproof.simulator.engine.durations import Times, rates, speed_profile_of, variable_speed_rows
from scaleproof.simulator.engine.max_min import TOGETHER
from scaleproof.simulator.program import Kind, Program

Places = NDArray[np.int64]


class VariableSpeedTasks(NamedTuple):
    """Tasks of ranks whose speed changes with time. latency_s: before their work, shape (tasks, 1)."""

    places: Places
    latency_s: Times
    profiles: SpeedProfiles

    def apply(self, start: Times, end: Times, seconds: Times, ready: Times) -> None:
        """Sets the ends of the tasks. seconds: durations at normal speed; all of shape (places, samples)."""
        work_s = seconds[self.places] - self.latency_s
        end[self.places] = self.profiles.end_s(start[self.places] + self.latency_s, work_s)


class ReadyMessages(NamedTuple):
    """Transfers that wait for a ready message of their receivers, the tasks after which the receivers send it, and the
    transfers that it is queued behind, all as places."""

    rows: Places
    sent_after: Places
    queued_behind: Places

    def apply(self, start: Times, end: Times, seconds: Times, ready: Times) -> None:
        """Sets start and end of the transfers, and `ready`: times at which their senders receive the ready messages.

        Those of lower levels are already set. All arrays of shape (places, samples).
        """
        sent_s = end[self.sent_after]
        is_queued = ready[self.queued_behind] < sent_s * (1 - TOGETHER)
        ready[self.rows] = np.where(is_queued, end[self.queued_behind], sent_s)
        start[self.rows] = np.maximum(start[self.rows], ready[self.rows])
        end[self.rows] = start[self.rows] + seconds[self.rows]


class Partners(NamedTuple):
    """Pairs of transfers that share a connection, and the tasks before them on their senders, all as places."""

    first: Places
    second: Places
    before_first: Places
    before_second: Places

    def apply(self, start: Times, end: Times, seconds: Times, ready: Times) -> None:
        """Sets start and end of the transfers: of each pair, that of the rank that was ready later moves first; of two that
        were ready together the first. All arrays of shape (places, samples)."""
        second_first = end[self.before_second] > end[self.before_first] * (1 + TOGETHER)
        later_s = np.where(second_first, end[self.second], end[self.first])
        start[self.first] = np.where(second_first, later_s, start[self.first])
        start[self.second] = np.where(second_first, start[self.second], later_s)
        for places in (self.first, self.second):
            end[places] = start[places] + seconds[places]


# What delays the tasks of a level in addition to their dependencies.
Delay = VariableSpeedTasks | ReadyMessages | Partners


class QueuedServer(NamedTuple):
    """A server class and its tasks.

    bucket: of each task. update_s: duration of the update after a task if it is the last of its bucket. Shape (tasks of the
    server,), or as of `durations_s`.
    """

    rank: int
    tasks: NDArray[np.int64]
    bucket: NDArray[np.int32]
    update_s: Times
    profile: SpeedProfiles | None

    def served_s(self, begin_s: Times, work_s: Times) -> Times:
        """End of work that begins at `begin_s` and takes `work_s` at normal speed, all of shape (requests, samples)."""
        return begin_s + work_s if self.profile is None else self.profile.end_s(begin_s, work_s)


def servers_of(program: Program) -> list[QueuedServer]:
    """A program's servers, each with the rows of its requests and the seconds of its updates."""
    serves = np.flatnonzero(program.kind == Kind.SERVE)
    if not len(serves):
        return []
    update_s = (program.update_s.T / rates(program).T).T
    by_rank = ((rank, serves[program.rank[serves] == rank]) for rank in np.unique(program.rank[serves]).tolist())
    return [
        QueuedServer(rank, tasks, program.bucket[tasks], update_s[tasks], speed_profile_of(program, rank))
        for rank, tasks in by_rank
    ]


# Mean number of dependencies per level up to which plain Python is faster than numpy for a single sample.
_PLAIN: Final = 20
# A level is split if its tasks have very different numbers of dependencies: if less than this share of the table of
# dependencies is used, and the table has at least this size.
_FILLED: Final = 0.25
_SMALL: Final = 256
# Longest chain of dependencies within one slot that is corrected.
_MOST_CORRECTED: Final = 64
# Columns of a program that an order depends on; with servers or variable speeds, also numbers.
_STRUCTURE: Final = ("ranks", "kind", "rank", "stream", "slot", "partner", "behind", "ready_after", "carried")
_NUMBERS: Final = ("latency_s", "update_s", "max_rate", "bucket", "route", "routes", "resources")


class Level(NamedTuple):
    """Tasks that are timed together, and their dependencies: one column of places per task, padded with the empty place."""

    tasks: slice
    before: Places


class LevelOrder:
    """A program's tasks ordered by level.

    Each server has a release, with a row after the tasks: it depends on the server's tasks, and their dependants also depend on
    it. The places of an order are those of the rows, an empty place that delays nothing, and places for ends of the step
    before. rows: task or release at each place. places: place of each row, and last the empty place. place: places of the
    tasks, as an index. kept: places that the next step depends on. delays, released: by number of the level, delays of its
    tasks in addition to dependencies, in this order, and numbers of the servers whose requests have all arrived.
    """

    def __init__(self, program: Program) -> None:
        tasks = len(program)
        self.servers = servers_of(program)
        before = _with_releases(program, self.servers)
        slots = np.concatenate([program.slot, np.full(len(self.servers), -1)])
        self.has_ready_messages = bool((program.ready_after >= 0).any())
        behind = np.append(program.behind, np.full(len(self.servers), -1))
        level = _levels(before.extended(behind) if self.has_ready_messages else before, slots)
        carried = program.carried_predecessors()
        counts = before.counts + np.append(carried.counts, np.zeros(len(self.servers), dtype=np.int64))
        part = _split(level, np.maximum(counts, 1))
        self.rows = in_order(part)
        places = np.empty(len(self.rows) + 1, dtype=np.int64)
        places[self.rows] = np.arange(len(self.rows))
        places[-1] = len(self.rows)
        self.places = places
        # a slice, which makes a view instead of a copy, if the tasks are already ordered
        self.place = slice(tasks) if (places[:tasks] == np.arange(tasks)).all() else places[:tasks]
        self.kept = np.unique(places[carried.values])
        self._follows = self._placed(before, carried)
        self._bounds = np.flatnonzero(np.diff(part[self.rows], prepend=-1, append=-1))
        self._numbers = level[self.rows[self._bounds[:-1]]]
        self.delays = self._delays(program, level)
        self.released: dict[int, list[int]] = {}
        for server, at in enumerate(level[tasks:].tolist()):
            self.released.setdefault(self._number(at), []).append(server)
        is_delayed = bool(self.delays or self.released)
        self.is_plain = not is_delayed and len(self._follows.values) <= _PLAIN * len(self._bounds)

    def _placed(self, before: CsrLists, carried: CsrLists) -> CsrLists:
        """For each place the places of its dependencies in its step and of the step before, or the empty place without any."""
        keys = np.concatenate([before.keys(), carried.keys()])
        kept = np.searchsorted(self.kept, self.places[carried.values])
        values = np.concatenate([self.places[before.values], len(self.places) + kept])
        follows = CsrLists.grouped(self.places[keys], values, len(self.rows))
        return follows.extended(np.where(follows.counts == 0, len(self.rows), -1))

    def _number(self, level: int) -> int:
        """The number of a level's last part."""
        return int(np.searchsorted(self._numbers, level, side="right")) - 1

    def _delays(self, program: Program, level: Places) -> dict[int, list[Delay]]:
        """Delays by number of the level. level: of each row; that of a transfer is above that of the one that its ready message
        may be queued behind, and equal for partners, which have the same dependencies."""
        speeds, messages = variable_speed_rows(program), np.flatnonzero(program.ready_after >= 0)
        behind = messages, program.ready_after[messages], program.behind[messages]
        pairs = program.partners() if (program.partner >= 0).any() else (messages[:0],) * 4
        kinds: Sequence[tuple[Callable[..., Delay], Sequence[NDArray[np.signedinteger[Any]]]]] = [
            (functools.partial(self._variable_speed, program), [speeds]), (ReadyMessages, behind), (Partners, pairs),
        ]  # fmt: skip
        result: dict[int, list[Delay]] = {}
        for delay_of, columns in kinds:
            for at in np.unique(level[columns[0]]).tolist():
                places = [self.places[column[level[columns[0]] == at]] for column in columns]
                result.setdefault(self._number(at), []).append(delay_of(*places))
        return result

    def _variable_speed(self, program: Program, places: Places) -> VariableSpeedTasks:
        """The tasks at these places, with the speed profiles of their ranks."""
        rows = self.rows[places]
        profiles = SpeedProfiles([program.ranks.paces[rank] for rank in program.rank[rows].tolist()])
        return VariableSpeedTasks(places, program.latency_s[rows].reshape(len(rows), -1), profiles)

    def along_s(self, seconds: Times) -> float:
        """Upper bound of the sum of seconds along any path through all steps, which has at most one task of each level.

        seconds: shape (steps, tasks). Infinite if tasks have delays in addition to dependencies.
        """
        if self.delays or self.released:
            return math.inf
        return float(np.maximum.reduceat(seconds[:, self.rows], self._bounds[:-1], axis=1).sum())

    @functools.cached_property
    def levels(self) -> list[Level]:
        """The levels, or parts of them, in order."""
        follows, bounds, tasks = self._follows, self._bounds, np.diff(self._bounds)
        heights = np.maximum.reduceat(follows.counts, bounds[:-1])
        begins = np.cumsum(np.append(0, heights * tasks))
        # index of the first entry of each task's column, and distance between its entries
        first = np.repeat(begins[:-1] - bounds[:-1], tasks) + np.arange(len(self.rows))
        place, stride = follows.keys(), np.repeat(tasks, tasks)
        number = np.arange(len(place)) - follows.offsets[place]
        values = np.full(begins[-1], len(self.rows))
        values[first[place] + number * stride[place]] = follows.values
        parts, tables = (itertools.starmap(slice, itertools.pairwise(ends.tolist())) for ends in (bounds, begins))
        levels = zip(parts, tables, heights.tolist(), strict=True)
        return [Level(part, values[table].reshape(height, -1)) for part, table, height in levels]

    @functools.cached_property
    def before(self) -> list[list[int]]:
        """For each place the places of its dependencies."""
        return self._follows.lists()


# Cache: structure of a program and its order, by identity of the program's dependencies, while these exist. Computing an order
# takes about as long as timing a step.
_ORDERS: Final[dict[int, tuple[tuple[object, ...], LevelOrder]]] = {}


def order_of(program: Program) -> LevelOrder:
    """The order of a program, which is computed once for all programs that differ only in numbers."""
    key, structure = id(program.dependencies), _structure(program)
    known = _ORDERS.get(key)
    if known is None or not all(map(operator.is_, structure, known[0])):
        known = structure, LevelOrder(program)
        if key not in _ORDERS:
            weakref.finalize(program.dependencies, _ORDERS.pop, key, None)
        _ORDERS[key] = known
    return known[1]


def _structure(program: Program) -> tuple[object, ...]:
    has_numbers = program.has_servers or any(program.ranks.paces)
    return operator.attrgetter(*_STRUCTURE, *(_NUMBERS if has_numbers else ()))(program)


def _split(level: Places, counts: Places) -> Places:
    """The part of each row: its level, or a part of it if the level's table would be sparse. counts: dependencies of each
    row."""
    levels, number = np.unique(level, return_inverse=True)
    rows, values = np.bincount(number), np.bincount(number, counts)
    heights = np.zeros(len(levels), dtype=np.int64)
    np.maximum.at(heights, number, counts)
    sparse = (values < _FILLED * heights * rows) & (heights * rows >= _SMALL)
    if not sparse.any():
        return level
    part = np.where(sparse[number], np.log2(counts).astype(np.int64), 0)
    parts: Places = level * (part.max() + 1) + part
    return parts


def _with_releases(program: Program, servers: Sequence[QueuedServer]) -> CsrLists:
    """The dependencies of each task and each release of a server in its step."""
    before = program.predecessors()
    if not servers:
        return before
    release = np.full(len(program), -1)
    for number, server in enumerate(servers, len(program)):
        release[server.tasks] = number
    after = before.keys()[release[before.values] >= 0]
    released = release[before.values][release[before.values] >= 0]
    own = [np.full(len(server.tasks), number) for number, server in enumerate(servers, len(program))]
    keys = np.concatenate([before.keys(), after, *own])
    values = np.concatenate([before.values, released, *(server.tasks for server in servers)])
    return CsrLists.grouped(keys, values, len(program) + len(servers))


def _levels(before: CsrLists, slots: NDArray[np.int64]) -> NDArray[np.int64]:
    """The level of each row: its slot if it has one, else the longest path to it.

    Slots are hints: they are corrected or ignored if they contradict dependencies. Raises ValueError if these form a cycle.
    """
    corrected = _corrected(before, _longest_paths(before, slots))
    return _longest_paths(before, np.full(len(slots), -1)) if corrected is None else corrected


def _corrected(before: CsrLists, levels: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Levels in which rows that depend on each other within one level are separated; None if other rows are wrong."""
    row, previous = before.keys(), before.values
    wrong = np.flatnonzero(levels[previous] >= levels[row])
    row, previous = row[wrong], previous[wrong]
    if (levels[previous] > levels[row]).any():
        return None
    depth = np.zeros(len(levels), dtype=np.int64)
    for _ in range(_MOST_CORRECTED):
        late = depth[previous] >= depth[row]
        if not late.any():
            corrected: NDArray[np.int64] = levels * (depth.max(initial=0) + 1) + depth
            return corrected
        np.maximum.at(depth, row[late], depth[previous[late]] + 1)
    return None


def _longest_paths(before: CsrLists, known: NDArray[np.int64]) -> NDArray[np.int64]:
    """The length of the longest path to each row of unknown level (below zero), counted from the known levels."""
    unknown = np.flatnonzero(known < 0)
    lists = before.take(unknown)
    row = lists.keys()
    below = known[lists.values]
    path = np.zeros(len(unknown), dtype=np.int64)
    np.maximum.at(path, row, below + 1)
    number = np.empty(len(known), dtype=np.int64)
    number[unknown] = np.arange(len(unknown))
    between = below < 0
    row, previous = row[between], number[lists.values[between]]
    after = CsrLists.grouped(previous, row, len(unknown)).lists()
    waiting, length = np.bincount(row, minlength=len(unknown)).tolist(), path.tolist()
    ready = [index for index, count in enumerate(waiting) if count == 0]
    for index in ready:
        for successor in after[index]:
            length[successor] = max(length[successor], length[index] + 1)
            waiting[successor] -= 1
            if waiting[successor] == 0:
                ready.append(successor)
    if len(ready) < len(unknown):
        raise ValueError("the dependencies of tasks form a cycle")
    levels = known.copy()
    levels[unknown] = length
    return levels
