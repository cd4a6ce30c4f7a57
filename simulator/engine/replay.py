"""The replay engine: where the order of everything is fixed, times are a recurrence of maxima and sums, evaluated with numpy.

A task starts at the latest end of what it follows and takes as long as it would take alone. Tasks are grouped into levels (a
task's level is above those of all that it follows), and a level is evaluated at once for all its tasks and samples. A server
is evaluated once all its requests of a step have arrived. That is exact where nothing is shared by more than it can carry,
which `contention` finds out afterwards.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import simpy
from numpy.typing import NDArray

from simulator.engine.fairqueue import TOGETHER
from simulator.engine.flows import Allocator
from simulator.engine.servers import Busy
from simulator.engine.timeline import Timeline
from simulator.engine.variation import NONE, Variation
from simulator.pace import Pacing
from simulator.program import MAIN_LANE, Kind, Program
from simulator.ragged import Ragged, in_order

Times = NDArray[np.float64]

# Up to so many tasks of the step before are gathered column by column, which is faster than one ragged reduction.
_FEW: Final = 4
# Where a level follows so many tasks or fewer, on average, tasks are timed one by one: numpy takes as long for each call.
_SINGLY: Final = 8
_ByRow = Sequence[Times]


def simulate(program: Program, steps: int, variation: Variation = NONE, sample: int = 0) -> Timeline:
    """One sample of `steps` steps as if nothing were shared. Raises ValueError as `replay` does."""
    return _timeline(program, _sampled_s(program, steps, durations_s(program), variation, sample), variation)


def simulate_longer(program: Program, longer_s: Times, variation: Variation = NONE, sample: int = 0) -> Timeline:
    """As `simulate`, where every task takes so much longer, shape (steps, tasks)."""
    each = _sampled_s(program, len(longer_s), durations_s(program), variation, sample)
    return _timeline(program, [seconds + more[:, None] for seconds, more in zip(each, longer_s, strict=True)], variation)


def simulate_together(program: Program, steps: int, variation: Variation = NONE, sample: int = 0) -> Timeline:
    """As `simulate`, where tasks that the program declares to run together share what they use: an approximation.

    Tasks of a set are taken to start at one instant, and to share with one another and nothing else.
    """
    return _timeline(program, _sampled_s(program, steps, together_s(program), variation, sample), variation)


def replay(program: Program, steps: int, seconds: Times, variation: Variation = NONE) -> Iterator[tuple[Times, Times]]:
    """Start and end of every task, step by step, each of shape (tasks, samples); the arrays are the caller's to keep.

    seconds: of each task without jitter, shape (tasks,), as `durations_s` or `together_s` give them; (tasks, samples), where
    samples differ. Raises ValueError where tasks wait for one another in a circle, and where a server's request overtakes one
    of the step before.
    """
    return _recurrence(program, _varied_s(program, steps, seconds, variation), variation.start_s)


def durations_s(program: Program) -> Times:
    """Seconds each task takes alone: latency, then its amount (of all its requests) at the rate that it and its resources
    allow; shape (tasks,), or (tasks, points) of a program that was compiled for several."""
    count = np.where(program.kind == Kind.SERVE, program.requests, 1)
    seconds: Times = (program.latency_s.T + (count * program.amount.T) / rates(program).T).T
    return seconds


def together_s(program: Program) -> Times:
    """The same, where tasks declared to run together share what they use, solved once for each set."""
    seconds = durations_s(program)
    for number in np.unique(program.together[program.together >= 0]):
        tasks = np.flatnonzero(program.together == number)
        seconds[tasks] = _shared_s(program, tasks)
    return seconds


def _shared_s(program: Program, tasks: NDArray[np.int64]) -> Times:
    """When each of some tasks ends that start together at zero and share what they use, shape (tasks,)."""
    environment = simpy.Environment()
    allocator = Allocator(environment, program.resources.capacity, program.resources.incast)
    routes = program.routes.lists()
    ends_s = program.latency_s[tasks]

    def finish(index: int) -> Callable[[], None]:
        def finished() -> None:
            ends_s[index] = environment.now

        return finished

    def move(index: int, task: int) -> Callable[[simpy.Event], None]:
        uses = routes[program.route[task]]
        numbers = float(program.amount[task]), float(program.max_rate[task]), float(program.weight[task])
        return lambda _: allocator.start(*numbers, uses, finish(index))

    for index, task in enumerate(tasks.tolist()):
        if routes[program.route[task]]:
            environment.timeout(ends_s[index]).callbacks.append(move(index, task))
        else:
            ends_s[index] += program.amount[task] / program.max_rate[task]
    environment.run()
    return ends_s


def rates(program: Program) -> Times:
    """Rate of each task alone: what it and its resources allow, shape as `durations_s` has it."""
    routes, resources = program.routes, program.resources
    route = routes.resources.keys()
    # all that a route's uses take of one resource counts together
    count = max(1, len(resources.capacity))
    _, group = np.unique(route * count + routes.resources.values, return_inverse=True)
    per_unit = np.bincount(group, weights=routes.per_unit, minlength=1)[group]
    capacity = resources.capacity[routes.resources.values]
    loss = resources.incast[routes.resources.values] * np.maximum(0.0, per_unit - 1)
    limit = np.full((len(routes.resources), *capacity.shape[1:]), np.inf)
    np.minimum.at(limit, route, (capacity.T / (1 + loss) / per_unit).T)
    rate: Times = np.minimum(program.max_rate.T, limit[program.route].T).T
    return rate


def _varied_s(program: Program, steps: int, seconds: Times, variation: Variation) -> Iterator[Times]:
    """Seconds of each task with its jitter, step by step, shape (tasks, samples); without jitter one array for all steps."""
    each = seconds if seconds.ndim == 2 else seconds[:, None]
    if not variation.is_random:
        yield from itertools.repeat(np.broadcast_to(each, (len(seconds), variation.samples)), steps)
    else:
        latency_s = program.latency_s[:, None]
        for step in range(steps):
            yield latency_s + (each - latency_s) * variation.factors(program, step)


def _sampled_s(program: Program, steps: int, seconds: Times, variation: Variation, sample: int) -> list[Times]:
    """Seconds of each task in one sample, step by step, shape (tasks, 1)."""
    return [varied_s[:, [sample]] for varied_s in _varied_s(program, steps, seconds, variation)]


def _timeline(program: Program, each: Sequence[Times], variation: Variation) -> Timeline:
    """each: seconds of each task, step by step."""
    kept = list(_recurrence(program, each, variation.start_s))
    start_s, end_s = (np.stack([step[side][:, 0] for step in kept]) for side in (0, 1))
    return Timeline(program, start_s, end_s, _busy(program, start_s, end_s, each))


def _busy(program: Program, start_s: Times, end_s: Times, each: Sequence[Times]) -> Mapping[int, Sequence[Busy]]:
    """What every server did, by rank class: its services in order, and the update that ends a step."""
    busy: dict[int, list[Busy]] = {}
    for server in servers_of(program):
        stretches = busy[server.rank] = []
        for step, seconds in enumerate(each):
            began_s = start_s[step, server.tasks]
            served_s = server.served_s(began_s[:, None], seconds[server.tasks, :1])[:, 0]
            order = np.lexsort((served_s, began_s))
            last = order[_last_of_buckets(server.bucket[order][:, None])[:, 0]]
            starts_s = np.concatenate([began_s, served_s[last]])
            ends_s = np.concatenate([served_s, end_s[step, server.tasks[last]]])
            works = np.concatenate([seconds[server.tasks, 0], server.update_s[last]]) > 0
            for one in np.lexsort((ends_s, starts_s)).tolist():
                if works[one]:
                    stretches.append(Busy(step, float(starts_s[one]), float(ends_s[one])))
    return busy


def _last_of_buckets(bucket: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Which of requests in the order in which they are served is the last for its bucket, shape (requests, samples)."""
    last = np.zeros(bucket.shape, dtype=np.bool_)
    backward = bucket[::-1]
    for one in np.unique(bucket):
        place = len(bucket) - 1 - np.argmax(backward == one, axis=0)
        last[place, np.arange(bucket.shape[1])] = True
    return last


