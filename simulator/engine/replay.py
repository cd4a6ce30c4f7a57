"""The replay engine: where the order of everything is fixed, times are a recurrence of maxima and sums, evaluated with numpy.

A task starts at the latest end of what it follows and takes as long as it would take alone. Tasks are grouped into levels (a
task's level is above those of all that it follows), and a level is evaluated at once for all its tasks and samples. A server
is evaluated once all its requests of a step have arrived. That is exact where nothing is shared by more than it can carry,
which `contention` finds out afterwards.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from scaleproof.simulator.engine.durations import Times, durations_s, together_s
from scaleproof.simulator.engine.jitter import NONE, Variation
from scaleproof.simulator.engine.levels import Level, LevelDelays, LevelOrder, order_of
from scaleproof.simulator.engine.replay_servers import ReplayQueue, last_of_buckets, servers_of
from scaleproof.simulator.engine.servers import Busy
from scaleproof.simulator.engine.timeline import Timeline
from scaleproof.simulator.program import Kind, Program


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
            last = order[last_of_buckets(server.bucket[order][:, None])[:, 0]]
            starts_s = np.concatenate([began_s, served_s[last]])
            ends_s = np.concatenate([served_s, end_s[step, server.tasks[last]]])
            works = np.concatenate([seconds[server.tasks, 0], server.update_s[last]]) > 0
            for one in np.lexsort((ends_s, starts_s)).tolist():
                if works[one]:
                    stretches.append(Busy(step, float(starts_s[one]), float(ends_s[one])))
    return busy


def _recurrence(program: Program, each: Iterable[Times], start_s: Times | None) -> Iterator[tuple[Times, Times]]:
    """Start and end of every task for the seconds of each step, all of shape (tasks, samples).

    start_s: when each rank class begins, shape (ranks,).
    """
    order = order_of(program)
    served = program.kind == Kind.SERVE
    clock: _StepTimes | None = None
    given: Times | None = None
    for seconds in each:
        if clock is None:
            clock = _StepTimes(program, order, seconds.shape[1], start_s)
        if seconds is not given:
            given = seconds
            clock.took[order.place] = np.where(served[:, None], 0.0, seconds)
        clock.time(seconds)
        yield clock.start[order.place].copy(), clock.end[order.place].copy()


class _StepTimes:
    """Times of a step at the places of an order, each of shape (places, samples): when tasks start, how long they take, when
    they end; behind the ends is what is kept of the step before."""

    def __init__(self, program: Program, order: LevelOrder, samples: int, start_s: Times | None) -> None:
        """start_s: when each rank class begins."""
        self._order = order
        shape = len(order.places), samples
        self.start, self.took, self.end = (np.zeros((len(order.places) + more, samples)) for more in (0, 0, len(order.kept)))
        # of what tells nothing, nothing is heard
        self._heard = np.empty(shape if order.tells else (0, 0))
        # what holds up the tasks of the first step
        self._begins: Times | None = None
        if start_s is not None and start_s.any():
            self._begins = np.zeros((len(order.rows), 1))
            self._begins[order.place] = start_s[program.rank, None]
        self._is_plain = order.is_plain and samples == 1
        self._queues = [
            ReplayQueue(server, order.places, release) for release, server in enumerate(order.servers, len(program))
        ]

    def time(self, seconds: Times) -> None:
        """Times the next step. seconds: of each task, shape (tasks, samples)."""
        order = self._order
        self.end[len(order.places) :] = self.end[order.kept]
        if self._is_plain and self._begins is None:
            self.start[:-1, 0], self.end[:, 0] = _plainly(order.before, self.end[:, 0], self.took[:-1, 0])
            return
        self._heard.fill(np.inf)
        for number, level in enumerate(order.levels):
            _at_once(level, self.start, self.end, self.took, self._begins)
            if number in order.held:
                self._hold(order.held[number], seconds)
        self._begins = None

    def _hold(self, held: LevelDelays, seconds: Times) -> None:
        """What else holds up tasks of a level."""
        if held.paced is not None:
            held.paced.last(self.start, self.end, self.took)
        if held.told is not None:
            held.told.wait(self.start, self.end, self.took, self._heard)
        if held.partners is not None:
            held.partners.take_turns(self.start, self.end, self.took)
        for number in held.released:
            self._queues[number].serve(self.start, self.end, seconds)


def _at_once(level: Level, start: Times, end: Times, took: Times, begins: Times | None) -> None:
    """Times the tasks of a level. begins: what holds up each place beside what it follows."""
    tasks, before = level
    begin = start[tasks]
    np.maximum.reduce(end.take(before, axis=0), axis=0, out=begin)
    if begins is not None:
        np.maximum(begin, begins[tasks], out=begin)
    np.add(begin, took[tasks], out=end[tasks])


def _plainly(before: Sequence[Sequence[int]], end: Times, took: Times) -> tuple[list[float], list[float]]:
    """The same of all tasks and one sample as plain numbers, which are numpy's: when they start, and all ends."""
    starts_s: list[float] = []
    ends_s: list[float] = end.tolist()
    for task, (tasks, took_s) in enumerate(zip(before, took.tolist(), strict=True)):
        begin_s = ends_s[tasks[0]]
        for previous in tasks:
            if ends_s[previous] > begin_s:
                begin_s = ends_s[previous]
        starts_s.append(begin_s)
        ends_s[task] = begin_s + took_s
    return starts_s, ends_s
