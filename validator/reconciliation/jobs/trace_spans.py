"""Spans of a rank's traced steps: computation, exposed communication with its waiting for other ranks, and transfers.

A communication kernel runs from when its own rank arrives until the transfer ends, so the kernel of the last rank to arrive is
the shortest: what others are longer is waiting. Clocks of different ranks need not agree for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from scaleproof.simulator.cluster.collectives.groups import bus_factor
from scaleproof.simulator.common.spans import SPAN_COLUMNS, Phase, Stream, TimeIntervals
from scaleproof.validator.calibration.imports.kineto import DeviceWork, TracedCollective
from scaleproof.validator.reconciliation.jobs.trace_phases import Phases
from scaleproof.validator.reconciliation.jobs.trace_steps import RankSteps

# What identifies calls that may be the same collective on several ranks: step, group, collective, size, and number of the call.
CallKey = tuple[Any, ...]
# Phase of a message's transfer by its direction; calls that exchange messages in both directions are counted as sent.
_MOVING: Final = {"send": Phase.SEND, "recv": Phase.RECEIVE, "": Phase.SEND}


@dataclass(frozen=True)
class TracedRank:
    """A rank's steps. rank: its number in the job. host, device: where it runs, as in `Trace`. source: its file."""

    rank: int
    steps: RankSteps
    phases: Phases
    host: str = ""
    device: int = -1
    source: str = ""


class TracedTransfer(NamedTuple):
    """A call of a collective on one rank. key: the same on all ranks that take part. waiting_s: before the transfer begins."""

    key: CallKey
    work: DeviceWork
    waiting_s: float

    @property
    def exchange(self) -> TracedCollective:
        """The collective as this rank traced it."""
        assert self.work.exchange is not None
        return self.work.exchange

    @property
    def begin_s(self) -> float:
        """When the last rank has arrived."""
        return self.work.start_s + self.waiting_s


class ExposedPiece(NamedTuple):
    """A part of a transfer in which the rank computes nothing."""

    transfer: TracedTransfer
    start_s: float
    end_s: float


def calls(rank: TracedRank) -> list[list[tuple[CallKey, DeviceWork]]]:
    """Communication of each step, in order of its start."""
    result = []
    for number, works in enumerate(rank.steps.works):
        counts: dict[CallKey, int] = {}
        own = []
        for work in works:
            if work.exchange is None:
                continue
            exchange = work.exchange
            if exchange.op == "alltoall":
                # ranks may send different numbers of bytes
                exchange = exchange._replace(size_bytes=0.0)
            kind = (number, exchange, work.way)
            counts[kind] = counts.get(kind, 0) + 1
            own.append(((number, exchange, counts[kind]), work))
        result.append(own)
    return result


def transfer_times_s(ranks: Sequence[TracedRank]) -> Mapping[CallKey, float]:
    """Seconds of each call without waiting: the shortest over the ranks that take part, and for messages of which not both ends
    are traced over all calls of the same kind. Without the other ranks, all of its time."""
    durations_s: dict[CallKey, list[float]] = {}
    shortest_s: dict[TracedCollective, float] = {}
    for rank in ranks:
        for key, work in (call for step in calls(rank) for call in step):
            duration_s = work.end_s - work.start_s
            durations_s.setdefault(key, []).append(duration_s)
            kind = key[1]._replace(ends=())
            shortest_s[kind] = min(duration_s, shortest_s.get(kind, duration_s))

    def time_s(exchange: TracedCollective, own: Sequence[float]) -> float:
        if exchange.op == "sendrecv" and len(own) != len(exchange.ends):
            return shortest_s[exchange._replace(ends=())]
        return min(own) if len(own) <= max(2, exchange.size) else max(own)

    return {key: time_s(key[1], own) for key, own in durations_s.items()}


def transfers(rank: TracedRank, times_s: Mapping[CallKey, float]) -> list[list[TracedTransfer]]:
    """Calls of each step with their waiting."""
    return [
        [TracedTransfer(key, work, max(0.0, work.end_s - work.start_s - times_s[key])) for key, work in own]
        for own in calls(rank)
    ]


