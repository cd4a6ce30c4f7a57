"""Seconds that pipeline ranks are busy with a step's passes, expected and at least.

In closed form where that is accurate: the longest of some paths through a step's dependencies is a lower bound of the step
time, and a good estimate where the critical path is among them. Else by a recurrence over passes in the order of their
schedule, which is periodic once the pipeline is full: of many microbatches a few are simulated, and the rest is extrapolated.
Arrays have configurations last, which is the fast order.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.configurations import Numbers
from scaleproof.simulator.parallelism.stages import ScheduleName, stage_of
from scaleproof.simulator.strategy.pipeline.schedules import Pass, order

Times = NDArray[np.float64]

# Schedules with a closed form, and schedules whose passes are simulated one by one. Orders that are searched for (zb_1p, zb_2p)
# depend on the times of passes and are not estimated.
CLOSED: Final[tuple[ScheduleName, ...]] = ("1f1b", "interleaved_1f1b", "gpipe")
FOLLOWED: Final[tuple[ScheduleName, ...]] = (
    "looped_bfs", "zb_h1", "zb_h2", "interleaved_zero_bubble", "zb_v", "dualpipe_v",
)  # fmt: skip
# Closed forms are accurate where ranks with several stages lose little by waiting for one another in each chunk, and where, in
# pipelines full of microbatches, the expected time is little above the lower bound.
_IMBALANCED: Final = 0.005
_WIDE: Final = 1.05
# Largest numbers of forward passes of all ranks that are simulated: where ranks wait for one another, and otherwise.
_MANY_PASSES: Final = 1000
_SOME_PASSES: Final = 400
# The same for schedules without a closed form, whose lower bound is the estimate above this number.
_MOST_PASSES: Final = 4000
# Microbatches per rank that are simulated: two runs, whose difference is added for all further microbatches.
_FEW, _MOST = 2, 3
# Passes times configurations that are simulated at once: 8 MB an array.
_AT_ONCE: Final = 1_000_000


class LayerGatherTimes(NamedTuple):
    """Seconds of the collectives of ranks that gather parameters layer by layer, shape (stages, configurations).

    gathers_s, again_s: gathers before a forward and before a backward pass over a stage. sums_s: sums of gradients after a
    backward pass; last_s: the last of them. layers: number of layers of each stage, shape (stages, 1). waits_for_sums: whether
    passes wait for sums instead of overlapping with them.
    """

    gathers_s: Times
    again_s: Times
    sums_s: Times
    last_s: Times
    layers: Numbers
    waits_for_sums: bool = False


@dataclass(frozen=True)
class Table:
    """Arrays and tables whose last axis is configurations, and fields that all of them have in common."""

    def take(self, rows: Numbers) -> Self:
        """The values of some configurations."""
        some: dict[str, Any] = {}
        for one in fields(self):
            match value := getattr(self, one.name):
                case np.ndarray():
                    some[one.name] = value[..., rows]
                case Table():
                    some[one.name] = value.take(rows)
        return replace(self, **some)


@dataclass(frozen=True)
class StageTimes(Table):
    """Seconds of passes over the model's stages and of messages between stages, shape (stages, configurations).

    send_s: message after each stage, 0 where the next stage is on the same rank, and after the last. microbatches: shape
    (configurations,). weights_s: the part of backward_s that computes gradients of weights, where a schedule separates it.
    divided_s: extra seconds in backward_s and weights_s for that, which passes lack that a schedule leaves whole.
    forward_more_s, backward_more_s: extra seconds of a pass that follows another on its rank without a gap.
    """

    forward_s: Times
    backward_s: Times
    send_s: Times
    microbatches: Numbers
    ranks: int
    overlap_sends: bool
    weights_s: Times | float = 0.0
    divided_s: Times | float = 0.0
    forward_more_s: Times | float = 0.0
    backward_more_s: Times | float = 0.0

    @property
    def chunks(self) -> int:
        """Number of stages of each rank."""
        return len(self.forward_s) // self.ranks

    def slower(self, factors: Times) -> StageTimes:
        """Times with passes multiplied by `factors`, shape (stages, configurations)."""
        names = "forward_s", "backward_s", "weights_s", "divided_s"
        changed: dict[str, Any] = {name: getattr(self, name) * factors for name in names}
        return replace(self, **changed)

    @property
    def receive_s(self) -> Times:
        """Seconds of the message before each stage."""
        return np.roll(self.send_s, 1, axis=0)

    @property
    def inputs_s(self) -> Times:
        """Seconds of gradients of inputs: what a backward pass computes before the preceding stage can begin its own."""
        result: Times = self.backward_s - self.weights_s
        return result

    @property
    def round_trip_s(self) -> Times:
        """Seconds of a microbatch's forward and backward pass over each stage and of the messages to the next stage and
        back."""
        both: Times = self.forward_s + self.backward_s
        return both + 2 * self.send_s

    @property
    def per_round(self) -> Numbers:
        """Microbatches per round of an interleaved schedule, which pass through one chunk after another, shape
        (configurations,)."""
        result: Numbers = self.microbatches // np.maximum(1, self.microbatches // self.ranks)
        return result

    @cached_property
    def received(self) -> tuple[Times, Times, Times]:
        """Seconds of forward passes and backward passes with the message that each begins with, and seconds of messages that
        overlap with passes.

        Either all messages overlap, or a rank receives a message only when it is ready for it.
        """
        forward_s, backward_s = self.forward_s + self.forward_more_s, self.backward_s + self.backward_more_s
        if self.overlap_sends:
            return forward_s, backward_s, self.send_s
        return forward_s + self.receive_s, backward_s + self.send_s, np.zeros_like(self.send_s)

    def by_chunk(self, values: Times) -> Times:
        """Values of stages, which are assigned to ranks in a ring, as shape (chunks, ranks, configurations)."""
        return values.reshape(-1, self.ranks, values.shape[-1])


class PassWindows(NamedTuple):
    """Times of a step's passes on some ranks, for configurations with the same stages and order of passes.

    window_s: expected seconds from a rank's first pass to the end of its last, least_s: lower bound of them, shape (ranks,
    configurations). left_s: from the last gradients of each of a rank's stages to the end of its last pass, shape (ranks,
    chunks, configurations). simulated: which configurations were simulated pass by pass.
    """

    window_s: Times
    least_s: Times
    left_s: Times
    simulated: NDArray[np.bool_]


def pass_windows(schedule: ScheduleName, ranks: Sequence[int], stages: StageTimes) -> PassWindows:
    """Times of the passes of some ranks, the first among them."""
    window_s, least_s = windows_without_simulation(schedule, ranks, stages)
    passes = stages.ranks * stages.chunks * np.minimum(stages.microbatches, _MOST * stages.ranks)
    is_closed = _is_closed(schedule, stages)
    simulated = _is_unsure(stages, passes, window_s, least_s) if is_closed else passes <= _MOST_PASSES
    own_stages = stages_of(schedule, stages.ranks, stages.chunks)
    left_s = _left_s(schedule, own_stages[ranks], stages)
    if len(at := np.flatnonzero(simulated)):
        some = stages.take(at)
        found = simulate(schedule, some)
        window_s[:, at], left_s[:, :, at] = found.window_s[ranks], found.left_s[own_stages[ranks]]
        if not is_closed:
            # where all passes are simulated, each path to the end of the first rank's passes begins with its first pass
            sure = ~_follows_few(schedule, some)
            least_s[0, at[sure]] = window_s[0, at[sure]]
    return PassWindows(window_s, least_s, left_s, simulated)


def windows_without_simulation(schedule: ScheduleName, ranks: Sequence[int], stages: StageTimes) -> tuple[Times, Times]:
    """Expected and least seconds of the passes of some ranks, each of shape (ranks, configurations), where the former are the
    latter for schedules without a closed form."""
    if _is_closed(schedule, stages):
        return windows(schedule, stages, ranks)
    of_ranks_s = lower_bounds(schedule, stages)
    # ranks wait for the slowest
    return np.repeat(of_ranks_s.max(axis=0)[None], len(ranks), axis=0), of_ranks_s[ranks]


def windows(schedule: ScheduleName, stages: StageTimes, ranks: Sequence[int]) -> tuple[Times, Times]:
    """Expected and least seconds from the first pass to the end of the last pass of some ranks, each of shape (ranks,
    configurations)."""
    if len(stages.forward_s) == 1:
        total = stages.microbatches * (stages.forward_s + stages.backward_s)
        return total, total
    if schedule == "interleaved_1f1b":
        return _interleaved(stages, ranks)
    expected, least = _gpipe(stages) if schedule == "gpipe" else _1f1b(stages)
    return expected[ranks], least[ranks]


def with_gathers(stages: StageTimes, gathers: LayerGatherTimes) -> StageTimes:
    """Stage times of ranks that gather parameters layer by layer, up to two layers ahead while a rank waits.

    Where passes follow one another, either compute or collectives determine the duration. A rank with fewer layers than others
    gathers nothing before it has summed the gradients of the pass before.
    """
    none_s = np.zeros_like(gathers.sums_s)
    awaited_s, hidden_s, last_s = (
        (gathers.sums_s, none_s, none_s) if gathers.waits_for_sums else (none_s, gathers.sums_s, gathers.last_s)
    )
    layers, moved_s = gathers.layers, gathers.again_s + hidden_s
    ahead = np.minimum(1.0, 2 / layers)
    way_forward_s, way_backward_s = (
        np.maximum(pass_s, ahead * pass_s + (1 - ahead) * overlapped_s)
        for pass_s, overlapped_s in ((stages.forward_s, gathers.gathers_s), (stages.backward_s, moved_s))
    )
    between_s = (layers < layers.max()) * (last_s + gathers.again_s / layers)
    return replace(
        stages, forward_s=way_forward_s, backward_s=way_backward_s + awaited_s,
        forward_more_s=np.maximum(0.0, gathers.gathers_s - way_forward_s),
        backward_more_s=np.maximum(0.0, np.maximum(moved_s, stages.backward_s + between_s) - way_backward_s),
    )  # fmt: skip


def accumulate(ufunc: np.ufunc, values: Times) -> Times:
    """`ufunc.accumulate` along rows. numpy's own goes down one column after another, which is ten times slower."""
    result: Times = values.copy()
    for before, row in itertools.pairwise(result):
        ufunc(before, row, out=row)
    return result


