"""Fit of the errors that two predictions for one system have in common, and the calibration curve of their comparison.

A pair is two published rows of one source, device and number of GPUs. Its difference of log errors says how much of their model
errors is common, by how similar they are; a share of pairs is reversed however large the predicted difference is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.proof.published.error_fit import ErrorRow, source_weights
from scaleproof.simulator.cluster.quantities import DEVIATIONS
from scaleproof.simulator.uncertainty.error_model import Fit, PairFit
from scaleproof.simulator.uncertainty.pairwise import with_reversals

Amounts = NDArray[np.float64]
Numbers = NDArray[np.int64]

# Pairs of one source and similarity; of more, every second, third and so on.
_MOST_PAIRS: Final = 20_000
# Share of differences within one standard deviation.
_WITHIN: Final = 0.6827
# Correlation of pairs of one source, for their weights: a source counts as fifty pairs at most.
_CORRELATED: Final = 0.02
_MOST_SHARED: Final = 0.95
_REVERSED: Final = np.arange(0.0, 0.2001, 0.0025)
_BINS: Final = 10
_SIMILAR: Final = ("same degrees", "other degrees", "other model")
_NORMAL: Final = NormalDist()


class Configuration(NamedTuple):
    """A row as one side of a pair. system: device and number of GPUs. times_s: predicted and measured seconds."""

    row: ErrorRow
    model: str
    system: tuple[str, str]
    degrees: tuple[str | int, ...]
    predicted_s: float
    measured_s: float


class Pairs(NamedTuple):
    """Pairs of configurations as columns. similarity: index in the names of similarities. log_predicted, log_measured: natural
    logarithm of the second time over the first."""

    first: Numbers
    second: Numbers
    source: NDArray[np.str_]
    similarity: Numbers
    log_predicted: Amounts
    log_measured: Amounts

    def where(self, mask: NDArray[np.bool_]) -> Pairs:
        """Some of the pairs."""
        columns: tuple[Any, ...] = tuple(column[mask] for column in self)
        return Pairs(*columns)


class CurvePoint(NamedTuple):
    """One bin of the calibration curve: mean predicted probability of the one ahead, the share of pairs in which it was ahead,
    the mean of that over sources, and the number of pairs."""

    predicted: float
    came_true: float
    of_sources: float
    pairs: int


def pairs_of(configurations: Sequence[Configuration]) -> Pairs:
    """All pairs of configurations of one source, device and number of GPUs whose measured times differ."""
    systems: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for index, one in enumerate(configurations):
        systems[one.row.source, *one.system].append(index)
    found: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for members in systems.values():
        for position, a in enumerate(members):
            for b in members[position + 1 :]:
                key = configurations[a].row.source, _similarity(configurations[a], configurations[b])
                if configurations[a].measured_s != configurations[b].measured_s:
                    found[key].append((a, b))
    chosen = [
        (a, b, source, kind) for (source, kind), all_of in found.items() for a, b in all_of[:: 1 + len(all_of) // _MOST_PAIRS]
    ]
    first, second = (np.array([pair[side] for pair in chosen], dtype=np.int64) for side in (0, 1))
    logs = (np.log([getattr(one, name) for one in configurations]) for name in ("predicted_s", "measured_s"))
    ratios = [log[second] - log[first] for log in logs]
    source, kind = np.array([pair[2] for pair in chosen]), np.array([pair[3] for pair in chosen], dtype=np.int64)
    return Pairs(first, second, source, kind, *ratios)


def _similarity(a: Configuration, b: Configuration) -> int:
    if a.model != b.model:
        return _SIMILAR.index("other model")
    return _SIMILAR.index("same degrees" if a.degrees == b.degrees else "other degrees")


def shared_errors(pairs: Pairs, configurations: Sequence[Configuration], fitted: Fit) -> dict[str, float]:
    """Share of the variance of the model error that pairs have in common, by how similar they are."""
    deviations = _deviations(configurations, fitted)
    errors, reach = pairs.log_measured - pairs.log_predicted, np.hypot(deviations[pairs.first], deviations[pairs.second])
    shared = {}
    for kind, name in enumerate(_SIMILAR):
        members = pairs.similarity == kind
        if members.any():
            within = _quantile(np.abs(errors[members]) / reach[members], source_weights(pairs.source[members], _CORRELATED))
            shared[name] = round(float(np.clip(1 - within**2, 0.0, _MOST_SHARED)), 3)
    return shared


def likeliest_reversed_share(probability: Amounts, pairs: Pairs) -> float:
    """The share of reversed pairs with which probabilities that the first is faster are the likeliest."""
    is_ahead, weights = pairs.log_measured > 0, source_weights(pairs.source, _CORRELATED)

    def likelihood(share: float) -> float:
        reversible = np.asarray(with_reversals(probability, share))
        return float((weights * np.log(np.maximum(np.where(is_ahead, reversible, 1 - reversible), 1e-6))).sum())

    return float(max(_REVERSED.tolist(), key=likelihood))


def first_is_faster(pairs: Pairs, configurations: Sequence[Configuration], fitted: Fit, pair_fit: PairFit) -> Amounts:
    """The probability that the first of each pair is faster, as `plan` and `compare` have it on one cluster."""
    deviations = _deviations(configurations, fitted)
    share = np.array([pair_fit.shared.get(name, 0.0) for name in _SIMILAR])[pairs.similarity]
    first, second = deviations[pairs.first], deviations[pairs.second]
    reach = np.sqrt((1 - share) * (first**2 + second**2) + share * (second - first) ** 2)
    places = pairs.log_predicted / np.maximum(reach, 1e-9)
    return np.asarray(with_reversals(np.array([_NORMAL.cdf(place) for place in places.tolist()]), pair_fit.reversed_share))


def curve(probability: Amounts, pairs: Pairs) -> Iterator[CurvePoint]:
    """Yields the calibration curve in bins of equal width from one half to certainty, of those pairs with one model."""
    sure = np.maximum(probability, 1 - probability)
    came_true = (probability > 0.5) == (pairs.log_measured > 0)
    bins = np.minimum(((sure - 0.5) * 2 * _BINS).astype(int), _BINS - 1)
    for number in range(_BINS):
        members = bins == number
        if members.any():
            by_source = [came_true[members & (pairs.source == name)].mean() for name in np.unique(pairs.source[members])]
            yield CurvePoint(
                float(sure[members].mean()), float(came_true[members].mean()), float(np.mean(by_source)), int(members.sum())
            )


def without_other_models(pairs: Pairs) -> Pairs:
    """The pairs of one model, which is what plans and comparisons choose between."""
    return pairs.where(pairs.similarity != _SIMILAR.index("other model"))


def left_out_probabilities(
    pairs: Pairs, configurations: Sequence[Configuration], fits: Mapping[str, tuple[Fit, PairFit]]
) -> Amounts:
    """Probabilities of `first_is_faster` by fits without the pair's source. fits: by source."""
    result = np.zeros(len(pairs.first))
    for source in np.unique(pairs.source).tolist():
        members = pairs.source == source
        result[members] = first_is_faster(pairs.where(members), configurations, *fits[source])
    return result


def _deviations(configurations: Sequence[Configuration], fitted: Fit) -> Amounts:
    """Standard deviation of the log model error of each configuration."""
    ends = [fitted.log_ends(one.row.group, one.row.covariates) for one in configurations]
    return np.array([float(high - low) for low, high in ends]) / (2 * DEVIATIONS)


def _quantile(values: Amounts, weights: Amounts) -> float:
    order = np.argsort(values)
    cumulative = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(cumulative, _WITHIN * cumulative[-1])])
