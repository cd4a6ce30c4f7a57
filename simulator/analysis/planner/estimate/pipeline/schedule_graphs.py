"""Dependencies of a schedule's passes, in an order in which they can be timed."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.strategy.pipeline.schedule import Pass, PassTimes, ScheduleName, order, stage_of

Numbers = NDArray[np.int64]

# Schedules whose ranks wait for the messages they have sent when they switch between kinds of passes.
_TURNING: Final[frozenset[ScheduleName]] = frozenset({"gpipe", "1f1b"})


class ScheduleGraph(NamedTuple):
    """Passes in topological order, those of a level together. The number of passes, as an index, means no dependency.

    code: kind and stage of each pass, as kind · stages + stage.
    before: the pass before it on its rank.
    made: the pass that computes its input.
    link: the stage boundary over which that input is sent, the last index for none.
    stream: the pass for which its rank received the message before.
    turn, turn_link: where a rank waits for a message it has sent, the receiver's pass before it, and the boundary.
    slots: slots of the schedule since the pass before on the rank.
    gathering_before: the last pass before it on its rank that gathers parameters, which passes for gradients of weights do not.
    is_weight_pass: whether it computes gradients of weights alone.
    level: its level.
    first, last: first and last pass of each rank.
    sent: the passes that receive the last messages each rank sends, shape (2, ranks).
    makes, makes_rank: the last pass that computes gradients of each stage's weights, and its rank.
    making: all passes that compute gradients of weights, by rank, padded with the number of passes.
    """

    code: Numbers
    before: Numbers
    made: Numbers
    link: Numbers
    stream: Numbers
    turn: Numbers
    turn_link: Numbers
    slots: Numbers
    gathering_before: Numbers
    is_weight_pass: NDArray[np.bool_]
    level: Numbers
    first: Numbers
    last: Numbers
    sent: Numbers
    makes: Numbers
    makes_rank: Numbers
    making: Numbers


@lru_cache(maxsize=1024)
def graph_of(
    schedule: ScheduleName, ranks: int, microbatches: int, chunks: int, overlap_sends: bool, times: PassTimes
) -> ScheduleGraph:
    """The graph of one step. times: pass times, for orders that are searched for."""
    passes = order(schedule, ranks, microbatches, chunks, times)
    rank, column = np.nonzero(passes.slot >= 0)
    by_level = np.lexsort((rank, passes.slot[rank, column]))
    rank, column = rank[by_level], column[by_level]
    kind, chunk, microbatch, slot = (values[rank, column] for values in passes)
    stages_of = np.array([[stage_of(schedule, ranks, one, each) for each in range(chunks)] for one in range(ranks)])
    stage, boundaries, nothing = stages_of[rank, chunk], ranks * chunks - 1, len(rank)
    is_forward, is_back = kind == Pass.FORWARD, np.isin(kind, (Pass.BACKWARD, Pass.INPUT))
    number = np.full((ranks, passes.slot.shape[1] + 1), nothing)
    number[rank, column] = np.arange(nothing)
    before = number[rank, column - 1]
    producers = np.full((2, boundaries + 2, microbatches), nothing)
    producers[0, stage[is_forward] + 1, microbatch[is_forward]] = np.flatnonzero(is_forward)
    producers[1, stage[is_back], microbatch[is_back]] = np.flatnonzero(is_back)
    # the last stage's backward passes depend on its own forward passes, without a message
    producers[1, boundaries + 1] = producers[0, boundaries + 1]
    made = np.where(
        is_forward, producers[0, stage, microbatch], np.where(is_back, producers[1, stage + 1, microbatch], nothing)
    )
    crosses = np.append(rank, -1)[made] != rank
    crosses &= made < nothing
    link = np.where(crosses, np.where(is_forward, stage - 1, stage), boundaries)
    receiver = np.full(nothing + 1, nothing)
    receiver[made[crosses]] = np.flatnonzero(crosses)
    got = np.flatnonzero(crosses)
    sent = np.full((2, ranks), nothing)
    # numpy keeps the last value that is written
    sent[is_forward[got].astype(np.int64), rank[made[got]]] = got
    direction = rank[got] * 2 + is_forward[got]
    in_turn = np.argsort(direction, kind="stable")
    got, direction = got[in_turn], direction[in_turn]
    stream = np.full(nothing, nothing)
    stream[got[1:]] = np.where(direction[1:] == direction[:-1], got[:-1], nothing)
    turn, turn_link = np.full(nothing, nothing), np.full(nothing, boundaries)
    if schedule in _TURNING and not overlap_sends:
        turns = np.flatnonzero((np.append(kind, -1)[before] != kind) & (before < nothing))
        turns = turns[kind[turns] != Pass.FORWARD] if schedule == "gpipe" else turns
        awaited = receiver[before[turns]]
        turn[turns], turn_link[turns] = np.append(before, nothing)[awaited], np.append(link, boundaries)[awaited]
    makes = np.zeros(boundaries + 1, dtype=np.int64)
    gradients = np.flatnonzero(np.isin(kind, (Pass.BACKWARD, Pass.WEIGHT)))
    np.maximum.at(makes, stage[gradients], gradients)
    making = np.full((ranks, np.bincount(rank[gradients]).max()), nothing)
    for one in range(ranks):
        own = gradients[rank[gradients] == one]
        making[one, : len(own)] = own
    last = np.zeros(ranks, dtype=np.int64)
    np.maximum.at(last, rank, np.arange(nothing))
    is_weight_pass, gathering_before = kind == Pass.WEIGHT, before
    while (skipped := np.append(is_weight_pass, False)[gathering_before]).any():
        gathering_before = np.where(skipped, np.append(before, nothing)[gathering_before], gathering_before)
    slots = slot - np.append(slot, 0)[before]
    level = np.cumsum(np.diff(slot, prepend=slot[0]) > 0, dtype=np.int64)
    code = kind * (boundaries + 1) + stage
    waits = before, made, link, stream, turn, turn_link, slots, gathering_before, is_weight_pass
    return ScheduleGraph(code, *waits, level, number[:, 0], last, sent, makes, rank[makes], making)
