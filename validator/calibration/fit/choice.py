"""Choice of a curve's model: the simplest whose error on held-out sizes equals that of the best within noise."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Final

import numpy as np

from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.calibration.fit.shapes import NOISE, MeasuredRows, Shape
from scaleproof.validator.estimation.posterior import Array, refitted, soft_l1

ALPHA_BETA: Final = "alpha_beta"
LOGGP: Final = "loggp"
PIECEWISE: Final = "piecewise"
MODELS: Final = (ALPHA_BETA, LOGGP, PIECEWISE)

# Fewest sizes of a protocol: its wait and its rate would fit any two exactly.
_SIZES_OF_PROTOCOL: Final = 3
_MOST_PROTOCOLS: Final = 3
# At most this many positions of a break are tried, evenly over the sizes.
_MOST_PLACES: Final = 10
# A relative error counts as 1 at most.
_LARGEST_ERROR: Final = 1.0
# A smaller gain in error does not justify a model with more coefficients.
_WORTHWHILE: Final = 0.005
_STEPS: Final = 8
_EQUAL: Final = 1e-3


@dataclass(frozen=True)
class Candidate:
    """A model with the best of its shapes for all sizes, and its relative error on each size when that size was held out."""

    model: str
    shape: Shape
    errors: Array

    @property
    def error(self) -> float:
        """Mean relative error over held-out points."""
        return float(self.errors.mean())


def choose(rows: MeasuredRows, models: Collection[str], what: str) -> tuple[Candidate, Mapping[str, float]]:
    """The model to use, and the held-out error of each model (for piecewise, of the better number of protocols).

    Raises InputError if the rows do not suffice for any of the models.
    """
    candidates = [_judged(model, shapes, rows) for model, shapes in _families(rows, models)]
    if not candidates:
        raise InputError(f"{what}: too few sizes to fit {' or '.join(models)}; allow {ALPHA_BETA}")
    best = min(candidates, key=lambda c: c.error)
    chosen = next(candidate for candidate in candidates if _is_as_good(candidate, best))
    errors: dict[str, float] = {}
    for candidate in candidates:
        errors[candidate.model] = min(candidate.error, errors.get(candidate.model, candidate.error))
    return chosen, errors


def _is_as_good(candidate: Candidate, best: Candidate) -> bool:
    """Whether the candidate's error exceeds the best one's by at most one standard error (Breiman et al., "Classification and
    Regression Trees", 1984), that of the difference: a size that no model predicts then favours neither."""
    worse = candidate.errors - best.errors
    noise = float(worse.std(ddof=1)) / math.sqrt(len(worse))
    return float(worse.mean()) <= max(noise, _WORTHWHILE)


def _families(rows: MeasuredRows, models: Collection[str]) -> Iterator[tuple[str, Sequence[Shape]]]:
    """Models for which the rows suffice, simplest first, each with its possible shapes."""
    overhead = bool(rows.streamed.any())
    if ALPHA_BETA in models:
        yield ALPHA_BETA, [Shape()]
    if LOGGP in models and overhead:
        yield LOGGP, [Shape(has_overhead=True)]
    if PIECEWISE in models:
        for protocols in range(2, _MOST_PROTOCOLS + 1):
            if shapes := [Shape(breaks, overhead) for breaks in _breaks(rows, protocols)]:
                yield PIECEWISE, shapes


def _breaks(rows: MeasuredRows, protocols: int) -> Iterator[tuple[float, ...]]:
    """Every division of the message sizes into `protocols` ranges, as their breaks."""
    sizes = np.unique(rows.sizes[~rows.streamed])
    last = np.arange(_SIZES_OF_PROTOCOL - 1, len(sizes) - _SIZES_OF_PROTOCOL)
    if len(last) > _MOST_PLACES:
        last = last[np.linspace(0, len(last) - 1, _MOST_PLACES).astype(int)]
    for chosen in combinations(last, protocols - 1):
        if all(b - a >= _SIZES_OF_PROTOCOL for a, b in pairwise(chosen)):
            yield tuple(float(sizes[i]) for i in chosen)


def _judged(model: str, shapes: Sequence[Shape], rows: MeasuredRows) -> Candidate:
    """The model's best shape, and its error on each size when the shape is chosen and fitted without that size."""
    sizes = np.unique(rows.sizes)
    left_out = rows.sizes == sizes[:, None]
    weights = np.vstack([np.ones(len(rows.sizes)), ~left_out])
    errors = np.stack([_errors(shape, rows, weights) for shape in shapes])
    costs = (soft_l1((errors / NOISE) ** 2)[0] / 2 * weights).sum(-1)
    # without the size between them, two breaks are equivalent: take the first of equals, whatever the rounding
    best = (costs <= costs.min(0) * (1 + _EQUAL) + _EQUAL**2).argmax(0)
    held_out = np.minimum(np.abs(errors[best[1:], np.arange(1, len(best))]), _LARGEST_ERROR)
    return Candidate(model, shapes[best[0]], (held_out * left_out).sum(1) / left_out.sum(1))


def _errors(shape: Shape, rows: MeasuredRows, weights: Array) -> Array:
    """Relative errors of the shape's fit to each row of weights."""
    model, log_s = shape.model(rows), np.log(rows.seconds)
    return np.asarray(model(refitted(model, log_s, weights, shape.start(rows), NOISE, _STEPS))[0] - log_s)
