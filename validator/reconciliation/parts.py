"""Split of predicted − measured step time into parts that add up to it exactly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from scaleproof.simulator.common.spans import COMMUNICATION_PHASES, COMPUTE_PHASES, Phase
from scaleproof.simulator.run.explanation import WAITING, ErrorPart
from scaleproof.simulator.run.run import Run
from scaleproof.validator.reconciliation.match import MatchedRuns
from scaleproof.validator.reconciliation.tally import Tally

# relative difference up to which volumes are equal, because of partial elements and rounding
_SAME_VOLUME: Final = 0.02


def split(predicted: Run, measured: Run, matched: MatchedRuns | None) -> tuple[ErrorPart, ...]:
    """Parts in the order of GROUPS. Compute is split by phase. Communication is exposed = moving − hidden seconds, with moving
    = bytes × seconds per byte, and is split into volume (more bytes at the predicted rate), rate (other seconds per byte,
    latency included) and overlap (other hidden seconds). Waiting is split by what is waited for. Unmodelled is what is neither
    in the breakdown nor has a counterpart on the other side."""
    alone_s = {} if matched is None else matched.unmatched_s
    parts = [*_compute(predicted, measured, alone_s), *_communication(predicted, measured, matched)]
    for name in WAITING:
        parts.append(_part(name, *(_waiting_s(run, name) for run in (predicted, measured))))
    # the remainder is not in the breakdowns: with it the parts add up
    left_s = predicted.step_time_s - measured.step_time_s - sum(part.difference_s for part in parts)
    sides = (run.breakdown_s.get("other", 0.0) for run in (predicted, measured))
    return (*parts, ErrorPart("unmodelled", left_s, *sides))


def _part(name: str, predicted_s: float, measured_s: float) -> ErrorPart:
    return ErrorPart(name, predicted_s - measured_s, predicted_s, measured_s)


def _waiting_s(run: Run, name: str) -> float:
    """Seconds per step of waiting, by part of the breakdown; waiting for ranks includes waiting for the slowest."""
    slowest_s = run.breakdown_s.get("slowest_rank", 0.0) if name == "waiting_for_ranks" else 0.0
    return run.breakdown_s.get(name, 0.0) + slowest_s


def _compute_share(run: Run) -> float:
    """Share of the time in compute phases in which the mean rank computes; in the rest it waits for the slowest."""
    compute_s, slowest_s = (run.breakdown_s.get(name, 0.0) for name in ("compute", "slowest_rank"))
    return compute_s / (compute_s + slowest_s) if slowest_s > 0 else 1.0


def _compute(predicted: Run, measured: Run, alone_s: Mapping[int, float]) -> list[ErrorPart]:
    """Parts by compute phase, without work that has no counterpart."""
    result = []
    for phase in COMPUTE_PHASES:
        sides = [run.phase_s.get(phase.label, 0.0) * _compute_share(run) for run in (predicted, measured)]
        result.append(ErrorPart(phase.label, sides[0] - sides[1] - alone_s.get(phase, 0.0), *sides))
    return result


def _communication(predicted: Run, measured: Run, matched: MatchedRuns | None) -> list[ErrorPart]:
    hidden_s = [run.communication_s.get("hidden", 0.0) for run in (predicted, measured)]
    predicted_s, measured_s = moving_s(predicted), moving_s(measured)
    alone_s = 0.0 if matched is None else sum(matched.unmatched_s.get(phase, 0.0) for phase in COMMUNICATION_PHASES)
    ratio = 1.0 if matched is None else volume_ratio(matched)
    volume_s = predicted_s * (1 - ratio)
    rate_s = predicted_s * ratio - measured_s - alone_s
    overlap = ErrorPart("overlap", hidden_s[1] - hidden_s[0], *hidden_s)
    return [ErrorPart("volume", volume_s), ErrorPart("rate", rate_s, predicted_s, measured_s), overlap]


def moving_s(run: Run) -> float:
    """Seconds per step and training rank with transfers in flight, exposed or hidden."""
    return run.breakdown_s.get("exposed_communication", 0.0) + run.communication_s.get("hidden", 0.0)


def volume_ratio(matched: MatchedRuns) -> float:
    """Measured over predicted bytes moved; 1 if a side does not record them."""
    ratios, weights_s = [], []
    for phase in COMMUNICATION_PHASES:
        predicted, measured = (_moved_bytes(side, phase) for side in (matched.predicted, matched.measured))
        if predicted > 0 and measured > 0:
            ratios.append(_same_convention(measured / predicted, phase, matched))
            weights_s.append(_busy_s(matched.predicted, phase))
    return float(np.average(ratios, weights=weights_s)) if sum(weights_s) > 0 else 1.0


def _moved_bytes(side: Tally, phase: Phase) -> float:
    """Bytes moved by the mean training rank in a step; messages are recorded on one or both of a rank's streams."""
    own = side.phase == phase
    streams = [side.by_rank(side.size_bytes, own & (side.main == is_main)) for is_main in (True, False)]
    return float((np.maximum(*streams) * side.share).sum())


def _busy_s(side: Tally, phase: Phase) -> float:
    return float((side.doing_s * side.share[side.rank])[side.phase == phase].sum())


def _same_convention(ratio: float, phase: Phase, matched: MatchedRuns) -> float:
    """The ratio with differences of convention removed; unchanged if no convention explains it.

    Measured collectives record their input, predicted ones what a rank sends: over n ranks 2 (n − 1) / n times as much for
    all-reduce, (n − 1) / n for all-gather and reduce-scatter. Predicted messages to equivalent servers are those to one of
    them.
    """
    training = int((matched.measured.share > 0).sum())
    servers = len(matched.measured.share) - training
    groups = [n for n in range(2, training + 1) if training % n == 0] if phase == Phase.SYNCHRONISE else []
    factors = [1.0, *(f * (n - 1) / n for n in groups for f in (1, 2)), *([1 / servers] if servers else [])]
    return 1.0 if any(abs(ratio * factor - 1) < _SAME_VOLUME for factor in factors) else ratio
