"""Order: in which order the tasks of a program can be timed, those of a level at once.

A task's level is above those of all that it follows in its step.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import weakref
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.csr import Ragged, in_order
from scaleproof.simulator.engine.durations import Times
from scaleproof.simulator.engine.rendezvous import Paced, Partners, Places, RendezvousDelays, Told
from scaleproof.simulator.engine.replay_servers import QueuedServer, servers_of
from scaleproof.simulator.program import Program

# Where a level follows so many tasks or fewer, on average, and there is a single sample, that needs no numpy: it takes as long
# for each call.
_PLAINLY: Final = 20
# A level whose tasks follow so unlike numbers of others that what they follow is this small a part of a table of it, and the
# table no smaller than this, is cut into parts.
_FILLED: Final = 0.25
_SMALL: Final = 256
# Hints that do not tell apart what follows one another are mended where so many of these are in a row at most.
_MOST_MENDED: Final = 64
# What an order follows from; of servers and of ranks that are not steady also numbers.
_STRUCTURE: Final = ("ranks", "kind", "rank", "lane", "slot", "partner", "behind", "told_after", "carried")
_NUMBERS: Final = ("latency_s", "update_s", "max_rate", "bucket", "route", "routes", "resources")


class Level(NamedTuple):
    """Tasks that can be timed together, and what they follow: a column of places for each of them, filled up with that which
    holds nothing up."""

    tasks: slice
    before: Places


class LevelDelays(NamedTuple):
    """What else holds up tasks of a level. released: numbers of the servers that have all they wait for."""

    paced: Paced | None
    told: Told | None
    partners: Partners | None
    released: Sequence[int]


class LevelOrder:
    """A program's tasks in an order in which they can be timed: by level.

    A server's release has a row of its own after the tasks: it follows the server's tasks, and what follows them follows it
    too. rows: the task or release at each place. Behind these come a place that holds nothing up, and those that keep ends of
    the step before. places: where each row is, and last what holds nothing up. place: where the tasks are, as an index. kept:
    places of what is followed in the next step. held: by number of the level.
    """

    def __init__(self, program: Program) -> None:
        tasks = len(program)
        self.servers = servers_of(program)
        before = _with_releases(program, self.servers)
        slots = np.concatenate([program.slot, np.full(len(self.servers), -1)])
        self.tells = bool((program.told_after >= 0).any())
        behind = np.append(program.behind, np.full(len(self.servers), -1))
        level = _levels(before.extended(behind) if self.tells else before, slots)
        carried = program.carried_predecessors()
        counts = before.counts + np.append(carried.counts, np.zeros(len(self.servers), dtype=np.int64))
        part = _parted(level, np.maximum(counts, 1))
        self.rows = in_order(part)
        places = np.empty(len(self.rows) + 1, dtype=np.int64)
        places[self.rows] = np.arange(len(self.rows))
        places[-1] = len(self.rows)
        self.places = places
        # a slice, which is a view and no copy, where they are in their own order
        self.place = slice(tasks) if (places[:tasks] == np.arange(tasks)).all() else places[:tasks]
        self.kept = np.unique(places[carried.values])
        self._follows = self._placed(before, carried)
        self._bounds = np.flatnonzero(np.diff(part[self.rows], prepend=-1, append=-1))
        self.held = self._held(program, level, level[self.rows[self._bounds[:-1]]])
        self.is_plain = not self.held and len(self._follows.values) <= _PLAINLY * len(self._bounds)

    def _placed(self, before: Ragged, carried: Ragged) -> Ragged:
        """For each place the places of what it follows in its step and of the step before, or of what holds nothing up."""
        keys = np.concatenate([before.keys(), carried.keys()])
        kept = np.searchsorted(self.kept, self.places[carried.values])
        values = np.concatenate([self.places[before.values], len(self.places) + kept])
        follows = Ragged.grouped(self.places[keys], values, len(self.rows))
        return follows.extended(np.where(follows.counts == 0, len(self.rows), -1))

    def _held(self, program: Program, level: Places, numbers: Places) -> Mapping[int, LevelDelays]:
        """numbers: the levels that there are, once for each part."""
        released: dict[int, list[int]] = {}
        for server, at in enumerate(level[len(program) :].tolist()):
            released.setdefault(at, []).append(server)
        turns = RendezvousDelays(program, level, self.places)
        at_all = sorted({*turns.paced, *turns.told, *turns.partners, *released})
        last = np.searchsorted(numbers, at_all, side="right") - 1
        return {
            number: LevelDelays(turns.paced.get(at), turns.told.get(at), turns.partners.get(at), released.get(at, ()))
            for at, number in zip(at_all, last.tolist(), strict=True)
        }

    def along_s(self, seconds: Times) -> float:
        """No less than any path through all steps has, of seconds of shape (steps, tasks): of each level it passes one task.
        Infinite where tasks hold one another up in other ways too."""
        if self.held:
            return math.inf
        return float(np.maximum.reduceat(seconds[:, self.rows], self._bounds[:-1], axis=1).sum())

    @functools.cached_property
    def levels(self) -> list[Level]:
        """In their order."""
        follows, bounds, tasks = self._follows, self._bounds, np.diff(self._bounds)
        heights = np.maximum.reduceat(follows.counts, bounds[:-1])
        begins = np.cumsum(np.append(0, heights * tasks))
        # where each task's column begins, and how far its next is
        first = np.repeat(begins[:-1] - bounds[:-1], tasks) + np.arange(len(self.rows))
        of, apart = follows.keys(), np.repeat(tasks, tasks)
        number = np.arange(len(of)) - follows.offsets[of]
        values = np.full(begins[-1], len(self.rows))
        values[first[of] + number * apart[of]] = follows.values
        parts, tables = (itertools.starmap(slice, itertools.pairwise(one.tolist())) for one in (bounds, begins))
        found = zip(parts, tables, heights.tolist(), strict=True)
        return [Level(part, values[table].reshape(height, -1)) for part, table, height in found]

    @functools.cached_property
    def before(self) -> list[list[int]]:
        """For each place the places of what it follows."""
        return self._follows.lists()


# By the identity of their programs' dependencies, while these are there: what they are of, and the order. To find one takes
# about as long as to time a step.
_ORDERS: Final[dict[int, tuple[tuple[object, ...], LevelOrder]]] = {}


def order_of(program: Program) -> LevelOrder:
    """The program's order, which is found once for all programs that differ from it in numbers alone."""
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


