"""Durations and rates of tasks that run alone, or together with the tasks of their concurrent set."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import simpy
from numpy.typing import NDArray

from scaleproof.simulator.common.speed_profile import SpeedProfiles
from scaleproof.simulator.engine.max_min import Allocator
from scaleproof.simulator.program import MAIN_STREAM, Kind, Program

Times = NDArray[np.float64]


def durations_s(program: Program) -> Times:
    """Seconds of each task alone: latency, plus its amount (of all its requests) over its rate.

    Shape (tasks,), or (tasks, points) if the program was compiled for several points.
    """
    count = np.where(program.kind == Kind.SERVE, program.requests, 1)
    seconds: Times = (program.latency_s.T + (count * program.amount.T) / rates(program).T).T
    return seconds


def concurrent_durations_s(program: Program) -> Times:
    """Seconds of each task, shape (tasks,), if the tasks of each concurrent set start together and share resources."""
    seconds = durations_s(program)
    for number in np.unique(program.together[program.together >= 0]):
        tasks = np.flatnonzero(program.together == number)
        seconds[tasks] = _shared_s(program, tasks)
    return seconds


def _shared_s(program: Program, tasks: NDArray[np.int64]) -> Times:
    """End of each of some tasks that start together at time zero and share resources, in seconds, shape (tasks,)."""
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
    """Rate of each task alone: the minimum of its own maximum and what its resources allow. Shape: see `durations_s`."""
    routes, resources = program.routes, program.resources
    route = routes.resources.keys()
    # several uses of one resource by a route add up
    count = max(1, len(resources.capacity))
    _, group = np.unique(route * count + routes.resources.values, return_inverse=True)
    per_unit = np.bincount(group, weights=routes.per_unit, minlength=1)[group]
    capacity = resources.capacity[routes.resources.values]
    loss = resources.incast[routes.resources.values] * np.maximum(0.0, per_unit - 1)
    limit = np.full((len(routes.resources), *capacity.shape[1:]), np.inf)
    np.minimum.at(limit, route, (capacity.T / (1 + loss) / per_unit).T)
    rate: Times = np.minimum(program.max_rate.T, limit[program.route].T).T
    return rate


def variable_speed_rows(program: Program) -> NDArray[np.int64]:
    """Compute tasks of ranks whose speed changes with time, without the work of servers."""
    is_variable = np.array([bool(profile) for profile in program.ranks.paces])
    return np.flatnonzero((program.kind == Kind.COMPUTE) & (program.stream == MAIN_STREAM) & is_variable[program.rank])


def speed_profile_of(program: Program, rank: int) -> SpeedProfiles | None:
    """The speed profile of a rank class; None if its speed is constant."""
    profile = program.ranks.paces[rank]
    return SpeedProfiles([profile]) if profile else None
