"""Detection of two modes among the repetitions of one measurement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from scaleproof.simulator.common.units import format_percent

# Two modes are reported if each has this many of the samples, and their centres are separated by this number of deviations
# within the modes (halves of a normal distribution are separated by 2.7, those of a uniform one 3.5), and by this ratio of
# times.
_FEWEST: Final = 3
_SMALLEST_SHARE: Final = 0.1
_DEVIATIONS: Final = 5.0
_RATIO: Final = 1.15
# Widening for few samples, which may be separated by chance.
_FEW: Final = 8


@dataclass(frozen=True)
class Modes:
    """The two typical times of one measurement, and the share of the longer one."""

    fast_s: float
    slow_s: float
    slow_share: float

    def __str__(self) -> str:
        return (
            f"two modes: {_us(self.fast_s)} us in {format_percent(1 - self.slow_share, 0)} of the repetitions, "
            f"{_us(self.slow_s)} us in {format_percent(self.slow_share, 0)}"
        )


def bimodal(seconds: Sequence[float]) -> Modes | None:
    """The two modes of the samples, or None if they have one, with or without outliers.

    Of all splits of the sorted logarithms in two, the one with the least variance within both parts.
    """
    logs = np.sort(np.log(np.asarray(seconds, dtype=float)))
    count = len(logs)
    fewest = max(_FEWEST, int(np.ceil(_SMALLEST_SHARE * count)))
    if count < 2 * fewest:
        return None
    splits = np.arange(fewest, count - fewest + 1)
    within = [logs[:k].var() * k + logs[k:].var() * (count - k) for k in splits]
    split = int(splits[int(np.argmin(within))])
    deviation = (min(within) / count) ** 0.5
    distance = float(np.mean(logs[split:]) - np.mean(logs[:split]))
    if distance < max(_DEVIATIONS * (1 + _FEW / count) * deviation, np.log(_RATIO)):
        return None
    fast, slow = np.exp(np.median(logs[:split])), np.exp(np.median(logs[split:]))
    return Modes(float(fast), float(slow), (count - split) / count)


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.3g}" if seconds < 1e-3 else f"{seconds * 1e6:,.0f}"
