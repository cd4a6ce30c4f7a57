"""The replay engine: where the order of everything is fixed, times are a recurrence of maxima and sums, evaluated with numpy.

A task starts at the latest end of what it follows and takes as long as it would take alone. Tasks are grouped into levels (a
task's level is one more than the highest it follows), and a level is evaluated at once for all its tasks and samples. That is
exact where nothing is shared by more than it can carry, which `is_contended` finds out afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from simulator.engine.timeline import Timeline
from simulator.program import Program, followers

Times = NDArray[np.float64]

# Up to so many dependencies a task's are gathered column by column, which is faster than one ragged reduction.
_FEW: Final = 4
# Rates that exceed a capacity by less are float rounding.
_ROUNDING: Final = 1e-9


def simulate(program: Program, steps: int) -> Timeline:
    """Runs `steps` steps as if nothing were shared. Raises ValueError where programs have servers: only events know queues."""
    kept = list(replay(program, steps, durations_s(program)[:, None]))
    start_s, end_s = (np.stack([step[side][:, 0] for step in kept]) for side in (0, 1))
    return Timeline(program, start_s, end_s)


def durations_s(program: Program) -> Times:
    """Seconds each task takes alone: latency, then its amount at the rate that it and its resources allow; shape (tasks,)."""
    rate = program.max_rate.copy()
    task_of_use = np.repeat(np.arange(len(program)), np.diff(program.use_offsets))
    np.minimum.at(rate, task_of_use, program.resources.capacity[program.use_resource] / _per_unit(program, task_of_use))
    seconds: Times = program.latency_s + program.amount / rate
    return seconds


def _per_unit(program: Program, task_of_use: NDArray[np.int64]) -> Times:
    """How much of a use's resource its task takes per unit of rate, counting all uses of the task of that resource."""
    resources = max(1, len(program.resources.capacity))
    _, group = np.unique(task_of_use * resources + program.use_resource, return_inverse=True)
    return np.bincount(group, weights=program.use_per_unit, minlength=1).astype(np.float64)[group]


def replay(program: Program, steps: int, seconds: Times, start_s: Times | None = None) -> Iterator[tuple[Times, Times]]:
    """Start and end of every task, step by step, each of shape (tasks, samples); the arrays are the caller's to keep.

    seconds: of each task, shape (tasks, samples). start_s: when each rank class begins, shape (ranks,) or (ranks, samples).
    """
    if program.has_servers:
        raise ValueError("replay has no queues: a program with servers needs the events engine")
    order = _Order(program)
    tasks, samples = seconds.shape
    start = np.zeros((tasks, samples))
    if start_s is not None:
        start += np.asarray(start_s).reshape(len(start_s), -1)[program.rank]
    for _ in range(steps):
        # one row more, which never holds anything up: what tasks with fewer dependencies than others gather
        end = np.empty((tasks + 1, samples))
        end[tasks] = -np.inf
        for level in order.levels:
            if level.follows is not None:
                start[level.tasks] = np.maximum(start[level.tasks], level.follows.latest(end))
            end[level.tasks] = start[level.tasks] + seconds[level.tasks]
        yield start, end[:tasks]
        start = order.carried.latest(end) if order.carried.columns else np.zeros((tasks, samples))


@dataclass(frozen=True)
class _Gather:
    """For each of some tasks, the tasks it follows: few as columns (padded), many as a ragged list."""

    columns: Sequence[NDArray[np.int64]]
    offsets: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, dependencies: Sequence[Sequence[int]], nothing: int) -> _Gather:
        """`nothing`: the row that holds nothing up."""
        most = max(map(len, dependencies), default=0)
        if most <= _FEW:
            padded = [[*d, *[nothing] * (most - len(d))] for d in dependencies]
            return cls(list(np.array(padded, dtype=np.int64).reshape(len(dependencies), most).T.copy()))
        filled = [d or [nothing] for d in dependencies]
        offsets = np.concatenate([[0], np.cumsum([len(d) for d in filled])[:-1]])
        return cls([np.array([task for d in filled for task in d], dtype=np.int64)], offsets)

    def latest(self, end: Times) -> Times:
        """The latest end among what each task follows, shape (tasks, samples); zero where one follows nothing.

        There must be something that any of them follows.
        """
        if self.offsets is not None:
            return np.maximum(np.maximum.reduceat(end[self.columns[0]], self.offsets, axis=0), 0.0)
        result = end[self.columns[0]]
        for column in self.columns[1:]:
            np.maximum(result, end[column], out=result)
        return np.maximum(result, 0.0, out=result)


@dataclass(frozen=True)
class _Level:
    """Tasks that can be timed together: nothing among them follows another. `follows` is None for what follows nothing."""

    tasks: NDArray[np.int64] | slice
    follows: _Gather | None


class _Order:
    """The levels of a program's tasks, and what each follows in the step before."""

    def __init__(self, program: Program) -> None:
        tasks = len(program)
        follows = program.follows()
        level_of = _levels(follows)
        self.carried = _Gather.of(program.carried_with_lanes(), tasks)
        self.levels = []
        by_level = np.argsort(level_of, kind="stable")
        for members in np.split(by_level, np.flatnonzero(np.diff(level_of[by_level])) + 1) if tasks else []:
            gather = _Gather.of([follows[task] for task in members.tolist()], tasks)
            everything = len(members) == tasks
            self.levels.append(_Level(slice(0, tasks) if everything else members, gather if gather.columns else None))


def _levels(follows: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """Longest path to each task. Raises ValueError where tasks wait for one another in a circle."""
    waiting = [len(before) for before in follows]
    after = followers(follows)
    levels = np.zeros(len(follows), dtype=np.int64)
    ready = [task for task, count in enumerate(waiting) if count == 0]
    level, done = 0, 0
    while ready:
        levels[ready] = level
        done += len(ready)
        following = []
        for task in ready:
            for successor in after[task]:
                waiting[successor] -= 1
                if waiting[successor] == 0:
                    following.append(successor)
        ready, level = following, level + 1
    if done < len(follows):
        raise ValueError("tasks wait for one another in a circle")
    return levels


def is_contended(timeline: Timeline) -> bool:
    """Whether at some instant tasks together wanted more of a resource than there is, so that sharing would slow them."""
    program = timeline.program
    if not len(program.use_resource):
        return False
    steps = len(timeline.start_s)
    task = np.repeat(np.arange(len(program)), np.diff(program.use_offsets))
    seconds = durations_s(program) - program.latency_s
    rate = np.divide(program.amount, seconds, out=np.zeros(len(program)), where=seconds > 0)
    begin_s: Times = (timeline.start_s + program.latency_s)[:, task].ravel()
    end_s = timeline.end_s[:, task].ravel()
    demand = np.tile(rate[task] * program.use_per_unit, steps)
    resource = np.tile(program.use_resource, steps)
    busy = end_s > begin_s
    begin_s, end_s, demand, resource = begin_s[busy], end_s[busy], demand[busy], resource[busy]
    # ends a rounding error after a begin do not overlap it
    end_s -= _ROUNDING * (end_s - begin_s)
    at_s = np.concatenate([begin_s, end_s])
    change = np.concatenate([demand, -demand])
    changed = np.tile(resource, 2)
    order = np.lexsort((change, at_s, changed))
    # every resource's changes add up to zero, so a sum that runs over all of them starts each at zero
    used_share = np.cumsum(change[order] / program.resources.capacity[changed[order]])
    return bool((used_share > 1 + _ROUNDING).any())
