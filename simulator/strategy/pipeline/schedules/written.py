"""Orders that are written down: what a rank does in turn, whatever passes take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Final

from scaleproof.simulator.strategy.pipeline.schedules.passes import Lane, Pass

# a kind of pass and its chunk; which microbatch follows, as every kind takes a chunk's microbatches in turn
_Turn = tuple[Pass, int]
_OLDEST: Final = -1  # the chunk whose gradient of weights has waited longest
_F0, _F1 = (Pass.FORWARD, 0), (Pass.FORWARD, 1)
_B0, _B1 = (Pass.BACKWARD, 0), (Pass.BACKWARD, 1)
_I0, _I1 = (Pass.INPUT, 0), (Pass.INPUT, 1)
_W0, _W1, _W = (Pass.WEIGHT, 0), (Pass.WEIGHT, 1), (Pass.WEIGHT, _OLDEST)


def numbered(turns: Iterable[_Turn], microbatches: int) -> Lane:
    """The turns with their microbatches; those of microbatches that there are not are left out."""
    lane: Lane = []
    done: Counter[tuple[bool, int]] = Counter()
    waiting: list[tuple[int, int]] = []
    for kind, chunk in turns:
        if kind == Pass.WEIGHT:
            late = next(late for late in waiting if chunk in (late[0], _OLDEST))
            waiting.remove(late)
        else:
            late = chunk, done[kind == Pass.FORWARD, chunk]
            done[kind == Pass.FORWARD, chunk] += 1
        if kind == Pass.INPUT:
            waiting.append(late)
        if late[1] < microbatches:
            lane.append((kind, *late))
    return lane


def rounds(ranks: int, microbatches: int) -> int:
    """In so many rounds, of as many microbatches each, looped schedules go through the chunks."""
    return max(1, microbatches // ranks)


def interleaved_1f1b(ranks: int, rank: int, microbatches: int, chunks: int) -> Iterator[_Turn]:
    """1F1B over chunks that take turns, twice as many forward passes ahead as there are ranks behind (arXiv 2104.04473)."""
    return _looped(ranks, microbatches, chunks, 2 * (ranks - 1 - rank), Pass.BACKWARD)


def zero_bubble(ranks: int, rank: int, microbatches: int, chunks: int, reach: int) -> Iterator[_Turn]:
    """1F1B, over chunks that take turns, whose gradients of weights come the later the later the rank (arXiv 2401.10241).

    reach 1, ZB-H1: as many forward passes ahead as there are ranks behind; 2, ZB-H2: twice as many. The gradients of weights
    wait until reach times as many are waiting as there are ranks before, so that all ranks hold as much.
    """
    waiting = 0
    for turn in _looped(ranks, microbatches, chunks, reach * (ranks - 1 - rank), Pass.INPUT):
        yield turn
        waiting += turn[0] == Pass.INPUT
        if waiting > reach * rank:
            yield _W
            waiting -= 1
    yield from repeat(_W, waiting)


def _looped(ranks: int, microbatches: int, chunks: int, ahead: int, backward: Pass) -> Iterator[_Turn]:
    """A round of microbatches goes through one chunk after another before the next round does. First come the forward passes
    of a round through all chunks but one and so many more, then forward and backward take turns."""
    per_round = microbatches // rounds(ranks, microbatches)
    total = microbatches * chunks
    warm = min((chunks - 1) * per_round + ahead, total)
    for step in range(total + warm):
        if step < total:
            yield Pass.FORWARD, step // per_round % chunks
        if step >= warm:
            yield backward, chunks - 1 - (step - warm) // per_round % chunks


def looped_bfs(microbatches: int, chunks: int) -> Lane:
    """All microbatches through one chunk before any through the next, and back the same way (arXiv 2211.05953)."""
    forward = [(chunk, microbatch) for chunk in range(chunks) for microbatch in range(microbatches)]
    return [(Pass.FORWARD, *each) for each in forward] + [(Pass.BACKWARD, *each) for each in reversed(forward)]


def zb_v(ranks: int, rank: int, microbatches: int) -> Iterator[_Turn]:
    """ZB-V (arXiv 2405.15362): no bubble where passes take as long as each other, and no more held than by 1F1B.

    It is written for at least 2 · ranks − 1 microbatches.
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


def dualpipe_v(ranks: int, rank: int, microbatches: int) -> Iterator[_Turn]:
    """DualPipeV: DualPipe (arXiv 2412.19437) cut in half, its overlapped passes one after the other as they are named.

    It needs at least 2 · ranks microbatches. Gradients of weights are apart only where bubbles are left to fill.
    """
    behind = ranks - 1 - rank
    yield from repeat(_F0, 2 * behind)
    yield from (_F0, _F1) * (rank + 1)
    yield from (_I1, _W1, _F1) * behind
    yield from (_F0, _B1, _F1, _B0) * (microbatches - ranks - behind)
    yield from (_B1, _F1, _B0) * behind
    yield from ((_B1, _B0) * (rank + 1))[: rank + 1]
    yield from ((_I1, _I0) * (rank + 1))[rank + 1 :]
    yield from (_W, _I0) * behind
    yield from repeat(_W, rank + 1)
