"""Handcrafted schedules, which do not depend on pass times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Final

from scaleproof.simulator.strategy.pipeline.schedules.passes import Pass, PassList

# A kind of pass and its chunk. The microbatch is implied, since each kind takes a chunk's microbatches in order.
_Turn = tuple[Pass, int]
_OLDEST: Final = -1  # the chunk whose weight gradient has waited longest
_F0, _F1 = (Pass.FORWARD, 0), (Pass.FORWARD, 1)
_B0, _B1 = (Pass.BACKWARD, 0), (Pass.BACKWARD, 1)
_I0, _I1 = (Pass.INPUT, 0), (Pass.INPUT, 1)
_W0, _W1, _W = (Pass.WEIGHT, 0), (Pass.WEIGHT, 1), (Pass.WEIGHT, _OLDEST)


def numbered(turns: Iterable[_Turn], microbatches: int) -> PassList:
    """Assigns microbatches to turns; turns beyond the last microbatch are dropped."""
    passes: PassList = []
    done: Counter[tuple[bool, int]] = Counter()
    waiting: list[tuple[int, int]] = []
    for kind, chunk in turns:
        if kind == Pass.WEIGHT:
            pending = next(pending for pending in waiting if chunk in (pending[0], _OLDEST))
            waiting.remove(pending)
        else:
            pending = chunk, done[kind == Pass.FORWARD, chunk]
            done[kind == Pass.FORWARD, chunk] += 1
        if kind == Pass.INPUT:
            waiting.append(pending)
        if pending[1] < microbatches:
            passes.append((kind, *pending))
    return passes


def rounds(ranks: int, microbatches: int) -> int:
    """Number of rounds, of equally many microbatches each, in which looped schedules go through the chunks."""
    return max(1, microbatches // ranks)


def interleaved_1f1b(ranks: int, rank: int, microbatches: int, chunks: int) -> Iterator[_Turn]:
    """1F1B over interleaved chunks, with twice as many warm-up forward passes as there are later ranks (arXiv 2104.04473)."""
    return _looped(ranks, microbatches, chunks, 2 * (ranks - 1 - rank), Pass.BACKWARD)


def zero_bubble(ranks: int, rank: int, microbatches: int, chunks: int, reach: int) -> Iterator[_Turn]:
    """1F1B over interleaved chunks, with weight gradients that are delayed more on later ranks (arXiv 2401.10241).

    reach 1, ZB-H1: as many warm-up forward passes as there are later ranks; 2, ZB-H2: twice as many. Weight gradients wait
    until reach times the number of earlier ranks are pending, so that all ranks keep the same number of activations.
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


def looped_bfs(microbatches: int, chunks: int) -> PassList:
    """All microbatches through one chunk before any through the next, and back in reverse (arXiv 2211.05953)."""
    forward = [(chunk, microbatch) for chunk in range(chunks) for microbatch in range(microbatches)]
    return [(Pass.FORWARD, *one) for one in forward] + [(Pass.BACKWARD, *one) for one in reversed(forward)]


def zb_v(ranks: int, rank: int, microbatches: int) -> Iterator[_Turn]:
    """ZB-V (arXiv 2405.15362): no bubble if all passes take equally long, with no more activations than 1F1B.

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


def dualpipe_v(ranks: int, rank: int, microbatches: int) -> Iterator[_Turn]:
    """DualPipeV: DualPipe (arXiv 2412.19437) cut in half, with its overlapped passes one after the other.

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
    yield from (_W, _I0) * behind
    yield from repeat(_W, rank + 1)
