"""Times of a training step from spans: step time, phases, breakdown by cause, and communication."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.communication import UNKNOWN, Collective, Dimension, named
from scaleproof.simulator.common.spans import (
    COMMUNICATION_PHASES,
    COMPUTE_PHASES,
    Numbers,
    Phase,
    Spans,
    Stream,
    TimeIntervals,
    Times,
)
from scaleproof.simulator.run.records import CommunicationPart
from scaleproof.simulator.run.run import BREAKDOWN

# What strategies that do not label their communication are reported with.
_OTHER: Final = "other"


@dataclass(frozen=True)
class StepBreakdown:
    """Times of a training step, with the ranks and spans that they are of. All fields are those of `Run`."""

    ranks: int
    compute_ranks: int
    step_time_s: float
    step_times_s: tuple[float, ...]
    phase_s: Mapping[str, float]
    breakdown_s: Mapping[str, float]
    communication_s: Mapping[str, float]
    communication: tuple[CommunicationPart, ...]
    spans: Spans
    step_time_interval_s: tuple[float, float] | None = None

    def divided(self, count: float) -> StepBreakdown:
        """Times per training step, if each of these steps consists of `count` training steps."""
        interval_s = self.step_time_interval_s
        return replace(
            self,
            step_time_s=self.step_time_s / count,
            step_times_s=tuple(seconds / count for seconds in self.step_times_s),
            phase_s=_divided(self.phase_s, count),
            breakdown_s=_divided(self.breakdown_s, count),
            communication_s=_divided(self.communication_s, count),
            communication=tuple(part.divided(count) for part in self.communication),
            step_time_interval_s=interval_s and (interval_s[0] / count, interval_s[1] / count),
        )

    def scaled_to_step(self) -> StepBreakdown:
        """The times with parts scaled so that they add up to the step time, since the steps of one rank differ slightly from
        those of all ranks."""
        known_s = self.step_time_s - self.breakdown_s["other"]
        if known_s <= 0:
            return replace(self, breakdown_s={**self.breakdown_s, "other": self.step_time_s})
        phase_s, breakdown_s, communication_s = (
            {name: seconds * self.step_time_s / known_s for name, seconds in parts_s.items()}
            for parts_s in (self.phase_s, self.breakdown_s, self.communication_s)
        )
        communication = tuple(part.scaled(self.step_time_s / known_s) for part in self.communication)
        return replace(
            self, phase_s=phase_s, breakdown_s=breakdown_s | {"other": 0.0}, communication_s=communication_s,
            communication=communication,
        )  # fmt: skip

    def with_slowest(self, slowest_pass: float, slowest_update: float) -> StepBreakdown:
        """The times with "compute" split into its mean over the ranks and the waiting for the slowest rank.

        slowest_pass, slowest_update: times of the passes and of the optimizer's step on the slowest rank, as multiples of the
        means.
        """
        compute_s = self.breakdown_s["compute"]
        update_s = min(self.phase_s.get("optimizer", 0.0), compute_s)
        mean_s = (compute_s - update_s) / slowest_pass + update_s / slowest_update
        parts = {**self.breakdown_s, "compute": mean_s, "slowest_rank": compute_s - mean_s}
        return replace(self, breakdown_s={name: parts[name] for name in BREAKDOWN})


def _divided(times_s: Mapping[str, float], count: float) -> dict[str, float]:
    return {name: seconds / count for name, seconds in times_s.items()}


def from_spans(
    spans: Spans,
    step_ends_s: NDArray[np.float64],
    *,
    servers: NDArray[np.bool_],
    multiplicity: NDArray[np.int64] | None = None,
    elapsed_s: NDArray[np.float64] | None = None,
    mean: bool = False,
) -> StepBreakdown:
    """Times of a training step from spans of steady steps.

    step_ends_s: end of each step on the last rank; the first entry is the end of the step before the first steady one, so that
    steps 1, 2, … of the spans lie between consecutive entries (spans of step 0 are ignored).
    servers: whether each rank of the spans is a server. multiplicity: number of ranks that each rank of the spans represents; 1
    if None. elapsed_s: duration of the steps on each rank; that of all ranks if None. mean: whether the step time is the mean
    over all steps, where some are long for a reason, instead of the slope, which ignores outliers.
    """
    count = np.ones(len(servers), dtype=np.int64) if multiplicity is None else multiplicity
    step_time_s = float(np.diff(step_ends_s).mean()) if mean else slope(step_ends_s)
    steady = spans.where((spans.step >= 1) & ~servers[spans.rank])
    # measured steps vary, so that the parts are scaled to the step time
    total_s = np.full(len(servers), step_ends_s[-1] - step_ends_s[0]) if elapsed_s is None else elapsed_s
    scale = np.divide(step_time_s, total_s, out=np.full(len(servers), 1 / (len(step_ends_s) - 1)), where=total_s > 0)
    share_of_ranks = count / count[~servers].sum()
    share = share_of_ranks * scale
    main = steady.where(steady.stream == Stream.MAIN)
    breakdown = _breakdown_s(main, share[main.rank])
    breakdown["other"] = step_time_s - sum(breakdown.values())
    communication = in_flight(main, steady.where(steady.stream == Stream.COMMUNICATION), share)
    return StepBreakdown(
        ranks=int(count.sum()),
        compute_ranks=int(count[~servers].sum()),
        step_time_s=step_time_s,
        step_times_s=tuple(float(t) for t in np.diff(step_ends_s)),
        phase_s=_phase_s(main, share[main.rank]),
        breakdown_s=breakdown,
        communication_s={"exposed": breakdown["exposed_communication"], "hidden": communication.hidden_s},
        communication=communication.parts(steady, share_of_ranks / (len(step_ends_s) - 1)),
        spans=spans,
    )


def slope(ends_s: NDArray[np.float64]) -> float:
    """Seconds per step: the median slope of the step ends over windows of two steps.

    It is robust against single slow steps, and the mean of alternating long and short steps.
    """
    return float(slopes(ends_s))


def slopes(ends_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Seconds per step, as by `slope`, of several series of step ends along the last axis."""
    window = min(2, ends_s.shape[-1] - 1)
    return np.asarray(np.median(ends_s[..., window:] - ends_s[..., :-window], axis=-1) / window)


