"""Recurrence: when passes of a pipeline end, one after another in the order of its schedule, of many configurations at once.

It costs a loop over passes where a closed form costs none, and is for what has no near one. Once a schedule is in full swing it
goes on alike: of many microbatches few are followed, and what more of them take is added. Arrays have configurations last.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.estimate.codes import taken
from simulator.estimate.collectives import Collectives
from simulator.estimate.graphs import Graph, graph_of
from simulator.strategy.schedule import Pass, PassTimes, ScheduleName
from simulator.strategy.schedules.passes import EQUAL

Times = NDArray[np.float64]
Numbers = NDArray[np.int64]

# For each rank so many microbatches are followed, and so many: what comes between is what as many more take.
_FEW, MOST_FOLLOWED = 2, 3
# Configurations that are told beside one another, so that what they have is found and copied at once.
_BLOCK: Final = 16
# Passes times configurations that are timed at once: 8 MB an array.
_AT_ONCE: Final = 1_000_000


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
        return play([(self, microbatches)])[0]

    def take(self, at: Numbers) -> Passing:
        """Of some configurations."""
        given = self.collectives.take(at) if self.collectives is not None else None
        sums_s = taken(self.sums_s, at, axis=1) if self.sums_s is not None else None
        work_s, sends_s = taken(self.work_s, at, axis=2), taken(self.sends_s, at, axis=1)
        return replace(self, work_s=work_s, sends_s=sends_s, collectives=given, sums_s=sums_s)

    @property
    def kind(self) -> tuple[bool, bool]:
        """Those of a kind can be timed together."""
        return self.overlap_sends, self.collectives is not None


def play(passings: Sequence[tuple[Passing, Numbers]]) -> list[Played]:
    """Of several at once, with the microbatches of their configurations."""
    results, shares = list[Played](), list[_Share]()
    for passing, microbatches in passings:
        stages, count = passing.work_s.shape[1:]
        results.append(Played(*(np.empty((rows, count)) for rows in (passing.ranks, passing.ranks, stages))))
        shares += _shares(passing, microbatches, results[-1])
    found = iter(timed([piece for share in shares for piece in share.pieces]))
    for share in shares:
        share.tell([next(found) for _ in share.pieces])
    return results


class _Share(NamedTuple):
    """Configurations of which as many microbatches are followed: what is found, and where they are there. pieces: that are
    followed, twice where more microbatches are left; steps: how often what is between the two comes once more."""

    whole: Played
    at: Numbers
    pieces: list[Piece]
    steps: Times

    def tell(self, found: Sequence[Played]) -> None:
        last = found[0]
        if len(found) > 1:
            window_s, *rests_s = (all_s + self.steps * (all_s - few_s) for few_s, all_s in zip(found[1], last, strict=True))
            last = Played(window_s, *(np.maximum(0.0, rest_s) for rest_s in rests_s))
        for whole, part in zip(self.whole, last, strict=True):
            whole[:, self.at] = part


def _shares(passing: Passing, microbatches: Numbers, whole: Played) -> Iterator[_Share]:
    few, most = _FEW * passing.ranks, MOST_FOLLOWED * passing.ranks
    followed = np.where(follows_few(passing.schedule, passing.ranks, microbatches), most, microbatches)
    for number in np.unique(followed).tolist():
        mine = np.flatnonzero(followed == number)
        width = max(1, _AT_ONCE // (2 * passing.ranks * passing.chunks * number))
        for at in np.split(mine, range(width, len(mine), width)):
            some, steps = passing.take(at), (microbatches[at] - number) / (most - few)
            yield _Share(whole, at, [Piece.of(some, one) for one in ((number, few) if steps.any() else (number,))], steps)


def follows_few(schedule: ScheduleName, ranks: int, microbatches: Numbers) -> NDArray[np.bool_]:
    """Whether fewer microbatches stand for so many: not where rounds of them would be other ones."""
    few = microbatches > MOST_FOLLOWED * ranks
    if schedule in ("interleaved_1f1b", "interleaved_zero_bubble"):
        few &= microbatches % ranks == 0
    result: NDArray[np.bool_] = few
    return result


class Piece(NamedTuple):
    """Configurations of which as many microbatches are passed. width: how many of them, beside which the last comes again, as
    often as fills blocks."""

    passing: Passing
    graph: Graph
    width: int

    @classmethod
    def of(cls, passing: Passing, microbatches: int) -> Piece:
        one, width = passing, passing.work_s.shape[-1]
        graph = graph_of(one.schedule, one.ranks, microbatches, one.chunks, one.overlap_sends, one.times)
        filled = np.arange(-(-width // _BLOCK) * _BLOCK)
        return cls(one.take(np.minimum(filled, width - 1)), graph, width)

    @property
    def blocks(self) -> int:
        """Of configurations, of which every pass has as many."""
        return -(-self.width // _BLOCK)


def timed(pieces: Sequence[Piece]) -> list[Played]:
    """Those with about as many levels are timed together."""
    results: dict[int, Played] = {}
    in_order = sorted(range(len(pieces)), key=lambda number: (pieces[number].passing.kind, pieces[number].graph.level[-1]))
    values = (len(pieces[number].graph.code) * pieces[number].blocks * _BLOCK for number in in_order)
    begins = itertools.accumulate(values, initial=0)
    at_once = [(pieces[number].passing.kind, begin // _AT_ONCE) for number, begin in zip(in_order, begins, strict=False)]
    for _, group in itertools.groupby(range(len(in_order)), key=at_once.__getitem__):
        some = [in_order[place] for place in group]
        results.update(zip(some, _Run([pieces[number] for number in some]).played(), strict=True))
    return [results[number] for number in range(len(pieces))]


class _Layout:
    """Where values of passes are: one beside another for each block of a piece, all of a level together, and behind all of them
    some that hold nothing up. places: of each pass, by piece; bounds: of levels."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        counts = np.array([piece.blocks for piece in pieces])
        passes = np.array([len(piece.graph.code) for piece in pieces])
        level = np.concatenate([piece.graph.level for piece in pieces])
        self._in_order = np.argsort(level, kind="stable")
        self._widths = np.repeat(counts, passes)[self._in_order]
        begins = np.cumsum(self._widths) - self._widths
        self.total = int(self._widths.sum())
        self.size = self.total + int(counts.max())
        self._place = np.empty_like(begins)
        self._place[self._in_order] = begins
        self.places = [np.append(one, self.total) for one in np.split(self._place, np.cumsum(passes)[:-1])]
        firsts = np.searchsorted(level[self._in_order], np.arange(level.max() + 2))
        self.bounds: list[int] = np.append(begins, self.total)[firsts].tolist()
        self._each = np.arange(self.total)

    def spread(self, values: Iterable[NDArray[Any]]) -> NDArray[Any]:
        """What passes have, by piece, for all their blocks."""
        each = np.repeat(np.concatenate(list(values))[self._in_order], self._widths)
        # numpy goes through whole rows at once where nothing has to be stretched
        return np.repeat(each[:, None], _BLOCK, axis=1)

    def at(self, begins: Iterable[Numbers]) -> Numbers:
        """Where something is for each block of each pass, from where it begins, by piece."""
        shifts = np.concatenate(list(begins)) - self._place
        result: Numbers = np.repeat(shifts[self._in_order], self._widths)
        result += self._each
        return result


