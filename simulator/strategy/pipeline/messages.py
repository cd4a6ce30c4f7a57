"""Messages between pipeline stages: activations to the next stage, and their gradients back.

A receive is posted when its rank reaches it, and data move once both sides are ready, as in torch.distributed.pipelining and
Megatron-LM's 1F1B; or all receives are posted ahead, and transfers overlap with passes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from scaleproof.simulator.cluster.collectives.cost import concurrent_collective
from scaleproof.simulator.common.communication import Collective, Communication, Dimension, number_of
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.program import Path, Rows
from scaleproof.simulator.strategy.layout.resource_map import ResourceMap
from scaleproof.simulator.strategy.pipeline.replica import BACKWARD, TURN, CompileContext, Flags, RankSchedule, Replica
from scaleproof.simulator.strategy.pipeline.schedules import Pass

# Actions of a list after a stage has all its gradients: their reduction and the release of whole parameters, sharded or not.
_ACTIONS_WHEN_COMPLETE: Final = 2
_OTHER: Final = -1


class _Messages(NamedTuple):
    """Messages of every microbatch between stages on different ranks. source, target: stage of the model that sends and that
    receives, shape (boundaries,). senders, receivers: task of the schedule that makes each message, and the one that needs it,
    shape (boundaries, microbatches)."""

    source: Rows
    target: Rows
    senders: Rows
    receivers: Rows


def add_messages(replica: Replica) -> None:
    """Adds the messages of a replica to the program, and makes its tasks wait for them."""
    context, ranks = replica.context, np.array(replica.ranks)
    plan, schedule, builder = context.plan, context.schedule, context.builder
    waits_for_posts = context.job.cluster.library == "gloo"
    rank_of = np.empty(plan.stages * plan.chunks, dtype=np.int64)
    rank_of[np.array(plan.stage_of)] = np.arange(plan.stages)[:, None]
    source, target, senders, receivers = _messages(context, rank_of)
    # a receive is posted right after the previous task of the receiver, or earlier
    posted = receivers - 1
    if plan.overlap_sends and waits_for_posts:
        posted = np.minimum(posted, posting_tasks(schedule, senders, receivers))
    # that each rank of a stage sends per microbatch, behind each layer
    sent_bytes = context.job.boundary_bytes(replica.samples / plan.microbatches) / (plan.tensor if plan.splits else 1)
    layers = np.array([context.ranges[stage][-1] for stage in np.minimum(source, target)])
    ends = list(zip(rank_of[source].tolist(), rank_of[target].tolist(), sent_bytes[layers].tolist(), strict=True))
    # with virtual stages the same ranks exchange several messages
    paths = {end: partial(_path, replica, *end) for end in ends}
    after = [senders, posted] if waits_for_posts or not plan.overlap_sends else [senders]
    rows = builder.transfer(
        ranks[rank_of[source]][:, None], ranks[rank_of[target]][:, None], sent_bytes[layers][:, None],
        np.array([paths[end] for end in ends], dtype=np.object_)[:, None], Phase.SEND, [replica.rows[tasks] for tasks in after],
        stage=source[:, None], microbatch=np.arange(plan.microbatches),
        slot=np.max([schedule.slot[tasks] for tasks in after], axis=0) + 1,
        labels=Communication(
            number_of(Dimension.PIPELINE, Collective.SEND), sent_bytes[layers][:, None], 1, layers[:, None], layers[:, None]
        ),
    )  # fmt: skip
    builder.follow(replica.rows[receivers], rows)
    replica.sends[senders] = rows
    if plan.overlap_sends:
        _send_in_turn(replica, senders, rank_of[target])
    if waits_for_posts:
        _pair(replica, rows.ravel(), senders.ravel(), posted.ravel())
        if plan.overlap_sends:
            _announce_ready(replica, rows.ravel(), senders.ravel(), posted.ravel())
    _wait_for_sends(replica)
    builder.follow(np.array(replica.last_rows)[schedule.rank], replica.sends)


def _messages(context: CompileContext, rank_of: Rows) -> _Messages:
    """Activations to the next stage, then their gradients back. rank_of: pipeline rank of each stage of the model."""
    schedule, shape = context.schedule, (len(rank_of), context.plan.microbatches)
    before = np.flatnonzero(rank_of[:-1] != rank_of[1:])
    # stages below the first trained layer receive no gradients
    trained = before[context.has_backward[before]]

    def tasks(at: Flags, forward: Rows, backward: Rows) -> Rows:
        passes = schedule.table(at, shape, Pass.FORWARD)[forward], schedule.table(at, shape, *BACKWARD)[backward]
        return np.concatenate(passes)

    return _Messages(
        np.concatenate([before, trained + 1]),
        np.concatenate([before + 1, trained]),
        tasks(schedule.last, before, trained + 1),
        tasks(schedule.first, before + 1, trained),
    )


def _send_in_turn(replica: Replica, senders: Rows, to: Rows) -> None:
    """Makes messages from one rank to another follow each other, as on one stream. to: rank of each message's receiver."""
    tasks = np.sort(senders, axis=None)
    receiver = np.full(len(replica.sends), -1)
    receiver[senders] = to[:, None]
    pair = replica.context.schedule.rank[tasks] * replica.context.plan.stages + receiver[tasks]
    order = np.argsort(pair, kind="stable")
    rows, same = replica.sends[tasks[order]], np.diff(pair[order]) == 0
    replica.context.builder.follow(rows[1:][same], rows[:-1][same])


