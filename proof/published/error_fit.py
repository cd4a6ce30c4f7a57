"""Fit of the model error to errors of published rows, and its check with whole sources left out.

The errors of a family are log-normal around the prediction with a scale that depends on covariates, and ends that are
conformal: such that nine tenths of the rows are inside the interval that quantities of the cluster and the model error give
together. Rows of one source weigh less the more their errors correlate (generalised least squares). Sources are few, and the
next one is a new draw: ends are longer by the ratio of Student's quantile for their number to the normal one. Groups of fewer
than `FEWEST_SOURCES` sources have the ends of all groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster.quantities import DEVIATIONS
from scaleproof.simulator.uncertainty.error_model import ALL, Fit, Slope
from scaleproof.validator.estimation.posterior import student_reach

Amounts = NDArray[np.float64]
Mask = NDArray[np.bool_]
# Which ends have nine tenths of the rows between them: those with a twentieth beyond each; the shortest interval; of few
# sources, the next of which may be like their worst, those with a twentieth of the worst source beyond each.
Ends = Literal["tails", "shortest", "worst"]

# Groups of fewer sources have the ends of all groups.
FEWEST_SOURCES: Final = 8
# Share of the rows that may be beyond both ends, and shares of all rows that may be above.
_BEYOND: Final = 0.1
_TAILS: Final = tuple(np.linspace(0.01, 0.09, 9).tolist())
# Floors: errors below this share count as this when the scale is fitted, and no end is nearer to the prediction.
FLOOR: Final = 0.02
# Ridge on the slopes of covariates: a slope of one on a row in a thousand.
_RIDGE: Final = 1e-3
# Limits of the correlation of errors of one source, and multiples of the scale beyond which errors count as these.
_LEAST_CORRELATED: Final = 0.02
_MOST_CORRELATED: Final = 1.0
_FAR: Final = 3.0
_ROUNDS: Final = 8
_ROUNDING: Final = 1e-9
_DIGITS: Final = 4


class ErrorRow(NamedTuple):
    """One scored row. log_error: natural logarithm of measured over predicted time. deviation: of the logarithm of the time, by
    the quantities of the cluster alone."""

    source: str
    group: str
    log_error: float
    deviation: float
    covariates: Mapping[str, float]


@dataclass(frozen=True)
class Coverage:
    """Rows inside intervals that were fitted without their source.

    inside, width: of each row; width is the natural logarithm of high over low.
    """

    rows: Sequence[ErrorRow]
    inside: Mask
    width: Amounts
    by_source: Mapping[str, float] = field(default_factory=dict)

    @property
    def of_rows(self) -> float:
        """Share of rows inside."""
        return float(self.inside.mean())

    @property
    def of_sources(self) -> float:
        """Mean over sources of the share of rows inside."""
        return float(np.mean(list(self.by_source.values())))


class _Columns:
    """Rows as arrays."""

    def __init__(self, rows: Sequence[ErrorRow], names: Sequence[str]) -> None:
        self.rows, self.names = rows, names
        self.source, self.group = np.array([row.source for row in rows]), np.array([row.group for row in rows])
        self.log_error = np.array([row.log_error for row in rows])
        self.deviation = np.array([row.deviation for row in rows])
        self.covariates = np.array([[row.covariates.get(name, 0.0) for name in names] for row in rows]).reshape(len(rows), -1)

    def take(self, mask: Mask) -> _Columns:
        return _Columns([row for row, taken in zip(self.rows, mask, strict=True) if taken], self.names)

    def by_name(self) -> dict[str, float | Amounts]:
        return {name: self.covariates[:, number] for number, name in enumerate(self.names)}

    @property
    def sources(self) -> int:
        return len(set(self.source.tolist()))


def source_weights(sources: NDArray[np.str_], within: float) -> Amounts:
    """Weights of rows that add up to 1, as generalised least squares has them for rows of a source that correlate.

    within: correlation of the errors of one source: 0 gives equal rows, 1 equal sources.
    """
    _, index, count = np.unique(sources, return_inverse=True, return_counts=True)
    weights = 1 / (1 + (count[index] - 1) * within)
    return np.asarray(weights / weights.sum())


def correlation_within(sources: NDArray[np.str_], errors: Amounts) -> float:
    """Correlation of the errors of rows of one source, by a one-way analysis of variance, within limits."""
    _, index, count = np.unique(sources, return_inverse=True, return_counts=True)
    groups, rows = len(count), len(errors)
    if groups < 2 or rows <= groups:
        return _MOST_CORRELATED
    means = np.bincount(index, errors) / count
    inside = float(((errors - means[index]) ** 2).sum()) / (rows - groups)
    between = float((count * (means - errors.mean()) ** 2).sum()) / (groups - 1)
    size = (rows - float((count**2).sum()) / rows) / (groups - 1)
    common = max(0.0, (between - inside) / size)
    return float(np.clip(common / max(common + inside, 1e-12), _LEAST_CORRELATED, _MOST_CORRELATED))


def fit(rows: Sequence[ErrorRow], names: Sequence[str], floor: float = FLOOR, ends: Ends = "tails") -> Fit:
    """The fit of a family. names: of the covariates. floor: least distance of an end from the prediction, of logarithms."""
    columns = _Columns(rows, names)
    first = _scale_fit(columns, _MOST_CORRELATED)
    scaled = np.clip(columns.log_error / first.scale(columns.by_name()), -_FAR, _FAR)
    within = correlation_within(columns.source, scaled)
    first = _scale_fit(columns, within)
    found = {ALL: _conformal_ends(columns, first, within, floor, ends)}
    for group in sorted(set(columns.group.tolist()) - {ALL}):
        members = columns.take(columns.group == group)
        if members.sources >= FEWEST_SOURCES:
            found[group] = _conformal_ends(members, first, within, floor, ends)
    return Fit(first.deviation, found, first.covariates)


def left_out(
    rows: Sequence[ErrorRow], names: Sequence[str], floor: float = FLOOR, ends: Ends = "tails"
) -> Iterator[tuple[str, Fit]]:
    """Yields each source, and the fit to all others; nothing for a single source."""
    sources = sorted({row.source for row in rows})
    for source in sources if len(sources) > 1 else []:
        yield source, fit([row for row in rows if row.source != source], names, floor, ends)


def coverage(rows: Sequence[ErrorRow], fits: Mapping[str, Fit], default: Fit) -> Coverage:
    """How many rows are inside their intervals. fits: by the source that was left out; default: for sources without one."""
    inside, width = np.zeros(len(rows), dtype=bool), np.zeros(len(rows))
    for index, row in enumerate(rows):
        low, high = interval(row, fits.get(row.source, default))
        inside[index], width[index] = low <= row.log_error <= high, high - low
    by_source = {name: inside[[row.source == name for row in rows]].mean() for name in sorted({row.source for row in rows})}
    return Coverage(rows, inside, width, {name: float(share) for name, share in by_source.items()})


def interval(row: ErrorRow, fitted: Fit) -> tuple[float, float]:
    """The 90 % interval of a row's log error: of quantities and model error together."""
    below, above = fitted.log_ends(row.group, row.covariates)
    low, high = _total(np.asarray(row.deviation), below, above)
    return float(low), float(high)


