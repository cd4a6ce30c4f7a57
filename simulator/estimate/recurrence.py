"""Recurrence: when passes of a pipeline end, one after another in the order of its schedule, of many configurations at once.

It costs a loop over passes where a closed form costs none, and is for what has no near one. Once a schedule is in full swing it
goes on alike: of many microbatches few are followed, and what more of them take is added. Arrays have configurations last.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.strategy.schedule import Pass, PassTimes, ScheduleName, order, stage_of
from simulator.strategy.schedules.passes import EQUAL

Times = NDArray[np.float64]
Numbers = NDArray[np.int64]

# For each rank so many microbatches are followed, and so many: what comes between is what as many more take.
_FEW, MOST_FOLLOWED = 2, 3
# Passes times configurations that are timed at once: 8 MB an array.
_AT_ONCE: Final = 1_000_000
# Schedules whose ranks wait for what they have sent where they turn from passes of one kind to another.
_TURNING: Final[frozenset[ScheduleName]] = frozenset({"gpipe", "1f1b"})


class Collectives(NamedTuple):
    """Seconds of what a rank gathers before a pass over each stage and sums after it, layer by layer, shape (stages,
    configurations). again_s: gathered before a backward pass. opening_s: what is gathered first of gathers_s; last_s: what is
    summed last of sums_s. layers: of each stage, shape (stages, 1)."""

    gathers_s: Times
    again_s: Times
    opening_s: Times
    sums_s: Times
    last_s: Times
    layers: Numbers

    @classmethod
    def of(cls, seconds: Iterable[Times], layers: Numbers) -> Collectives:
        """seconds: all others, in their order."""
        gathers_s, again_s, opening_s, sums_s, last_s = seconds
        return cls(gathers_s, again_s, opening_s, sums_s, last_s, layers)

    def lane_s(self, stage_of: Numbers) -> Times:
        """All of a rank's for one microbatch, which follow one another, shape (ranks, configurations)."""
        result: Times = (self.gathers_s + self.again_s + self.sums_s)[stage_of].sum(axis=1)
        return result

    def take(self, at: Any) -> Collectives:
        """Of some configurations."""
        seconds = (each[:, at] for each in (self.gathers_s, self.again_s, self.opening_s, self.sums_s, self.last_s))
        return Collectives.of(seconds, self.layers)


class Played(NamedTuple):
    """Seconds from each rank's first pass to the end of its last, and from there to the end of its collectives, both of shape
    (ranks, configurations); from the end of each stage's last gradients to that of its rank's last pass, shape (stages,
    configurations)."""

    window_s: Times
    lane_s: Times
    left_s: Times


