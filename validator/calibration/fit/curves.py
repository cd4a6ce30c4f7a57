"""Curves through measured times by size: latency, seconds per byte and overhead, with intervals and outliers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from scaleproof.simulator.cluster.quantities import DEVIATIONS
from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.calibration.fit.choice import MODELS, choose
from scaleproof.validator.calibration.fit.shapes import NOISE, MeasuredRows, Segment, Shape
from scaleproof.validator.estimation.lines import straight_line
from scaleproof.validator.estimation.posterior import Array, Mask, fit_model, refitted, robust_deviation, student_reach

Samples = Sequence[Sequence[float]]
Bounds = tuple[float, float]

_FEWEST_SIZES: Final = 3
# Outliers are further off than noise explains; at most this share of the points is left out.
_OUTLIER_DEVIATIONS: Final = 5.0
_OUTLIER_ERROR: Final = 0.10
_OUTLIER_SHARE: Final = 0.25
_RESAMPLES: Final = 200
_STEPS: Final = 3
_SEED: Final = 7
_PERCENTILES: Final = (5, 95)
_NEARLY_NOTHING: Final = 1e-3
# Bound of the logarithm of a coefficient over its start: a millionth of the start is as good as zero.
_REACH: Final = 14.0


@dataclass(frozen=True, order=True)
class Outlier:
    """A point that the fit leaves out."""

    index: int
    why: str


@dataclass(frozen=True)
class FittedCurve:
    """A fitted curve: a message of k bytes takes latency_s + max(overhead_s, k · seconds_per_byte), or the time of its segment.

    latency_s: of the smallest messages. seconds_per_byte: of the largest. Intervals contain the truth with a probability of 90
    %. scatter: standard deviation of relative errors. held_out: by model, the mean relative error on held-out sizes. outliers:
    points that were left out. measurements: number of repetitions.
    """

    model: str
    latency_s: float
    seconds_per_byte: float
    overhead_s: float
    segments: tuple[Segment, ...]
    latency_interval_s: Bounds
    seconds_per_byte_interval: Bounds
    overhead_interval_s: Bounds
    scatter: float
    held_out: Mapping[str, float]
    outliers: tuple[Outlier, ...]
    measurements: int
    shape: Shape = field(repr=False)
    coefficients: tuple[float, ...] = field(repr=False)

    def at(self, size_bytes: float) -> float:
        """Seconds of one message."""
        row = MeasuredRows(np.zeros(1, dtype=np.int64), np.array([float(size_bytes)]), np.ones(1), np.zeros(1, dtype=bool))
        return math.exp(self.shape.model(row)(np.log(self.coefficients))[0][0])


def fit_curve(
    sizes: Sequence[float],
    seconds: Samples,
    models: Iterable[str] = MODELS,
    *,
    gaps: Samples = (),
    what: str = "messages",
) -> FittedCurve:
    """The curve through the medians of each size's repetitions, of the model that errs least on held-out sizes.

    gaps: per size, seconds from one message to the next in a stream that does not wait, where measured; an overhead (LogGP)
    shows in them. A size may occur several times. Raises InputError for too few sizes, and for invalid sizes or times.
    """
    _check(sizes, seconds, gaps, what)
    measured = _MedianRows(sizes, seconds, gaps)
    rows = measured.rows
    if (count := len(np.unique(rows.sizes[~rows.streamed]))) < _FEWEST_SIZES:
        raise InputError(f"{what}: {_sizes(count)} too few to fit; give {_FEWEST_SIZES}")
    chosen, held_out = choose(rows, tuple(models), what)
    return _fitted(chosen.model, chosen.shape, held_out, measured)


def _fitted(model: str, shape: Shape, held_out: Mapping[str, float], measured: _MedianRows) -> FittedCurve:
    rows = measured.rows
    logs = _solved(shape, rows, shape.start(rows))
    kept, outliers = _without_outliers(shape, logs, rows)
    if outliers:
        logs = _solved(shape, rows.chosen(kept), logs)
    found, ends = np.exp(logs), _intervals(shape, logs, measured, kept)
    last = 2 * shape.protocols - 1
    return FittedCurve(
        model=model,
        latency_s=float(found[0]),
        seconds_per_byte=float(found[last]),
        overhead_s=float(found[-1]) if shape.has_overhead else 0.0,
        segments=shape.segments(found),
        latency_interval_s=ends[0],
        seconds_per_byte_interval=ends[last],
        overhead_interval_s=ends[-1] if shape.has_overhead else (0.0, 0.0),
        scatter=_scatter(shape, logs, rows.chosen(kept)),
        held_out=held_out,
        outliers=outliers + measured.empty,
        measurements=sum(len(repetitions) for repetitions in measured.samples),
        shape=shape,
        coefficients=tuple(found.tolist()),
    )


def _solved(shape: Shape, rows: MeasuredRows, start: Array) -> Array:
    """Logarithms of the coefficients that bring the curve closest to the measured seconds."""
    bounds = (start - _REACH, start + _REACH)
    return fit_model(shape.model(rows), np.log(rows.seconds), start, NOISE, bounds=bounds).values


def _errors(shape: Shape, logs: Array, rows: MeasuredRows) -> Array:
    """Logarithms of measured over fitted seconds."""
    return np.asarray(np.log(rows.seconds) - shape.model(rows)(logs)[0])


def _scatter(shape: Shape, logs: Array, rows: MeasuredRows) -> float:
    errors = _errors(shape, logs, rows)
    return math.sqrt(float((errors**2).sum()) / max(1, len(errors) - shape.coefficients))


class _MedianRows:
    """Rows of medians with their repetitions, sorted independently of the order in which points are given."""

    def __init__(self, sizes: Sequence[float], seconds: Samples, gaps: Samples) -> None:
        every = [(size, False, sorted(s), i) for i, (size, s) in enumerate(zip(sizes, seconds, strict=True))]
        self.empty = tuple(Outlier(i, "nothing was measured") for _, _, s, i in every if not s)
        every += [(size, True, sorted(s), i) for i, (size, s) in enumerate(zip(sizes, gaps, strict=False))]
        every = sorted(row for row in every if row[2])
        self.samples = [np.array(s) for _, _, s, _ in every]
        self.rows = MeasuredRows(
            np.array([i for *_, i in every], dtype=np.int64),
            np.array([size for size, *_ in every], dtype=float),
            np.array([np.median(s) for s in self.samples]),
            np.array([streamed for _, streamed, *_ in every], dtype=bool),
        )


def _check(sizes: Sequence[float], seconds: Samples, gaps: Samples, what: str) -> None:
    if len(sizes) != len(seconds) or (gaps and len(gaps) != len(sizes)):
        raise InputError(f"{what}: {len(sizes)} sizes for {len(seconds)} times; give one list of times per size")
    for size in sizes:
        if not 0 < size < np.inf:
            raise InputError(f"{what}: {size:g} is not a valid size; remove it")
    for size, repetitions in [*zip(sizes, seconds, strict=True), *zip(sizes, gaps, strict=False)]:
        for time_s in repetitions:
            if not 0 < time_s < np.inf:
                raise InputError(f"{what}: {time_s:g} s at size {size:g} is not a valid time; remove it")


def _sizes(count: int) -> str:
    return "1 size is" if count == 1 else f"{count} sizes are"


def _without_outliers(shape: Shape, logs: Array, rows: MeasuredRows) -> tuple[Mask, tuple[Outlier, ...]]:
    """Mask of the rows to keep, and the outliers: points that are further off than noise explains."""
    errors = _errors(shape, logs, rows)
    is_outlier = np.abs(errors) > max(_OUTLIER_ERROR, _OUTLIER_DEVIATIONS * robust_deviation(errors))
    most = min(int(_OUTLIER_SHARE * len(errors)), len(errors) - shape.coefficients - 1)
    worst = [int(i) for i in np.argsort(-np.abs(errors), kind="stable")[: max(0, most)] if is_outlier[i]]
    kept = np.ones(len(errors), dtype=bool)
    kept[worst] = False
    if len(np.unique(rows.sizes[kept & ~rows.streamed])) < _FEWEST_SIZES:
        return np.ones(len(errors), dtype=bool), ()
    prefix = {False: "", True: "streamed "}
    outliers = [
        Outlier(int(rows.points[i]), f"{prefix[bool(rows.streamed[i])]}takes {np.exp(errors[i]):.2f} times as long as the fit")
        for i in worst
    ]
    return kept, tuple(sorted(outliers))


def _intervals(shape: Shape, logs: Array, measured: _MedianRows, kept: Mask) -> list[Bounds]:
    """Interval of each coefficient, by a bootstrap over sizes and over each size's repetitions.

    Sizes are weighted at random instead of drawn, so that the only small size always remains (Rubin, "The Bayesian Bootstrap",
    Annals of Statistics 9, 1981).
    """
    random = np.random.default_rng(_SEED)
    rows = measured.rows.chosen(kept)
    samples = [s for s, keep in zip(measured.samples, kept, strict=True) if keep]
    medians = np.stack([np.median(s[random.integers(0, len(s), (_RESAMPLES, len(s)))], axis=1) for s in samples], 1)
    sizes, size_of_row = np.unique(rows.sizes, return_inverse=True)
    weights = random.dirichlet(np.ones(len(sizes)), _RESAMPLES)[:, size_of_row] * len(sizes)
    resampled = refitted(shape.model(rows), np.log(medians), weights, logs, NOISE, _STEPS)
    wider, found = _wider(len(sizes) / shape.coefficients), np.exp(logs)
    low, high = np.percentile(resampled - logs, _PERCENTILES, axis=0) * wider
    noise = _noise(shape, logs, rows) * wider
    lowest = np.minimum(found * np.exp(low), np.maximum(found - noise, found * _NEARLY_NOTHING))
    ends = zip(lowest, np.maximum(found * np.exp(high), found + noise), strict=True)
    return [(float(low_s), float(high_s)) for low_s, high_s in ends]


def _noise(shape: Shape, logs: Array, rows: MeasuredRows) -> Array:
    """Change of each coefficient that stays within the scatter if the others are known.

    No interval is narrower. Otherwise a coefficient that contributes almost nothing would look well known, because it
    contributes almost nothing to the resamples either.
    """
    sensitivity = np.sqrt((shape.model(rows)(logs)[1] ** 2).sum(0))
    return np.asarray(DEVIATIONS * _scatter(shape, logs, rows) * np.exp(logs) / np.maximum(sensitivity, _NEARLY_NOTHING))


def _wider(sizes: float) -> float:
    """Factor by which few sizes per coefficient understate the interval: Student's factor, and that of the deviation."""
    free = max(1.0, sizes - 1)
    return student_reach(free) / DEVIATIONS * math.sqrt(1 + 1 / free)


def pieces(fitted: FittedCurve, sizes: Sequence[float], least_slope: float = 0.0) -> tuple[Segment, ...]:
    """Line of each protocol, the first from 0 bytes on, the others from the smallest of their `sizes` on.

    sizes: to which the curve was fitted. If messages are faster below a break than above it, the line above would have a
    negative latency; it is replaced by the closest line to the curve at its sizes that has not. least_slope: lower bound for
    the last line.
    """
    starts = [segment.from_bytes for segment in fitted.segments]
    segments: list[Segment] = []
    for start, end in zip(starts, [*starts[1:], max(sizes)], strict=True):
        own = sorted({size for size in sizes if start < size <= end})
        least = least_slope if start == starts[-1] else 0.0
        latency_s, per_byte_s = straight_line(own, [fitted.at(size) for size in own], least_slope=least)
        segments.append(Segment(own[0] if segments else 0.0, latency_s, per_byte_s))
    return tuple(segments)


def piece_at(segments: Sequence[Segment], size_bytes: float) -> Segment:
    """The segment of `pieces` for a size: the last that starts at or below it."""
    return next(piece for piece in reversed(segments) if piece.from_bytes <= size_bytes)
