"""Pipeline schedules: in which order each rank passes its microbatches through its chunks, forward and backward.

A rank has one or several chunks of the model, each a stage. The forward pass of a stage follows that of the stage before for
the same microbatch; its backward pass that of the stage behind, or at the last stage its forward pass; the gradient of its
weights, where apart, that of its input.
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
    Lane,
    Pass,
    PassTimes,
    ScheduleName,
    StageOrder,
    stage_of,
    starts,
)

__all__ = ["Pass", "PassOrder", "PassTimes", "ScheduleName", "check", "most_held", "order", "stage_of"]

_LOOPED: Final[frozenset[ScheduleName]] = frozenset({"interleaved_1f1b", "looped_bfs", "interleaved_zero_bubble"})


class PassOrder(NamedTuple):
    """The passes of each rank in the order in which it runs them: arrays of shape (ranks, passes of a rank).

    A rank with fewer passes than another has −1 at its end. slot: passes on the longest path to a pass; it is above the slots
    of all passes, of any rank, that the pass follows.
    """

    kind: NDArray[np.int64]
    chunk: NDArray[np.int64]
    microbatch: NDArray[np.int64]
    slot: NDArray[np.int64]


def check(schedule: ScheduleName, ranks: int, microbatches: int, chunks: int) -> None:
    """Raises FieldError where the schedule has no order for such numbers; says which nearest ones it has."""
    if schedule in _LOOPED:
        fits, needs, give = chunks > 1, "several chunks", 2
    elif schedule in V_SHAPED:
        fits, needs, give = chunks == 2, "2 chunks", 2
    else:
        fits, needs, give = chunks == 1, "one chunk", 1
    if not fits:
        raise FieldError(("strategy", "chunks"), f"{schedule} needs {needs} a rank, got {chunks}; give {give}")
    if schedule == "dualpipe_v" and microbatches < 2 * ranks:
        message = f"dualpipe_v needs at least two microbatches for each rank, got {microbatches} for {ranks}; give {2 * ranks}"
        raise FieldError(("strategy", "microbatches"), message)
    if schedule in ("interleaved_1f1b", "interleaved_zero_bubble") and not _has_rounds(ranks, microbatches):
        nearest = _nearest(microbatches, lambda number: _has_rounds(ranks, number))
        rule = f"{schedule} runs its microbatches in {written.rounds(ranks, microbatches)} rounds, all alike"
        raise FieldError(("strategy", "microbatches"), f"{rule}, got {microbatches}; give {nearest}")


def _has_rounds(ranks: int, microbatches: int) -> bool:
    return microbatches % written.rounds(ranks, microbatches) == 0


def _nearest(number: int, works: Callable[[int], bool]) -> str:
    below = next(lower for lower in range(number - 1, 0, -1) if works(lower))
    above = next(higher for higher in range(number + 1, 2 * number) if works(higher))
    return f"{below} or {above}"


@lru_cache(maxsize=32)
def order(schedule: ScheduleName, ranks: int, microbatches: int, chunks: int = 1, times: PassTimes = EQUAL) -> PassOrder:
    """Each rank's passes in their order. Raises FieldError where the schedule has none for such numbers.

    times: of a chunk's passes; zb_1p and zb_2p alone depend on them.
    """
    check(schedule, ranks, microbatches, chunks)
    if schedule == "gpipe":
        result = _gpipe(ranks, microbatches)
    elif schedule == "1f1b":
        result = _1f1b(ranks, microbatches)
    else:
        lanes = _lanes(schedule, ranks, microbatches, chunks, times)
        result = _order(lanes, starts(StageOrder(schedule, ranks, chunks), lanes, microbatches, dict.fromkeys(Pass, 1.0), 0.0))
    for part in result:
        part.setflags(write=False)
    return result


def _lanes(schedule: ScheduleName, ranks: int, microbatches: int, chunks: int, times: PassTimes) -> list[Lane]:
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


def _order(lanes: Sequence[Lane], slots: Sequence[Sequence[float]]) -> PassOrder:
    result = np.full((4, len(lanes), max(map(len, lanes))), -1)
    for rank, lane in enumerate(lanes):
        result[:3, rank, : len(lane)] = np.array(lane).T
        result[3, rank, : len(lane)] = slots[rank]
    return PassOrder(*result)


def most_held(
    schedule: ScheduleName, ranks: int, microbatches: int, chunks: int = 1, times: PassTimes = EQUAL
) -> NDArray[np.float64]:
    """The most activations, each of a microbatch in a chunk, that each rank holds at a time, shape (ranks,).

    They are held from the forward pass until all gradients are made; `times.kept` of them where only the gradient of the
    weights is not. Raises FieldError as `order` does.
    """
    changes = np.zeros(len(Pass) + 1)
    changes[[Pass.FORWARD, Pass.BACKWARD, Pass.INPUT, Pass.WEIGHT]] = 1.0, -1.0, times.kept - 1.0, -times.kept
    most: NDArray[np.float64] = np.cumsum(changes[order(schedule, ranks, microbatches, chunks, times).kind], axis=1).max(axis=1)
    return most


def _gpipe(ranks: int, microbatches: int) -> PassOrder:
    """All forward, then all backward (arXiv 1811.06965)."""
    rank, microbatch = np.arange(ranks)[:, None], np.arange(microbatches)
    kind = np.tile(np.repeat([Pass.FORWARD, Pass.BACKWARD], microbatches), (ranks, 1))
    slot = np.concatenate([rank + microbatch, 2 * (ranks - 1) + microbatches - rank + microbatch], axis=1)
    return PassOrder(kind, np.zeros_like(kind), np.tile(microbatch, (ranks, 2)), slot)


def _1f1b(ranks: int, microbatches: int) -> PassOrder:
    """As many forward passes ahead as there are ranks behind, then one forward and one backward in turn (arXiv 2006.09503)."""
    rank, microbatch = np.arange(ranks)[:, None], np.arange(microbatches)
    ahead = ranks - rank
    # a forward pass past those ahead follows the backward pass that made room for it
    forward = rank + microbatch * np.where(microbatch < ahead, 1, 2)
    slot = np.concatenate([forward, ranks - 1 + ahead + 2 * microbatch], axis=1)
    turn = np.argsort(slot, axis=1)
    kind = (turn >= microbatches).astype(np.int64) * Pass.BACKWARD
    return PassOrder(kind, np.zeros_like(kind), turn % microbatches, np.take_along_axis(slot, turn, axis=1))