def suffix_sum(values: Times) -> Times:
    """Sums of each row and all rows after it."""
    return accumulate(np.add, values[::-1])[::-1]


def suffix_max(values: Times) -> Times:
    """Maximum of each row and all rows after it."""
    return accumulate(np.maximum, values[::-1])[::-1]


def _gpipe(stages: StageTimes) -> tuple[Times, Times]:
    """The slowest stage determines the interval between forward passes, and likewise between backward passes."""
    forward_s, backward_s, _ = stages.received
    interval_s = suffix_max(forward_s) + suffix_max(backward_s)
    expected = suffix_sum(stages.round_trip_s) + (stages.microbatches - 1) * interval_s
    return expected, expected


def _1f1b(stages: StageTimes) -> tuple[Times, Times]:
    """Once the pipeline is full, each rank alternates forward and backward passes and waits for what it sends in between. Where
    sends overlap with passes, the way to the next rank and back determines the interval if it takes longer."""
    forward_s, backward_s = stages.forward_s + stages.forward_more_s, stages.backward_s + stages.backward_more_s
    both, more = forward_s + backward_s, stages.microbatches - 1
    ahead = np.arange(stages.ranks)[::-1, None]
    steady = np.maximum(more - ahead, 0)
    through = suffix_sum(stages.round_trip_s)
    own_s = more * backward_s + steady * forward_s
    if stages.overlap_sends:
        interval_s = both.copy()
        interval_s[:-1] = np.maximum(both[:-1], (both[:-1] + both[1:]) / 2 + stages.send_s[:-1])
        interval_s[0] = np.maximum(interval_s[0], through[0] / stages.ranks)
    else:
        both = interval_s = both + stages.receive_s + stages.send_s
        own_s += more * stages.send_s + steady * stages.receive_s
    least = through + suffix_max(own_s)
    # a rank is no faster than those before it either, once these have as many microbatches in flight as they may
    expected = suffix_max(own_s + steady * (interval_s - both))
    return through + np.maximum(expected, accumulate(np.maximum, steady * interval_s)), least


