"""What replay timed as if nothing were shared: whether it ever wanted more than there is, and by how much."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from simulator.engine.replay import Times, rates, servers_of
from simulator.engine.timeline import Timeline
from simulator.program import Kind
from simulator.ragged import Ragged, in_order

# Rates that exceed a capacity by less are float rounding.
_ROUNDING: Final = 1e-9


def is_contended(timeline: Timeline) -> bool:
    """Whether at some instant tasks together wanted more of a resource than there is, so that sharing would slow them."""
    return shortage_s(timeline) > 0


def shortage_s(timeline: Timeline) -> float:
    """By how much sharing would lengthen all steps together, were it all on one critical path: the time that every resource
    would need for what tasks together wanted of it beyond what there is.

    What there is falls with the number of users where a resource suffers from incast. To first order it bounds the difference
    to events; tasks that are moved may meet others.
    """
    program = timeline.program
    routes, resources = program.routes, program.resources
    task, begin_s, end_s = _moving(timeline)
    uses = Ragged(routes.resources.offsets, np.arange(len(routes.per_unit))).take(program.route[task])
    stretch, resource, users = uses.keys(), routes.resources.values[uses.values], routes.per_unit[uses.values]
    share = rates(program)[task[stretch]] * users / resources.capacity[resource]
    # what is never short even if everything ran at the same time needs no look at the time
    count = len(resources.names)
    most_share, most_users = (np.bincount(resource, each, count).astype(np.float64) for each in (share, users))
    order = in_order(resource)
    order = order[(_wanted(most_share, most_users, resources.incast) > 1 + _ROUNDING)[resource[order]]]
    stretch, resource, share, users = stretch[order], resource[order], share[order], users[order]
    # by resource and then by begin: neighbours that never overlap mean that nothing else does
    overlap = (resource[1:] == resource[:-1]) & (end_s[stretch[:-1]] > begin_s[stretch[1:]])
    overlaps = np.isin(resource, resource[1:][overlap])
    stretch, resource, share, users = stretch[overlaps], resource[overlaps], share[overlaps], users[overlaps]
    return _short_s(begin_s[stretch], end_s[stretch], resource, share, users, resources.incast)


def _short_s(begin_s: Times, end_s: Times, resource: NDArray[np.int64], share: Times, users: Times, incast: Times) -> float:
    """What the uses from begin to end want of all resources beyond what they have, in seconds of each."""
    times_s = np.concatenate([begin_s, end_s])
    order = np.argsort(times_s)
    changed = np.tile(resource, 2)[order]
    by_resource = in_order(changed)
    order, changed = order[by_resource], changed[by_resource]
    # every resource's changes add up to zero, so a sum that runs over all of them starts each at zero
    share, users = (np.cumsum(np.concatenate([change, -change])[order]) for change in (share, users))
    beyond = _wanted(share, users, incast[changed]) - 1
    # after the last change of a resource nothing is wanted
    lasting_s = np.diff(times_s[order], append=0.0)
    return float((beyond * lasting_s)[beyond > _ROUNDING].sum())


def _wanted(share: Times, users: Times, incast: Times) -> Times:
    """What users that want a share of a resource want of what it has left for so many."""
    wanted: Times = share * (1 + incast * np.maximum(0.0, users - 1))
    return wanted


def _moving(timeline: Timeline) -> tuple[NDArray[np.int64], Times, Times]:
    """The stretches in which tasks use resources, by begin: whose, from when, until when; a server's are one of its tasks'."""
    program = timeline.program
    sharing = np.flatnonzero((program.route > 0) & (program.kind != Kind.SERVE))
    task = [np.tile(sharing, len(timeline.start_s))]
    begin_s = [(timeline.start_s + program.latency_s)[:, sharing].ravel()]
    end_s = [timeline.end_s[:, sharing].ravel()]
    for server in servers_of(program):
        stretches = timeline.server_busy[server.rank]
        task.append(np.full(len(stretches), server.tasks[0]))
        begin_s.append(np.array([busy.start_s for busy in stretches]))
        end_s.append(np.array([busy.end_s for busy in stretches]))
    tasks, begins_s, ends_s = np.concatenate(task), np.concatenate(begin_s), np.concatenate(end_s)
    # ends at the instant of a begin, or a rounding error after it, do not overlap it
    ends_s = np.minimum(ends_s - _ROUNDING * (ends_s - begins_s), np.nextafter(ends_s, 0.0))
    order = np.argsort(begins_s)
    order = order[(ends_s > begins_s)[order]]
    return tasks[order], begins_s[order], ends_s[order]