def _recurrence(program: Program, each: Iterable[Times], start_s: Times | None) -> Iterator[tuple[Times, Times]]:
    """Start and end of every task for the seconds of each step, all of shape (tasks, samples).

    start_s: when each rank class begins, shape (ranks,).
    """
    order = _order(program)
    place, rows = order.place, len(order.rows)
    served = program.kind == Kind.SERVE
    queues = [_Queue(server, order.places, release) for release, server in enumerate(order.servers, len(program))]
    given: Times | None = None
    for seconds in each:
        if given is None:
            # one row more, which holds nothing up, and of which nothing is heard
            shape = rows + 1, seconds.shape[1]
            start, end, took = np.zeros(shape), np.zeros(shape), np.zeros(shape)
            if start_s is not None:
                start[place] = start_s[program.rank, None]
            by_row = [list(side) if order.is_narrow else [] for side in (start, end, took)]
        if seconds is not given:
            given = seconds
            took[place] = np.where(served[:, None], 0.0, seconds)
        heard = np.full(shape if order.tells else (0, 0), np.inf)
        for level in order.levels:
            if level.each:
                _one_by_one(level.each, *by_row)
            else:
                _at_once(level, start, end, took)
            if level.paced is not None:
                level.paced.last(start, end, took)
            if level.told is not None:
                level.told.wait(start, end, took, heard)
            if level.partners is not None:
                level.partners.take_turns(start, end, took)
            for number in level.released:
                queues[number].serve(start, end, seconds)
        yield start[place].copy(), end[place].copy()
        start[:rows] = order.carried.latest(end)