def _interleaved(stages: StageTimes, ranks: Sequence[int]) -> tuple[Times, Times]:
    """Rounds of microbatches pass through one chunk after another.

    If a round leaves the first rank's chunk before the round's first microbatch returns from the last rank, the first rank
    waits, as long as it has no backward passes to do: before the first of them, and likewise after the last forward pass.
    """
    count, of_round, by_chunk = stages.ranks, stages.per_round, stages.by_chunk
    forward_s, backward_s, overlapped_s = stages.received
    work_s = stages.microbatches * by_chunk(forward_s + backward_s).sum(axis=0)
    # ranks proceed from chunk to chunk together: each chunk takes as long as on its slowest rank, unless a rank is ahead
    slow_forward_s, slow_backward_s = by_chunk(forward_s).max(axis=1), by_chunk(backward_s).max(axis=1)
    interval_s = stages.microbatches * (slow_forward_s + slow_backward_s).sum(axis=0)
    way_forward_s, way_backward_s = forward_s - stages.forward_more_s, backward_s - stages.backward_more_s
    forward_waits_s = by_chunk(way_forward_s + overlapped_s).sum(axis=1) - of_round * slow_forward_s
    backward_waits_s = by_chunk(way_backward_s + overlapped_s).sum(axis=1) - of_round * slow_backward_s
    waits_s = np.maximum(0.0, forward_waits_s[:-1]).sum(axis=0) + np.maximum(0.0, backward_waits_s[1:]).sum(axis=0)
    # from each rank to the last, in the last chunk and in the first
    bubble_s = suffix_sum(way_forward_s[-count:] + overlapped_s[-count:]) - way_forward_s[-count:] - overlapped_s[-1]
    bubble_s += suffix_sum(way_backward_s[:count] + overlapped_s[:count]) - way_backward_s[:count] - overlapped_s[count - 1]
    expected_s = bubble_s + waits_s + (interval_s + suffix_max(work_s)) / 2
    if not stages.overlap_sends:
        # the message before a rank's first pass belongs to the way there
        work_s -= stages.receive_s[:count]
    # the way there through the first chunks, all work of one rank, and the way back
    through_s = suffix_sum(stages.round_trip_s)
    least_s = np.maximum(0.0, suffix_max(work_s - through_s[:count])) + through_s[:count]
    return expected_s[ranks], least_s[ranks]


