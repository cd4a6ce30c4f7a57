"""Messages between two ranks: alone, many in a row, both ways at once, behind others; and of many ranks to one.

All ranks call a probe, and each gets all its points. Pairs take their turns, so that none is measured beside another; points
come in the order of pairs where these are in the order of their first ranks.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from scaleproof.validator.launch.rank import here
from scaleproof.validator.probe.adaptive import Samples, Step, by_size, repeat, timed
from scaleproof.validator.probe.pairs import RankPair
from scaleproof.validator.probe.peers import Together, Two, named
from scaleproof.validator.probe.points import Point
from scaleproof.validator.probe.turns import groups_in_turn, pairs_in_turn
from scaleproof.validator.strategy.layout.messages import receive, send, wait_all

_SMALL_BYTES: Final = 4
# Messages that are sent in a row.
_IN_A_ROW: Final = 16


def messages(pairs: Sequence[RankPair], sizes_bytes: Sequence[int], budget_s: float) -> list[dict[str, Any]]:
    """One-way times of messages ("send"): half of what one takes there and back. Sizes that a pair has no time for are left
    out. budget_s: for all pairs."""

    def probe(pair: RankPair, budget_s: float) -> Iterable[Point]:
        step = partial(_step, round_trip(pair.first, pair.second), parts=2)
        for size, samples in by_size(step, sizes_bytes, budget_s, Two(pair.first, pair.second)):
            yield _point("send", pair, size, samples)

    return pairs_in_turn(pairs, probe, budget_s)


def streams(pairs: Sequence[RankPair], sizes_bytes: Sequence[int], budget_s: float) -> list[dict[str, Any]]:
    """Seconds from one message to the next ("stream") at the second rank of a pair, where the first sends many and
    waits for none."""

    def probe(pair: RankPair, budget_s: float) -> Iterable[Point]:
        # whoever receives can tell
        peers = Two(pair.second, pair.first)
        for size, samples in by_size(lambda size: _stream(pair, _buffer(size)), sizes_bytes, budget_s, peers):
            yield _point("stream", pair, size, samples, messages=_IN_A_ROW)

    return pairs_in_turn(pairs, probe, budget_s)


def loaded(pairs: Sequence[RankPair], sizes_bytes: Sequence[int], budget_s: float) -> list[dict[str, Any]]:
    """What other messages on the link do to one, for each of their sizes.

    "exchange": seconds until two ranks that send one another a message at once both have the other's, which is as long as one
    takes where the link is full duplex. "send behind a stream": one-way seconds of 4 bytes that are sent right after a message
    the same way (`stream_bytes`), beside those of 4 bytes alone (`alone_s`); the answer goes the other way, and is taken to
    take as long as alone.
    """

    def probe(pair: RankPair, budget_s: float) -> Iterable[Point]:
        peers, each_s = Two(pair.first, pair.second), budget_s / 3
        small = repeat(_step(round_trip(pair.first, pair.second), _SMALL_BYTES, parts=2), each_s, peers)
        alone_s = statistics.median(small.seconds)
        for size, samples in by_size(lambda size: timed(partial(_exchange, pair, *_buffers(size))), sizes_bytes, each_s, peers):
            yield _point("exchange", pair, size, samples)
        for size, samples in by_size(lambda size: _behind(pair, _buffer(size)), sizes_bytes, each_s, peers):
            behind = samples._replace(seconds=tuple(max(one - alone_s, 0.0) for one in samples.seconds))
            yield _point("send behind a stream", pair, _SMALL_BYTES, behind, stream_bytes=size, alone_s=alone_s)

    return pairs_in_turn(pairs, probe, budget_s)


def incast(groups: Sequence[Sequence[int]], sizes_bytes: Sequence[int], budget_s: float) -> list[dict[str, Any]]:
    """Seconds from when the first rank of a group asks all others for a message each ("incast") to when it has them.

    size: of each message. The number of `senders` is told.
    """

    def probe(peers: Together, budget_s: float) -> Iterable[Point]:
        receiver, *senders = peers.ranks
        where = f"{named(senders)} to {named([receiver])}"
        for size, samples in by_size(partial(_step, partial(_ask, peers.ranks)), sizes_bytes, budget_s, peers):
            yield samples.point("message", "incast", where, peers.ranks, size, "bytes", senders=len(senders))

    return groups_in_turn(groups, probe, budget_s)


def round_trip(first: int = 0, second: int = 1) -> Callable[[Tensor], None]:
    """What sends a buffer from one rank to another and back; both call it."""
    begins = dist.get_rank() == first

    def send_and_return(buffer: Tensor) -> None:
        if begins:
            dist.send(buffer, second)
            dist.recv(buffer, second)
        else:
            dist.recv(buffer, first)
            dist.send(buffer, first)

    return send_and_return


def _point(what: str, pair: RankPair, size: int, samples: Samples, **numbers: float) -> Point:
    ends = (pair.first, pair.second)
    where = " to ".join(named([rank]) for rank in ends)
    return samples.point("message", what, where, ends, size, "bytes", pair.group, **numbers)


def _step(send_all: Callable[[Tensor], object], size_bytes: int, parts: int = 1) -> Step:
    """A repetition with a buffer of its own."""
    return timed(partial(send_all, _buffer(size_bytes)), parts)


def _buffer(size_bytes: int) -> Tensor:
    return torch.zeros(size_bytes, dtype=torch.uint8, device=here().device)


def _buffers(size_bytes: int) -> tuple[Tensor, Tensor]:
    return _buffer(size_bytes), _buffer(size_bytes)


def _exchange(pair: RankPair, leaving: Tensor, arriving: Tensor) -> None:
    other = pair.second if here().rank == pair.first else pair.first
    # what arrives has its place before anything leaves
    receives = dist.P2POp(dist.irecv, arriving, other)
    wait_all(dist.batch_isend_irecv([receives, dist.P2POp(dist.isend, leaving, other)]))


def _stream(pair: RankPair, buffer: Tensor) -> Step:
    """The time between the first message's arrival and the last's, over those after the first; nothing at the sender."""
    go = _buffer(1)
    if here().rank == pair.first:

        def begin_all() -> float:
            dist.recv(go, pair.second)
            wait_all([send(buffer, pair.second) for _ in range(_IN_A_ROW)])
            return 0.0

        return begin_all
    coming: list[dist.Work] = []
    wait_for_rest = timed(lambda: wait_all(coming[1:]), parts=_IN_A_ROW - 1)

    def receive_all() -> float:
        dist.send(go, pair.first)
        coming[:] = [receive(buffer, pair.first) for _ in range(_IN_A_ROW)]
        coming[0].wait()
        return wait_for_rest()

    return receive_all


def _behind(pair: RankPair, stream: Tensor) -> Step:
    """There and back behind a long message."""
    go_and_return = _step(round_trip(pair.first, pair.second), _SMALL_BYTES)
    begin, other = (send, pair.second) if here().rank == pair.first else (receive, pair.first)

    def repetition() -> float:
        long = begin(stream, other)
        seconds = go_and_return()
        long.wait()
        return seconds

    return repetition


def _ask(ranks: Sequence[int], buffer: Tensor) -> None:
    """The first rank asks all others, and receives from all."""
    go, receiver = _buffer(1), ranks[0]
    if here().rank == receiver:
        wait_all([send(go, sender) for sender in ranks[1:]])
        wait_all([receive(buffer, sender) for sender in ranks[1:]])
    else:
        dist.recv(go, receiver)
        dist.send(buffer, receiver)