def _at_once(level: _Level, start: Times, end: Times, took: Times) -> None:
    """Times the tasks of a level; start: what holds them up beside what they follow, becomes when they start."""
    begin = start[level.tasks]
    if len(level.before):
        latest = np.maximum.reduceat(end.take(level.before, axis=0), level.offsets, axis=0)
        np.maximum(begin, latest, out=begin)
    np.add(begin, took[level.tasks], out=end[level.tasks])


def _one_by_one(each: Sequence[tuple[int, Sequence[int]]], start: _ByRow, end: _ByRow, took: _ByRow) -> None:
    """The same by rows, one after another."""
    for task, before in each:
        begin = start[task]
        for previous in before:
            np.maximum(begin, end[previous], out=begin)
        np.add(begin, took[task], out=end[task])


class QueuedServer(NamedTuple):
    """A server class: its tasks, and of each its bucket and the seconds of the update after it if it is the bucket's last, all
    of shape (tasks of the server,), or as `durations_s` has it."""

    rank: int
    tasks: NDArray[np.int64]
    bucket: NDArray[np.int32]
    update_s: Times
    pacing: Pacing | None

    def served_s(self, begin_s: Times, work_s: Times) -> Times:
        """When work of the server ends that begins then, both of shape (requests, samples)."""
        return begin_s + work_s if self.pacing is None else self.pacing.end_s(begin_s, work_s)


def servers_of(program: Program) -> list[QueuedServer]:
    """A program's servers, each with the rows of its requests and the seconds of its updates."""
    serves = np.flatnonzero(program.kind == Kind.SERVE)
    update_s = (program.update_s.T / rates(program).T).T
    by_rank = ((rank, serves[program.rank[serves] == rank]) for rank in np.unique(program.rank[serves]).tolist())
    return [
        QueuedServer(rank, tasks, program.bucket[tasks], update_s[tasks], pacing_of(program, rank)) for rank, tasks in by_rank
    ]


def paced_rows(program: Program) -> NDArray[np.int64]:
    """Work of ranks that are not steady; what servers do is not among it."""
    is_paced = np.array([bool(paces) for paces in program.ranks.paces])
    return np.flatnonzero((program.kind == Kind.COMPUTE) & (program.lane == MAIN_LANE) & is_paced[program.rank])


def pacing_of(program: Program, rank: int) -> Pacing | None:
    """Of what a rank class does; None where it is steady."""
    paces = program.ranks.paces[rank]
    return Pacing([paces]) if paces else None


