"""Times of a training step from spans: step time, phases, breakdown by cause, and communication."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.spans import COMPUTE_PHASES, Phase, Spans, Stream
from scaleproof.simulator.run.communication import in_flight
from scaleproof.simulator.run.records import CommunicationPart
from scaleproof.simulator.run.run import BREAKDOWN


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
