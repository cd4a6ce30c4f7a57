"""Graphs: what passes of a schedule wait for, in an order in which they can be timed."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.strategy.pipeline.schedule import Pass, PassTimes, ScheduleName, order, stage_of

Numbers = NDArray[np.int64]

# Schedules whose ranks wait for what they have sent where they turn from passes of one kind to another.
_TURNING: Final[frozenset[ScheduleName]] = frozenset({"gpipe", "1f1b"})


class ScheduleGraph(NamedTuple):
    """Passes in an order in which they can be timed, those of a level together. A number of passes that there are holds nothing
    up.

    code: kind and stage of each. before: the pass before it on its rank. made: that which makes what it needs. link: the
    boundary over which that is sent, the last for none. stream: the pass for which the rank got the message before. turn,
    turn_link: of the message that the rank waits for first, sent by the pass before: what its receiver does before it gets it.
    slots: of its order, since that of the pass before. apart: which make gradients of weights alone, for which nothing is
    gathered; gathering: the last before it on its rank that does not. first, last: passes of each rank; sent: for which the
    last messages are that each rank sends. makes: the last that makes gradients of each stage, and its rank. making: all that
    do, by rank, and beyond them none.
    """

    code: Numbers
    before: Numbers
    made: Numbers
    link: Numbers
    stream: Numbers
    turn: Numbers
    turn_link: Numbers
    slots: Numbers
    gathering: Numbers
    apart: NDArray[np.bool_]
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
    """Of one step. times: what orders that are searched for weigh."""
    passes = order(schedule, ranks, microbatches, chunks, times)
    rank, column = np.nonzero(passes.slot >= 0)
    by_level = np.lexsort((rank, passes.slot[rank, column]))
    rank, column = rank[by_level], column[by_level]
    kind, chunk, microbatch, slot = (values[rank, column] for values in passes)
    home = np.array([[stage_of(schedule, ranks, one, each) for each in range(chunks)] for one in range(ranks)])
    stage, boundaries, nothing = home[rank, chunk], ranks * chunks - 1, len(rank)
    is_forward, is_back = kind == Pass.FORWARD, np.isin(kind, (Pass.BACKWARD, Pass.INPUT))
    number = np.full((ranks, passes.slot.shape[1] + 1), nothing)
    number[rank, column] = np.arange(nothing)
    before = number[rank, column - 1]
    ways = np.full((2, boundaries + 2, microbatches), nothing)
    ways[0, stage[is_forward] + 1, microbatch[is_forward]] = np.flatnonzero(is_forward)
    ways[1, stage[is_back], microbatch[is_back]] = np.flatnonzero(is_back)
    # the last stage's backward passes need what its forward passes have made, which is no message
    ways[1, boundaries + 1] = ways[0, boundaries + 1]
    made = np.where(is_forward, ways[0, stage, microbatch], np.where(is_back, ways[1, stage + 1, microbatch], nothing))
    crosses = np.append(rank, -1)[made] != rank
    crosses &= made < nothing
    link = np.where(crosses, np.where(is_forward, stage - 1, stage), boundaries)
    receiver = np.full(nothing + 1, nothing)
    receiver[made[crosses]] = np.flatnonzero(crosses)
    got = np.flatnonzero(crosses)
    sent = np.full((2, ranks), nothing)
    # the last of those that are written stays
    sent[is_forward[got].astype(np.int64), rank[made[got]]] = got
    way = rank[got] * 2 + is_forward[got]
    in_turn = np.argsort(way, kind="stable")
    got, way = got[in_turn], way[in_turn]
    stream = np.full(nothing, nothing)
    stream[got[1:]] = np.where(way[1:] == way[:-1], got[:-1], nothing)
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
    apart, gathering = kind == Pass.WEIGHT, before
    while (skipped := np.append(apart, False)[gathering]).any():
        gathering = np.where(skipped, np.append(before, nothing)[gathering], gathering)
    slots = slot - np.append(slot, 0)[before]
    level = np.cumsum(np.diff(slot, prepend=slot[0]) > 0, dtype=np.int64)
    code = kind * (boundaries + 1) + stage
    waits = before, made, link, stream, turn, turn_link, slots, gathering, apart
    return ScheduleGraph(code, *waits, level, number[:, 0], last, sent, makes, rank[makes], making)
