"""The replay engine: for programs with a fixed order, times are a recurrence of maxima and sums, evaluated with numpy.

A task starts at the latest end of its dependencies and takes as long as it would alone. Tasks are grouped into levels (the
level of a task is above those of its dependencies), and all tasks and samples of a level are evaluated at once. A server is
evaluated when all its requests of a step have arrived. This is exact if no resource is overloaded, which `contention` checks
afterwards.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.engine.durations import Times, concurrent_durations_s, durations_s
from scaleproof.simulator.engine.levels import Level, LevelOrder, QueuedServer, order_of, servers_of
from scaleproof.simulator.engine.servers import Busy
from scaleproof.simulator.engine.timeline import Timeline
from scaleproof.simulator.engine.variation import NONE, Variation
from scaleproof.simulator.program import Kind, Program


def simulate(program: Program, steps: int, variation: Variation = NONE, sample: int = 0) -> Timeline:
    """Times one sample of `steps` steps as if nothing were shared. Raises ValueError as `replay` does."""
    return _timeline(program, _sampled_s(program, steps, durations_s(program), variation, sample), variation)


def simulate_longer(program: Program, longer_s: Times, variation: Variation = NONE, sample: int = 0) -> Timeline:
    """Times one sample of steps whose tasks take longer by `longer_s` seconds, shape (steps, tasks)."""
    steps_s = _sampled_s(program, len(longer_s), durations_s(program), variation, sample)
    return _timeline(program, [seconds + more[:, None] for seconds, more in zip(steps_s, longer_s, strict=True)], variation)


def simulate_concurrent(program: Program, steps: int, variation: Variation = NONE, sample: int = 0) -> Timeline:
    """Times one sample of `steps` steps in which the tasks of each concurrent set share resources: an approximation.

    The tasks of a set are assumed to start at the same time, and to share only with one another.
    """
    return _timeline(program, _sampled_s(program, steps, concurrent_durations_s(program), variation, sample), variation)


def simulate_together(programs: Sequence[Program], steps: int, start_s: Times) -> Iterator[Timeline]:
    """Times `steps` steps of programs as if nothing were shared, by one replay.

    programs: the same tasks at different prices, with the same updates of servers. start_s: begin of each rank class, shape
    (ranks,). Raises ValueError as `replay` does.
    """
    seconds = np.stack([durations_s(program) for program in programs], axis=1)
    results = list(_recurrence(programs[0], [seconds] * steps, start_s))
    for sample, program in enumerate(programs):
        begin_s, end_s = (np.stack([step[side][:, sample] for step in results]) for side in (0, 1))
        yield Timeline(program, begin_s, end_s, _busy(program, begin_s, end_s, [seconds[:, [sample]]] * steps))


def replay(program: Program, steps: int, seconds: Times, variation: Variation = NONE) -> Iterator[tuple[Times, Times]]:
    """Start and end of all tasks in seconds, step by step, each of shape (tasks, samples); the arrays are not reused.

    seconds: durations of tasks without jitter, shape (tasks,), see `durations_s` and `concurrent_durations_s`; (tasks, samples)
    if samples differ. Raises ValueError if dependencies form a cycle, or if a server's request overtakes one of the step
    before.
    """
    return _recurrence(program, _varied_s(program, steps, seconds, variation), variation.start_s)


def _varied_s(program: Program, steps: int, seconds: Times, variation: Variation) -> Iterator[Times]:
    """Seconds of each task with jitter, step by step, shape (tasks, samples); without jitter one array for all steps."""
    columns = seconds if seconds.ndim == 2 else seconds[:, None]
    if not variation.is_random:
        yield from itertools.repeat(np.broadcast_to(columns, (len(seconds), variation.samples)), steps)
    else:
        latency_s = program.latency_s[:, None]
        for step in range(steps):
            yield latency_s + (columns - latency_s) * variation.factors(program, step)


def _sampled_s(program: Program, steps: int, seconds: Times, variation: Variation, sample: int) -> list[Times]:
    """Seconds of each task in one sample, step by step, shape (tasks, 1)."""
    return [varied_s[:, [sample]] for varied_s in _varied_s(program, steps, seconds, variation)]


def _timeline(program: Program, steps_s: Sequence[Times], variation: Variation) -> Timeline:
    """The timeline of one sample. steps_s: seconds of each task, step by step, each of shape (tasks, 1)."""
    results = list(_recurrence(program, steps_s, variation.start_s))
    start_s, end_s = (np.stack([step[side][:, 0] for step in results]) for side in (0, 1))
    return Timeline(program, start_s, end_s, _busy(program, start_s, end_s, steps_s))


def _busy(program: Program, start_s: Times, end_s: Times, steps_s: Sequence[Times]) -> Mapping[int, Sequence[Busy]]:
    """Intervals of work of all servers, by rank class: services in order, and the updates."""
    busy: dict[int, list[Busy]] = {}
    for server in servers_of(program):
        intervals = busy[server.rank] = []
        for step, seconds in enumerate(steps_s):
            began_s = start_s[step, server.tasks]
            served_s = server.served_s(began_s[:, None], seconds[server.tasks, :1])[:, 0]
            order = np.lexsort((served_s, began_s))
            last = order[last_of_buckets(server.bucket[order][:, None])[:, 0]]
            starts_s = np.concatenate([began_s, served_s[last]])
            ends_s = np.concatenate([served_s, end_s[step, server.tasks[last]]])
            works = np.concatenate([seconds[server.tasks, 0], server.update_s[last]]) > 0
            for index in np.lexsort((ends_s, starts_s)).tolist():
                if works[index]:
                    intervals.append(Busy(step, float(starts_s[index]), float(ends_s[index])))
    return busy


def _recurrence(program: Program, steps_s: Iterable[Times], start_s: Times | None) -> Iterator[tuple[Times, Times]]:
    """Start and end of all tasks in seconds, step by step.

    steps_s: durations of tasks, step by step; all of shape (tasks, samples). start_s: begin of each rank class, shape (ranks,).
    """
    order = order_of(program)
    served = program.kind == Kind.SERVE
    times: _StepTimes | None = None
    previous: Times | None = None
    for seconds in steps_s:
        if times is None:
            times = _StepTimes(program, order, seconds.shape[1], start_s)
        if seconds is not previous:
            previous = seconds
            times.seconds[order.place] = np.where(served[:, None], 0.0, seconds)
        times.next_step(seconds)
        yield times.start[order.place].copy(), times.end[order.place].copy()


class _StepTimes:
    """Start, duration and end of the tasks of a step, each of shape (places, samples), at the places of an order.

    `end` has additional places at its end for the tasks of the step before that are followed in the next one.
    """

    def __init__(self, program: Program, order: LevelOrder, samples: int, start_s: Times | None) -> None:
        """start_s: begin of each rank class in seconds, shape (ranks,)."""
        self._order = order
        shape = len(order.places), samples
        self.start, self.seconds, self.end = (np.zeros((len(order.places) + more, samples)) for more in (0, 0, len(order.kept)))
        # times at which senders receive ready messages; empty if no transfer needs them
        self._ready = np.empty(shape if order.has_ready_messages else (0, 0))
        # earliest starts of the tasks of the first step
        self._begins: Times | None = None
        if start_s is not None and start_s.any():
            self._begins = np.zeros((len(order.rows), 1))
            self._begins[order.place] = start_s[program.rank, None]
        self._is_plain = order.is_plain and samples == 1
        self._queues = [
            ReplayQueue(server, order.places, release) for release, server in enumerate(order.servers, len(program))
        ]

    def next_step(self, seconds: Times) -> None:
        """Times the next step. seconds: of each task, shape (tasks, samples)."""
        order = self._order
        self.end[len(order.places) :] = self.end[order.kept]
        if self._is_plain and self._begins is None:
            self.start[:-1, 0], self.end[:, 0] = _time_in_python(order.before, self.end[:, 0], self.seconds[:-1, 0])
            return
        self._ready.fill(np.inf)
        for number, level in enumerate(order.levels):
            _time_level(level, self.start, self.end, self.seconds, self._begins)
            for delay in order.delays.get(number, ()):
                delay.apply(self.start, self.end, self.seconds, self._ready)
            for server in order.released.get(number, ()):
                self._queues[server].serve(self.start, self.end, seconds)
        self._begins = None


def _time_level(level: Level, start: Times, end: Times, seconds: Times, begins: Times | None) -> None:
    """Sets start and end of the tasks of a level. begins: earliest start of each place."""
    tasks, before = level
    begin = start[tasks]
    np.maximum.reduce(end.take(before, axis=0), axis=0, out=begin)
    if begins is not None:
        np.maximum(begin, begins[tasks], out=begin)
    np.add(begin, seconds[tasks], out=end[tasks])


def _time_in_python(before: Sequence[Sequence[int]], end: Times, seconds: Times) -> tuple[list[float], list[float]]:
    """Start of all tasks and end of all places for one sample, computed in plain Python with the same results as in numpy."""
    starts_s: list[float] = []
    ends_s: list[float] = end.tolist()
    for task, (tasks, task_s) in enumerate(zip(before, seconds.tolist(), strict=True)):
        begin_s = ends_s[tasks[0]]
        for previous in tasks:
            if ends_s[previous] > begin_s:
                begin_s = ends_s[previous]
        starts_s.append(begin_s)
        ends_s[task] = begin_s + task_s
    return starts_s, ends_s


class ReplayQueue:
    """A synchronous server's queue: first come, first served; a bucket is released after its last request and an update."""

    def __init__(self, server: QueuedServer, places: NDArray[np.int64], release: int) -> None:
        """release: its row."""
        self.server = server
        self.places = places[server.tasks]
        self.release = places[release]
        self.arrived_s: Times | float = 0.0
        self.free_s: Times | float = 0.0

    def serve(self, start: Times, end: Times, seconds: Times) -> None:
        """Sets start and end of the server's tasks, whose arrivals are in `end`; all of shape (places, samples)."""
        arrival_s = end[self.places]
        if (arrival_s < self.arrived_s).any():
            raise ValueError("a server's request overtakes one of the step before; use the events engine")
        self.arrived_s = arrival_s.max(axis=0)
        order = np.argsort(arrival_s, axis=0, kind="stable")
        ready_s = np.maximum(np.take_along_axis(arrival_s, order, axis=0), self.free_s)
        bucket, sample = self.server.bucket[order], np.arange(order.shape[1])
        is_last = last_of_buckets(bucket)
        service_s = np.take_along_axis(seconds[self.server.tasks], order, axis=0)
        update_s = np.broadcast_to(self.server.update_s.reshape(len(order), -1), order.shape)
        service_s = service_s + np.where(is_last, np.take_along_axis(update_s, order, axis=0), 0.0)
        served_s = self._served_s(ready_s, service_s)
        start[self.places[order], sample] = np.maximum(ready_s, np.concatenate([ready_s[:1], served_s[:-1]]))
        for number in np.unique(self.server.bucket):
            is_served = is_last & (bucket == number)
            end[self.places[self.server.bucket == number]] = served_s.max(axis=0, where=is_served, initial=0.0)
        # the release only orders tasks, and must not delay any
        end[self.release] = 0.0
        self.free_s = served_s[-1]

    def _served_s(self, ready_s: Times, service_s: Times) -> Times:
        """End of each request in serving order. ready_s: earliest begin; all of shape (requests, samples)."""
        if self.server.profile is None:
            # maximum over a request and those before it of the arrival plus all services from there on
            total_s = np.cumsum(service_s, axis=0)
            return total_s + np.maximum.accumulate(ready_s - total_s + service_s, axis=0)
        served_s, free_s = np.empty_like(ready_s), ready_s[:1]
        for place in range(len(ready_s)):
            at = slice(place, place + 1)
            free_s = self.server.served_s(np.maximum(ready_s[at], free_s), service_s[at])
            served_s[place] = free_s[0]
        return served_s


def last_of_buckets(bucket: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Whether each request is the last of its bucket. bucket: of requests in serving order; shape (requests, samples)."""
    last = np.zeros(bucket.shape, dtype=np.bool_)
    backward = bucket[::-1]
    for number in np.unique(bucket):
        place = len(bucket) - 1 - np.argmax(backward == number, axis=0)
        last[place, np.arange(bucket.shape[1])] = True
    return last