@dataclass(frozen=True)
class Passing:
    """Seconds of passes, shape (kinds of passes, stages of the model, configurations), and of the messages behind each stage
    but the last, shape (stages − 1, configurations). sums_s: of what is summed beside after each pass that makes gradients of a
    stage's weights, shape (stages, configurations). times: what orders that are searched for weigh."""

    schedule: ScheduleName
    ranks: int
    chunks: int
    overlap_sends: bool
    work_s: Times
    sends_s: Times
    collectives: Collectives | None = None
    sums_s: Times | None = None
    times: PassTimes = EQUAL

    def play(self, microbatches: Numbers) -> Played:
        """microbatches: of each configuration."""
        stages, count = self.work_s.shape[1:]
        result = Played(np.empty((self.ranks, count)), np.empty((self.ranks, count)), np.empty((stages, count)))
        most = MOST_FOLLOWED * self.ranks
        followed = np.where(follows_few(self.schedule, self.ranks, microbatches), most, microbatches)
        for number in np.unique(followed).tolist():
            at = np.flatnonzero(followed == number)
            found, more = self._take(at)._play(number), microbatches[at] - number
            if more.any():
                # of as many more microbatches each takes as long as of the last that were followed
                before, steps = self._take(at)._play(_FEW * self.ranks), more / (number - _FEW * self.ranks)
                window_s, *rests_s = (last + steps * (last - one) for one, last in zip(before, found, strict=True))
                found = Played(window_s, *(np.maximum(0.0, rest_s) for rest_s in rests_s))
            for whole, part in zip(result, found, strict=True):
                whole[:, at] = part
        return result

    def _take(self, at: Numbers) -> Passing:
        given = self.collectives.take(at) if self.collectives is not None else None
        sums_s = self.sums_s[:, at] if self.sums_s is not None else None
        return replace(self, work_s=self.work_s[:, :, at], sends_s=self.sends_s[:, at], collectives=given, sums_s=sums_s)

    def _play(self, microbatches: int) -> Played:
        graph = _graph(self.schedule, self.ranks, microbatches, self.chunks, self.overlap_sends, self.times)
        count, width = self.work_s.shape[-1], max(1, _AT_ONCE // len(graph.code))
        parts = [_Run(self, graph, slice(begin, begin + width)).played() for begin in range(0, count, width)]
        return Played(*(np.concatenate(each, axis=1) for each in zip(*parts, strict=True)))


def follows_few(schedule: ScheduleName, ranks: int, microbatches: Numbers) -> NDArray[np.bool_]:
    """Whether fewer microbatches stand for so many: not where rounds of them would be other ones."""
    few = microbatches > MOST_FOLLOWED * ranks
    if schedule in ("interleaved_1f1b", "interleaved_zero_bubble"):
        few &= microbatches % ranks == 0
    result: NDArray[np.bool_] = few
    return result


class _Graph(NamedTuple):
    """Passes in an order in which they can be timed, those of a level together: level i from levels[i] on. A number of passes
    that there are holds nothing up.

    code: kind and stage of each. before: the pass before it on its rank. made: that which makes what it needs. link: the
    boundary over which that is sent, the last for none. stream: the pass for which the rank got the message before. turn,
    turn_link: of the message that the rank waits for first, sent by the pass before: what its receiver does before it gets it.
    slot: of its order. first, last: passes of each rank; sent: for which the last messages are that each rank sends. makes:
    the last that makes gradients of each stage, and its rank. making: all that do, by rank, and beyond them none.
    """

    code: Numbers
    before: Numbers
    made: Numbers
    link: Numbers
    stream: Numbers
    turn: Numbers
    turn_link: Numbers
    slot: Numbers
    levels: list[int]
    first: Numbers
    last: Numbers
    sent: Numbers
    makes: Numbers
    makes_rank: Numbers
    making: Numbers


@lru_cache(maxsize=1024)
def _graph(schedule: ScheduleName, ranks: int, microbatches: int, chunks: int, overlap_sends: bool, times: PassTimes) -> _Graph:
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
    got, stream = np.full((ranks, 2), nothing), np.full(nothing, nothing)
    sent = np.full((2, ranks), nothing)
    for one in np.flatnonzero(crosses).tolist():
        place = rank[one], int(is_forward[one])
        stream[one], got[place] = got[place], one
        sent[place[1], rank[made[one]]] = one
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
    levels = [*np.flatnonzero(np.diff(slot, prepend=-1)).tolist(), nothing]
    code = kind * (boundaries + 1) + stage
    found = before, made, link, stream, turn, turn_link, slot, levels, number[:, 0], last, sent, makes, rank[makes], making
    return _Graph(code, *found)


class _Run:
    """Times passes of some configurations, level by level."""

    def __init__(self, passing: Passing, graph: _Graph, columns: slice) -> None:
        self.graph, self.overlap_sends = graph, passing.overlap_sends
        work_s = passing.work_s[:, :, columns]
        count = work_s.shape[-1]
        self.work_s = work_s.reshape(-1, count)
        self.sends_s = np.pad(passing.sends_s[:, columns], [(0, 1), (0, 0)])
        # one row more, which holds nothing up
        self.end_s, self.got_s = np.zeros((2, len(graph.code) + 1, count))
        self.lane = None
        self.sums_s = passing.sums_s[:, columns] if passing.sums_s is not None else None
        if passing.collectives is not None:
            self.lane = _Lane(graph, passing.collectives.take(columns), self.work_s, len(work_s))

    def played(self) -> Played:
        graph, end_s = self.graph, self.end_s
        turns = bool((graph.turn < len(graph.code)).any())
        for begin, end in itertools.pairwise(graph.levels):
            self._level(slice(begin, end), turns)
        last_s = end_s[graph.last]
        lane_s = self._summed_s() - last_s if self.lane is None else self.lane.rest_s(end_s)
        window_s = np.maximum(last_s, self.got_s[graph.sent].max(axis=0)) - self.got_s[graph.first]
        return Played(window_s, lane_s, last_s[graph.makes_rank] - end_s[graph.makes])

    def _summed_s(self) -> Times:
        """When each rank has summed all that it sums beside its passes, one after another, and has ended them."""
        graph, result = self.graph, self.end_s[self.graph.last]
        if self.sums_s is None:
            return result
        stage = np.append(graph.code, 0) % len(self.sums_s)
        summed_s = np.zeros_like(result)
        for making in graph.making.T:
            sum_s = self.sums_s[stage[making]] * (making < len(graph.code))[:, None]
            summed_s = np.maximum(summed_s, self.end_s[making]) + sum_s
        return np.maximum(result, summed_s)

    def _level(self, at: slice, turns: bool) -> None:
        graph, end_s = self.graph, self.end_s
        before_s, made_s = end_s[graph.before[at]], end_s[graph.made[at]]
        send_s = self.sends_s[graph.link[at]]
        if self.overlap_sends:
            got_s = np.maximum(made_s, self.got_s[graph.stream[at]]) + send_s
            begin_s = np.maximum(before_s, got_s)
        else:
            got_s = begin_s = np.maximum(before_s, made_s) + send_s
        self.got_s[at] = got_s
        if turns:
            sent_s = np.maximum(before_s, end_s[graph.turn[at]]) + self.sends_s[graph.turn_link[at]]
            begin_s = np.maximum(begin_s, sent_s)
        if self.lane is None:
            np.add(begin_s, self.work_s[graph.code[at]], out=end_s[at])
        else:
            end_s[at] = self.lane.passed_s(at, before_s, begin_s)


class _Lane:
    """Collectives of ranks whose parameters are gathered layer by layer: each waits for the one before it and for the layer but
    one before its own, each sum for its layer. Layers of a stage are taken to be alike but for what comes first or last.

    Of each pass: what is gathered first, and then; what else is gathered, and summed beside; what is summed with the last layer
    but one, and with the last. Nothing is gathered for gradients of weights that are made apart, and all is summed after them.
    """

    def __init__(self, graph: _Graph, given: Collectives, work_s: Times, kinds: int) -> None:
        self.graph = graph
        layers, nothing = given.layers, len(graph.code)
        none, others, between = np.zeros_like(given.sums_s), np.maximum(1, layers - 1), np.maximum(0, layers - 2)
        gather_s, again_s = (given.gathers_s - given.opening_s) / others, given.again_s / layers
        sum_s, several = (given.sums_s - given.last_s) / others, layers > 1
        forward = given.opening_s, gather_s * several, between * gather_s, none, none
        backward = again_s, again_s * several, between * (again_s + sum_s), sum_s * several, given.last_s
        inputs = again_s, again_s * several, between * again_s, none, none
        weights = none, none, none, none, given.sums_s
        tables = [np.concatenate(each[:kinds])[graph.code] for each in zip(forward, backward, inputs, weights, strict=True)]
        self.first_s, self.second_s, self.other_s, self.sum_s, last_s = tables
        self.last_s = np.pad(last_s, [(0, 1), (0, 0)])
        passed = np.tile(layers, (kinds, 1))
        passed[Pass.WEIGHT * len(layers) :] = 1
        self.layers = passed[graph.code]
        self.is_apart = (graph.code >= Pass.WEIGHT * len(layers))[:, None]
        self.work_s = work_s[graph.code]
        self.layer_s = self.work_s / self.layers
        # hints of an order have as many places for each pass as any has layers: where some are left, sums come before gathers
        slot, before_layers = np.append(graph.slot, 0)[graph.before], np.append(self.layers[:, 0], 1)[graph.before]
        self.sums_first = ((graph.slot - slot) * layers.max() > before_layers)[:, None]
        # when the collectives of a pass have ended but for the last sum; of the last pass for which anything was gathered, when
        # its last layer but one was passed, and its last
        self.moved_s, self.free_s, self.passed_last_s = np.zeros((3, nothing + 1, work_s.shape[1]))

    def passed_s(self, at: slice, before_s: Times, begin_s: Times) -> Times:
        """When passes end that could begin at `begin_s`, on ranks whose passes before ended at `before_s`."""
        before, layers, layer_s = self.graph.before[at], self.layers[at], self.layer_s[at]
        moved_s, last_s, passed_last_s = self.moved_s[before], self.last_s[before], self.passed_last_s[before]
        sums_first = self.sums_first[at] & (last_s > 0)
        moved_s = np.where(sums_first, np.maximum(moved_s, before_s) + last_s, moved_s)
        first_s = np.maximum(moved_s, self.free_s[before]) + self.first_s[at]
        summed_s = np.where(sums_first, first_s, np.maximum(first_s, before_s) + last_s)
        start_s = np.maximum(begin_s, first_s)
        second_s = np.maximum(summed_s, passed_last_s) + self.second_s[at]
        other_s = np.where(layers > 2, np.maximum(second_s, start_s + layer_s), second_s) + self.other_s[at]
        end_s: Times = np.maximum(start_s + self.work_s[at], np.where(layers > 1, other_s + layer_s, 0.0))
        sum_s, ready_s = self.sum_s[at], end_s - layer_s
        self.moved_s[at] = np.where(layers > 1, np.maximum(other_s, ready_s * (sum_s > 0)) + sum_s, summed_s)
        self.free_s[at] = np.where(layers > 1, ready_s, passed_last_s)
        self.passed_last_s[at] = end_s
        is_apart = self.is_apart[at]
        if is_apart.any():
            end_s = np.where(is_apart, begin_s + self.work_s[at], end_s)
            self.moved_s[at] = np.where(is_apart, moved_s, self.moved_s[at])
            self.free_s[at] = np.where(is_apart, self.free_s[before], self.free_s[at])
            self.passed_last_s[at] = np.where(is_apart, passed_last_s, end_s)
        return end_s

    def rest_s(self, end_s: Times) -> Times:
        """From the end of each rank's last pass to that of its collectives."""
        last = self.graph.last
        result: Times = np.maximum(0.0, self.moved_s[last] - end_s[last]) + self.last_s[last]
        return result


def one_rank_s(works_s: Times, collectives_s: Sequence[Times], microbatches: Numbers) -> Times:
    """Seconds of a step of a rank that is alone in its pipeline: of its forward and backward passes, of what is gathered before
    each of both and summed after the latter, all of shape (layers, configurations)."""
    forward_s, backward_s = works_s
    gathers_s, again_s, sums_s = collectives_s
    none_s = np.zeros_like(sums_s)
    layers = [*zip(forward_s, gathers_s, none_s, strict=True), *zip(backward_s[::-1], again_s[::-1], sums_s[::-1], strict=True)]
    end_s, before_s, moved_s, last_s, whole_s = np.zeros((5, len(microbatches)))
    for _ in range(2):
        one_s = whole_s
        for work_s, gather_s, sum_s in layers:
            gathered_s = np.maximum(moved_s, before_s) + gather_s
            # what is gathered ahead comes before the sum of the layer before
            moved_s = np.where(last_s > 0, np.maximum(gathered_s, end_s) + last_s, gathered_s)
            end_s, before_s, last_s = np.maximum(end_s, gathered_s) + work_s, end_s, sum_s
        whole_s = np.maximum(end_s, moved_s) + last_s
    result: Times = one_s + (microbatches - 1) * (whole_s - one_s)
    return result
