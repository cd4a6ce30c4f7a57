"""Times of a training step from spans: step time, phases, breakdown by cause, and communication."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.csr import in_order
from scaleproof.simulator.run.run import BREAKDOWN, COMMUNICATION_PHASES, COMPUTE_PHASES, Phase, Spans, Stream


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
        return replace(self, phase_s=phase_s, breakdown_s=breakdown_s | {"other": 0.0}, communication_s=communication_s)

    def with_slowest(self, slowest: float) -> StepBreakdown:
        """The times with "compute" split into its mean over the ranks and the waiting for the slowest rank.

        slowest: compute time of the slowest rank, as a multiple of the mean.
        """
        compute_s = self.breakdown_s["compute"]
        parts = {**self.breakdown_s, "compute": compute_s / slowest, "slowest_rank": compute_s - compute_s / slowest}
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
    share = count / count[~servers].sum() * scale
    main = steady.where(steady.stream == Stream.MAIN)
    breakdown = _breakdown_s(main, share[main.rank])
    breakdown["other"] = step_time_s - sum(breakdown.values())
    moving_s = _moving_s(main, steady.where(steady.stream == Stream.COMMUNICATION), share)
    exposed_s = breakdown["exposed_communication"]
    return StepBreakdown(
        ranks=int(count.sum()),
        compute_ranks=int(count[~servers].sum()),
        step_time_s=step_time_s,
        step_times_s=tuple(float(t) for t in np.diff(step_ends_s)),
        phase_s=_phase_s(main, share[main.rank]),
        breakdown_s=breakdown,
        communication_s={"exposed": exposed_s, "hidden": max(0.0, moving_s - exposed_s)},
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


def _moving_s(main: Spans, communication: Spans, share: NDArray[np.float64]) -> float:
    """Mean seconds per step and training rank with transfers in flight, exposed or hidden; overlaps count once.

    share: weight of each rank. Transfers that outlast a rank's last step count at its beginning, where those of the step before
    would be.
    """
    begin_s, end_s = np.full((2, len(share)), np.inf) * [[1.0], [-1.0]]
    np.minimum.at(begin_s, main.rank, main.arrival_s)
    np.maximum.at(end_s, main.rank, main.end_s)
    exchanges = main.where(np.isin(main.phase, COMMUNICATION_PHASES))
    late = communication.where(communication.end_s > end_s[communication.rank])
    earlier_s = (end_s - begin_s)[late.rank]
    rank = np.concatenate([exchanges.rank, communication.rank, late.rank])
    start_s = np.concatenate([exchanges.start_s, communication.start_s, late.start_s - earlier_s])
    stop_s = np.concatenate([exchanges.end_s, communication.end_s, late.end_s - earlier_s])
    moving = TimeIntervals(rank, np.maximum(start_s, begin_s[rank]), np.minimum(stop_s, end_s[rank])).union()
    return float(((moving.end_s - moving.start_s) * share[moving.owner]).sum())


class TimeIntervals(NamedTuple):
    """Time intervals from start to end, each of one owner (a number, zero or more). All arrays have shape (intervals,)."""

    owner: NDArray[np.int64]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]

    def union(self) -> TimeIntervals:
        """The union of each owner's intervals: disjoint intervals that do not touch, sorted by owner and start."""
        keep = self.end_s > self.start_s
        owner = np.concatenate([self.owner[keep]] * 2)
        time_s = np.concatenate([self.start_s[keep], self.end_s[keep]])
        change = np.repeat([1, -1], len(owner) // 2)
        # stable: where one interval ends as another starts, the start stays first, so that they merge
        order = np.argsort(time_s, kind="stable")
        order = order[in_order(owner[order])]
        owner, time_s, change = owner[order], time_s[order], change[order]
        # the changes of each owner add up to zero, so the running sum starts at zero for every owner
        depth = np.cumsum(change)
        begins, ends = (change > 0) & (depth == 1), depth == 0
        return TimeIntervals(owner[begins], time_s[begins], time_s[ends])
