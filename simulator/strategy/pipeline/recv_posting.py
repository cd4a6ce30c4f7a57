"""Posting: after which pass a rank posts each receive where torch's runtime runs the schedule.

A rank's list of what it does gets a receive when the rank that sends comes to the pass that makes the message. The lists of all
ranks are made together, one entry of each rank in turn; a rank whose next pass uses what no rank has made yet is passed over
(torch/distributed/pipelining/schedules.py, _add_send_recv).
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Final

import numpy as np

from scaleproof.simulator.program import Rows
from scaleproof.simulator.strategy.pipeline.rank_schedule import Lanes
from scaleproof.simulator.strategy.pipeline.schedule import Pass

# What a list has once a stage has all its gradients: they are averaged, and its parameters let go, if it is sharded or not.
_WHEN_COMPLETE: Final = 2
_NOTHING: Final = -1


def posted(lanes: Lanes, made: Rows, used: Rows) -> Rows:
    """The task of the receiver after which it posts the receive of each message; `made` by one task, `used` by another, all of
    the same shape."""
    ends, number = np.flatnonzero(lanes.last), np.cumsum(lanes.first) - 1
    makers, users = number[made.ravel()].tolist(), number[used.ravel()].tolist()
    receivers = lanes.rank[used.ravel()].tolist()
    awaits: defaultdict[int, int] = defaultdict(int)
    makes: defaultdict[int, list[int]] = defaultdict(list)
    for message, (maker, user) in enumerate(zip(makers, users, strict=True)):
        awaits[user] += 1
        makes[maker].append(message)
    lists = _lists(lanes, ends)
    # the task that each rank's list ends with so far, at first where its lane begins
    at = np.searchsorted(lanes.rank, np.arange(len(lists))).tolist()
    result = np.empty(len(makers), dtype=np.int64)
    while any(lists):
        for rank, left in enumerate(lists):
            if not left or awaits[left[0]]:
                continue
            one = left.popleft()
            if one != _NOTHING:
                at[rank] = int(ends[one])
            for message in makes[one]:
                result[message] = at[receivers[message]]
                awaits[users[message]] -= 1
    return result.reshape(made.shape)


def _lists(lanes: Lanes, ends: Rows) -> list[deque[int]]:
    """Numbers of the passes of each rank in their order, and of nothing where its list has something that is no pass."""
    completes = set(_last_of_stages(lanes, ends))
    lists: list[deque[int]] = [deque() for _ in range(int(lanes.rank[-1]) + 1)]
    for number, task in enumerate(ends.tolist()):
        lists[lanes.rank[task]].append(number)
        if number in completes:
            lists[lanes.rank[task]].extend([_NOTHING] * _WHEN_COMPLETE)
    return lists


def _last_of_stages(lanes: Lanes, ends: Rows) -> list[int]:
    """Numbers of the passes that complete the gradients of a stage."""
    making = np.isin(lanes.kind[ends], (Pass.BACKWARD, Pass.WEIGHT))
    return list({int(lanes.stage[ends[number]]): int(number) for number in np.flatnonzero(making)}.values())