def _pair(replica: Replica, rows: Rows, senders: Rows, posted: Rows) -> None:
    """Pairs messages of gloo: a receiver announces that it is ready on the connection on which it also sends, behind its
    earlier sends (gloo/transport/tcp/pair.cc). If two ranks each send and then receive, one message follows the other.

    rows: of messages. senders: tasks that send them. posted: tasks after which their receives are posted.
    """
    row_of = {(a, b): row for a, b, row in zip(senders.tolist(), posted.tolist(), rows.tolist(), strict=True)}
    pairs = [(row, row_of[b, a]) for (a, b), row in row_of.items() if a < b and (b, a) in row_of]
    if pairs:
        replica.context.builder.pair(*np.array(pairs).T)


def _announce_ready(replica: Replica, rows: Rows, senders: Rows, posted: Rows) -> None:
    """Without waiting for sends, a receiver's announcement may be queued behind the last message that it sent in the
    opposite direction. Arguments as in `_pair`."""
    rank = replica.context.schedule.rank
    messages = sorted(zip(senders.tolist(), posted.tolist(), rows.tolist(), strict=True))
    sent: defaultdict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
    for message in messages:
        sent[rank[message[0]], rank[message[1]]].append(message)
    announcements = []
    for task, receives, row in messages:
        other_way = sent[rank[receives], rank[task]]
        place = bisect_right(other_way, receives, key=lambda message: message[0])
        sent_after, awaited_by, before = other_way[place - 1] if place else (-1, task, -1)
        # of two that follow the same tasks, the one that is awaited later is assumed to move later
        is_before = awaited_by < task or (awaited_by == task and sent_after < receives)
        announcements.append((row, int(replica.rows[receives]), before if is_before else -1))
    replica.context.builder.announce_ready(*np.array(announcements).T)


def _path(replica: Replica, source: int, target: int, size_bytes: float, links: ResourceMap) -> Path:
    """Path of the concurrent messages of all equivalent ranks between two pipeline ranks."""
    plan, places = replica.context.plan, replica.places
    stall_s = replica.context.job.framework.stall_s(replica.context.mesh.nodes)
    path = links.concurrent_messages(places[source], places[target], size_bytes, replica.concurrent_senders, stall_s)
    path = replace(path, uses=links.of_class(path.uses, replica.workers.nodes))
    if plan.splits:
        # the shards are gathered on the receiving stage
        group = replica.context.mesh.along("tensor", plan.tensor)
        together_s = concurrent_collective("all_gather", group, links.cluster)(size_bytes * plan.tensor)
        path = replace(path, latency_s=path.latency_s + together_s)
    return path


def _wait_for_sends(replica: Replica) -> None:
    """Makes ranks wait for their sends if these do not overlap with passes: in gpipe at the turn from forward to backward,
    in 1f1b at every turn."""
    plan, schedule, builder = replica.context.plan, replica.context.schedule, replica.context.builder
    same = schedule.rank[1:] == schedule.rank[:-1]
    if plan.overlap_sends:
        return
    if plan.schedule == "gpipe":
        turns = np.flatnonzero(schedule.kind == TURN)
        forward = np.where(schedule.kind == Pass.FORWARD, replica.sends, -1)
        row_of = np.full(plan.stages, -1)
        row_of[schedule.rank[turns]] = replica.rows[turns]
        given = row_of[schedule.rank] >= 0
        builder.follow(row_of[schedule.rank][given], forward[given])
    elif plan.schedule == "1f1b":
        turned = same & (schedule.kind[1:] != schedule.kind[:-1])
        builder.follow(replica.rows[1:][turned], replica.sends[:-1][turned])


def posting_tasks(schedule: RankSchedule, senders: Rows, users: Rows) -> Rows:
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


def _lists(schedule: RankSchedule, ends: Rows) -> list[deque[int]]:
    """Rows of the passes of each rank in order, and _OTHER for other actions."""
    gradient_passes = np.flatnonzero(np.isin(schedule.kind[ends], (Pass.BACKWARD, Pass.WEIGHT)))
    # the last pass of each stage completes its gradients
    completing = set(dict(zip(schedule.stage[ends[gradient_passes]].tolist(), gradient_passes.tolist(), strict=True)).values())
    lists: list[deque[int]] = [deque() for _ in range(int(schedule.rank[-1]) + 1)]
    for number, task in enumerate(ends.tolist()):
        lists[schedule.rank[task]].append(number)
        if number in completing:
            lists[schedule.rank[task]].extend([_OTHER] * _ACTIONS_WHEN_COMPLETE)
    return lists
