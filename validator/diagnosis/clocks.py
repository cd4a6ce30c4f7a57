"""Findings from samples of GPUs: clocks that are lower than those of other GPUs, or than before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from scaleproof.simulator.analysis.diagnosis import Finding
from scaleproof.simulator.common.units import format_percent
from scaleproof.validator.calibration.imports.device_samples import FEWEST, DeviceSamples
from scaleproof.validator.diagnosis.places import confidence
from scaleproof.validator.estimation.robust import Regime, deviation, low_median, regimes

_SLOW: Final = 0.05
_FAR: Final = 5.0


class _Clock(NamedTuple):
    """Busy samples of a GPU, and the regime with the lowest clock among them; levels are seconds of a million cycles."""

    samples: DeviceSamples
    busy: Sequence[int]
    slowest: Regime
    fastest: Regime


def diagnose_clocks(devices: Sequence[DeviceSamples]) -> Iterator[Finding]:
    """GPUs with a low clock while they work."""
    clocks = [found for one in devices if (found := _clock(one)) is not None]
    if not clocks:
        return
    levels = np.array([one.slowest.level for one in clocks])
    usual, noise = low_median(levels), max(deviation(np.log(levels)), 0.002)
    for one in clocks:
        # a single GPU is compared with itself, before
        before = min(usual, one.fastest.level) if len(clocks) < FEWEST else usual
        slowdown = one.slowest.level / before - 1
        if slowdown > max(_SLOW, _FAR * noise):
            yield _finding(one, before, confidence(slowdown / noise))


def _clock(one: DeviceSamples) -> _Clock | None:
    busy = [number for number, is_busy in enumerate(one.busy) if is_busy]
    if len(busy) < FEWEST:
        return None
    parts = regimes(1 / np.array([one.clocks_MHz[number] for number in busy]))
    return _Clock(one, busy, max(parts, key=lambda part: part.level), min(parts, key=lambda part: part.level))


def _finding(one: _Clock, before: float, sure: str) -> Finding:
    own = one.busy[one.slowest.first : one.slowest.last + 1]
    reasons = Counter(one.samples.reasons[number] for number in own if one.samples.reasons[number])
    hot = max(one.samples.temperatures[number] for number in own)
    why = ", ".join([*(reason for reason, _ in reasons.most_common(1)), *([f"{hot:.0f} °C"] if hot else [])])
    times = one.samples.times
    since = f"since {times[own[0]]}" if one.slowest.first and times[own[0]] else ""
    if since and one.slowest.last < len(one.busy) - 1:
        since += f" until {times[own[-1]]}"
    host = one.samples.host
    MHz, usual_MHz = 1 / one.slowest.level, 1 / before
    share = 1 - MHz / usual_MHz
    where = f"GPU {one.samples.device} ({host})"
    words = f"{where} runs at {MHz:,.0f} MHz where {usual_MHz:,.0f} MHz are usual{' ' + since if since else ''}"
    costs = f"compute of each step takes up to {format_percent(usual_MHz / MHz - 1)} longer"
    return Finding(
        cause="throttling", words=f"{words}{f' ({why})' if why else ''}: {costs}", share=share, where=where, hosts=(host,),
        device=one.samples.device,
        since=since, confidence="high" if sure == "high" else "medium", source=str(one.samples.path),
    )  # fmt: skip
