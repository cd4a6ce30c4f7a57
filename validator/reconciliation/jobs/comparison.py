"""Comparison of a job with its prediction: phases by the size of their difference, and communication by collective."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.common.units import format_bytes, format_time_s
from scaleproof.simulator.run.explanation import WAITING
from scaleproof.simulator.run.records import CommunicationPart
from scaleproof.simulator.run.run import Run
from scaleproof.validator.reconciliation.explain import times
from scaleproof.validator.reconciliation.faults import listed
from scaleproof.validator.reconciliation.parts import split

# Differences below this share of the measured step need no sentence.
_NAMED: Final = 0.02
# Parts below this share of the step are rounding errors.
_ROUNDING: Final = 1e-6
# Factor between predicted and moved bytes from which on the job probably runs another strategy.
_OTHER_BYTES: Final = 2.5
# Share by which bytes or rates may differ without being the reason of another time.
_SAME: Final = 0.05
# Communication of unknown dimension.
_OTHER: Final = "other"
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


def with_passes(measured: Run, predicted: Run) -> Run:
    """The measured run; where its trace does not show which kernels are backward passes, with its computation divided into
    forward and backward as predicted, and without spans, which are not."""
    forward, backward = Phase.FORWARD.label, Phase.BACKWARD.label
    ours_s = predicted.phase_s[forward] + predicted.phase_s[backward]
    if not measured.phase_s or measured.phase_s[backward] > 0 or ours_s == 0:
        return measured
    passes_s = measured.phase_s[forward]
    divided = {name: passes_s * predicted.phase_s[name] / ours_s for name in (forward, backward)}
    return replace(measured, phase_s={**measured.phase_s, **divided}, spans=None)


def phases(predicted: Run, measured: Run, slow: Sequence[str] = ()) -> list[PhaseDifference]:
    """Phases of the step, the largest difference first; none if the measured run has no breakdown. slow: ranks that others wait
    for, which explain waits and exposed communication."""
    if not measured.phase_s:
        return []
    parts = {part.name: part for part in split(predicted, measured, None)}
    sides = {name: parts[name] for name in ("forward", "backward", "optimizer", *WAITING)}
    pairs = {name: (part.predicted_s or 0.0, part.measured_s or 0.0) for name, part in sides.items()}
    for name in ("exposed_communication", "other"):
        pairs[name] = (predicted.breakdown_s.get(name, 0.0), measured.breakdown_s.get(name, 0.0))
    least_s = _ROUNDING * measured.step_time_s
    named = {name: pair for name, pair in pairs.items() if max(map(abs, pair)) > least_s}
    found = [PhaseDifference(name, *pair, _words(name, *pair, predicted, measured, slow)) for name, pair in named.items()]
    return sorted(found, key=lambda one: -abs(one.difference_s))


def _words(name: str, predicted_s: float, measured_s: float, predicted: Run, measured: Run, slow: Sequence[str]) -> str:
    """What the difference of a phase suggests."""
    if abs(predicted_s - measured_s) < _NAMED * measured.step_time_s:
        return ""
    change = format_time_s(abs(measured_s - predicted_s))
    head = f"{_PHASES[name]} takes {change} {'longer' if measured_s > predicted_s else 'less'} than predicted"
    if name in ("forward", "backward", "optimizer"):
        reason = f"{times(predicted_s, measured_s)}: check framework, training.precision and recompute, or measure kernels"
        return f"{head}, {reason} (scaleproof calibrate --probe layer)"
    if slow and measured_s > predicted_s and name in ("exposed_communication", "waiting_for_ranks"):
        return f"{head}: ranks wait for {listed(tuple(slow))}"
    if name == "exposed_communication":
        return f"{head}: {_reason(predicted, measured)}"
    reasons = {
        "bubble": "check the schedule, its microbatches and how layers are assigned to stages",
        "waiting_for_ranks": "some ranks are slower than others; describe them in unevenness",
        "waiting_for_server": "servers answer late (scaleproof calibrate --probe update)",
        "waiting_for_input": "batches arrive late; check the data loader, or describe it in input",
        "other": "the device is idle between kernels: launches, data, logging or synchronisation on the host",
    }
    if measured_s < predicted_s:
        return head
    return f"{head}: {reasons[name]}"


def _reason(predicted: Run, measured: Run) -> str:
    """Why communication is exposed for longer or shorter: the collective with the largest difference, and its rate or bytes."""
    pairs = communication(predicted, measured)
    if not pairs:
        return "check the network (scaleproof calibrate --probe collective)"
    ours, theirs = max(pairs, key=lambda pair: abs(pair[0].exposed_s - pair[1].exposed_s))
    if not (ours.time_s and theirs.time_s):
        side = "predicted only: check strategy" if ours.time_s else "measured only: check strategy and training.zero"
        return f"{ours.label} is {side}"
    if _differ(ours.size_bytes, theirs.size_bytes):
        return f"{ours.label} moves {format_bytes(theirs.size_bytes)} where {format_bytes(ours.size_bytes)} were predicted"
    rates = [part.size_bytes / part.time_s for part in (theirs, ours)]
    if _differ(*rates):
        slower, faster = (f"{rate / 1e9:.3g} GB/s" for rate in rates)
        return f"{ours.label} reaches {slower} where {faster} were predicted (scaleproof calibrate --probe collective)"
    hidden = [format_time_s(max(0.0, part.time_s - part.exposed_s)) for part in (theirs, ours)]
    return f"{hidden[0]} of {ours.label} overlap with computation where {hidden[1]} were predicted"


def _differ(one: float, other: float) -> bool:
    """Whether two positive amounts differ so much that it explains a difference in time."""
    return abs(one - other) > _SAME * max(one, other)


def communication(predicted: Run, measured: Run) -> list[tuple[CommunicationPart, CommunicationPart]]:
    """Communication of both sides by dimension and collective, the longest measured first; none if a side does not
    know it."""
    if not (predicted.communication and measured.phase_s):
        return []
    sides = [{part.label: part for part in run.communication} for run in (predicted, measured)]
    none = {
        label: CommunicationPart(part.dimension, part.collective, 0.0, 0.0, 0.0, 0.0)
        for side in sides
        for label, part in side.items()
    }
    pairs = [(sides[0].get(label, part), sides[1].get(label, part)) for label, part in none.items()]
    return sorted(pairs, key=lambda pair: -pair[1].time_s)


def volume_warnings(predicted: Run, measured: Run) -> Iterator[str]:
    """Warnings about a job that communicates much more or less than its scenario implies, by dimension."""
    totals: dict[str, list[float]] = {}
    for pair in communication(predicted, measured):
        if pair[0].dimension != _OTHER:
            total = totals.setdefault(pair[0].dimension, [0.0, 0.0])
            total[:] = [before + part.size_bytes for before, part in zip(total, pair, strict=True)]
    for dimension, (ours, theirs) in totals.items():
        if theirs > _OTHER_BYTES * ours or ours > _OTHER_BYTES * theirs:
            more = "more" if theirs > ours else "less"
            sides = f"{format_bytes(theirs)} a step, far {more} than the {format_bytes(ours)} that the scenario implies"
            cure = "check strategy, training.zero, the model's size, and that whole steps were profiled"
            yield f"{dimension} moves {sides}; {cure}"
