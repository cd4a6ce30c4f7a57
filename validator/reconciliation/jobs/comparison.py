"""Comparison of a job with its prediction: phases by the size of their difference, and the bytes that replicas exchange."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from scaleproof.simulator.common.units import format_bytes, format_time_s
from scaleproof.simulator.run.run import Phase, Run, Stream
from scaleproof.validator.reconciliation.explain import times
from scaleproof.validator.reconciliation.jobs.dimensions import IN_PASSES
from scaleproof.validator.reconciliation.jobs.trace_communication import TracedCommunication
from scaleproof.validator.reconciliation.parts import WAITING, split
from scaleproof.validator.reconciliation.tally import tally

# Differences below this share of the measured step need no sentence.
_NAMED: Final = 0.02
# Parts below this share of the step are rounding errors.
_ROUNDING: Final = 1e-6
# Factor between predicted and moved bytes from which on the job probably runs another strategy.
_OTHER_BYTES: Final = 2.0
_PHASES: Final = {
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "exposed_communication": "exposed communication",
    "bubble": "pipeline bubble",
    "waiting_for_ranks": "waiting for ranks",
    "waiting_for_server": "waiting for servers",
    "waiting_for_input": "waiting for input",
    "other": "idle",
}


@dataclass(frozen=True)
class PhaseDifference:
    """Seconds of a phase in a step on both sides. words: what a large difference suggests; empty for a small one."""

    name: str
    predicted_s: float
    measured_s: float
    words: str = ""

    @property
    def label(self) -> str:
        """The phase's name for people."""
        return _PHASES[self.name]

    @property
    def difference_s(self) -> float:
        """Predicted − measured seconds."""
        return self.predicted_s - self.measured_s

    def plain(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return vars(self) | {"difference_s": self.difference_s}


@dataclass(frozen=True)
class Moved:
    """Bytes that a rank sends in a step, and seconds in which they move, over all collectives of replicas or all messages of a
    pipeline."""

    sent_bytes: float
    transfer_s: float

    @property
    def Bps(self) -> float:
        """Bytes per second; 0 if unknown."""
        return self.sent_bytes / self.transfer_s if self.transfer_s > 0 else 0.0


def phases(predicted: Run, measured: Run) -> list[PhaseDifference]:
    """Phases of the step, the largest difference first; none if the measured run has no breakdown."""
    if not measured.phase_s:
        return []
    parts = {part.name: part for part in split(predicted, measured, None)}
    sides = {name: parts[name] for name in ("forward", "backward", "optimizer", *WAITING)}
    pairs = {name: (part.predicted_s or 0.0, part.measured_s or 0.0) for name, part in sides.items()}
    for name in ("exposed_communication", "other"):
        pairs[name] = (predicted.breakdown_s.get(name, 0.0), measured.breakdown_s.get(name, 0.0))
    least_s = _ROUNDING * measured.step_time_s
    named = {name: pair for name, pair in pairs.items() if max(map(abs, pair)) > least_s}
    found = [PhaseDifference(name, *pair, _words(name, *pair, predicted, measured)) for name, pair in named.items()]
    return sorted(found, key=lambda one: -abs(one.difference_s))


def _words(name: str, predicted_s: float, measured_s: float, predicted: Run, measured: Run) -> str:
    """What the difference of a phase suggests."""
    if abs(predicted_s - measured_s) < _NAMED * measured.step_time_s:
        return ""
    change = format_time_s(abs(measured_s - predicted_s))
    head = f"{_PHASES[name]} takes {change} {'longer' if measured_s > predicted_s else 'less'} than predicted"
    if name in ("forward", "backward", "optimizer"):
        reason = f"{times(predicted_s, measured_s)}: check framework, training.precision and recompute, or measure kernels"
        return f"{head}, {reason} (scaleproof calibrate --probe layer)"
    if name == "exposed_communication":
        return f"{head}: {_rate_words(predicted, measured)}"
    reasons = {
        "bubble": "check the schedule, its microbatches and how layers are assigned to stages",
        "waiting_for_ranks": "ranks that are slower than others make them wait; describe them in unevenness",
        "waiting_for_server": "servers answer later than predicted (scaleproof calibrate --probe update)",
        "waiting_for_input": "batches arrive late; check the data loader, or describe it in input",
        "other": "the device is idle between kernels: launches, data, logging or synchronisation on the host",
    }
    return f"{head}: {reasons[name]}"


def _rate_words(predicted: Run, measured: Run) -> str:
    ours, theirs = replicas_moved(predicted), replicas_moved(measured)
    hidden = [run.communication_s.get("hidden", 0.0) for run in (predicted, measured)]
    if ours is None or theirs is None:
        return "check the network (scaleproof calibrate --probe collective)"
    rates = f"collectives reach {_GBps(theirs.Bps)} where {_GBps(ours.Bps)} were predicted"
    overlap = (
        f"{format_time_s(hidden[1])} of them are hidden behind computation where {format_time_s(hidden[0])} were predicted"
    )
    return f"{rates}, and {overlap}"


def _GBps(rate_Bps: float) -> str:
    return f"{rate_Bps / 1e9:.3g} GB/s"


def replicas_moved(run: Run) -> Moved | None:
    """What the collectives of replicas move in a step, in the mean over ranks; None if the run does not record their bytes."""
    totals = tally(run)
    if totals is None:
        return None
    own = (totals.stream == Stream.COMMUNICATION) & (totals.phase == Phase.SYNCHRONISE)
    share = totals.share[totals.rank[own]]
    moved = Moved(float((totals.size_bytes[own] * share).sum()), float((totals.doing_s[own] * share).sum()))
    return moved if moved.sent_bytes > 0 else None


def volume_warnings(predicted: Run, measured: Run, communication: Sequence[TracedCommunication]) -> Iterator[str]:
    """Warnings about a job that communicates much more or less than its scenario implies."""
    if not measured.phase_s:
        return
    ours, theirs = replicas_moved(predicted), replicas_moved(measured)
    has_unsized = any(part.message_bytes == 0 and part.dimension not in IN_PASSES for part in communication)
    if ours is None or has_unsized:
        return
    moved_bytes = 0.0 if theirs is None else theirs.sent_bytes
    ratio = moved_bytes / ours.sent_bytes
    if not 1 / _OTHER_BYTES <= ratio <= _OTHER_BYTES:
        more = "more" if ratio > 1 else "less"
        sides = f"{format_bytes(moved_bytes)} per rank and step, far {more} than the {format_bytes(ours.sent_bytes)}"
        cure = "check strategy, training.zero, the model's size, and that whole steps were profiled"
        yield f"replicas exchange {sides} that the scenario implies; {cure}"
