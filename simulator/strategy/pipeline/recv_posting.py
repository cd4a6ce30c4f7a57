"""The pass after which a rank posts each receive when torch's runtime runs the schedule.

A receive enters a rank's list of actions when the sending rank reaches the pass that produces the message. The lists of all
ranks are built concurrently, one entry per rank in turn; a rank whose next pass needs a message that has not been produced yet
is skipped (torch/distributed/pipelining/schedules.py, _add_send_recv).
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Final

import numpy as np

from scaleproof.simulator.program import Rows
from scaleproof.simulator.strategy.pipeline.rank_schedule import RankSchedule
from scaleproof.simulator.strategy.pipeline.schedules import Pass

# Actions of a list after a stage has all its gradients: their reduction and the reshard of parameters, sharded or not.
_ACTIONS_WHEN_COMPLETE: Final = 2
_OTHER: Final = -1


def posting_tasks(schedule: RankSchedule, senders: Rows, users: Rows) -> Rows:
    """For each message the receiver's task after which it posts the receive. senders: task that produces each message;
    users: task that uses it; all arrays have the same shape."""
    ends, number = np.flatnonzero(schedule.last), np.cumsum(schedule.first) - 1
    sending_passes, receiving_passes = number[senders.ravel()].tolist(), number[users.ravel()].tolist()
    receivers = schedule.rank[users.ravel()].tolist()
    missing: defaultdict[int, int] = defaultdict(int)
    sends: defaultdict[int, list[int]] = defaultdict(list)
    for message, (sending, receiving) in enumerate(zip(sending_passes, receiving_passes, strict=True)):
        missing[receiving] += 1
        sends[sending].append(message)
    lists = _lists(schedule, ends)
    # the last task in each rank's list so far, initially the first of its schedule
    posted_after = np.searchsorted(schedule.rank, np.arange(len(lists))).tolist()
    result = np.empty(len(sending_passes), dtype=np.int64)
    while any(lists):
        for rank, remaining in enumerate(lists):
            if not remaining or missing[remaining[0]]:
                continue
            entry = remaining.popleft()
            if entry != _OTHER:
                posted_after[rank] = int(ends[entry])
            for message in sends[entry]:
                result[message] = posted_after[receivers[message]]
                missing[receiving_passes[message]] -= 1
    return result.reshape(senders.shape)


def _lists(schedule: RankSchedule, ends: Rows) -> list[deque[int]]:
    """Numbers of the passes of each rank in order, and _OTHER for other actions."""
    completing = set(_completing_passes(schedule, ends))
    lists: list[deque[int]] = [deque() for _ in range(int(schedule.rank[-1]) + 1)]
    for number, task in enumerate(ends.tolist()):
        lists[schedule.rank[task]].append(number)
        if number in completing:
            lists[schedule.rank[task]].extend([_OTHER] * _ACTIONS_WHEN_COMPLETE)
    return lists


def _completing_passes(schedule: RankSchedule, ends: Rows) -> list[int]:
    """Numbers of the passes that complete the gradients of a stage."""
    gradient_passes = np.isin(schedule.kind[ends], (Pass.BACKWARD, Pass.WEIGHT))
    return list({int(schedule.stage[ends[number]]): int(number) for number in np.flatnonzero(gradient_passes)}.values())