def _phase_s(main: Spans, share: NDArray[np.float64]) -> dict[str, float]:
    """Mean seconds per step and training rank in each phase, waiting included."""
    total = np.bincount(main.phase, weights=(main.end_s - main.arrival_s) * share, minlength=len(Phase))
    return {phase.label: float(total[phase]) for phase in Phase}


def _breakdown_s(main: Spans, share: NDArray[np.float64]) -> dict[str, float]:
    """Mean seconds per step and training rank by cause: compute, exposed communication, and waiting by what is waited for."""
    doing, waiting = (main.end_s - main.start_s) * share, (main.start_s - main.arrival_s) * share
    compute = np.isin(main.phase, COMPUTE_PHASES)
    peers = np.isin(main.phase, (Phase.SEND, Phase.RECEIVE))
    server, ranks = main.phase == Phase.WAIT, main.phase == Phase.SYNCHRONISE
    parts = {
        "compute": doing[compute].sum(),
        # not visible in spans; predictions split it from compute
        "slowest_rank": 0.0,
        "exposed_communication": doing[peers | ranks].sum(),
        "bubble": waiting[peers].sum(),
        "waiting_for_server": (doing + waiting)[server].sum(),
        "waiting_for_ranks": waiting[ranks].sum(),
        "waiting_for_input": (doing + waiting)[main.phase == Phase.INPUT].sum(),
    }
    return {name: float(value) for name, value in parts.items()}


class StepTransfers(NamedTuple):
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

        def total(numbers: NDArray[np.integer], values: Times) -> Times:
            """The sum of the values of each number, from that of unknown communication on."""
            return np.bincount(numbers + 1, values, 1 + len(Dimension) * len(Collective)).astype(np.float64)

        calls, size_bytes = (total(numbers, column[counted] * weight) for column in (spans.calls, spans.message_bytes))
        exposed_s = total(self.exposed, self.exposed_s)
        time_s = total(self.hidden, self.hidden_times_s) + exposed_s
        columns = np.stack([calls, size_bytes, time_s, exposed_s], axis=1).tolist()
        parts = [CommunicationPart(*_names(number), *values) for number, values in enumerate(columns, UNKNOWN) if any(values)]
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


def in_flight(main: Spans, communication: Spans, share: NDArray[np.float64]) -> StepTransfers:
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
    return StepTransfers(exposed.communication.astype(np.int64), exposed_s, number, hidden_s)


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