def _parted(level: Places, counts: Places) -> Places:
    """Levels, and parts of those of which tables would be nearly empty. counts: of what each row follows."""
    parted, number = np.unique(level, return_inverse=True)
    rows, values = np.bincount(number), np.bincount(number, counts)
    heights = np.zeros(len(parted), dtype=np.int64)
    np.maximum.at(heights, number, counts)
    sparse = (values < _FILLED * heights * rows) & (heights * rows >= _SMALL)
    if not sparse.any():
        return level
    part = np.where(sparse[number], np.log2(counts).astype(np.int64), 0)
    parts: Places = level * (part.max() + 1) + part
    return parts


def _with_releases(program: Program, servers: Sequence[QueuedServer]) -> Ragged:
    """What each task and each release of a server follows in its step."""
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
    return Ragged.grouped(keys, values, len(program) + len(servers))


def _levels(before: Ragged, slots: NDArray[np.int64]) -> NDArray[np.int64]:
    """A number for each row above those of all that it follows: its slot where it has one, else the longest path to it.

    Slots that do not hold are not used. Raises ValueError where rows wait for one another in a circle.
    """
    mended = _mended(before, _longest_paths(before, slots))
    return _longest_paths(before, np.full(len(slots), -1)) if mended is None else mended


def _mended(before: Ragged, levels: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Levels of which those are told apart that follow one another within one; None where that is not all that is wrong."""
    row, previous = before.keys(), before.values
    wrong = np.flatnonzero(levels[previous] >= levels[row])
    row, previous = row[wrong], previous[wrong]
    if (levels[previous] > levels[row]).any():
        return None
    depth = np.zeros(len(levels), dtype=np.int64)
    for _ in range(_MOST_MENDED):
        late = depth[previous] >= depth[row]
        if not late.any():
            mended: NDArray[np.int64] = levels * (depth.max(initial=0) + 1) + depth
            return mended
        np.maximum.at(depth, row[late], depth[previous[late]] + 1)
    return None


def _longest_paths(before: Ragged, known: NDArray[np.int64]) -> NDArray[np.int64]:
    """The longest path to each row that is not known (below zero), counted from those that are."""
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
    after = Ragged.grouped(previous, row, len(unknown)).lists()
    waiting, length = np.bincount(row, minlength=len(unknown)).tolist(), path.tolist()
    ready = [one for one, count in enumerate(waiting) if count == 0]
    for one in ready:
        for successor in after[one]:
            length[successor] = max(length[successor], length[one] + 1)
            waiting[successor] -= 1
            if waiting[successor] == 0:
                ready.append(successor)
    if len(ready) < len(unknown):
        raise ValueError("tasks wait for one another in a circle")
    levels = known.copy()
    levels[unknown] = length
    return levels