def _is_closed(schedule: ScheduleName, stages: StageTimes) -> bool:
    return stages.ranks == 1 or schedule in CLOSED


def stages_of(schedule: ScheduleName, ranks: int, chunks: int) -> Numbers:
    """Stages of each rank's chunks, shape (ranks, chunks)."""
    return np.array([[stage_of(schedule, ranks, rank, chunk) for chunk in range(chunks)] for rank in range(ranks)])


def _is_unsure(stages: StageTimes, passes: Numbers, window_s: Times, least_s: Times) -> NDArray[np.bool_]:
    """Which configurations have an inaccurate closed form, and few enough passes to simulate."""
    if stages.chunks == 1:
        return np.zeros(len(passes), dtype=np.bool_)
    longest_s = window_s.max(axis=0)
    is_wide = (longest_s > _WIDE * least_s.max(axis=0)) & (stages.microbatches >= stages.ranks)
    is_imbalanced = imbalance_s(stages) > _IMBALANCED * longest_s
    result: NDArray[np.bool_] = (passes <= _SOME_PASSES) & is_wide | (passes <= _MANY_PASSES) & is_imbalanced
    return result


def imbalance_s(stages: StageTimes) -> Times:
    """Expected loss of seconds because ranks with several stages proceed chunk by chunk at the speed of the slowest, shape
    (configurations,): half of the difference to the last rank alone."""
    each_s = stages.by_chunk(stages.forward_s + stages.backward_s)
    result: Times = stages.microbatches * (each_s.max(axis=1).sum(axis=0) - each_s[:, -1].sum(axis=0)) / 2
    return result