class _Queue:
    """A synchronous server's queue: first come, first served; a bucket is released after its last request and an update."""

    def __init__(self, server: QueuedServer, places: NDArray[np.int64], release: int) -> None:
        """release: its row."""
        self.server = server
        self.places = places[server.tasks]
        self.release = places[release]
        self.arrived_s: Times | float = 0.0
        self.free_s: Times | float = 0.0

    def serve(self, start: Times, end: Times, seconds: Times) -> None:
        """Sets start and end of its tasks, whose arrivals are in `end`; each of shape (rows, samples)."""
        arrival_s = end[self.places]
        if (arrival_s < self.arrived_s).any():
            raise ValueError("a server's request overtakes one of the step before, which only the events engine follows")
        self.arrived_s = arrival_s.max(axis=0)
        order = np.argsort(arrival_s, axis=0, kind="stable")
        ready_s = np.maximum(np.take_along_axis(arrival_s, order, axis=0), self.free_s)
        bucket, sample = self.server.bucket[order], np.arange(order.shape[1])
        is_last = _last_of_buckets(bucket)
        service_s = np.take_along_axis(seconds[self.server.tasks], order, axis=0)
        update_s = np.broadcast_to(self.server.update_s.reshape(len(order), -1), order.shape)
        service_s = service_s + np.where(is_last, np.take_along_axis(update_s, order, axis=0), 0.0)
        served_s = self._served_s(ready_s, service_s)
        start[self.places[order], sample] = np.maximum(ready_s, np.concatenate([ready_s[:1], served_s[:-1]]))
        for one in np.unique(self.server.bucket):
            end[self.places[self.server.bucket == one]] = served_s.max(axis=0, where=is_last & (bucket == one), initial=0.0)
        # it is there for the order alone
        end[self.release] = 0.0
        self.free_s = served_s[-1]

    def _served_s(self, ready_s: Times, service_s: Times) -> Times:
        """When requests in their order are served that may begin then, both of shape (requests, samples)."""
        if self.server.pacing is None:
            # each at the latest, over those before it and itself, of its arrival and all services from there on
            total_s = np.cumsum(service_s, axis=0)
            return total_s + np.maximum.accumulate(ready_s - total_s + service_s, axis=0)
        served_s, free_s = np.empty_like(ready_s), ready_s[:1]
        for one in range(len(ready_s)):
            free_s = self.server.served_s(np.maximum(ready_s[one : one + 1], free_s), service_s[one : one + 1])
            served_s[one] = free_s[0]
        return served_s


class _Paced(NamedTuple):
    """Places of tasks of ranks that are not steady; latency_s: before their work, shape (tasks, 1)."""

    places: NDArray[np.int64]
    latency_s: Times
    pacing: Pacing

    def last(self, start: Times, end: Times, took: Times) -> None:
        """Ends them when their ranks get their work done."""
        worked_s = took[self.places] - self.latency_s
        end[self.places] = self.pacing.end_s(start[self.places] + self.latency_s, worked_s)


class _Partners(NamedTuple):
    """Places of transfers that share a connection, and of the tasks before them on their senders' sides."""

    first: NDArray[np.int64]
    second: NDArray[np.int64]
    before_first: NDArray[np.int64]
    before_second: NDArray[np.int64]

    def take_turns(self, start: Times, end: Times, took: Times) -> None:
        """Of each two, that of the rank that came later moves first, of two that came together the first."""
        turned = end[self.before_second] > end[self.before_first] * (1 + TOGETHER)
        later_s = np.where(turned, end[self.second], end[self.first])
        start[self.first] = np.where(turned, later_s, start[self.first])
        start[self.second] = np.where(turned, start[self.second], later_s)
        for places in (self.first, self.second):
            end[places] = start[places] + took[places]


