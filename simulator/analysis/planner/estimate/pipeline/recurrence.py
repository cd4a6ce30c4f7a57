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

from scaleproof.simulator.analysis.planner.estimate.communication.layer_gathers import LayerGatherTimes
from scaleproof.simulator.analysis.planner.estimate.factorize import taken
from scaleproof.simulator.analysis.planner.estimate.pipeline.equivalent_stages import EquivalentStages
from scaleproof.simulator.analysis.planner.estimate.pipeline.schedule_graphs import ScheduleGraph, graph_of
from scaleproof.simulator.strategy.pipeline.schedule import PassTimes, ScheduleName
from scaleproof.simulator.strategy.pipeline.schedules.passes import EQUAL

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
    """Seconds of passes, shape (kinds of passes, stages that are told, configurations), and of the messages behind each, 0
    behind the last, shape (stages that are told, configurations); `alike` says which stand for others. sums_s: of what is
    summed beside after each pass that makes gradients of a stage's weights, of that shape too. times: what orders that are
    searched for weigh."""

    schedule: ScheduleName
    alike: EquivalentStages
    overlap_sends: bool
    work_s: Times
    sends_s: Times
    collectives: LayerGatherTimes | None = None
    sums_s: Times | None = None
    times: PassTimes = EQUAL

    @property
    def ranks(self) -> int:
        """That have the stages."""
        return self.alike.ranks

    @property
    def chunks(self) -> int:
        """Of each rank."""
        return len(self.alike) // self.ranks

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
        rows, count = (passing.ranks, passing.ranks, len(passing.alike)), passing.work_s.shape[-1]
        results.append(Played(*(np.empty((row, count)) for row in rows)))
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
    pieces: list[EqualMicrobatches]
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
            yield _Share(
                whole, at, [EqualMicrobatches.of(some, one) for one in ((number, few) if steps.any() else (number,))], steps
            )


def follows_few(schedule: ScheduleName, ranks: int, microbatches: Numbers) -> NDArray[np.bool_]:
    """Whether fewer microbatches stand for so many: not where rounds of them would be other ones."""
    few = microbatches > MOST_FOLLOWED * ranks
    if schedule in ("interleaved_1f1b", "interleaved_zero_bubble"):
        few &= microbatches % ranks == 0
    result: NDArray[np.bool_] = few
    return result