def _left_s(schedule: ScheduleName, own_stages: Numbers, stages: StageTimes) -> Times:
    """Seconds from the last gradients of each stage to the end of its rank's last pass, shape (ranks, chunks, configurations).

    The last gradients of a chunk are followed by passes over the chunks before it. In an interleaved schedule ranks proceed
    from chunk to chunk together, at the speed of the slowest or once the last microbatch has come back. own_stages: stages of
    ranks, shape (ranks, chunks).
    """
    result: Times = np.zeros((*own_stages.shape, len(stages.microbatches)))
    if own_stages.shape[1] == 1:
        return result
    _, backward_s, overlapped_s = stages.received
    round_s = backward_s * stages.per_round
    next_s = round_s[own_stages.T[:-1]]
    if schedule == "interleaved_1f1b":
        way_s = suffix_sum(backward_s + overlapped_s)[own_stages.T]
        next_s = np.maximum(stages.by_chunk(round_s).max(axis=1)[:-1, None], way_s[:-1] - way_s[1:])
    result[:, 1:] = accumulate(np.add, next_s).swapaxes(0, 1)
    return result


class SimulatedPasses(NamedTuple):
    """Seconds from each rank's first pass to the end of its last, shape (ranks, configurations); from the end of each stage's
    last gradients to the end of its rank's last pass, shape (stages, configurations)."""

    window_s: Times
    left_s: Times


def simulate(schedule: ScheduleName, stages: StageTimes) -> SimulatedPasses:
    """Times of a step, pass by pass."""
    few, most = _FEW * stages.ranks, _MOST * stages.ranks
    followed = np.where(_follows_few(schedule, stages), most, stages.microbatches)
    window_s, left_s = (np.empty((rows, len(followed))) for rows in (stages.ranks, len(stages.forward_s)))
    for at, number in _with_equal(followed, 4 * len(stages.forward_s)):
        some = stages.take(at)
        window_s[:, at], left_s[:, at] = found = simulate_all_passes(schedule, some, number)
        more = (some.microbatches - number) / (most - few)
        if more.any():
            fewer = simulate_all_passes(schedule, some, few)
            window_s[:, at] += more * (found.window_s - fewer.window_s)
            left_s[:, at] = np.maximum(0.0, found.left_s + more * (found.left_s - fewer.left_s))
    return SimulatedPasses(window_s, left_s)


def _follows_few(schedule: ScheduleName, stages: StageTimes) -> NDArray[np.bool_]:
    """Whether fewer microbatches represent all of them. In an interleaved schedule they do not if rounds would have another
    size."""
    few = stages.microbatches > _MOST * stages.ranks
    if schedule in ("interleaved_1f1b", "interleaved_zero_bubble"):
        few &= stages.microbatches % stages.ranks == 0
    result: NDArray[np.bool_] = few
    return result


