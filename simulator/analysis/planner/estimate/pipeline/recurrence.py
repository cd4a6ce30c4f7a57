"""End times of a pipeline's passes, one after another in the order of its schedule, for many configurations at once.

This recurrence loops over passes, which a closed form does not; it is for cases without an accurate closed form. A schedule is
periodic once the pipeline is full: of many microbatches a few are simulated, and the rest is extrapolated. Arrays have
configurations last.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.communication.layer_gathers import LayerGatherTimes, gather_tables
from scaleproof.simulator.analysis.planner.estimate.factorize import taken
from scaleproof.simulator.analysis.planner.estimate.pipeline.equivalent_stages import EquivalentStages
from scaleproof.simulator.analysis.planner.estimate.pipeline.schedule_graphs import ScheduleGraph, graph_of
from scaleproof.simulator.strategy.pipeline.schedule import PassTimes, ScheduleName
from scaleproof.simulator.strategy.pipeline.schedules.passes import EQUAL

Times = NDArray[np.float64]
Numbers = NDArray[np.int64]

# Microbatches per rank that are simulated: two runs, whose difference is added for all further microbatches.
_FEW, MOST_FOLLOWED = 2, 3
# Configurations per block, which are copied together.
_BLOCK: Final = 16
# Passes times configurations that are timed at once: 8 MB an array.
_AT_ONCE: Final = 1_000_000


class PipelineTimes(NamedTuple):
    """Seconds from each rank's first pass to the end of its last, and from there to the end of its collectives, shape (ranks,
    configurations); from the end of each stage's last gradients to the end of its rank's last pass, shape (stages,
    configurations)."""

    window_s: Times
    collectives_s: Times
    left_s: Times


@dataclass(frozen=True)
class PassSequence:
    """Seconds of passes, and everything else that determines when they end.

    work_s: shape (kinds of passes, distinct stages, configurations). sends_s: messages behind each stage, 0 behind the last,
    shape (distinct stages, configurations). `equivalence` maps each stage to its distinct stage. sums_s: sums overlapped with
    the passes after each pass that computes gradients of a stage's weights, shaped like sends_s. times: pass times for orders
    that are searched for.
    """

    schedule: ScheduleName
    equivalence: EquivalentStages
    overlap_sends: bool
    work_s: Times
    sends_s: Times
    collectives: LayerGatherTimes | None = None
    sums_s: Times | None = None
    times: PassTimes = EQUAL

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.equivalence.ranks

    @property
    def chunks(self) -> int:
        """Number of chunks of each rank."""
        return len(self.equivalence) // self.ranks

    def simulate(self, microbatches: Numbers) -> PipelineTimes:
        """Times of a step. microbatches: of each configuration."""
        return simulate_all([(self, microbatches)])[0]

    def take(self, at: Numbers) -> PassSequence:
        """The passes of some configurations."""
        gathers = self.collectives.take(at) if self.collectives is not None else None
        sums_s = taken(self.sums_s, at, axis=1) if self.sums_s is not None else None
        work_s, sends_s = taken(self.work_s, at, axis=2), taken(self.sends_s, at, axis=1)
        return replace(self, work_s=work_s, sends_s=sends_s, collectives=gathers, sums_s=sums_s)

    @property
    def kind(self) -> tuple[bool, bool]:
        """Sequences of equal kind can be timed together."""
        return self.overlap_sends, self.collectives is not None


def simulate_all(sequences: Sequence[tuple[PassSequence, Numbers]]) -> list[PipelineTimes]:
    """Times of several sequences, each with the numbers of microbatches of its configurations."""
    results, batches = list[PipelineTimes](), list[_Batch]()
    for sequence, microbatches in sequences:
        rows, count = (sequence.ranks, sequence.ranks, len(sequence.equivalence)), sequence.work_s.shape[-1]
        results.append(PipelineTimes(*(np.empty((row, count)) for row in rows)))
        batches += _batches(sequence, microbatches, results[-1])
    found = iter(simulate_equal([piece for batch in batches for piece in batch.pieces]))
    for batch in batches:
        batch.write([next(found) for _ in batch.pieces])
    return results


class _Batch(NamedTuple):
    """Configurations with the same number of simulated microbatches.

    whole: arrays to write the results to, at the indices `at`. pieces: the simulations, two of them where microbatches are left
    out. steps: how often the difference between the two is added.
    """

    whole: PipelineTimes
    at: Numbers
    pieces: list[EqualMicrobatches]
    steps: Times

    def write(self, found: Sequence[PipelineTimes]) -> None:
        """Writes the results of all pieces into `whole`."""
        last = found[0]
        if len(found) > 1:
            window_s, *rests_s = (all_s + self.steps * (all_s - few_s) for few_s, all_s in zip(found[1], last, strict=True))
            last = PipelineTimes(window_s, *(np.maximum(0.0, rest_s) for rest_s in rests_s))
        for whole, part in zip(self.whole, last, strict=True):
            whole[:, self.at] = part


def _batches(sequence: PassSequence, microbatches: Numbers, whole: PipelineTimes) -> Iterator[_Batch]:
    few, most = _FEW * sequence.ranks, MOST_FOLLOWED * sequence.ranks
    followed = np.where(follows_few(sequence.schedule, sequence.ranks, microbatches), most, microbatches)
    for number in np.unique(followed).tolist():
        mine = np.flatnonzero(followed == number)
        width = max(1, _AT_ONCE // (2 * sequence.ranks * sequence.chunks * number))
        for at in np.split(mine, range(width, len(mine), width)):
            some, steps = sequence.take(at), (microbatches[at] - number) / (most - few)
            yield _Batch(
                whole,
                at,
                [EqualMicrobatches.of(some, one) for one in ((number, few) if steps.any() else (number,))],
                steps,
            )


def follows_few(schedule: ScheduleName, ranks: int, microbatches: Numbers) -> NDArray[np.bool_]:
    """Whether fewer microbatches represent all of them. In an interleaved schedule they do not if rounds would have another
    size."""
    few = microbatches > MOST_FOLLOWED * ranks
    if schedule in ("interleaved_1f1b", "interleaved_zero_bubble"):
        few &= microbatches % ranks == 0
    result: NDArray[np.bool_] = few
    return result


class EqualMicrobatches(NamedTuple):
    """Configurations with the same number of microbatches. width: number of configurations, before the last is repeated to fill
    blocks."""

    sequence: PassSequence
    graph: ScheduleGraph
    width: int

    @classmethod
    def of(cls, sequence: PassSequence, microbatches: int) -> EqualMicrobatches:
        """The configurations of a sequence, each with some number of microbatches."""
        one, width = sequence, sequence.work_s.shape[-1]
        graph = graph_of(one.schedule, one.ranks, microbatches, one.chunks, one.overlap_sends, one.times)
        filled = np.arange(-(-width // _BLOCK) * _BLOCK)
        return cls(one.take(np.minimum(filled, width - 1)), graph, width)

    @property
    def blocks(self) -> int:
        """Number of blocks of configurations."""
        return -(-self.width // _BLOCK)

    @property
    def collectives(self) -> LayerGatherTimes:
        """Gathers and sums of the sequence, which must have them."""
        assert self.sequence.collectives is not None
        return self.sequence.collectives

    def table_rows(self, numbers: Numbers) -> Numbers:
        """Rows of tables by distinct stage, for numbers of stages, or of kinds of passes and stages."""
        kind, stage = np.divmod(numbers, len(self.sequence.equivalence))
        result: Numbers = kind * self.sequence.work_s.shape[1] + self.sequence.equivalence.representative[stage]
        return result


def simulate_equal(pieces: Sequence[EqualMicrobatches]) -> list[PipelineTimes]:
    """Times of several pieces. Those with similar numbers of levels are timed together."""
    results: dict[int, PipelineTimes] = {}
    in_order = sorted(range(len(pieces)), key=lambda number: (pieces[number].sequence.kind, pieces[number].graph.level[-1]))
    values = (len(pieces[number].graph.code) * pieces[number].blocks * _BLOCK for number in in_order)
    begins = itertools.accumulate(values, initial=0)
    at_once = [(pieces[number].sequence.kind, begin // _AT_ONCE) for number, begin in zip(in_order, begins, strict=False)]
    for _, group in itertools.groupby(range(len(in_order)), key=at_once.__getitem__):
        some = [in_order[place] for place in group]
        results.update(zip(some, _PassRecurrence([pieces[number] for number in some]).run(), strict=True))
    return [results[number] for number in range(len(pieces))]


class _Layout:
    """Positions of values of passes in memory: the blocks of a piece next to one another, all passes of a level together, and
    zeros at the end for absent dependencies.

    places: position of each pass, by piece. bounds: of levels.
    """

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
        """Values of passes, given by piece, repeated for all their blocks."""
        each = np.repeat(np.concatenate(list(values))[self._in_order], self._widths)
        # numpy copies whole rows at once if nothing has to be broadcast
        return np.repeat(each[:, None], _BLOCK, axis=1)

    def at(self, begins: Iterable[Numbers]) -> Numbers:
        """Position of something for each block of each pass, given the position of its first block, by piece."""
        shifts = np.concatenate(list(begins)) - self._place
        result: Numbers = np.repeat(shifts[self._in_order], self._widths)
        result += self._each
        return result


class _PassRecurrence:
    """Times passes of several pieces of one kind, level by level. Seconds are in rows of one block each."""

    def __init__(self, pieces: Sequence[EqualMicrobatches]) -> None:
        self.pieces, self.layout = pieces, (layout := _Layout(pieces))
        self.overlap_sends, is_gathered = pieces[0].sequence.kind
        sends_s = [piece.sequence.sends_s for piece in pieces]
        self.sends_s = _in_blocks(sends_s)
        self.before, self.made = self._rows("before"), self._rows("made")
        self.link, self.stream = self._of("link", sends_s), self._rows("stream") if self.overlap_sends else None
        self.turn = None
        if any((piece.graph.turn < len(piece.graph.code)).any() for piece in pieces):
            self.turn, self.turn_link = self._rows("turn"), self._of("turn_link", sends_s)
        values_s = np.empty((4 if is_gathered else 2, layout.size, _BLOCK))
        # absent dependencies end at 0
        values_s[:, layout.total :] = 0.0
        self.got_s, self.end_s = values_s[:2]
        if is_gathered:
            # ready_s: end of the last layer but one of a pass; moved_s: end of all its collectives but the last sum
            self.ready_s, self.moved_s = values_s[2:]
            self.passed_s = values_s[1:3].reshape(-1, _BLOCK)
        works_s = [piece.sequence.work_s for piece in pieces]
        self.code = self._of("code", works_s)
        self.gather_stream = _GatherStream(self) if is_gathered else None
        self.work_s = _in_blocks(works_s)

    def _rows(self, name: str) -> Numbers:
        """Positions of the passes that a field of the graph names."""
        both = zip(self.pieces, self.layout.places, strict=True)
        return self.layout.at(places[getattr(piece.graph, name)] for piece, places in both)

    def _of(self, name: str, tables: Sequence[Times]) -> Numbers:
        """Positions of the rows of concatenated tables that a field of the graph names."""
        begins = np.cumsum([0, *(table.size // _BLOCK for table in tables[:-1])]).tolist()
        both = zip(self.pieces, begins, strict=True)
        return self.layout.at(begin + piece.table_rows(getattr(piece.graph, name)) * piece.blocks for piece, begin in both)

    def run(self) -> list[PipelineTimes]:
        """Times of each piece."""
        for begin, end in itertools.pairwise(self.layout.bounds):
            self._level(slice(begin, end))
        return [self._piece(piece, places) for piece, places in zip(self.pieces, self.layout.places, strict=True)]

    def _piece(self, piece: EqualMicrobatches, places: Numbers) -> PipelineTimes:
        graph, each = piece.graph, np.arange(piece.blocks)
        last, sent, first, makes = (places[one][..., None] + each for one in (graph.last, graph.sent, graph.first, graph.makes))
        last_s = self.end_s[last]
        stream = self.gather_stream
        collectives_s = self._summed_s(piece, places, last_s) - last_s if stream is None else stream.rest_s(last)
        window_s = np.maximum(last_s, self.got_s[sent].max(axis=0)) - self.got_s[first]
        found = window_s, collectives_s, last_s[graph.makes_rank] - self.end_s[makes]
        return PipelineTimes(*(one.reshape(len(one), -1)[:, : piece.width] for one in found))

    def _summed_s(self, piece: EqualMicrobatches, places: Numbers, last_s: Times) -> Times:
        """When each rank has ended its passes and all sums that overlap with them, which run one after another."""
        if piece.sequence.sums_s is None:
            return last_s
        graph, sums_s = piece.graph, piece.sequence.sums_s.reshape(-1, piece.blocks, _BLOCK)
        stage, summed_s = piece.table_rows(np.append(graph.code, 0)) % len(sums_s), np.zeros_like(last_s)
        for making in graph.making.T:
            sum_s = sums_s[stage[making]] * (making < len(graph.code))[:, None, None]
            summed_s = np.maximum(summed_s, self.end_s[places[making][:, None] + np.arange(piece.blocks)]) + sum_s
        return np.maximum(last_s, summed_s)

    def _level(self, at: slice) -> None:
        end_s = self.end_s
        # `take` is faster than an index
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
        if self.gather_stream is None:
            np.add(begin_s, self.work_s.take(self.code[at], axis=0), out=end_s[at])
        else:
            self.gather_stream.schedule_level(at, before_s, begin_s)


class _GatherStream:
    """Collectives of ranks that gather parameters layer by layer.

    Each gather waits for the collective before it and for the pass over the layer two before its own; each sum waits for the
    pass over its layer. All layers of a stage but the first and the last are taken to be equal. Passes for gradients of weights
    alone gather nothing, and all their sums follow them.

    tables: of each pass by its code, as `gather_tables` describes. sums: seconds of its last sum; and 0 where there is one,
    else −∞; both end with those of no sum. earlier, later: for each pass, the last sum of the pass before it on its rank, if
    that runs before the first gather, or after it. free: the pass (or its last layer but one) after which the first gather may
    begin.
    """

    def __init__(self, run: _PassRecurrence) -> None:
        self.run, pieces = run, run.pieces
        tables = [gather_tables(piece.collectives, piece.sequence.work_s, _BLOCK) for piece in pieces]
        begins = np.cumsum([0, *(table.shape[1] for table in tables)]).tolist()
        self.tables = np.concatenate([table[:-1] for table in tables], axis=1)
        sums_s = np.pad(np.concatenate([table[-1] for table in tables]), [(0, max(piece.blocks for piece in pieces)), (0, 0)])
        self.sums = np.array([sums_s, np.where(sums_s > 0, 0.0, -np.inf)])
        earlier, later, free = [], [], []
        for piece, places, begin in zip(pieces, run.layout.places, begins[:-1], strict=True):
            graph, layers = piece.graph, np.append(_layers(piece), 1)
            sums = np.append(begin + piece.table_rows(graph.code) * piece.blocks, begins[-1])[graph.before]
            # the order has as many slots per pass as the largest number of layers: if some are left, sums come first
            is_earlier = graph.slots * layers.max() > layers[graph.before]
            earlier.append(np.where(is_earlier, sums, begins[-1]))
            later.append(np.where(is_earlier, begins[-1], sums))
            again = np.append(graph.gathering_before, len(graph.code))[graph.gathering_before]
            free.append(
                np.where(layers[graph.gathering_before] > 1, run.layout.size + places[graph.gathering_before], places[again])
            )
        self.earlier, self.later, self.free = (run.layout.at(one) for one in (earlier, later, free))
        is_weight_pass = run.layout.spread(piece.graph.is_weight_pass for piece in pieces)
        self.is_weight_pass = is_weight_pass if is_weight_pass.any() else None

    def schedule_level(self, at: slice, before_s: Times, begin_s: Times) -> None:
        """Sets when the passes of a level end that could begin at `begin_s`, on ranks whose previous passes ended at
        `before_s`."""
        run = self.run
        earlier_s, earlier_sum_s = self.sums.take(self.earlier[at], axis=1)
        gather_s, second_s, other_s, sum_s, work_s, layer_s, third_s = self.tables.take(run.code[at], axis=1)
        # all that was gathered and summed before
        earlier_sum_s += before_s
        moved_s = np.maximum(run.moved_s.take(run.before[at], axis=0), earlier_sum_s)
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
        if self.is_weight_pass is None:
            np.maximum(summed_s, sum_s, out=run.moved_s[at])
        else:
            run.moved_s[at] = np.where(self.is_weight_pass[at], moved_s, np.maximum(summed_s, sum_s))

    def rest_s(self, last: Numbers) -> Times:
        """Seconds from the end of each rank's last pass to the end of its collectives."""
        run = self.run
        result: Times = np.maximum(0.0, run.moved_s[last] - run.end_s[last]) + self.sums[0][run.code[last]]
        return result


def _layers(piece: EqualMicrobatches) -> Numbers:
    """Number of layers of each pass, 1 for passes for gradients of weights alone."""
    own = piece.collectives.layers[:, 0]
    result: Numbers = np.where(piece.graph.is_weight_pass, 1, own[piece.table_rows(piece.graph.code) % len(own)])
    return result


def _in_blocks(tables: Iterable[Times]) -> Times:
    return np.concatenate([table.reshape(-1, _BLOCK) for table in tables])
