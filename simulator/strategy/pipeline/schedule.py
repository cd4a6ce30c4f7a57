"""Pipeline schedules: the order of each rank's forward and backward passes over its microbatches and chunks.

A rank has one or several chunks of the model, each a stage. For each microbatch, the forward pass of a stage follows that of
the previous stage; its backward pass follows that of the next stage, or on the last stage its forward pass; a separate weight
gradient follows the input gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.strategy.pipeline.schedules import searched, written
from scaleproof.simulator.strategy.pipeline.schedules.passes import (
    EQUAL,
    V_SHAPED,
    Pass,
    PassList,
    PassTimes,
    ScheduleName,
    StageOrder,
    stage_of,
    starts,
)

__all__ = ["WHOLE", "Pass", "PassOrder", "PassTimes", "ScheduleName", "check", "order", "peak_activations", "stage_of"]

# Schedules whose backward passes include gradients of weights; the others compute some of these in separate passes.
WHOLE: Final[frozenset[ScheduleName]] = frozenset({"gpipe", "1f1b", "interleaved_1f1b", "looped_bfs"})
_LOOPED: Final[frozenset[ScheduleName]] = frozenset({"interleaved_1f1b", "looped_bfs", "interleaved_zero_bubble"})


class PassOrder(NamedTuple):
    """The passes of each rank in order: arrays of shape (ranks, passes of a rank).

    Ranks with fewer passes than others are padded with −1. slot: number of passes on the longest path to a pass; larger than
    the slots of all passes, of any rank, that the pass follows.
    """

    kind: NDArray[np.int64]
    chunk: NDArray[np.int64]
    microbatch: NDArray[np.int64]
    slot: NDArray[np.int64]


def check(schedule: ScheduleName, ranks: int, microbatches: int, chunks: int) -> None:
    """Checks that the schedule supports these numbers; raises FieldError with the nearest supported ones."""
    if schedule in _LOOPED:
        fits, needs, give = chunks > 1, "several chunks", 2
    elif schedule in V_SHAPED:
        fits, needs, give = chunks == 2, "2 chunks", 2
    else:
        fits, needs, give = chunks == 1, "one chunk", 1
    if not fits:
        raise FieldError(("strategy", "chunks"), f"{schedule} needs {needs} per rank, got {chunks}; give {give}")
    if schedule == "dualpipe_v" and microbatches < 2 * ranks:
        message = f"dualpipe_v needs at least two microbatches for each rank, got {microbatches} for {ranks}; give {2 * ranks}"
        raise FieldError(("strategy", "microbatches"), message)
    if schedule in ("interleaved_1f1b", "interleaved_zero_bubble") and not _has_rounds(ranks, microbatches):
        nearest = _nearest(microbatches, lambda number: _has_rounds(ranks, number))
        rule = f"{schedule} runs its microbatches in {written.rounds(ranks, microbatches)} equal rounds"
        raise FieldError(("strategy", "microbatches"), f"{rule}, got {microbatches}; give {nearest}")


def _has_rounds(ranks: int, microbatches: int) -> bool:
    return microbatches % written.rounds(ranks, microbatches) == 0


def _nearest(number: int, works: Callable[[int], bool]) -> str:
    below = next(lower for lower in range(number - 1, 0, -1) if works(lower))
    above = next(higher for higher in range(number + 1, 2 * number) if works(higher))
    return f"{below} or {above}"


@lru_cache(maxsize=32)
def order(schedule: ScheduleName, ranks: int, microbatches: int, chunks: int = 1, times: PassTimes = EQUAL) -> PassOrder:
    """Each rank's passes in order. Raises FieldError if the schedule does not support these numbers.

    times: of a chunk's passes; only zb_1p and zb_2p depend on them.
    """
    check(schedule, ranks, microbatches, chunks)
    if schedule == "gpipe":
        result = _gpipe(ranks, microbatches)
    elif schedule == "1f1b":
        result = _1f1b(ranks, microbatches)
    else:
        ranks_passes = _passes(schedule, ranks, microbatches, chunks, times)
        result = _order(
            ranks_passes, starts(StageOrder(schedule, ranks, chunks), ranks_passes, microbatches, dict.fromkeys(Pass, 1.0), 0.0)
        )
    for part in result:
        part.setflags(write=False)
    return result


def _passes(schedule: ScheduleName, ranks: int, microbatches: int, chunks: int, times: PassTimes) -> list[PassList]:
    """Each rank's passes by kind, chunk and microbatch."""
    if schedule == "looped_bfs":
        return [written.looped_bfs(microbatches, chunks)] * ranks
    if schedule in ("zb_1p", "zb_2p"):
        return searched.zero_bubble(ranks, microbatches, times, reach=1 if schedule == "zb_1p" else 2)
    if schedule == "interleaved_1f1b":
        turns = [written.interleaved_1f1b(ranks, rank, microbatches, chunks) for rank in range(ranks)]
    elif schedule == "zb_v":
        turns = [written.zb_v(ranks, rank, microbatches) for rank in range(ranks)]
    elif schedule == "dualpipe_v":
        turns = [written.dualpipe_v(ranks, rank, microbatches) for rank in range(ranks)]
    else:
        reach = 2 if schedule == "zb_h2" else 1
        turns = [written.zero_bubble(ranks, rank, microbatches, chunks, reach) for rank in range(ranks)]
    return [written.numbered(own, microbatches) for own in turns]


def _order(ranks_passes: Sequence[PassList], slots: Sequence[Sequence[float]]) -> PassOrder:
    result = np.full((4, len(ranks_passes), max(map(len, ranks_passes))), -1)
    for rank, rank_passes in enumerate(ranks_passes):
        result[:3, rank, : len(rank_passes)] = np.array(rank_passes).T
        result[3, rank, : len(rank_passes)] = slots[rank]
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


def _gpipe(ranks: int, microbatches: int) -> PassOrder:
    """All forward passes, then all backward passes (arXiv 1811.06965)."""
    rank, microbatch = np.arange(ranks)[:, None], np.arange(microbatches)
    kind = np.tile(np.repeat([Pass.FORWARD, Pass.BACKWARD], microbatches), (ranks, 1))
    slot = np.concatenate([rank + microbatch, 2 * (ranks - 1) + microbatches - rank + microbatch], axis=1)
    return PassOrder(kind, np.zeros_like(kind), np.tile(microbatch, (ranks, 2)), slot)


def _1f1b(ranks: int, microbatches: int) -> PassOrder:
    """Warm-up with as many forward passes as there are later ranks, then alternating forward and backward passes (arXiv
    2006.09503)."""
    rank, microbatch = np.arange(ranks)[:, None], np.arange(microbatches)
    ahead = ranks - rank
    # a forward pass after the warm-up follows the backward pass that frees its memory
    forward = rank + microbatch * np.where(microbatch < ahead, 1, 2)
    slot = np.concatenate([forward, ranks - 1 + ahead + 2 * microbatch], axis=1)
    turn = np.argsort(slot, axis=1)
    kind = (turn >= microbatches).astype(np.int64) * Pass.BACKWARD
    return PassOrder(kind, np.zeros_like(kind), turn % microbatches, np.take_along_axis(slot, turn, axis=1))