def _with_equal(numbers: Numbers, rows: int) -> Iterator[tuple[Numbers, int]]:
    """Indices with equal numbers, split so that arrays with `rows` rows for each of the number stay small."""
    for number in np.unique(numbers).tolist():
        at, width = np.flatnonzero(numbers == number), max(1, _AT_ONCE // (rows * number))
        yield from ((part, number) for part in np.split(at, range(width, len(at), width)))


def simulate_all_passes(schedule: ScheduleName, stages: StageTimes, microbatches: int) -> SimulatedPasses:
    """Times of a step with some number of microbatches, none of which are left out."""
    graph = _dependencies(schedule, stages.ranks, microbatches, stages.chunks)
    weights_s = stages.weights_s + np.zeros_like(stages.forward_s)
    work_s = np.array([stages.forward_s, stages.backward_s - stages.divided_s, stages.inputs_s, weights_s])
    # absent dependencies end at 0
    got_s, end_s = np.zeros((2, len(graph.kind) + 1, len(stages.microbatches)))
    for begin, end in itertools.pairwise(graph.bounds):
        at = slice(begin, end)
        before_s, made_s, send_s = end_s[graph.before[at]], end_s[graph.made[at]], stages.send_s[graph.link[at]]
        if stages.overlap_sends:
            got_s[at] = np.maximum(made_s, got_s[graph.stream[at]]) + send_s
            begin_s = np.maximum(before_s, got_s[at])
        else:
            got_s[at] = begin_s = np.maximum(before_s, made_s) + send_s
        end_s[at] = begin_s + work_s[graph.kind[at], graph.stage[at]]
    last_s = end_s[graph.last]
    window_s = np.maximum(last_s, got_s[graph.sent].max(axis=0)) - got_s[graph.first]
    return SimulatedPasses(window_s, last_s[graph.makes_rank] - end_s[graph.makes])


class _Dependencies(NamedTuple):
    """Passes in topological order, those of a level together. The number of passes, as an index, means no dependency.

    kind, stage: of each pass. before: the pass before it on its rank. made: the pass that computes its input. link: the stage
    whose message that input is, the last for none. stream: the pass for which its rank received the message before. bounds: of
    levels. first, last: first and last pass of each rank. sent: the passes that receive the last messages each rank sends,
    shape (2, ranks). makes, makes_rank: the last pass that computes gradients of each stage's weights, and its rank.
    """

    kind: Numbers
    stage: Numbers
    before: Numbers
    made: Numbers
    link: Numbers
    stream: Numbers
    bounds: list[int]
    first: Numbers
    last: Numbers
    sent: Numbers
    makes: Numbers
    makes_rank: Numbers


@lru_cache(maxsize=1024)
def _dependencies(schedule: ScheduleName, ranks: int, microbatches: int, chunks: int) -> _Dependencies:
    """The passes of one step."""
    passes = order(schedule, ranks, microbatches, chunks)
    rank, column = np.nonzero(passes.slot >= 0)
    by_level = np.lexsort((rank, passes.slot[rank, column]))
    rank, column = rank[by_level], column[by_level]
    kind, chunk, microbatch, slot = (values[rank, column] for values in passes)
    stage, nothing, last_stage = stages_of(schedule, ranks, chunks)[rank, chunk], len(rank), ranks * chunks - 1
    is_forward, is_back = kind == Pass.FORWARD, np.isin(kind, (Pass.BACKWARD, Pass.INPUT))
    number = np.full((ranks, passes.slot.shape[1] + 1), nothing)
    number[rank, column] = np.arange(nothing)
    producers = np.full((2, last_stage + 2, microbatches), nothing)
    producers[0, stage[is_forward] + 1, microbatch[is_forward]] = np.flatnonzero(is_forward)
    producers[1, stage[is_back], microbatch[is_back]] = np.flatnonzero(is_back)
    # the last stage's backward passes depend on its own forward passes, without a message
    producers[1, last_stage + 1] = producers[0, last_stage + 1]
    made = np.where(is_back, producers[1, stage + 1, microbatch], nothing)
    made = np.where(is_forward, producers[0, stage, microbatch], made)
    crosses = (np.append(rank, -1)[made] != rank) & (made < nothing)
    link = np.where(crosses, np.where(is_forward, stage - 1, stage), last_stage)
    got = np.flatnonzero(crosses)
    sent = np.full((2, ranks), nothing)
    # numpy keeps the last value that is written
    sent[is_forward[got].astype(np.int64), rank[made[got]]] = got
    got = got[np.argsort(rank[got] * 2 + is_forward[got], kind="stable")]
    stream, direction = np.full(nothing, nothing), rank[got] * 2 + is_forward[got]
    stream[got[1:]] = np.where(direction[1:] == direction[:-1], got[:-1], nothing)
    makes, last = np.zeros(last_stage + 1, dtype=np.int64), np.zeros(ranks, dtype=np.int64)
    gradients = np.flatnonzero(np.isin(kind, (Pass.BACKWARD, Pass.WEIGHT)))
    np.maximum.at(makes, stage[gradients], gradients)
    np.maximum.at(last, rank, np.arange(nothing))
    bounds = [0, *(1 + np.flatnonzero(np.diff(slot))).tolist(), nothing]
    waits = number[rank, column - 1], made, link, stream
    return _Dependencies(kind, stage, *waits, bounds, number[:, 0], last, sent, makes, rank[makes])


class _PassCounts(NamedTuple):
    """Number of a rank's passes by kind and chunk, shape (kinds, chunks).

    whole: all passes. until_forward: up to the last forward pass. from_back: from the first backward pass on. from_last: from
    the last backward pass over the first chunk on. between: from the first backward to the last forward pass. forward, back,
    last: chunks of these three passes.
    """

    whole: Numbers
    until_forward: Numbers
    from_back: Numbers
    from_last: Numbers
    between: Numbers
    forward: int
    back: int
    last: int


@lru_cache(maxsize=1024)
def _pass_counts(schedule: ScheduleName, ranks: int, microbatches: int, chunks: int) -> tuple[_PassCounts, ...]:
    """Pass counts of each rank."""
    passes = order(schedule, ranks, microbatches, chunks)
    result = []
    for kind, chunk, _, slot in zip(*passes, strict=True):
        kind, chunk = kind[slot >= 0], chunk[slot >= 0]
        is_back = np.isin(kind, (Pass.BACKWARD, Pass.INPUT))
        first, forward = int(np.argmax(is_back)), int(np.flatnonzero(kind == Pass.FORWARD)[-1])
        # looped BFS runs backward passes in reverse order, so the first is over the chunk that was last forward
        last = first if schedule == "looped_bfs" else int(np.flatnonzero(is_back & (chunk == 0))[-1])
        of_pass = np.eye(len(Pass) * chunks, dtype=np.int64)[kind * chunks + chunk]
        sections = slice(None), slice(forward + 1), slice(first, None), slice(last, None), slice(first, forward + 1)
        counts = [of_pass[section].sum(axis=0).reshape(len(Pass), chunks) for section in sections]
        whole, until_forward, from_back, from_last, between = counts
        at = (int(chunk[one]) for one in (forward, first, last))
        result.append(_PassCounts(whole, until_forward, from_back, from_last, between, *at))
    return tuple(result)


def lower_bounds(schedule: ScheduleName, stages: StageTimes) -> Times:
    """Least seconds from each rank's first pass to the end of its last, in any schedule, shape (ranks, configurations).

    A rank runs its passes one after another. Its first backward pass waits for a microbatch's way to the last stage and back,
    and its last forward pass is followed by such a way too. Where few microbatches represent many, each of those left out adds
    the rank's own work on it.
    """
    own_stages = stages_of(schedule, stages.ranks, stages.chunks)
    result = np.empty((stages.ranks, len(stages.microbatches)))
    followed = np.where(_follows_few(schedule, stages), _MOST * stages.ranks, stages.microbatches)
    for number in np.unique(followed).tolist():
        at = np.flatnonzero(followed == number)
        counts = _pass_counts(schedule, stages.ranks, number, stages.chunks)
        paths = _Paths(stages.take(at))
        more = stages.microbatches[at] - number
        for rank, (passes, own) in enumerate(zip(counts, own_stages, strict=True)):
            result[rank, at] = paths.longest_s(passes, own) + more * paths.work_s[:2, own].sum(axis=(0, 1))
    return result


class _Paths:
    """Paths through a step, for configurations with the same number of simulated microbatches. work_s: by kind of pass."""

    def __init__(self, stages: StageTimes) -> None:
        forward_s, backward_s, _ = stages.received
        weights_s = stages.weights_s + np.zeros_like(backward_s)
        self.work_s = np.array([forward_s, backward_s - stages.divided_s, backward_s - weights_s, weights_s])
        # the message before a rank's first pass belongs to the way there
        self._first_s = np.zeros_like(forward_s) if stages.overlap_sends else stages.receive_s
        sends_s = stages.send_s
        forth_s, back_s = (suffix_sum(one + sends_s) for one in (stages.forward_s, stages.inputs_s))
        # from the begin or the end of a forward pass to the last stage, and from there to the begin of a backward pass
        self._from_begin_s, self._from_end_s = forth_s, forth_s - stages.forward_s
        self._to_s = back_s - stages.inputs_s - (0.0 if stages.overlap_sends else sends_s)

    def longest_s(self, passes: _PassCounts, own_stages: Numbers) -> Times:
        """Seconds of the longest path through a rank with these stages."""
        whole_s, until_s, from_s, last_s, between_s = (
            np.einsum("kc,kcn->n", one, self.work_s[:, own_stages]) for one in passes[:5]
        )
        first_s = self._first_s[own_stages[0]]
        forth_s = self._from_begin_s[own_stages[0]] + self._to_s[own_stages[passes.back]]
        rest_s = self._from_end_s[own_stages[passes.forward]] + self._to_s[own_stages[passes.last]] + last_s
        paths = [whole_s - first_s, forth_s + from_s, until_s - first_s + rest_s]
        if passes.between.any():
            paths.append(forth_s + between_s + rest_s)
        result: Times = np.max(paths, axis=0)
        return result
