"""Message times between two ranks (alone, in a stream, in both directions, behind a stream) and from many ranks to one.

All ranks call a probe, and each gets all its points. Pairs are probed one after the other, so that they do not disturb one
another; points are in the order of the pairs if these are sorted by first rank.
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
from scaleproof.validator.probe.peers import GroupPeers, PairPeers, named
from scaleproof.validator.probe.points import Point
from scaleproof.validator.probe.rounds import groups_in_turn, pairs_in_turn
from scaleproof.validator.strategy.layout.messages import receive, send, wait_all

_SMALL_BYTES: Final = 4
# Messages sent in a row.
_IN_A_ROW: Final = 16


def messages(pairs: Sequence[RankPair], sizes_bytes: Sequence[int], budget_s: float) -> list[dict[str, Any]]:
    """Points of one-way message times ("send"), half of a round trip. Sizes that do not fit into a pair's time are left out.
    budget_s: seconds for all pairs."""

    def probe(pair: RankPair, budget_s: float) -> Iterable[Point]:
        step = partial(_step, round_trip(pair.first, pair.second), parts=2)
        for size, samples in by_size(step, sizes_bytes, budget_s, PairPeers(pair.first, pair.second)):
            yield _point("send", pair, size, samples)

    return pairs_in_turn(pairs, probe, budget_s)


def streams(pairs: Sequence[RankPair], sizes_bytes: Sequence[int], budget_s: float) -> list[dict[str, Any]]:
    """Points of seconds from one message to the next ("stream") at the second rank of a pair, if the first sends many without
    waiting."""

    def probe(pair: RankPair, budget_s: float) -> Iterable[Point]:
        # the receiver measures
        peers = PairPeers(pair.second, pair.first)
        for size, samples in by_size(lambda size: _stream(pair, _buffer(size)), sizes_bytes, budget_s, peers):
            yield _point("stream", pair, size, samples, messages=_IN_A_ROW)

    return pairs_in_turn(pairs, probe, budget_s)


def exchanges(pairs: Sequence[RankPair], sizes_bytes: Sequence[int], budget_s: float) -> list[dict[str, Any]]:
    """Points of seconds until two ranks that send each other a message concurrently both have received ("exchange"), which
    equals the time of one message on a full-duplex link."""

    def probe(pair: RankPair, budget_s: float) -> Iterable[Point]:
        peers = PairPeers(pair.first, pair.second)
        for size, samples in by_size(
            lambda size: timed(partial(_exchange, pair, *_buffers(size))), sizes_bytes, budget_s, peers
        ):
            yield _point("exchange", pair, size, samples)

    return pairs_in_turn(pairs, probe, budget_s)


def behind_streams(pairs: Sequence[RankPair], sizes_bytes: Sequence[int], budget_s: float) -> list[dict[str, Any]]:
    """Points of one-way seconds of 4 bytes sent right after a message in the same direction ("send behind a stream").

    Numbers: the size of that message (`stream_bytes`), and seconds of 4 bytes alone (`alone_s`). The reply in the other
    direction is assumed to take as long as alone.
    """

    def probe(pair: RankPair, budget_s: float) -> Iterable[Point]:
        peers, each_s = PairPeers(pair.first, pair.second), budget_s / 2
        small = repeat(_step(round_trip(pair.first, pair.second), _SMALL_BYTES, parts=2), each_s, peers)
        alone_s = statistics.median(small.seconds)
        for size, samples in by_size(lambda size: _behind(pair, _buffer(size)), sizes_bytes, each_s, peers):
            behind = samples._replace(seconds=tuple(max(second - alone_s, 0.0) for second in samples.seconds))
            yield _point("send behind a stream", pair, _SMALL_BYTES, behind, stream_bytes=size, alone_s=alone_s)

    return pairs_in_turn(pairs, probe, budget_s)


def incast(groups: Sequence[Sequence[int]], sizes_bytes: Sequence[int], budget_s: float) -> list[dict[str, Any]]:
    """Points of seconds from when the first rank of a group requests a message from each other rank until it has all
    ("incast").

    A point's size is that of each message; its numbers include the number of `senders`.
    """

    def probe(peers: GroupPeers, budget_s: float) -> Iterable[Point]:
        receiver, *senders = peers.ranks
        where = f"{named(senders)} to {named([receiver])}"
        for size, samples in by_size(partial(_step, partial(_request, peers.ranks)), sizes_bytes, budget_s, peers):
            yield samples.point("message", "incast", where, peers.ranks, size, "bytes", senders=len(senders))

    return groups_in_turn(groups, probe, budget_s)


def round_trip(first: int = 0, second: int = 1) -> Callable[[Tensor], None]:
    """Function that sends a buffer from one rank to another and back; both ranks call it."""
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
    """Step that calls `send_all` with a buffer of its own."""
    return timed(partial(send_all, _buffer(size_bytes)), parts)


def _buffer(size_bytes: int) -> Tensor:
    return torch.zeros(size_bytes, dtype=torch.uint8, device=here().device)


def _buffers(size_bytes: int) -> tuple[Tensor, Tensor]:
    return _buffer(size_bytes), _buffer(size_bytes)


def _exchange(pair: RankPair, leaving: Tensor, arriving: Tensor) -> None:
    other = pair.second if here().rank == pair.first else pair.first
    # post the receive first, so that the arriving message has its buffer
    receives = dist.P2POp(dist.irecv, arriving, other)
    wait_all(dist.batch_isend_irecv([receives, dist.P2POp(dist.isend, leaving, other)]))


def _stream(pair: RankPair, buffer: Tensor) -> Step:
    """Step that returns seconds per message from the first arrival to the last; 0 at the sender."""
    go = _buffer(1)
    if here().rank == pair.first:

        def begin_all() -> float:
            dist.recv(go, pair.second)
            wait_all([send(buffer, pair.second) for _ in range(_IN_A_ROW)])
            return 0.0

        return begin_all
    arriving: list[dist.Work] = []
    wait_for_rest = timed(lambda: wait_all(arriving[1:]), parts=_IN_A_ROW - 1)

    def receive_all() -> float:
        dist.send(go, pair.first)
        arriving[:] = [receive(buffer, pair.first) for _ in range(_IN_A_ROW)]
        arriving[0].wait()
        return wait_for_rest()

    return receive_all


def _behind(pair: RankPair, stream: Tensor) -> Step:
    """Step that returns the seconds of a small round trip behind a long message."""
    go_and_return = _step(round_trip(pair.first, pair.second), _SMALL_BYTES)
    begin, other = (send, pair.second) if here().rank == pair.first else (receive, pair.first)

    def repetition() -> float:
        long = begin(stream, other)
        seconds = go_and_return()
        long.wait()
        return seconds

    return repetition


def _request(ranks: Sequence[int], buffer: Tensor) -> None:
    """The first rank requests a message from each other rank and receives them all."""
    go, receiver = _buffer(1), ranks[0]
    if here().rank == receiver:
        wait_all([send(go, sender) for sender in ranks[1:]])
        wait_all([receive(buffer, sender) for sender in ranks[1:]])
    else:
        dist.recv(go, receiver)
        dist.send(buffer, receiver)