class _Run:
    """Times passes of some pieces of a kind, level by level. Seconds are in rows of blocks."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces, self.layout = pieces, (layout := _Layout(pieces))
        self.overlap_sends, is_gathered = pieces[0].passing.kind
        sends_s = [np.pad(piece.passing.sends_s, [(0, 1), (0, 0)]) for piece in pieces]
        self.sends_s = _in_blocks(sends_s)
        self.before, self.made = self._rows("before"), self._rows("made")
        self.link, self.stream = self._of("link", sends_s), self._rows("stream") if self.overlap_sends else None
        self.turn = None
        if any((piece.graph.turn < len(piece.graph.code)).any() for piece in pieces):
            self.turn, self.turn_link = self._rows("turn"), self._of("turn_link", sends_s)
        self.end_s, self.got_s = np.zeros((2, layout.size, _BLOCK))
        works_s = [piece.passing.work_s for piece in pieces]
        self.code = self._of("code", works_s)
        self.lane = _Lane(self) if is_gathered else None
        self.work_s = _in_blocks(works_s)

    def _rows(self, name: str) -> Numbers:
        """Where the passes are that are told by number."""
        both = zip(self.pieces, self.layout.places, strict=True)
        return self.layout.at(places[getattr(piece.graph, name)] for piece, places in both)

    def _of(self, name: str, tables: Sequence[Times]) -> Numbers:
        """Where rows of tables are that are told by number, in all tables one behind another."""
        begins = np.cumsum([0, *(table.size // _BLOCK for table in tables[:-1])]).tolist()
        both = zip(self.pieces, begins, strict=True)
        return self.layout.at(begin + getattr(piece.graph, name) * piece.blocks for piece, begin in both)

    def played(self) -> list[Played]:
        for begin, end in itertools.pairwise(self.layout.bounds):
            self._level(slice(begin, end))
        return [self._piece(piece, places) for piece, places in zip(self.pieces, self.layout.places, strict=True)]

    def _piece(self, piece: Piece, places: Numbers) -> Played:
        graph, each = piece.graph, np.arange(piece.blocks)
        last, sent, first, makes = (places[one][..., None] + each for one in (graph.last, graph.sent, graph.first, graph.makes))
        last_s = self.end_s[last]
        lane_s = self._summed_s(piece, places, last_s) - last_s if self.lane is None else self.lane.rest_s(last)
        window_s = np.maximum(last_s, self.got_s[sent].max(axis=0)) - self.got_s[first]
        found = window_s, lane_s, last_s[graph.makes_rank] - self.end_s[makes]
        return Played(*(one.reshape(len(one), -1)[:, : piece.width] for one in found))

    def _summed_s(self, piece: Piece, places: Numbers, last_s: Times) -> Times:
        """When each rank has summed all that it sums beside its passes, one after another, and has ended them."""
        if piece.passing.sums_s is None:
            return last_s
        graph, sums_s = piece.graph, piece.passing.sums_s.reshape(-1, piece.blocks, _BLOCK)
        stage, summed_s = np.append(graph.code, 0) % len(sums_s), np.zeros_like(last_s)
        for making in graph.making.T:
            sum_s = sums_s[stage[making]] * (making < len(graph.code))[:, None, None]
            summed_s = np.maximum(summed_s, self.end_s[places[making][:, None] + np.arange(piece.blocks)]) + sum_s
        return np.maximum(last_s, summed_s)

    def _level(self, at: slice) -> None:
        end_s = self.end_s
        # `take` copies rows sooner than an index does
        before_s, made_s = end_s.take(self.before[at], axis=0), end_s.take(self.made[at], axis=0)
        send_s = self.sends_s.take(self.link[at], axis=0)
        if self.stream is not None:
            got_s = np.maximum(made_s, self.got_s.take(self.stream[at], axis=0)) + send_s
            begin_s = np.maximum(before_s, got_s)
        else:
            got_s = begin_s = np.maximum(before_s, made_s) + send_s
        self.got_s[at] = got_s
        if self.turn is not None:
            sent_s = np.maximum(before_s, end_s.take(self.turn[at], axis=0)) + self.sends_s.take(self.turn_link[at], axis=0)
            begin_s = np.maximum(begin_s, sent_s)
        if self.lane is None:
            np.add(begin_s, self.work_s.take(self.code[at], axis=0), out=end_s[at])
        else:
            self.lane.passed(at, before_s, begin_s)


class _Lane:
    """Collectives of ranks whose parameters are gathered layer by layer: each waits for the one before it and for the layer but
    one before its own, each sum for its layer. Layers of a stage are taken to be alike but for what comes first or last.

    Of each pass: what is gathered first, and then; what else is gathered, and summed beside, −∞ where there is one layer; what
    is summed with the last layer but one, and with the last; the pass, a layer, and that again, −∞ where there are not three.
    Nothing is gathered for gradients of weights that are made apart, and all is summed after them.
    """

    def __init__(self, run: _Run) -> None:
        self.run, pieces = run, run.pieces
        self.tables = np.concatenate([_lane_tables(piece.passing) for piece in pieces], axis=1)
        layers = [self._layers(piece) for piece in pieces]
        self.several = run.layout.spread(own > 1 for own in layers)
        self.sums_first = run.layout.spread(self._sums_first(piece, own) for piece, own in zip(pieces, layers, strict=True))
        is_apart = run.layout.spread(piece.graph.code >= Pass.WEIGHT * piece.passing.work_s.shape[1] for piece in pieces)
        self.is_apart = is_apart if is_apart.any() else None
        # when the collectives of a pass have ended but for the last sum, and that; of the last pass for which anything was
        # gathered, when its last layer but one was passed, and its last
        self.state_s = np.zeros((4, run.layout.size, _BLOCK))

    @staticmethod
    def _layers(piece: Piece) -> Numbers:
        """Of each pass."""
        assert piece.passing.collectives is not None
        own = piece.passing.collectives.layers[:, 0]
        result: Numbers = np.where(piece.graph.code < Pass.WEIGHT * len(own), own[piece.graph.code % len(own)], 1)
        return result

    @staticmethod
    def _sums_first(piece: Piece, layers: Numbers) -> NDArray[np.bool_]:
        """Hints of an order have as many places for each pass as any has layers: where some are left, sums come before
        gathers."""
        graph = piece.graph
        slot, before_layers = np.append(graph.slot, 0)[graph.before], np.append(layers, 1)[graph.before]
        assert piece.passing.collectives is not None
        result: NDArray[np.bool_] = (graph.slot - slot) * piece.passing.collectives.layers.max() > before_layers
        return result

    def passed(self, at: slice, before_s: Times, begin_s: Times) -> None:
        """Tells when passes end that could begin at `begin_s`, on ranks whose passes before ended at `before_s`."""
        old_s, new_s = self.state_s.take(self.run.before[at], axis=1), self.state_s[:, at]
        moved_s, last_s, free_s, passed_last_s = old_s
        gather_s, second_s, other_s, sum_s, new_last_s, work_s, layer_s, third_s = self.tables.take(self.run.code[at], axis=1)
        sums_first = self.sums_first[at] & (last_s > 0)
        moved_s = np.where(sums_first, np.maximum(moved_s, before_s) + last_s, moved_s)
        first_s = np.maximum(moved_s, free_s)
        first_s += gather_s
        summed_s = np.where(sums_first, first_s, np.maximum(first_s, before_s) + last_s)
        start_s = np.maximum(begin_s, first_s)
        second_s += np.maximum(summed_s, passed_last_s)
        third_s += start_s
        other_s += np.maximum(second_s, third_s)
        start_s += work_s
        end_s = np.maximum(start_s, other_s + layer_s)
        ready_s = end_s - layer_s
        other_s = np.where(sum_s > 0, np.maximum(other_s, ready_s), other_s)
        other_s += sum_s
        np.maximum(other_s, summed_s, out=new_s[0])
        new_s[1] = new_last_s
        new_s[2] = np.where(self.several[at], ready_s, passed_last_s)
        new_s[3] = end_s
        if self.is_apart is not None:
            is_apart = self.is_apart[at]
            end_s = np.where(is_apart, begin_s + work_s, end_s)
            new_s[0] = np.where(is_apart, moved_s, new_s[0])
            new_s[2:] = np.where(is_apart, old_s[2:], new_s[2:])
        self.run.end_s[at] = end_s

    def rest_s(self, last: Numbers) -> Times:
        """From the end of each rank's last pass to that of its collectives."""
        result: Times = np.maximum(0.0, self.state_s[0][last] - self.run.end_s[last]) + self.state_s[1][last]
        return result


