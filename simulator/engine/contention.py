"""What replay timed as if nothing were shared: whether it ever wanted more than there is, and by how much."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.csr import in_order
from scaleproof.simulator.engine.durations import Times, rates
from scaleproof.simulator.engine.equivalent_resources import distinct
from scaleproof.simulator.engine.replay_servers import servers_of
from scaleproof.simulator.engine.timeline import Timeline
from scaleproof.simulator.program import Kind

# Rates that exceed a capacity by less are float rounding.
_ROUNDING: Final = 1e-9


def is_contended(timeline: Timeline) -> bool:
    """Whether at some instant tasks together wanted more of a resource than there is, so that sharing would slow them."""
    return bool(longer_s(timeline).any())


def longer_s(timeline: Timeline) -> Times:
    """How much longer sharing would make each task take, shape (steps, tasks): an upper bound to first order.

    What a full resource leaves undone is what tasks together want of it beyond what there is, so that none of them loses more,
    and each makes up for it at the rate that it has alone. A task is held up by one resource at a time; here by all that it
    uses, one after another. What there is falls with the number of users where a resource suffers from incast. First order:
    tasks that are moved may meet others.
    """
    program, resources = timeline.program, timeline.program.resources
    moving = _moving(timeline)
    task = moving.instance % len(program)
    stretch, resource, users = distinct(program).used(program.route[task])
    share = rates(program)[task[stretch]] * users / resources.capacity[resource]
    # what is never short even if everything ran at the same time needs no look at the time
    count = len(resources.names)
    most_share, most_users = (np.bincount(resource, each, count).astype(np.float64) for each in (share, users))
    may_be_short = _wanted(most_share, most_users, resources.incast) > 1 + _ROUNDING
    uses = _Uses(moving.begin_s[stretch], moving.end_s[stretch], stretch, resource, share, users)
    uses = uses.take(np.flatnonzero(may_be_short[resource]))
    # by resource and then by begin: neighbours that never overlap mean that nothing else does
    uses = uses.take(in_order(uses.resource))
    overlap = (uses.resource[1:] == uses.resource[:-1]) & (uses.end_s[:-1] > uses.begin_s[1:])
    overlaps = np.zeros(count, dtype=np.bool_)
    overlaps[uses.resource[1:][overlap]] = True
    uses = uses.take(np.flatnonzero(overlaps[uses.resource]))
    lost_s = _short_s(uses, resources.incast) / uses.share
    lengthened_s: Times = np.bincount(moving.instance[uses.stretch], lost_s, timeline.start_s.size).astype(np.float64)
    return lengthened_s.reshape(timeline.start_s.shape)


class _Uses(NamedTuple):
    """Uses of resources from begin to end, by stretches of numbers `stretch`; share: of the resource's capacity, alone."""

    begin_s: Times
    end_s: Times
    stretch: NDArray[np.int64]
    resource: NDArray[np.int64]
    share: Times
    users: Times

    def take(self, which: NDArray[np.int64]) -> _Uses:
        begin_s, end_s, stretch, resource, share, users = self
        return _Uses(begin_s[which], end_s[which], stretch[which], resource[which], share[which], users[which])


def _short_s(uses: _Uses, incast: Times) -> Times:
    """What is wanted of each use's resource beyond what there is, between its begin and end, in seconds of the resource."""
    count = len(uses.resource)
    times_s = np.concatenate([uses.begin_s, uses.end_s])
    order = np.argsort(times_s)
    order = order[in_order(np.tile(uses.resource, 2)[order])]
    changed = np.tile(uses.resource, 2)[order]
    # every resource's changes add up to zero, so a sum that runs over all of them starts each at zero
    share, users = (np.cumsum(np.concatenate([change, -change])[order]) for change in (uses.share, uses.users))
    beyond = _wanted(share, users, incast[changed]) - 1
    # after the last change of a resource nothing is wanted
    lasting_s = np.diff(times_s[order], append=0.0)
    before_s = np.empty(2 * count)
    before_s[order] = np.cumsum(np.append(0.0, np.where(beyond > _ROUNDING, beyond * lasting_s, 0.0)))[:-1]
    return before_s[count:] - before_s[:count]


def _wanted(share: Times, users: Times, incast: Times) -> Times:
    """What users that want a share of a resource want of what it has left for so many."""
    wanted: Times = share * (1 + incast * np.maximum(0.0, users - 1))
    return wanted


class _Moving(NamedTuple):
    """Stretches in which tasks use resources, by begin. instance: step · tasks + row."""

    instance: NDArray[np.int64]
    begin_s: Times
    end_s: Times


def _moving(timeline: Timeline) -> _Moving:
    """When what uses resources does; what a server does is of the request that it serves first in the step, so that what
    lengthens it holds up all the others."""
    program, tasks = timeline.program, len(timeline.program)
    sharing = np.flatnonzero((program.route > 0) & (program.kind != Kind.SERVE))
    instance = [(np.arange(len(timeline.start_s))[:, None] * tasks + sharing).ravel()]
    begin_s = [(timeline.start_s[:, sharing] + program.latency_s[sharing]).ravel()]
    end_s = [timeline.end_s[:, sharing].ravel()]
    for server in servers_of(program):
        stretches = timeline.server_busy[server.rank]
        first = server.tasks[np.argmin(timeline.start_s[:, server.tasks], axis=1)]
        step = np.array([busy.step for busy in stretches], dtype=np.int64)
        instance.append(step * tasks + first[step])
        begin_s.append(np.array([busy.start_s for busy in stretches]))
        end_s.append(np.array([busy.end_s for busy in stretches]))
    instances, begins_s, ends_s = np.concatenate(instance), np.concatenate(begin_s), np.concatenate(end_s)
    # ends at the instant of a begin, or a rounding error after it, do not overlap it
    ends_s = np.minimum(ends_s - _ROUNDING * (ends_s - begins_s), np.nextafter(ends_s, 0.0))
    order = np.argsort(begins_s)
    order = order[(ends_s > begins_s)[order]]
    return _Moving(instances[order], begins_s[order], ends_s[order])
