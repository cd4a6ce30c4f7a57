"""Pipeline schedules: the order of each rank's forward and backward passes over its microbatches and chunks.

A rank has one or several chunks of the model, each a stage. For each microbatch, the forward pass of a stage follows that of
the previous stage; its backward pass follows that of the next stage, or on the last stage its forward pass; a separate weight
gradient follows the input gradient. `SCHEDULES` is the table of all schedules. Those of ZB-1p and ZB-2p are found by search,
given pass times and a memory limit (arXiv 2401.10241, section 3.1).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache
from itertools import chain, product, repeat
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.parallelism.stages import ScheduleName, check_schedule, rounds, stage_of


class Pass(IntEnum):
    """Kind of work of a rank on one microbatch in one chunk."""

    FORWARD = 0
    BACKWARD = 1  # gradients of input and weights together
    INPUT = 2  # the gradient of the input alone
    WEIGHT = 3  # the gradient of the weights alone


class PassTimes(NamedTuple):
    """Seconds of one chunk's passes and of a message, for schedules that search for an order. kept: share of a microbatch's
    activations that remains after the input gradient until the weight gradient is computed."""

    forward: float = 1.0
    backward_input: float = 1.0
    backward_weight: float = 1.0
    send: float = 0.0
    kept: float = 1.0


EQUAL: Final = PassTimes()

# The passes of a rank in order, shape (passes, 3): kind, chunk, microbatch.
Passes = NDArray[np.int64]
# A kind of pass and its chunk. The microbatch is implied, since each kind takes a chunk's microbatches in order.
Turn = tuple[Pass, int]


def numbered(turns: Iterable[Turn], microbatches: int) -> Passes:
    """Assigns microbatches to turns; turns beyond the last microbatch are dropped."""
    kind, chunk = np.fromiter(chain.from_iterable(turns), dtype=np.int64).reshape(-1, 2).T
    microbatch = np.empty_like(kind)
    for in_chunk in (chunk == number for number in range(int(chunk.max()) + 1)):
        for taken in (in_chunk & (kind == Pass.FORWARD), in_chunk & ((kind == Pass.BACKWARD) | (kind == Pass.INPUT))):
            microbatch[taken] = np.arange(np.count_nonzero(taken))
        microbatch[in_chunk & (kind == Pass.WEIGHT)] = microbatch[in_chunk & (kind == Pass.INPUT)]
    return np.stack([kind, chunk, microbatch], axis=1)[microbatch < microbatches]


def starts(
    schedule: ScheduleName, chunks: int, ranks_passes: Sequence[Passes], microbatches: int, pass_times: Mapping[Pass, float],
    send: float,
) -> list[list[float]]:  # fmt: skip
    """Start times of each pass of each rank if passes wait for dependencies only. pass_times: by kind of pass.

    A forward pass follows the previous stage's, a backward pass the next stage's, or on the last stage its forward pass; plus
    `send` if a message is between them. Ranks begin at 0.
    """
    ranks = len(ranks_passes)
    stages = [[stage_of(schedule, ranks, rank, chunk) for chunk in range(chunks)] for rank in range(ranks)]
    rank_of = {stage: rank for rank, rank_stages in enumerate(stages) for stage in rank_stages}
    last, unused = ranks * chunks - 1, 2 * ranks * chunks
    crosses = [rank_of[stage] != rank_of[stage + 1] for stage in range(last)]
    # A microbatch passes all stages forward and then backward; the result of each pass is the input of the next one on its way.
    # Weight gradients wait for the first input, which is there; results that no pass waits for are put behind the last input.
    sends = send * np.array([*crosses, False, *reversed(crosses), False])
    inputs: list[float | None] = [0.0] * microbatches + [None] * (unused * microbatches)
    durations = np.array([pass_times.get(kind, 0.0) for kind in Pass])
    columns: list[tuple[list[int], list[int], list[float], list[float]]] = []
    for own_stages, (kind, chunk, microbatch) in zip(stages, (passes.T for passes in ranks_passes), strict=True):
        stage = np.array(own_stages)[chunk]
        place = np.where(kind == Pass.FORWARD, stage, 2 * last + 1 - stage)
        needed = np.where(kind == Pass.WEIGHT, 0, place) * microbatches + microbatch
        given = np.where(kind == Pass.WEIGHT, unused, place + 1)
        made = given * microbatches + microbatch
        columns.append((needed.tolist(), made.tolist(), durations[kind].tolist(), sends[given - 1].tolist()))
    result: list[list[float]] = [[] for _ in ranks_passes]
    now = [0.0] * len(ranks_passes)
    progressed = True
    while progressed:
        progressed = False
        for rank, (needed, made, duration, delay) in enumerate(columns):
            start_times, end = result[rank], now[rank]
            for index in range(len(start_times), len(needed)):
                ready = inputs[needed[index]]
                if ready is None:
                    break
                start = max(end, ready)
                start_times.append(start)
                end = start + duration[index]
                inputs[made[index]] = end + delay[index]
                progressed = True
            now[rank] = end
    assert all(len(start_times) == len(passes) for start_times, passes in zip(result, ranks_passes, strict=True)), (
        "ranks wait for each other"
    )
    return result


_F0, _F1 = (Pass.FORWARD, 0), (Pass.FORWARD, 1)
_B0, _B1 = (Pass.BACKWARD, 0), (Pass.BACKWARD, 1)
_I0, _I1 = (Pass.INPUT, 0), (Pass.INPUT, 1)
_W0, _W1 = (Pass.WEIGHT, 0), (Pass.WEIGHT, 1)


def _looped(ranks: int, microbatches: int, chunks: int, ahead: int, backward: Pass) -> Iterator[Turn]:
    """A round of microbatches passes one chunk after another before the next round starts. The warm-up consists of the forward
    passes of a round through all chunks but one, plus `ahead`; then forward and backward passes alternate."""
    per_round = microbatches // rounds(ranks, microbatches)
    total = microbatches * chunks
    warm = min((chunks - 1) * per_round + ahead, total)
    for step in range(total + warm):
        if step < total:
            yield Pass.FORWARD, step // per_round % chunks
        if step >= warm:
            yield backward, chunks - 1 - (step - warm) // per_round % chunks


def _looped_bfs(microbatches: int, chunks: int) -> Passes:
    """All microbatches through one chunk before any through the next, and back in reverse."""
    forward = [(Pass.FORWARD, chunk, microbatch) for chunk in range(chunks) for microbatch in range(microbatches)]
    return np.array(forward + [(Pass.BACKWARD, *one) for _, *one in reversed(forward)])


def _zero_bubble(ranks: int, rank: int, microbatches: int, chunks: int, reach: int) -> Iterator[Turn]:
    """1F1B over interleaved chunks, with weight gradients that are delayed more on later ranks.

    reach 1, ZB-H1: as many warm-up forward passes as there are later ranks; 2, ZB-H2: twice as many. Weight gradients wait
    until reach times the number of earlier ranks are pending, so that all ranks keep the same number of activations.
    """
    waiting: deque[Turn] = deque()
    for kind, chunk in _looped(ranks, microbatches, chunks, reach * (ranks - 1 - rank), Pass.INPUT):
        yield kind, chunk
        if kind == Pass.INPUT:
            waiting.append((Pass.WEIGHT, chunk))
        if len(waiting) > reach * rank:
            yield waiting.popleft()
    yield from waiting


@lru_cache(maxsize=32)
def _searched(ranks: int, microbatches: int, times: PassTimes, reach: int) -> list[Passes]:
    """The passes of all ranks, found by search with the same memory as `_zero_bubble`; that order if none is faster."""
    fixed = [numbered(_zero_bubble(ranks, rank, microbatches, 1, reach), microbatches) for rank in range(ranks)]
    return _fastest_order(ranks, microbatches, times, reach * ranks, fixed)


def _zb_v(ranks: int, rank: int, microbatches: int) -> Iterator[Turn]:
    """ZB-V: no bubble if all passes take equally long, with no more activations than 1F1B.

    It is defined for at least 2 · ranks − 1 microbatches.
    """
    behind = ranks - rank
    whole = max(2 * ranks - 1, microbatches)
    first = 2 * behind - 1 + rank  # forward passes of chunk 0 before the steady part
    yield from repeat(_F0, 2 * behind - 1)
    yield from (_F1, _F0) * rank
    yield from (_F1, _I1, _W1) * behind
    for step in range(whole - ranks):
        if first + step < whole:
            yield _F0
        yield from (_I0, _W0, _F1, _I1, _W1)
    yield from (_I0, _I1) * rank
    yield from (_I0, _W0) * behind
    yield from repeat(_W1, rank)
    yield from repeat(_W0, rank)


def _dualpipe_v(ranks: int, rank: int, microbatches: int) -> Iterator[Turn]:
    """DualPipeV: DualPipe cut in half, with its overlapped passes one after the other.

    It needs at least 2 · ranks microbatches. Weight gradients are separate passes only where they fill bubbles.
    """
    behind = ranks - 1 - rank
    yield from repeat(_F0, 2 * behind)
    yield from (_F0, _F1) * (rank + 1)
    yield from (_I1, _W1, _F1) * behind
    yield from (_F0, _B1, _F1, _B0) * (microbatches - ranks - behind)
    yield from (_B1, _F1, _B0) * behind
    yield from ((_B1, _B0) * (rank + 1))[: rank + 1]
    yield from ((_I1, _I0) * (rank + 1))[rank + 1 :]
    late = [*((_W1, _W0) * (rank + 1))[rank + 1 :], *repeat(_W0, behind)]
    for turn in late[:behind]:
        yield from (turn, _I0)
    yield from late[behind:]


# The passes in order of rank r of p ranks with m microbatches and c chunks; t: pass times, for schedules that search.
SCHEDULES: Final[Mapping[ScheduleName, Callable[[int, int, int, int, PassTimes], Passes]]] = {
    # arXiv 1811.06965
    "gpipe": lambda p, r, m, c, t: numbered(chain(repeat(_F0, m), repeat(_B0, m)), m),
    # arXiv 2006.09503
    "1f1b": lambda p, r, m, c, t: numbered(_looped(p, m, c, p - 1 - r, Pass.BACKWARD), m),
    # arXiv 2104.04473
    "interleaved_1f1b": lambda p, r, m, c, t: numbered(_looped(p, m, c, 2 * (p - 1 - r), Pass.BACKWARD), m),
    # arXiv 2211.05953
    "looped_bfs": lambda p, r, m, c, t: _looped_bfs(m, c),
    # arXiv 2401.10241, sections 2 and 3
    "zb_h1": lambda p, r, m, c, t: numbered(_zero_bubble(p, r, m, c, reach=1), m),
    "zb_h2": lambda p, r, m, c, t: numbered(_zero_bubble(p, r, m, c, reach=2), m),
    "zb_1p": lambda p, r, m, c, t: _searched(p, m, t, reach=1)[r],
    "zb_2p": lambda p, r, m, c, t: _searched(p, m, t, reach=2)[r],
    "interleaved_zero_bubble": lambda p, r, m, c, t: numbered(_zero_bubble(p, r, m, c, reach=1), m),
    # arXiv 2405.15362
    "zb_v": lambda p, r, m, c, t: numbered(_zb_v(p, r, m), m),
    # arXiv 2412.19437
    "dualpipe_v": lambda p, r, m, c, t: numbered(_dualpipe_v(p, r, m), m),
}


class PassOrder(NamedTuple):
    """The passes of each rank in order: arrays of shape (ranks, passes of a rank).

    Ranks with fewer passes than others are padded with −1. slot: number of passes on the longest path to a pass; larger than
    the slots of all passes, of any rank, that the pass follows.
    """

    kind: NDArray[np.int64]
    chunk: NDArray[np.int64]
    microbatch: NDArray[np.int64]
    slot: NDArray[np.int64]


@lru_cache(maxsize=32)
def order(schedule: ScheduleName, ranks: int, microbatches: int, chunks: int = 1, times: PassTimes = EQUAL) -> PassOrder:
    """Each rank's passes in order. Raises FieldError if the schedule does not support these numbers.

    times: of a chunk's passes; only zb_1p and zb_2p depend on them.
    """
    check_schedule(schedule, ranks, microbatches, chunks)
    ranks_passes = [SCHEDULES[schedule](ranks, rank, microbatches, chunks, times) for rank in range(ranks)]
    slots = starts(schedule, chunks, ranks_passes, microbatches, dict.fromkeys(Pass, 1.0), 0.0)
    result = np.full((4, ranks, max(map(len, ranks_passes))), -1)
    for rank, rank_passes in enumerate(ranks_passes):
        result[:3, rank, : len(rank_passes)] = rank_passes.T
        result[3, rank, : len(rank_passes)] = slots[rank]
    result.setflags(write=False)
    return PassOrder(*result)


def peak_activations(
    schedule: ScheduleName, ranks: int, microbatches: int, chunks: int = 1, times: PassTimes = EQUAL
) -> NDArray[np.float64]:
    """Peak number of activations on each rank, each of a microbatch in a chunk, shape (ranks,).

    Activations are allocated from the forward pass until all gradients are computed; `times.kept` of them remain while only the
    weight gradient is missing. Raises FieldError as `order` does.
    """
    changes = np.zeros(len(Pass) + 1)
    changes[[Pass.FORWARD, Pass.BACKWARD, Pass.INPUT, Pass.WEIGHT]] = 1.0, -1.0, times.kept - 1.0, -times.kept
    most: NDArray[np.float64] = np.cumsum(changes[order(schedule, ranks, microbatches, chunks, times).kind], axis=1).max(axis=1)
    return most


# Tolerance for comparing activation counts.
_CLOSE: Final = 1e-9


def _fastest_order(ranks: int, microbatches: int, times: PassTimes, limit: int, handcrafted: list[Passes]) -> list[Passes]:
    """The passes of all ranks, of which each keeps at most `limit` activations. Of the orders that the choices of the paper's
    heuristic lead to, and a handcrafted one, the order whose slowest rank finishes soonest after its start."""
    choices = product((False, True), repeat=2)
    candidates = [_PlannedPasses(ranks, microbatches, times, limit, *choice).ranks_passes for choice in choices]
    candidates.append(handcrafted)
    pass_times_s = {Pass.FORWARD: times.forward, Pass.INPUT: times.backward_input, Pass.WEIGHT: times.backward_weight}

    def slowest_s(ranks_passes: list[Passes]) -> float:
        ranks_starts_s = starts("zb_1p", 1, ranks_passes, microbatches, pass_times_s, times.send)
        return max(
            starts_s[-1] + pass_times_s[Pass(passes[-1, 0])] - starts_s[0]
            for starts_s, passes in zip(ranks_starts_s, ranks_passes, strict=True)
        )

    return min(candidates, key=slowest_s)


class _Rank:
    """Passes of a rank that are planned so far, and their end times."""

    def __init__(self, start_s: float) -> None:
        self.start_s = start_s
        self.now_s = start_s
        self.idle_s = 0.0
        self.passes: list[tuple[Pass, int, int]] = []
        self.ends_s: dict[Pass, list[float]] = {Pass.FORWARD: [], Pass.INPUT: [], Pass.WEIGHT: []}

    def done(self, kind: Pass) -> int:
        return len(self.ends_s[kind])

    @property
    def waiting(self) -> int:
        """Number of weight gradients that can be computed."""
        return self.done(Pass.INPUT) - self.done(Pass.WEIGHT)

    def add(self, kind: Pass, pass_times_s: float, arrived_s: float = 0.0) -> None:
        gap_s = max(0.0, arrived_s - self.now_s)
        self.passes.append((kind, 0, self.done(kind)))
        self.idle_s += gap_s
        self.now_s += gap_s + pass_times_s
        self.ends_s[kind].append(self.now_s)


class _PlannedPasses:
    """Passes of all ranks, each planned together with its time.

    overrun: a rank that waits for its first backward pass runs one more forward pass even if that delays the backward pass.
    skip: a rank that is several forward passes ahead of the next rank skips one if it has other work.
    """

    def __init__(self, ranks: int, microbatches: int, times: PassTimes, limit: int, overrun: bool, skip: bool) -> None:
        self.times, self.microbatches, self.limit = times, microbatches, limit
        self.ranks = [_Rank(rank * (times.forward + times.send)) for rank in range(ranks)]
        self._warm_up(overrun)
        for _ in range(1, microbatches):
            for index, rank in enumerate(self.ranks):
                if rank.done(Pass.FORWARD) < microbatches and not (skip and self._can_skip(index)):
                    self._forward(index)
            for index in reversed(range(ranks)):
                self._input(index)
        for rank in self.ranks:
            while rank.waiting:
                self._weight(rank)

    @property
    def ranks_passes(self) -> list[Passes]:
        return [np.array(rank.passes) for rank in self.ranks]

    def _warm_up(self, overrun: bool) -> None:
        """Plans as many forward passes as fit before the first backward pass, which reaches the last rank first.

        A rank is always one forward pass ahead of the next, so it may keep one activation less for each rank before it.
        """
        counts: list[int] = []
        arrived_s = self.ranks[-1].start_s + self.times.forward
        for index, rank in reversed(list(enumerate(self.ranks))):
            fit = (arrived_s - rank.start_s) / self.times.forward if self.times.forward else self.microbatches
            count = math.ceil(fit - _CLOSE) if overrun else math.floor(fit + _CLOSE)
            counts.append(min(count, self.limit - index, self.microbatches))
            begins_s = max(arrived_s, rank.start_s + counts[-1] * self.times.forward)
            arrived_s = begins_s + self.times.backward_input + self.times.send
        for index, count in enumerate(reversed(counts)):
            for _ in range(count):
                self._forward(index)
        for index in reversed(range(len(self.ranks))):
            self._input(index)

    def _can_skip(self, index: int) -> bool:
        """Whether a rank can skip its next forward pass, because it is ahead and has enough work until its backward pass."""
        if index == len(self.ranks) - 1:
            return False
        rank, next_rank = self.ranks[index : index + 2]
        if rank.done(Pass.FORWARD) - next_rank.done(Pass.FORWARD) < 2:
            return False
        arrives_s = next_rank.now_s + self.times.forward + self.times.backward_input + self.times.send
        return rank.now_s + rank.waiting * self.times.backward_weight >= arrives_s

    def _forward(self, index: int) -> None:
        rank = self.ranks[index]
        while self._activations(rank) + 1 > self.limit + _CLOSE:
            self._weight(rank)
        arrived_s = self._sent_s(Pass.FORWARD, index - 1, rank.done(Pass.FORWARD)) if index else 0.0
        self._fill(rank, arrived_s)
        rank.add(Pass.FORWARD, self.times.forward, arrived_s)

    def _input(self, index: int) -> None:
        rank = self.ranks[index]
        arrived_s = 0.0
        if index < len(self.ranks) - 1:
            arrived_s = self._sent_s(Pass.INPUT, index + 1, rank.done(Pass.INPUT))
            self._fill(rank, arrived_s)
        rank.add(Pass.INPUT, self.times.backward_input, arrived_s)

    def _activations(self, rank: _Rank) -> float:
        """Number of allocated activations; those that only the weight gradient still needs count by the share that it needs."""
        return rank.done(Pass.FORWARD) - rank.done(Pass.INPUT) + rank.waiting * self.times.kept

    def _weight(self, rank: _Rank) -> None:
        rank.add(Pass.WEIGHT, self.times.backward_weight)

    def _sent_s(self, kind: Pass, index: int, microbatch: int) -> float:
        return self.ranks[index].ends_s[kind][microbatch] + self.times.send

    def _fill(self, rank: _Rank, until_s: float) -> None:
        """Plans weight gradients while the rank would wait. One that does not fit is planned only if waiting would make the
        rank the one with the most idle time."""
        while rank.waiting and (gap_s := until_s - rank.now_s) > 0:
            longest_idle_s = max(other.idle_s for other in self.ranks)
            if gap_s < self.times.backward_weight and rank.idle_s + gap_s <= longest_idle_s:
                break
            self._weight(rank)
