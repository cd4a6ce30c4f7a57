"""Pipeline schedules: the order of each rank's forward and backward passes over its microbatches and chunks.

A rank has one or several chunks of the model, each a stage. For each microbatch, the forward pass of a stage follows that of
the previous stage; its backward pass follows that of the next stage, or on the last stage its forward pass; a separate weight
gradient follows the input gradient. `SCHEDULES` is the table of all schedules.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import chain, repeat
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.parallelism.stages import ScheduleName, check_schedule, rounds
from scaleproof.simulator.strategy.pipeline.passes import (
    EQUAL,
    Pass,
    Passes,
    PassTimes,
    Turn,
    numbered,
    starts,
)
from scaleproof.simulator.strategy.pipeline.zero_bubble_search import fastest_order

__all__ = ["SCHEDULES", "Pass", "PassOrder", "PassTimes", "order", "peak_activations"]

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
    return fastest_order(ranks, microbatches, times, reach * ranks, fixed)


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