class EqualMicrobatches(NamedTuple):
    """Configurations of which as many microbatches are passed. width: how many of them, beside which the last comes again, as
    often as fills blocks."""

    passing: Passing
    graph: ScheduleGraph
    width: int

    @classmethod
    def of(cls, passing: Passing, microbatches: int) -> EqualMicrobatches:
        one, width = passing, passing.work_s.shape[-1]
        graph = graph_of(one.schedule, one.ranks, microbatches, one.chunks, one.overlap_sends, one.times)
        filled = np.arange(-(-width // _BLOCK) * _BLOCK)
        return cls(one.take(np.minimum(filled, width - 1)), graph, width)

    @property
    def blocks(self) -> int:
        """Of configurations, of which every pass has as many."""
        return -(-self.width // _BLOCK)

    def told(self, numbers: Numbers) -> Numbers:
        """The numbers of stages, or kinds of passes and stages, among those that are told."""
        kind, stage = np.divmod(numbers, len(self.passing.alike))
        result: Numbers = kind * self.passing.work_s.shape[1] + self.passing.alike.of[stage]
        return result


def timed(pieces: Sequence[EqualMicrobatches]) -> list[Played]:
    """Those with about as many levels are timed together."""
    results: dict[int, Played] = {}
    in_order = sorted(range(len(pieces)), key=lambda number: (pieces[number].passing.kind, pieces[number].graph.level[-1]))
    values = (len(pieces[number].graph.code) * pieces[number].blocks * _BLOCK for number in in_order)
    begins = itertools.accumulate(values, initial=0)
    at_once = [(pieces[number].passing.kind, begin // _AT_ONCE) for number, begin in zip(in_order, begins, strict=False)]
    for _, group in itertools.groupby(range(len(in_order)), key=at_once.__getitem__):
        some = [in_order[place] for place in group]
        results.update(zip(some, _PassRecurrence([pieces[number] for number in some]).played(), strict=True))
    return [results[number] for number in range(len(pieces))]


class _Layout:
    """Where values of passes are: one beside another for each block of a piece, all of a level together, and behind all of them
    some that hold nothing up. places: of each pass, by piece; bounds: of levels."""

    def __init__(self, pieces: Sequence[EqualMicrobatches]) -> None:
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


class _PassRecurrence:
    """Times passes of some pieces of a kind, level by level. Seconds are in rows of blocks."""

    def __init__(self, pieces: Sequence[EqualMicrobatches]) -> None:
        self.pieces, self.layout = pieces, (layout := _Layout(pieces))
        self.overlap_sends, is_gathered = pieces[0].passing.kind
        sends_s = [piece.passing.sends_s for piece in pieces]
        self.sends_s = _in_blocks(sends_s)
        self.before, self.made = self._rows("before"), self._rows("made")
        self.link, self.stream = self._of("link", sends_s), self._rows("stream") if self.overlap_sends else None
        self.turn = None
        if any((piece.graph.turn < len(piece.graph.code)).any() for piece in pieces):
            self.turn, self.turn_link = self._rows("turn"), self._of("turn_link", sends_s)
        values_s = np.empty((4 if is_gathered else 2, layout.size, _BLOCK))
        # nothing is held up by what there is not
        values_s[:, layout.total :] = 0.0
        self.got_s, self.end_s = values_s[:2]
        if is_gathered:
            # when all collectives of a pass have ended but for its last sum, and when its last layer but one was passed
            self.ready_s, self.moved_s = values_s[2:]
            self.passed_s = values_s[1:3].reshape(-1, _BLOCK)
        works_s = [piece.passing.work_s for piece in pieces]
        self.code = self._of("code", works_s)
        self.lane = _GatherStream(self) if is_gathered else None
        self.work_s = _in_blocks(works_s)

    def _rows(self, name: str) -> Numbers:
        """Where the passes are that are told by number."""
        both = zip(self.pieces, self.layout.places, strict=True)
        return self.layout.at(places[getattr(piece.graph, name)] for piece, places in both)

    def _of(self, name: str, tables: Sequence[Times]) -> Numbers:
        """Where rows of tables are that are told by number, in all tables one behind another."""
        begins = np.cumsum([0, *(table.size // _BLOCK for table in tables[:-1])]).tolist()
        both = zip(self.pieces, begins, strict=True)
        return self.layout.at(begin + piece.told(getattr(piece.graph, name)) * piece.blocks for piece, begin in both)

    def played(self) -> list[Played]:
        for begin, end in itertools.pairwise(self.layout.bounds):
            self._level(slice(begin, end))
        return [self._piece(piece, places) for piece, places in zip(self.pieces, self.layout.places, strict=True)]

    def _piece(self, piece: EqualMicrobatches, places: Numbers) -> Played:
        graph, each = piece.graph, np.arange(piece.blocks)
        last, sent, first, makes = (places[one][..., None] + each for one in (graph.last, graph.sent, graph.first, graph.makes))
        last_s = self.end_s[last]
        lane_s = self._summed_s(piece, places, last_s) - last_s if self.lane is None else self.lane.rest_s(last)
        window_s = np.maximum(last_s, self.got_s[sent].max(axis=0)) - self.got_s[first]
        found = window_s, lane_s, last_s[graph.makes_rank] - self.end_s[makes]
        return Played(*(one.reshape(len(one), -1)[:, : piece.width] for one in found))

    def _summed_s(self, piece: EqualMicrobatches, places: Numbers, last_s: Times) -> Times:
        """When each rank has summed all that it sums beside its passes, one after another, and has ended them."""
        if piece.passing.sums_s is None:
            return last_s
        graph, sums_s = piece.graph, piece.passing.sums_s.reshape(-1, piece.blocks, _BLOCK)
        stage, summed_s = piece.told(np.append(graph.code, 0)) % len(sums_s), np.zeros_like(last_s)
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


class _GatherStream:
    """Collectives of ranks whose parameters are gathered layer by layer: each waits for the one before it and for the layer but
    one before its own, each sum for its layer. Layers of a stage are taken to be alike but for what comes first or last.

    tables: of each pass by its code, as `_lane_tables` has them; sums: the seconds of its last sum, and 0 where there is one,
    else −∞, and at the end the same of none. earlier, later: of each pass the last sum of the pass before it on its rank, where
    that comes before what is gathered first, or after it. free: when what is gathered first may begin, as the layer but one
    before it was passed then. Nothing is gathered for gradients of weights that are made apart, and all is summed after them.
    """

    def __init__(self, run: _PassRecurrence) -> None:
        self.run, pieces = run, run.pieces
        tables = [_lane_tables(piece.passing) for piece in pieces]
        begins = np.cumsum([0, *(table.shape[1] for table in tables)]).tolist()
        self.tables = np.concatenate([table[:-1] for table in tables], axis=1)
        sums_s = np.pad(np.concatenate([table[-1] for table in tables]), [(0, max(piece.blocks for piece in pieces)), (0, 0)])
        self.sums = np.array([sums_s, np.where(sums_s > 0, 0.0, -np.inf)])
        earlier, later, free = [], [], []
        for piece, places, begin in zip(pieces, run.layout.places, begins[:-1], strict=True):
            graph, layers = piece.graph, np.append(_layers(piece), 1)
            sums = np.append(begin + piece.told(graph.code) * piece.blocks, begins[-1])[graph.before]
            # hints of an order have as many places for each pass as any has layers: where some are left, sums come first
            is_earlier = graph.slots * layers.max() > layers[graph.before]
            earlier.append(np.where(is_earlier, sums, begins[-1]))
            later.append(np.where(is_earlier, begins[-1], sums))
            again = np.append(graph.gathering, len(graph.code))[graph.gathering]
            free.append(np.where(layers[graph.gathering] > 1, run.layout.size + places[graph.gathering], places[again]))
        self.earlier, self.later, self.free = (run.layout.at(one) for one in (earlier, later, free))
        is_apart = run.layout.spread(piece.graph.apart for piece in pieces)
        self.is_apart = is_apart if is_apart.any() else None

    def passed(self, at: slice, before_s: Times, begin_s: Times) -> None:
        """Tells when passes end that could begin at `begin_s`, on ranks whose passes before ended at `before_s`."""
        run = self.run
        earlier_s, held_s = self.sums.take(self.earlier[at], axis=1)
        gather_s, second_s, other_s, sum_s, work_s, layer_s, third_s = self.tables.take(run.code[at], axis=1)
        # all that was gathered and summed before
        held_s += before_s
        moved_s = np.maximum(run.moved_s.take(run.before[at], axis=0), held_s)
        moved_s += earlier_s
        gather_s += np.maximum(moved_s, run.passed_s.take(self.free[at], axis=0))
        start_s = np.maximum(begin_s, gather_s)
        summed_s = np.maximum(gather_s, before_s)
        summed_s += self.sums[0].take(self.later[at], axis=0)
        second_s += summed_s
        third_s += start_s
        other_s += np.maximum(second_s, third_s)
        start_s += work_s
        end_s = np.maximum(start_s, other_s + layer_s, out=run.end_s[at])
        ready_s = np.subtract(end_s, layer_s, out=run.ready_s[at])
        sum_s += np.maximum(other_s, ready_s)
        np.maximum(summed_s, other_s, out=summed_s)
        if self.is_apart is None:
            np.maximum(summed_s, sum_s, out=run.moved_s[at])
        else:
            run.moved_s[at] = np.where(self.is_apart[at], moved_s, np.maximum(summed_s, sum_s))

    def rest_s(self, last: Numbers) -> Times:
        """From the end of each rank's last pass to that of its collectives."""
        run = self.run
        result: Times = np.maximum(0.0, run.moved_s[last] - run.end_s[last]) + self.sums[0][run.code[last]]
        return result


def _layers(piece: EqualMicrobatches) -> Numbers:
    """Of each pass: of gradients of weights that are made apart all are one."""
    assert piece.passing.collectives is not None
    own = piece.passing.collectives.layers[:, 0]
    result: Numbers = np.where(piece.graph.apart, 1, own[piece.told(piece.graph.code) % len(own)])
    return result


def _in_blocks(tables: Iterable[Times]) -> Times:
    return np.concatenate([table.reshape(-1, _BLOCK) for table in tables])


def _lane_tables(passing: Passing) -> Times:
    """What `_GatherStream` tells of each pass, by its code, shape (8, codes · blocks, configurations of a block): what is
    gathered
    first, and then; what else is gathered, and summed beside, −∞ where there is one layer; what is summed with the last layer
    but one, −∞ for nothing; the pass, a layer, and that again, −∞ where there are not three; what is summed with the last."""
    given, work_s = passing.collectives, passing.work_s
    assert given is not None
    layers, kinds = given.layers, len(work_s)
    none, others, between = np.zeros_like(given.sums_s), np.maximum(1, layers - 1), np.maximum(0, layers - 2)
    several = layers > 1
    never_s = np.where(several, 0.0, -np.inf)
    gather_s, again_s = (given.gathers_s - given.opening_s) / others, given.again_s / layers
    sum_s = (given.sums_s - given.last_s) / others
    sums_s = np.where(several & (sum_s > 0), sum_s, -np.inf)
    forward = given.opening_s, gather_s * several, between * gather_s + never_s, none - np.inf, none
    backward = again_s, again_s * several, between * (again_s + sum_s) + never_s, sums_s, given.last_s
    inputs = again_s, again_s * several, between * again_s + never_s, none - np.inf, none
    # nothing is waited for
    weights = none - np.inf, none, none - np.inf, none - np.inf, given.sums_s
    *tables, last = (np.array(each[:kinds]) for each in zip(forward, backward, inputs, weights, strict=True))
    passed = np.array([layers, layers, layers, np.ones_like(layers)])[:kinds]
    layer_s = work_s / passed
    return np.array([*tables, work_s, layer_s, np.where(passed > 2, layer_s, -np.inf), last]).reshape(8, -1, _BLOCK)
