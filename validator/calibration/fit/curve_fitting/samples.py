"""What repetitions of one measurement tell beside their median: whether they fall into two modes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

# Two modes are named where each holds so many of the samples, and their centers lie so far apart: in deviations within the
# modes (halves of one bell lie 2.7 apart, of an even spread 3.5), and as a ratio of times.
_FEWEST: Final = 3
_SMALLEST_SHARE: Final = 0.1
_DEVIATIONS_APART: Final = 5.0
_TIMES_APART: Final = 1.15
# Few samples of one crowd may happen to lie further apart.
_FEW: Final = 8


@dataclass(frozen=True)
class Modes:
    """Two times that one thing takes, and how often the longer one."""

    fast_s: float
    slow_s: float
    slow_share: float

    def __str__(self) -> str:
        return (
            f"two modes: {_us(self.fast_s)} us in {1 - self.slow_share:.0%} of the repetitions, "
            f"{_us(self.slow_s)} us in {self.slow_share:.0%}"
        ).replace("%", " %")


def bimodal(seconds: Sequence[float]) -> Modes | None:
    """The two modes that samples fall into, or None where they are one crowd, strays or not.

    Of all ways to split the sorted logarithms in two, the one with the least spread within both parts.
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
    apart = float(np.mean(logs[split:]) - np.mean(logs[:split]))
    if apart < max(_DEVIATIONS_APART * (1 + _FEW / count) * deviation, np.log(_TIMES_APART)):
        return None
    fast, slow = np.exp(np.median(logs[:split])), np.exp(np.median(logs[split:]))
    return Modes(float(fast), float(slow), (count - split) / count)


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.3g}" if seconds < 1e-3 else f"{seconds * 1e6:,.0f}"
