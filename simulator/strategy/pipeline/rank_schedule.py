"""Schedule of the ranks of one replica in a step, as arrays of passes or pieces of passes."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.simulator.strategy.data_parallel.data_loading import FIRST_SLOT
from scaleproof.simulator.strategy.pipeline.schedules import Pass, PassTimes, order

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]

# Slots from a task to the next of its rank; those between are for messages, gathers and sums.
SLOTS: Final = 4
# Kinds of tasks without a pass: the begin of a step, and the turn from forward to backward.
BEGIN: Final = -1
TURN: Final = -2
# Actions of a list after a stage has all its gradients: their reduction and the reshard of parameters, sharded or not.
_ACTIONS_WHEN_COMPLETE: Final = 2
_OTHER: Final = -1


class RankSchedule(NamedTuple):
    """Tasks of the main streams, rank by rank in order; arrays of shape (tasks,).

    rank: pipeline rank. kind: Pass, or BEGIN or TURN for tasks that only wait. stage: of the model. begin, end: indices of the
    first layer that is passed, and of the first one that is not. cut: whether the task is a piece of a divided pass. first,
    last: whether it is the first or the last piece of its pass. slot: scheduling hint.
    """

    rank: Numbers
    kind: Numbers
    stage: Numbers
    microbatch: Numbers
    begin: Numbers
    end: Numbers
    cut: Flags
    first: Flags
    last: Flags
    slot: Numbers

    def table(self, at: Flags, stages: int, microbatches: int, *kinds: Pass) -> Numbers:
        """Row of the task that begins or ends (`at`: `first` or `last`) each stage's pass over each microbatch, of these kinds
        of pass; shape (stages, microbatches)."""
        tasks = np.flatnonzero(np.isin(self.kind, kinds) & at)
        result = np.full((stages, microbatches), -1)
        result[self.stage[tasks], self.microbatch[tasks]] = tasks
        return result


def rank_schedule(plan: Plan, cuts: Sequence[Sequence[range]], cuts_all_passes: bool, times: PassTimes) -> RankSchedule:
    """The tasks of a plan's ranks in the order of its schedule.

    cuts: for each stage of the model, the ranges of layers in forward order into which passes are divided: all passes if
    `cuts_all_passes`; otherwise the last backward pass, which completes gradients, and the first forward pass if parameters are
    gathered during it. Each rank begins with a task at which the step begins and the first receive is posted.
    """
    passes = order(plan.schedule, plan.stages, plan.microbatches, plan.chunks, times)
    rank, column = np.nonzero(passes.slot >= 0)
    kind, chunk, microbatch, slot = (values[rank, column] for values in passes)
    stage = np.array(plan.stage_of)[rank, chunk]
    cut = kind != Pass.WEIGHT if cuts_all_passes else _completes(kind, stage)
    if plan.overlap_gather:
        cut[np.unique(stage, return_index=True)[1]] = True
    pieces = np.array([len(ranges) for ranges in cuts])
    counts = np.where(cut, pieces[stage], 1)
    pass_of = np.repeat(np.arange(len(kind)), counts)
    piece = np.arange(len(pass_of)) - np.repeat(np.cumsum(counts) - counts, counts)
    # a backward pass begins with the last layers
    number = np.where(kind[pass_of] == Pass.FORWARD, piece, counts[pass_of] - 1 - piece)
    begins, ends = np.array([(layers.start, layers.stop) for ranges in cuts for layers in ranges]).T
    # the first and the last range that a task passes, among those of all stages
    first = (np.cumsum(pieces) - pieces)[stage][pass_of] + number
    last = np.where(cut[pass_of], first, first + pieces[stage][pass_of] - 1)
    result = RankSchedule(
        rank=rank[pass_of],
        kind=kind[pass_of],
        stage=stage[pass_of],
        microbatch=microbatch[pass_of],
        begin=begins[first],
        end=ends[last],
        cut=cut[pass_of],
        first=piece == 0,
        last=piece == counts[pass_of] - 1,
        slot=FIRST_SLOT + SLOTS * (1 + slot[pass_of] * counts.max() + piece),
    )
    if plan.schedule == "gpipe" and plan.stages > 1:
        # at the turn from forward to backward a rank waits for its sends
        turns = np.flatnonzero((result.kind[:-1] == Pass.FORWARD) & (result.kind[1:] != Pass.FORWARD)) + 1
        result = _with_waits(result, turns, TURN, result.slot[turns - 1] + SLOTS // 2)
    return _with_waits(result, np.searchsorted(result.rank, np.arange(plan.stages)), BEGIN, FIRST_SLOT)


def _completes(kind: Numbers, stage: Numbers) -> Flags:
    """Whether a pass is the last one that computes weight gradients of a stage, and computes them together with input
    gradients."""
    gradient_passes = np.flatnonzero((kind == Pass.BACKWARD) | (kind == Pass.WEIGHT))
    latest = np.full(stage.max() + 1, -1)
    np.maximum.at(latest, stage[gradient_passes], gradient_passes)
    result = np.zeros(len(kind), dtype=np.bool_)
    result[latest] = kind[latest] == Pass.BACKWARD
    return result


def _with_waits(tasks: RankSchedule, before: Numbers, kind: int, slot: Any) -> RankSchedule:
    """Inserts tasks that only wait in front of the tasks `before`."""
    blank = {"kind": kind, "stage": -1, "microbatch": -1} | dict.fromkeys(("begin", "end"), 0)
    values = {**blank, "rank": tasks.rank[before], "cut": False, "first": False, "last": False, "slot": slot}
    return RankSchedule(**{name: np.insert(column, before, values[name]) for name, column in tasks._asdict().items()})


def posting_tasks(schedule: RankSchedule, senders: Numbers, users: Numbers) -> Numbers:
    """For each message, the receiver's task after which it posts the receive when torch's runtime runs the schedule.

    A receive enters a rank's list of actions when the sending rank reaches the pass that produces the message. The lists of all
    ranks are built concurrently, one entry per rank in turn; a rank whose next pass needs a message that has not been produced
    yet is skipped (torch/distributed/pipelining/schedules.py, _add_send_recv).

    senders: task that produces each message; users: task that uses it; all arrays have the same shape.
    """
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


def _lists(schedule: RankSchedule, ends: Numbers) -> list[deque[int]]:
    """Numbers of the passes of each rank in order, and _OTHER for other actions."""
    completing = set(_completing_passes(schedule, ends))
    lists: list[deque[int]] = [deque() for _ in range(int(schedule.rank[-1]) + 1)]
    for number, task in enumerate(ends.tolist()):
        lists[schedule.rank[task]].append(number)
        if number in completing:
            lists[schedule.rank[task]].extend([_OTHER] * _ACTIONS_WHEN_COMPLETE)
    return lists


def _completing_passes(schedule: RankSchedule, ends: Numbers) -> list[int]:
    """Numbers of the passes that complete the gradients of a stage."""
    gradient_passes = np.isin(schedule.kind[ends], (Pass.BACKWARD, Pass.WEIGHT))
    return list({int(schedule.stage[ends[number]]): int(number) for number in np.flatnonzero(gradient_passes)}.values())
