"""Communication of a step by dimension and collective: seconds in flight, exposed and hidden, calls and bytes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.communication import Collective, named
from scaleproof.simulator.common.intervals import Numbers, TimeIntervals, Times
from scaleproof.simulator.common.spans import COMMUNICATION_PHASES, Phase, Spans
from scaleproof.simulator.run.records import CommunicationPart

# What strategies that do not label their communication are reported with.
_OTHER = "other"


class InFlight(NamedTuple):
    """Seconds per step in the mean over training ranks with transfers in flight, exposed or hidden, in intervals of different
    labels. number: of the communication; −1 if it is not known."""

    exposed: Numbers
    exposed_s: Times
    hidden: Numbers
    hidden_times_s: Times

    @property
    def hidden_s(self) -> float:
        """Seconds of all hidden communication."""
        return float(self.hidden_times_s.sum())

    def parts(self, spans: Spans, share: NDArray[np.float64]) -> tuple[CommunicationPart, ...]:
        """The parts by dimension and collective, the most exposed first; empty if the spans have no labels at all.

        spans: of the training ranks. share: weight of each rank in the mean over ranks and steps.
        """
        if not (spans.communication >= 0).any():
            return ()
        counted = np.flatnonzero(_counts(spans) & (spans.calls > 0))
        numbers, weight = spans.communication[counted], share[spans.rank[counted]]
        totals: dict[int, NDArray[np.float64]] = {}
        columns = (
            (numbers, spans.calls[counted] * weight, 0),
            (numbers, spans.message_bytes[counted] * weight, 1),
            (self.hidden, self.hidden_times_s, 2),
            (self.exposed, self.exposed_s, 2),
            (self.exposed, self.exposed_s, 3),
        )
        for named_by, values, place in columns:
            for number, total in enumerate(np.bincount(named_by + 1, values).tolist(), -1):
                totals.setdefault(number, np.zeros(4))[place] += total
        parts = [CommunicationPart(*_names(number), *values.tolist()) for number, values in totals.items() if values.any()]
        return tuple(sorted(parts, key=lambda part: (-part.exposed_s, -part.time_s)))


def _counts(spans: Spans) -> NDArray[np.bool_]:
    """Whether the calls and bytes of spans count: a message counts at its sender, a pull at the worker."""
    pulls = (spans.communication >= 0) & (spans.communication % len(Collective) == Collective.PULL)
    counts: NDArray[np.bool_] = (spans.phase != Phase.RECEIVE) | pulls
    return counts


def _names(number: int) -> tuple[str, str]:
    if number < 0:
        return _OTHER, "communication"
    dimension, collective = named(number)
    return dimension.label, collective.label


def in_flight(main: Spans, communication: Spans, share: NDArray[np.float64]) -> InFlight:
    """Seconds per step with transfers in flight; overlaps count once, for the transfer that started first.

    main, communication: spans of the training ranks on the two streams. share: weight of each rank. Transfers that outlast a
    rank's last step count at its beginning, where those of the step before would be.
    """
    exposed = main.where(np.isin(main.phase, COMMUNICATION_PHASES) & (main.end_s > main.start_s))
    begin_s, end_s = np.full((2, len(share)), np.inf) * [[1.0], [-1.0]]
    np.minimum.at(begin_s, main.rank, main.arrival_s)
    np.maximum.at(end_s, main.rank, main.end_s)
    late = communication.where(communication.end_s > end_s[communication.rank])
    earlier_s = (end_s - begin_s)[late.rank]
    rank = np.concatenate([communication.rank, late.rank])
    start_s = np.concatenate([communication.start_s, late.start_s - earlier_s])
    stop_s = np.concatenate([communication.end_s, late.end_s - earlier_s])
    numbers = np.concatenate([communication.communication, late.communication]).astype(np.int64)
    moving, number = TimeIntervals(rank, np.maximum(start_s, begin_s[rank]), np.minimum(stop_s, end_s[rank])).divided(numbers)
    hidden_s = np.maximum(0.0, moving.end_s - moving.start_s - _covered_s(moving, exposed)) * share[moving.owner]
    exposed_s = (exposed.end_s - exposed.start_s) * share[exposed.rank]
    return InFlight(exposed.communication.astype(np.int64), exposed_s, number, hidden_s)


def _covered_s(intervals: TimeIntervals, exposed: Spans) -> Times:
    """Seconds of each interval during which its rank waits for communication; spans of one rank do not overlap."""
    if not len(exposed) or not len(intervals.owner):
        return np.zeros(len(intervals.owner))
    # the times of all ranks one after another, so that one interpolation serves all
    begin_s = min(exposed.start_s.min(), intervals.start_s.min())
    length_s = max(exposed.end_s.max(), intervals.end_s.max()) - begin_s
    starts_s, ends_s = (exposed.rank * length_s + (time_s - begin_s) for time_s in (exposed.start_s, exposed.end_s))
    order = np.argsort(starts_s, kind="stable")
    knots_s = np.stack([starts_s[order], ends_s[order]], axis=1).ravel()
    before_s = np.repeat(np.cumsum(ends_s[order] - starts_s[order]), 2)
    before_s[::2] -= ends_s[order] - starts_s[order]
    at_start_s, at_end_s = (
        np.interp(intervals.owner * length_s + (time_s - begin_s), knots_s, before_s)
        for time_s in (intervals.start_s, intervals.end_s)
    )
    covered_s: Times = at_end_s - at_start_s
    return covered_s