def exposed(works: Sequence[DeviceWork], moving: Sequence[TracedTransfer]) -> Iterator[ExposedPiece]:
    """Pieces of transfers during which a rank computes nothing, each moment once, in order."""
    computes = [work for work in works if work.exchange is None]
    starts, ends = np.array([work.start_s for work in computes]), np.array([work.end_s for work in computes])
    busy = TimeIntervals(np.zeros(len(computes), dtype=np.int64), starts, ends).union()
    cursor_s = -np.inf
    for transfer in sorted(moving, key=lambda one: one.work.start_s):
        at_s = max(transfer.work.start_s, cursor_s)
        end_s = transfer.work.end_s
        number = int(np.searchsorted(busy.end_s, at_s, side="right"))
        while at_s < end_s:
            until_s = float(busy.start_s[number]) if number < len(busy.start_s) else end_s
            if until_s > at_s:
                yield ExposedPiece(transfer, at_s, min(until_s, end_s))
            if number >= len(busy.end_s):
                break
            at_s, number = max(at_s, float(busy.end_s[number])), number + 1
        cursor_s = max(cursor_s, end_s)


class Numbered(Protocol):
    """What numbers communication by its dimension and collective, as spans name them."""

    def number(self, exchange: TracedCollective) -> int:
        """The number, or UNKNOWN."""


class SpanColumns:
    """Columns of spans that are added one by one."""

    def __init__(self) -> None:
        self.columns: dict[str, list[float]] = {name: [] for name in SPAN_COLUMNS}

    def add(self, **values: float) -> None:
        """Adds a span; stage, microbatch and layers are unknown."""
        for name, column in self.columns.items():
            column.append(values.get(name, 0.0 if name.endswith(("_s", "_bytes", "calls")) else -1))


def add_rank(
    index: int, rank: TracedRank, moving: Sequence[Sequence[TracedTransfer]], dimensions: Numbered, to: SpanColumns
) -> None:
    """Adds the spans of a rank. index: its number among the traced ranks. Seconds count from the end of the warm-up step."""
    zero_s = rank.steps.ends_s[0]
    for step, (works, own) in enumerate(zip(rank.steps.works, moving, strict=True), start=1):
        place = {"rank": index, "step": step}
        ordered = [work for work in sorted(works, key=lambda work: work.start_s) if work.exchange is None]
        cursor_s = -np.inf
        for work, phase in zip(ordered, rank.phases.of(ordered), strict=True):
            start_s, end_s = max(work.start_s, cursor_s) - zero_s, work.end_s - zero_s
            if end_s > start_s:
                to.add(**place, stream=Stream.MAIN, phase=phase, arrival_s=start_s, start_s=start_s, end_s=end_s)
                cursor_s = work.end_s
        for piece in exposed(works, own):
            phase, number = _main_phase(piece.transfer), dimensions.number(piece.transfer.exchange)
            arrival_s, end_s = piece.start_s - zero_s, piece.end_s - zero_s
            start_s = min(max(piece.transfer.begin_s - zero_s, arrival_s), end_s)
            times = {"arrival_s": arrival_s, "start_s": start_s, "end_s": end_s}
            to.add(**place, stream=Stream.MAIN, phase=phase, communication=number, **times)
        for transfer in own:
            _add_transfer(to, place, transfer, dimensions, zero_s)


def _add_transfer(
    to: SpanColumns, place: Mapping[str, int], transfer: TracedTransfer, dimensions: Numbered, zero_s: float
) -> None:
    exchange, start_s = transfer.exchange, transfer.begin_s - zero_s
    phase = Phase.SYNCHRONISE if exchange.op != "sendrecv" else _MOVING[transfer.work.way]
    to.add(
        **place, stream=Stream.COMMUNICATION, phase=phase, arrival_s=start_s, start_s=start_s,
        end_s=transfer.work.end_s - zero_s, size_bytes=sent_bytes(exchange), communication=dimensions.number(exchange),
        message_bytes=exchange.size_bytes, calls=1,
    )  # fmt: skip


def sent_bytes(exchange: TracedCollective) -> float:
    """Bytes that a rank sends in a collective by a ring, or in a message."""
    return exchange.size_bytes * (bus_factor(exchange.op, exchange.size) if exchange.op and exchange.size > 1 else 1.0)


def _main_phase(transfer: TracedTransfer) -> Phase:
    """What a rank does that waits for a transfer; for messages of unknown direction it receives."""
    if transfer.key[1].op != "sendrecv":
        return Phase.SYNCHRONISE
    return Phase.SEND if transfer.work.way == "send" else Phase.RECEIVE
