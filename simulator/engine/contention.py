"""Contention in replay's timeline, which is timed as if nothing were shared: demand beyond capacity, and delays by it."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.csr import in_order
from scaleproof.simulator.engine.durations import Times, rates
from scaleproof.simulator.engine.timeline import Timeline
from scaleproof.simulator.program import Kind, Program
from scaleproof.simulator.program.table import distinct

# Relative excess over a capacity that is float rounding.
_ROUNDING: Final = 1e-9


def is_contended(timeline: Timeline) -> bool:
    """Whether tasks ever demand more of a resource than its capacity, so that sharing would slow them."""
    return bool(longer_s(timeline).any())


def busiest_s(program: Program) -> float:
    """Seconds of a step for which its most used resource is busy, also if that is always full: no step is shorter in the long
    run."""
    amount = program.amount * np.where(program.kind == Kind.SERVE, program.requests, 1)
    by_route = np.bincount(program.route, amount)
    route, resource, per_unit = program.routes.used(np.arange(len(by_route)))
    used = np.bincount(resource, by_route[route] * per_unit, len(program.resources.names))
    return float((used / program.resources.capacity).max(initial=0.0))


def longer_s(timeline: Timeline) -> Times:
    """Seconds by which sharing would prolong each task, shape (steps, tasks): an upper bound to first order.

    The backlog of a full resource is the demand beyond its capacity; no task loses more than that, and each makes up for it at
    the rate that it has alone. A task is limited by one resource at a time, but the delays of all its resources are added. With
    incast, the capacity falls with the number of users. First order: delayed tasks may meet others, which is ignored.
    """
    program, resources = timeline.program, timeline.program.resources
    routes, alone, count = distinct(program), rates(program), len(resources.names)
    # resources that suffice even if all tasks run at the same time are skipped; those of one step, if steps do not overlap
    begins_s, ends_s = (side[:, program.route > 0] for side in (timeline.start_s, timeline.end_s))
    overlaps = begins_s.size > 0 and (begins_s[1:].min(axis=1) < ends_s[:-1].max(axis=1)).any()
    task, resource, users = routes.used(program.route)
    share = alone[task] * users / resources.capacity[resource]
    steps = len(begins_s) if overlaps else 1
    most_share, most_users = (steps * np.bincount(resource, column, count).astype(np.float64) for column in (share, users))
    may_be_short = _demand(most_share, most_users, resources.incast) > 1 + _ROUNDING
    if not may_be_short.any():
        return np.zeros(timeline.start_s.shape)
    moving = _moving(timeline)
    task = moving.instance % len(program)
    stretch, resource, users = routes.used(program.route[task])
    share = alone[task[stretch]] * users / resources.capacity[resource]
    uses = _Uses(moving.begin_s[stretch], moving.end_s[stretch], stretch, resource, share, users)
    uses = uses.take(np.flatnonzero(may_be_short[resource]))
    # by resource and then by begin: if no neighbours overlap, nothing does
    uses = uses.take(in_order(uses.resource))
    overlap = (uses.resource[1:] == uses.resource[:-1]) & (uses.end_s[:-1] > uses.begin_s[1:])
    overlaps = np.zeros(count, dtype=np.bool_)
    overlaps[uses.resource[1:][overlap]] = True
    uses = uses.take(np.flatnonzero(overlaps[uses.resource]))
    lost_s = _backlog_s(uses, resources.incast) / uses.share
    lengthened_s: Times = np.bincount(moving.instance[uses.stretch], lost_s, timeline.start_s.size).astype(np.float64)
    return lengthened_s.reshape(timeline.start_s.shape)


class _Uses(NamedTuple):
    """Uses of resources from begin to end. stretch: index into `_Moving`; share: of the resource's capacity, if alone."""

    begin_s: Times
    end_s: Times
    stretch: NDArray[np.int64]
    resource: NDArray[np.int64]
    share: Times
    users: Times

    def take(self, rows: NDArray[np.int64]) -> _Uses:
        begin_s, end_s, stretch, resource, share, users = self
        return _Uses(begin_s[rows], end_s[rows], stretch[rows], resource[rows], share[rows], users[rows])


def _backlog_s(uses: _Uses, incast: Times) -> Times:
    """Demand beyond capacity of each use's resource between its begin and end, in seconds of the resource, shape (uses,)."""
    count = len(uses.resource)
    times_s = np.concatenate([uses.begin_s, uses.end_s])
    order = np.argsort(times_s)
    order = order[in_order(np.tile(uses.resource, 2)[order])]
    changed = np.tile(uses.resource, 2)[order]
    # the changes of each resource add up to zero, so that one cumulative sum starts each resource at zero
    share, users = (np.cumsum(np.concatenate([change, -change])[order]) for change in (uses.share, uses.users))
    excess = _demand(share, users, incast[changed]) - 1
    # after the last change of a resource there is no demand
    lasting_s = np.diff(times_s[order], append=0.0)
    before_s = np.empty(2 * count)
    before_s[order] = np.cumsum(np.append(0.0, np.where(excess > _ROUNDING, excess * lasting_s, 0.0)))[:-1]
    return before_s[count:] - before_s[:count]


def _demand(share: Times, users: Times, incast: Times) -> Times:
    """Demand relative to the capacity that incast leaves for a number of users. share: demand relative to the full capacity."""
    demand: Times = share * (1 + incast * np.maximum(0.0, users - 1))
    return demand


class _Moving(NamedTuple):
    """Intervals in which tasks use resources, ordered by begin. instance: step · tasks + row."""

    instance: NDArray[np.int64]
    begin_s: Times
    end_s: Times


def _moving(timeline: Timeline) -> _Moving:
    """The intervals in which tasks use resources. The work of a server counts as its first request of the step, so that a delay
    of it delays all others."""
    program, tasks = timeline.program, len(timeline.program)
    sharing = np.flatnonzero((program.route > 0) & (program.kind != Kind.SERVE))
    instance = [(np.arange(len(timeline.start_s))[:, None] * tasks + sharing).ravel()]
    begin_s = [(timeline.start_s[:, sharing] + program.latency_s[sharing]).ravel()]
    end_s = [timeline.end_s[:, sharing].ravel()]
    for rank, stretches in timeline.server_busy.items():
        requests = np.flatnonzero((program.kind == Kind.SERVE) & (program.rank == rank))
        first = requests[np.argmin(timeline.start_s[:, requests], axis=1)]
        step = np.array([busy.step for busy in stretches], dtype=np.int64)
        instance.append(step * tasks + first[step])
        begin_s.append(np.array([busy.start_s for busy in stretches]))
        end_s.append(np.array([busy.end_s for busy in stretches]))
    instances, begins_s, ends_s = np.concatenate(instance), np.concatenate(begin_s), np.concatenate(end_s)
    # an end at the same time as a begin, or later by rounding, does not overlap it
    ends_s = np.minimum(ends_s - _ROUNDING * (ends_s - begins_s), np.nextafter(ends_s, 0.0))
    order = np.argsort(begins_s)
    order = order[(ends_s > begins_s)[order]]
    return _Moving(instances[order], begins_s[order], ends_s[order])
