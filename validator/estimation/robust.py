"""Robust statistics of equivalent ranks and of series: levels, deviations, changes, trends and spikes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
# Standard deviation of a normal variable over its median absolute deviation.
_PER_MEDIAN_DEVIATION: Final = 1.4826
# Deviation of values that differ less than timers and clocks do.
LEAST_DEVIATION: Final = 0.004
# A regime has at least this number of values, and differs by at least this share and this number of deviations.
FEWEST: Final = 5
_CHANGE: Final = 0.05
_CLEAR: Final = 6.0
# Spikes are longer than the median by this share, and by this number of deviations.
_SPIKE: Final = 0.2
_SPIKE_DEVIATIONS: Final = 8.0
# Share of the distances between spikes that are multiples of a period, for a period.
_REGULAR: Final = 0.8
_WINDOW: Final = 9


def low_median(values: Values) -> float:
    """The lower median: of two values the smaller one, so that half of all ranks may be slow."""
    return float(np.sort(values)[(len(values) - 1) // 2])


def deviation(values: Values) -> float:
    """Robust standard deviation of values around their lower median, from those below it, which no slow rank widens."""
    middle = low_median(values)
    return _PER_MEDIAN_DEVIATION * float(np.median(middle - values[values <= middle]))


def scatter(values: Values) -> float:
    """Robust standard deviation of values around their median."""
    return _PER_MEDIAN_DEVIATION * float(np.median(np.abs(values - np.median(values)))) if len(values) else 0.0


class Regime(NamedTuple):
    """A stretch of a series: positions [first, last], its median, and its scatter relative to it."""

    first: int
    last: int
    level: float
    scatter: float


def regimes(values: Values, fewest: int = FEWEST) -> list[Regime]:
    """Stretches of positive values between which their level changes, by binary segmentation of the logarithms."""
    logarithms = np.log(values)
    # spikes are no change of level
    smooth = _without_spikes(logarithms)
    edges = sorted(_edges(smooth, 0, len(smooth), fewest))
    parts = zip([0, *edges], [*edges, len(values)], strict=True)
    return [
        Regime(first, end - 1, float(np.exp(np.median(smooth[first:end]))), scatter(smooth[first:end])) for first, end in parts
    ]


def _without_spikes(values: Values) -> Values:
    """The values limited to the neighbourhood of their running median."""
    if len(values) < _WINDOW:
        return values
    padded = np.pad(values, _WINDOW // 2, mode="reflect")
    middle = np.median(np.lib.stride_tricks.sliding_window_view(padded, _WINDOW), axis=-1)
    reach = max(3 * scatter(values - middle), LEAST_DEVIATION)
    limited: Values = np.clip(values, middle - reach, middle + reach)
    return limited


def _edges(values: Values, first: int, end: int, fewest: int) -> list[int]:
    own = values[first:end]
    if len(own) < 2 * fewest:
        return []
    counts = np.arange(1, len(own))
    sums = np.cumsum(own)[:-1]
    # the split that leaves the least sum of squares
    gain = (sums - counts * own.mean()) ** 2 * (1 / counts + 1 / (len(own) - counts))
    allowed = gain[fewest - 1 : len(own) - fewest]
    split = fewest + int(allowed.argmax())
    before, after = own[:split], own[split:]
    noise = max(scatter(before), scatter(after), LEAST_DEVIATION)
    step = abs(float(np.median(after) - np.median(before)))
    clear = _CLEAR * noise * np.sqrt(1 / len(before) + 1 / len(after))
    edge = [first + split] if step > max(np.log1p(_CHANGE), clear, 1.5 * noise) else []
    if not edge and len(own) < 4 * fewest:
        return []
    # a level that returns to what it was is found in one of the parts
    return [*edge, *_edges(values, first, first + split, fewest), *_edges(values, first + split, end, fewest)]


def levels(parts: Sequence[Regime]) -> Values:
    """The level of each position of a series."""
    return np.repeat([part.level for part in parts], [part.last - part.first + 1 for part in parts])


def trend(values: Values, parts: Sequence[Regime]) -> float | None:
    """The steady rise of a series relative to its first value, by the median of slopes (Theil and Sen), if a line describes it
    better than its regimes do; else None."""
    count = len(values)
    if count < 4 * FEWEST:
        return None
    logarithms = _without_spikes(np.log(values))
    thin = np.linspace(0, count - 1, min(count, 300)).astype(int)
    own = logarithms[thin]
    left, right = np.triu_indices(len(thin), 1)
    slopes = (own[right] - own[left]) / (thin[right] - thin[left])
    slope = float(np.median(slopes))
    order = np.sign(own[right] - own[left]).sum()
    n = len(thin)
    # Kendall's test: standard deviation of the number of concordant less discordant pairs
    surely = order / np.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    rise = float(np.expm1(slope * (count - 1)))
    if rise < _CHANGE or surely < _CLEAR:
        return None
    line = own - slope * thin
    steps = np.log(levels(parts))[thin]
    return rise if np.abs(line - np.median(line)).mean() < 1.1 * np.abs(own - steps).mean() else None


class Spikes(NamedTuple):
    """Values far above their level. positions: of the spikes. period: in positions, 0 if irregular. excess: sum above the
    level."""

    positions: NDArray[np.int64]
    period: int
    excess: float


def spikes(values: Values, parts: Sequence[Regime]) -> Spikes | None:
    """The spikes of a series, None without any."""
    level = levels(parts)
    noise = levels([part._replace(level=max(part.scatter, LEAST_DEVIATION)) for part in parts])
    ratio = values / level
    positions = np.flatnonzero(ratio > 1 + np.maximum(_SPIKE, _SPIKE_DEVIATIONS * noise))
    if not len(positions):
        return None
    excess = float((values - level)[positions].sum())
    return Spikes(positions, _period(positions), excess)


def _period(positions: NDArray[np.int64]) -> int:
    """Distance of spikes that come regularly, 0 for others."""
    if len(positions) < 3:
        return 0
    distances = np.diff(positions)
    period = max(1, round(float(np.median(distances))))
    off = np.abs(distances - period * np.round(distances / period))
    return period if period > 1 and np.mean(off <= max(1, period // 10)) >= _REGULAR else 0
