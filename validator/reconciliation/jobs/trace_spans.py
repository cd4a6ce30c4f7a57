"""Spans of a rank's traced steps: computation, exposed communication with its waiting for other ranks, and transfers.

A communication kernel runs from when its own rank arrives until the transfer ends, so the kernel of the last rank to arrive is
the shortest: what others are longer is waiting. Clocks of different ranks need not agree for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from scaleproof.simulator.cluster.collectives.algorithms import bus_factor
from scaleproof.simulator.run.breakdown import TimeIntervals
from scaleproof.simulator.run.run import SPAN_COLUMNS, Phase, Stream
from scaleproof.validator.calibration.imports.kineto import DeviceWork, TracedCollective
from scaleproof.validator.reconciliation.jobs.dimensions import IN_PASSES, Dimensions
from scaleproof.validator.reconciliation.jobs.trace_phases import Phases
from scaleproof.validator.reconciliation.jobs.trace_steps import RankSteps

# What identifies calls that may be the same collective on several ranks: step, group, collective, size, and number of the call.
CallKey = tuple[Any, ...]


@dataclass(frozen=True)
class TracedRank:
    """A rank's steps. rank: its number in the job."""

    rank: int
    steps: RankSteps
    phases: Phases


class Transfer(NamedTuple):
    """A call of a collective on one rank. key: the same on all ranks that take part. waiting_s: before the transfer begins."""

    key: CallKey
    work: DeviceWork
    waiting_s: float


class ExposedPiece(NamedTuple):
    """A part of a transfer in which the rank computes nothing."""

    transfer: Transfer
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
            kind = (number, work.exchange, work.is_send)
            counts[kind] = counts.get(kind, 0) + 1
            own.append(((number, work.exchange, counts[kind]), work))
        result.append(own)
    return result


def transfer_times_s(ranks: Sequence[TracedRank]) -> Mapping[CallKey, float]:
    """Seconds of each call without waiting: the shortest over the ranks that take part, and for messages over all calls of the
    same kind, since the ends of a pipeline's messages are seldom both traced. Without the other ranks, all of its time."""
    durations_s: dict[CallKey, list[float]] = {}
    shortest_s: dict[TracedCollective, float] = {}
    for rank in ranks:
        for key, work in (call for step in calls(rank) for call in step):
            duration_s = work.end_s - work.start_s
            durations_s.setdefault(key, []).append(duration_s)
            shortest_s[key[1]] = min(duration_s, shortest_s.get(key[1], duration_s))
    return {
        key: shortest_s[key[1]] if key[1].op == "sendrecv" else min(own) if len(own) <= max(2, key[1].size) else max(own)
        for key, own in durations_s.items()
    }


def transfers(rank: TracedRank, times_s: Mapping[CallKey, float]) -> list[list[Transfer]]:
    """Calls of each step with their waiting."""
    return [
        [Transfer(key, work, max(0.0, work.end_s - work.start_s - times_s[key])) for key, work in own] for own in calls(rank)
    ]


def exposed(works: Sequence[DeviceWork], moving: Sequence[Transfer]) -> Iterator[ExposedPiece]:
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


class SpanColumns:
    """Columns of spans that are added one by one."""

    def __init__(self) -> None:
        self.columns: dict[str, list[float]] = {name: [] for name in SPAN_COLUMNS}

    def add(self, **values: float) -> None:
        """Adds a span; stage and microbatch are unknown."""
        for name, column in self.columns.items():
            column.append(values.get(name, -1 if name in ("stage", "microbatch") else 0.0))


def add_rank(
    index: int, rank: TracedRank, moving: Sequence[Sequence[Transfer]], dimensions: Dimensions, to: SpanColumns
) -> None:
    """Adds the spans of a rank. index: its number among the traced ranks. Seconds count from the end of the warm-up step."""
    zero_s = rank.steps.ends_s[0]
    for step, (works, own) in enumerate(zip(rank.steps.works, moving, strict=True), start=1):
        place = {"rank": index, "step": step}
        ordered = [work for work in sorted(works, key=lambda work: work.start_s) if work.exchange is None]
        phases = rank.phases.of(ordered)
        cursor_s = -np.inf
        for work, phase in zip(ordered, phases, strict=True):
            start_s = max(work.start_s, cursor_s) - zero_s
            if work.end_s - zero_s > start_s:
                _add(to, place, Stream.MAIN, phase, start_s, start_s, work.end_s - zero_s)
                cursor_s = work.end_s
        starts_s = [work.start_s for work in ordered]
        for piece in exposed(works, own):
            transfer, start_s, end_s = piece.transfer, piece.start_s - zero_s, piece.end_s - zero_s
            if _is_in_pass(transfer, dimensions):
                before = int(np.searchsorted(starts_s, piece.start_s, side="right")) - 1
                phase = phases[max(before, 0)] if phases else Phase.FORWARD
                _add(to, place, Stream.MAIN, phase, start_s, start_s, end_s)
            else:
                ready_s = transfer.work.start_s + transfer.waiting_s - zero_s
                _add(to, place, Stream.MAIN, _phase(transfer), start_s, min(max(ready_s, start_s), end_s), end_s)
        for transfer in own:
            if not _is_in_pass(transfer, dimensions):
                start_s, end_s = transfer.work.start_s + transfer.waiting_s - zero_s, transfer.work.end_s - zero_s
                size = sent_bytes(transfer.key[1])
                _add(to, place, Stream.COMMUNICATION, _phase(transfer), start_s, start_s, end_s, size_bytes=size)


def sent_bytes(exchange: TracedCollective) -> float:
    """Bytes that a rank sends in a collective by a ring, or in a message."""
    return exchange.size_bytes * (bus_factor(exchange.op, exchange.size) if exchange.op and exchange.size > 1 else 1.0)


def _add(
    to: SpanColumns, place: Mapping[str, int], stream: Stream, phase: Phase, arrival_s: float, start_s: float, end_s: float,
    size_bytes: float = 0.0,
) -> None:  # fmt: skip
    to.add(**place, stream=stream, phase=phase, arrival_s=arrival_s, start_s=start_s, end_s=end_s, size_bytes=size_bytes)


def _is_in_pass(transfer: Transfer, dimensions: Dimensions) -> bool:
    return dimensions.of(transfer.key[1]) in IN_PASSES


def _phase(transfer: Transfer) -> Phase:
    if transfer.key[1].op != "sendrecv":
        return Phase.SYNCHRONISE
    return Phase.SEND if transfer.work.is_send else Phase.RECEIVE