def _total(deviation: Amounts, below: Amounts, above: Amounts) -> tuple[Amounts, Amounts]:
    """Ends of the interval of two independent log-normal errors, the second with these ends."""
    middle, half = (below + above) / 2, (above - below) / 2
    reach = np.hypot(DEVIATIONS * deviation, half)
    return middle - reach, middle + reach


def _scale_fit(columns: _Columns, within: float) -> Fit:
    """The scale of the errors, log-linear in the covariates; errors do not shrink with any of them."""
    size, weights = np.log(np.hypot(columns.log_error, FLOOR)), source_weights(columns.source, within)
    used = list(range(len(columns.names)))
    while True:
        design = np.column_stack([np.ones(len(size)), columns.covariates[:, used]])
        ridge = _RIDGE * np.diag([0.0] + [1.0] * len(used))
        found = np.linalg.solve(design.T @ (design * weights[:, None]) + ridge, design.T @ (weights * size))
        growing = [number for number, slope in zip(used, found[1:], strict=True) if slope > 0]
        if len(growing) == len(used):
            break
        used = growing
    slopes = {
        columns.names[number]: Slope(
            _rounded(slope), _rounded(columns.covariates[:, number].min()), _rounded(columns.covariates[:, number].max())
        )
        for number, slope in zip(used, found[1:], strict=True)
    }
    return Fit(_rounded(math.exp(found[0])), {ALL: (1.0, 1.0)}, slopes)


def _conformal_ends(columns: _Columns, scale: Fit, within: float, floor: float, ends: Ends) -> tuple[float, float]:
    """Ends of a group in multiples of the scale, times Student's factor for the number of sources."""
    weights, half = source_weights(columns.source, within), _BEYOND / 2
    if ends == "shortest":
        found = min((_ends(columns, scale, weights, floor, tail) for tail in _TAILS), key=sum)
    elif ends == "worst":
        sources = [columns.take(columns.source == name) for name in sorted(set(columns.source.tolist()))]
        own = [_ends(one, scale, source_weights(one.source, 0.0), floor, half) for one in sources]
        found = max(below for below, _ in own), max(above for _, above in own)
    else:
        found = _ends(columns, scale, weights, floor, half)
    below, above = (_rounded(end * student_factor(columns.sources)) for end in found)
    return below, above


def _ends(columns: _Columns, scale: Fit, weights: Amounts, floor: float, tail: float) -> tuple[float, float]:
    """Ends in multiples of the scale with a weight of rows of at most `tail` above, and of the rest of a tenth below."""
    scales = scale.scale(columns.by_name()) * np.ones(len(weights))
    errors, reach = columns.log_error, DEVIATIONS * columns.deviation
    below = above = least = floor / scale.deviation
    for _ in range(_ROUNDS):
        above = max(least, _quantile(_needed(errors, reach, below * scales) / scales, weights, tail))
        below = max(least, _quantile(_needed(-errors, reach, above * scales) / scales, weights, _BEYOND - tail))
    return below, above


def _needed(errors: Amounts, reach: Amounts, other: Amounts) -> Amounts:
    """The end of the model error with which the total interval ends at an error: (error - end) (error + other end) = reach²."""
    far = errors + other
    return np.where(far > 0, errors - reach**2 / np.where(far > 0, far, 1.0), -np.inf)


def _quantile(values: Amounts, weights: Amounts, tail: float) -> float:
    """The smallest of the values beyond which there is a weight of at most `tail`."""
    order = np.argsort(-values)
    return float(values[order][np.searchsorted(np.cumsum(weights[order]), tail + _ROUNDING)])


def student_factor(sources: int) -> float:
    """Ratio of the 90 % interval of a new source, given some others, to that of infinitely many: Student's distribution of the
    prediction of one more draw. At least two sources count, since one says nothing about their differences."""
    degrees = max(sources, 2) - 1
    return student_reach(degrees) * math.sqrt(1 + 1 / (degrees + 1)) / DEVIATIONS


def _rounded(value: float) -> float:
    return float(f"{float(value):.{_DIGITS}g}")