class _Told(NamedTuple):
    """Places of transfers, of the tasks after which their receivers tell that they are ready, and of what that is behind."""

    rows: NDArray[np.int64]
    told_after: NDArray[np.int64]
    behind: NDArray[np.int64]

    def wait(self, start: Times, end: Times, took: Times, heard: Times) -> None:
        """heard: when the sender of each transfer heard that its receiver is ready; those of lower levels are there."""
        told = end[self.told_after]
        queued = heard[self.behind] < told * (1 - TOGETHER)
        heard[self.rows] = np.where(queued, end[self.behind], told)
        start[self.rows] = np.maximum(start[self.rows], heard[self.rows])
        end[self.rows] = start[self.rows] + took[self.rows]


class _Level(NamedTuple):
    """Tasks that can be timed together, and all that they follow: those of task i from offsets[i] on; none for the first.

    each: its tasks, each with what it follows, where these are so few in most levels that it is faster. released: numbers of
    the servers that have all they wait for. paced, told, partners: those among them.
    """

    tasks: slice
    before: NDArray[np.int64]
    offsets: NDArray[np.int64]
    each: Sequence[tuple[int, Sequence[int]]]
    released: Sequence[int]
    paced: _Paced | None
    told: _Told | None
    partners: _Partners | None


class _Order:
    """A program's tasks in an order in which they can be timed: by level.

    A server's release has a row of its own after the tasks: it follows the server's tasks, and what follows them follows it
    too. rows: the task or release at each place. places: where each row is, and last what holds nothing up. place: where the
    tasks are, as an index.
    """

    def __init__(self, program: Program) -> None:
        tasks = len(program)
        self.servers = servers_of(program)
        before = _with_releases(program, self.servers)
        slots = np.concatenate([program.slot, np.full(len(self.servers), -1)])
        self.tells = bool((program.told_after >= 0).any())
        behind = np.append(program.behind, np.full(len(self.servers), -1))
        level = _levels(before.extended(behind) if self.tells else before, slots)
        self.rows = in_order(level)
        places = np.empty(len(self.rows) + 1, dtype=np.int64)
        places[self.rows] = np.arange(len(self.rows))
        # the row that holds nothing up comes last
        places[-1] = nothing = len(self.rows)
        self.places = places
        # a slice, which is a view and no copy, where they are in their own order
        self.place = slice(tasks) if (places[:tasks] == np.arange(tasks)).all() else places[:tasks]
        carried = program.carried_predecessors()
        # releases follow nothing of the step before
        carried = Ragged(np.append(carried.offsets, np.full(len(self.servers), carried.offsets[-1])), carried.values)
        self.carried = _Latest(_placed(carried, self.rows, places), nothing)
        follows = _placed(_filled(before, nothing), self.rows, places)
        # views of all rows take time to make, which a wide program does not win back
        self.is_narrow = len(follows.values) <= _SINGLY * len(np.unique(level))
        self.levels = list(self._levels(program, level, follows))

    def _levels(self, program: Program, level: NDArray[np.int64], before: Ragged) -> Iterator[_Level]:
        """The levels in order; before: for each place the places of what it follows."""
        in_place = level[self.rows]
        bounds = np.flatnonzero(np.diff(in_place, prepend=-1, append=-1))
        released: dict[int, list[int]] = {}
        for number, at_level in enumerate(level[len(level) - len(self.servers) :].tolist()):
            released.setdefault(at_level, []).append(number)
        paced, told, partners = self._paced(program, level), self._told(program, level), self._partners(program, level)
        lists = before.lists() if self.is_narrow else []
        # a release ends at no time, so that what it follows may end later
        known = [] if self.servers else lists
        numbers, firsts = in_place[bounds[:-1]].tolist(), before.offsets[bounds].tolist()
        for number, (begin, end), (first, last) in zip(
            numbers, itertools.pairwise(bounds.tolist()), itertools.pairwise(firsts), strict=True
        ):
            # nothing holds up the first level
            follows = before.values[first if begin > 0 else last : last]
            offsets = before.offsets[begin:end] - first
            each = [(task, _last(lists[task], known)) for task in range(begin, end)] if self.is_narrow else ()
            own = paced.get(number), told.get(number), partners.get(number)
            yield _Level(slice(begin, end), follows, offsets, each, released.get(number, ()), *own)

    def _paced(self, program: Program, level: NDArray[np.int64]) -> dict[int, _Paced]:
        """By level."""
        rows = paced_rows(program)
        found = {}
        for at, (places,) in self._by_level(level, [rows]):
            of_level = self.rows[places]
            paces = [program.ranks.paces[rank] for rank in program.rank[of_level].tolist()]
            latency_s = program.latency_s[of_level].reshape(len(places), -1)
            found[at] = _Paced(places, latency_s, Pacing(paces))
        return found

    def _told(self, program: Program, level: NDArray[np.int64]) -> dict[int, _Told]:
        """By level, which is above that of what they may be behind."""
        rows = np.flatnonzero(program.told_after >= 0)
        columns = rows, program.told_after[rows], program.behind[rows]
        return {at: _Told(*places) for at, places in self._by_level(level, columns)}

    def _partners(self, program: Program, level: NDArray[np.int64]) -> dict[int, _Partners]:
        """By level, which is that of both, since both follow the same."""
        if not (program.partner >= 0).any():
            return {}
        return {at: _Partners(*places) for at, places in self._by_level(level, program.partners())}

    def _by_level(
        self, level: NDArray[np.int64], columns: Sequence[NDArray[np.signedinteger[Any]]]
    ) -> Iterator[tuple[int, list[NDArray[np.int64]]]]:
        """Each level that there is among the rows of the first column, and the places of the rows of all columns there."""
        of_row = level[columns[0]]
        for at in np.unique(of_row).tolist():
            yield at, [self.places[rows[of_row == at]] for rows in columns]