def _in_blocks(tables: Iterable[Times]) -> Times:
    return np.concatenate([table.reshape(-1, _BLOCK) for table in tables])


def _lane_tables(passing: Passing) -> Times:
    """What `_Lane` tells of each pass, by its code, shape (8, codes · blocks, configurations of a block)."""
    given, work_s = passing.collectives, passing.work_s
    assert given is not None
    layers, kinds = given.layers, len(work_s)
    none, others, between = np.zeros_like(given.sums_s), np.maximum(1, layers - 1), np.maximum(0, layers - 2)
    never_s = np.where(layers > 1, 0.0, -np.inf)
    gather_s, again_s = (given.gathers_s - given.opening_s) / others, given.again_s / layers
    sum_s, several = (given.sums_s - given.last_s) / others, layers > 1
    forward = given.opening_s, gather_s * several, between * gather_s + never_s, none, none
    backward = again_s, again_s * several, between * (again_s + sum_s) + never_s, sum_s * several, given.last_s
    inputs = again_s, again_s * several, between * again_s + never_s, none, none
    weights = none, none, none, none, given.sums_s
    tables = [np.array(each[:kinds]) for each in zip(forward, backward, inputs, weights, strict=True)]
    passed = np.array([layers, layers, layers, np.ones_like(layers)])[:kinds]
    layer_s = work_s / passed
    return np.array([*tables, work_s, layer_s, np.where(passed > 2, layer_s, -np.inf)]).reshape(8, -1, _BLOCK)