# Of programs that are still there, by their ids: to find one takes about as long as to time a step.
_ORDERS: Final[dict[int, _Order]] = {}


def _order(program: Program) -> _Order:
    """The program's order, which is found once."""
    if id(program) not in _ORDERS:
        _ORDERS[id(program)] = _Order(program)
        weakref.finalize(program, _ORDERS.pop, id(program))
    return _ORDERS[id(program)]


def _last(tasks: Sequence[int], known: Sequence[Sequence[int]]) -> list[int]:
    """Those of tasks that no other of them follows, since it would end later. known: what each follows, if that is told."""
    implied = {before for task in tasks for before in known[task]} if known and len(tasks) > 1 else ()
    return [task for task in dict.fromkeys(tasks) if task not in implied]


class _Latest:
    """The latest end among the rows that each row follows: gathered as columns where they are few, else as ragged lists."""

    def __init__(self, before: Ragged, nothing: int) -> None:
        """nothing: the row that holds nothing up."""
        counts = before.counts
        most = int(counts.max(initial=0))
        self.offsets = None
        if most <= _FEW:
            self.rows = np.full((most, len(before)), nothing)
            self.rows[np.arange(len(before.values)) - np.repeat(before.offsets[:-1], counts), before.keys()] = before.values
        else:
            filled = _filled(before, nothing)
            self.rows, self.offsets = filled.values, filled.offsets[:-1]

    def latest(self, end: Times) -> Times:
        """Shape (rows, samples); zero where a row follows nothing."""
        gathered = end.take(self.rows, axis=0)
        if self.offsets is not None:
            return np.maximum.reduceat(gathered, self.offsets, axis=0)
        result: Times = np.maximum.reduce(gathered, axis=0, initial=0.0)
        return result


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


def _filled(before: Ragged, nothing: int) -> Ragged:
    """With the row `nothing` where there is none."""
    return before.extended(np.where(before.counts == 0, nothing, -1))


def _placed(before: Ragged, rows: NDArray[np.int64], places: NDArray[np.int64]) -> Ragged:
    """The lists of `rows` in their order, as places."""
    lists = before.take(rows)
    return Ragged(lists.offsets, places[lists.values])


def _levels(before: Ragged, slots: NDArray[np.int64]) -> NDArray[np.int64]:
    """A number for each row above those of all that it follows: its slot where it has one, else the longest path to it.

    Slots that do not hold are not used. Raises ValueError where rows wait for one another in a circle.
    """
    levels = _longest_paths(before, slots)
    if (levels[before.values] < levels[before.keys()]).all():
        return levels
    return _longest_paths(before, np.full(len(slots), -1))


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
