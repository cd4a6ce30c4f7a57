"""Linear response of many step times at once, and their intervals in closed form: points of a study, configurations of a plan,
and times of closed forms."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.quantities import DEVIATIONS, slowed, uncertain
from scaleproof.simulator.uncertainty.error_model import MODEL, SOFTWARE, ErrorCase, ErrorModel, shipped
from scaleproof.simulator.uncertainty.prediction_interval import PredictionInterval
from scaleproof.simulator.uncertainty.priors import Priors, columns
from scaleproof.simulator.uncertainty.response import NEGLIGIBLE

Times = NDArray[np.float64]

# Relative slowdown of a quantity in finite differences.
_SLOWDOWN: Final = 0.01
# Relative difference from a linear response beyond which a step time counts as bent.
_BEND: Final = 2e-3


@dataclass(frozen=True)
class LinearResponse:
    """The linear response of several step times to slowdown factors of quantities.

    shares: derivative of each relative step time with respect to the slowdown factor of each quantity of `priors`, shape
    (quantities, rows). The model error comes first: it scales the whole step.
    """

    priors: Priors
    shares: Times

    @cached_property
    def intervals(self) -> Times:
        """The ends of the 90 % intervals of the step times, as multiples of the predicted ones, shape (2, rows).

        The first-order reliability method (Hasofer and Lind, 1974): in the space of standardised log slowdown factors, an end
        is at the distance of a 90 % interval, in the direction in which the step time changes most there. That direction is
        taken from the gradient at the prediction, and corrected once by the gradient at the end which that gives.
        """
        return np.stack([self._times(self._end(-DEVIATIONS)), self._times(self._end(DEVIATIONS))])

    def bent_intervals(self, step_times: Callable[[Times], Times]) -> Times:
        """The same ends, shape (2, rows), where another path may become the longest one on the way to an end.

        step_times: the step times as multiples of the predicted ones, shape (rows,), at slowdown factors of shape (quantities,
        rows). They are compared with the linear response at its end and where one quantity alone is at its end. Where they
        differ most, their own gradient gives another direction; the end with the larger change is the interval's. Where several
        paths are nearly the longest at an end, this is still an approximation: intervals come out too narrow by some percent.
        """
        low, high = self._bent_ends(-DEVIATIONS, step_times), self._bent_ends(DEVIATIONS, step_times)
        return np.stack([np.min(low, axis=0), np.max(high, axis=0)])

    def _bent_ends(self, distance: float, step_times: Callable[[Times], Times]) -> list[Times]:
        """Step times at a distance in standard deviations, in one direction, or in two where they bend."""
        alone = np.eye(len(self.shares))[:, :, None] * np.ones_like(self.shares)
        places = np.stack([self._end(distance), *(self._at(distance, direction) for direction in alone)])
        times = np.stack([step_times(factors) for factors in places])
        bends = np.abs(times / np.stack([self._times(factors) for factors in places]) - 1)
        if bends.max() <= _BEND:
            return [times[0]]
        most = bends.argmax(axis=0)[None]
        factors, there = np.take_along_axis(places, most[:, None], axis=0)[0], np.take_along_axis(times, most, axis=0)[0]
        gradient = np.stack([step_times(factors * (1 + _SLOWDOWN * one)) - there for one in alone])
        return [times[0], step_times(self._at(distance, columns(self.priors.deviation) * gradient))]

    def _end(self, distance: float) -> Times:
        """Slowdown factors at a distance in standard deviations in the direction of the largest change, shape (quantities,
        rows)."""
        factors = np.ones_like(self.shares)
        for _ in range(2):
            direction = columns(self.priors.deviation) * self.shares * factors
            direction[0] *= self._without_model(factors) / factors[0]
            factors = self._at(distance, direction)
        return factors

    def _at(self, distance: float, direction: Times) -> Times:
        """Slowdown factors at a distance in standard deviations in a direction, both of shape (quantities, rows)."""
        return self.priors.factors(distance * direction / np.maximum(np.linalg.norm(direction, axis=0), np.finfo(float).tiny))

    def _times(self, factors: Times) -> Times:
        """Step times, shape (rows,). factors: slowdown factors, shape (quantities, rows)."""
        return np.asarray(factors[0] * self._without_model(factors))

    def _without_model(self, factors: Times) -> Times:
        """Step times without the model error, shape (rows,). factors: slowdown factors, shape (quantities, rows)."""
        return np.asarray(1 + (self.shares[1:] * (factors[1:] - 1)).sum(axis=0))

    def of_row(self, row: int) -> PredictionInterval:
        """The prediction interval of a row, with the shares of its variance to first order."""
        deviations = np.broadcast_to(columns(self.priors.deviation), self.shares.shape)[:, row] * self.shares[:, row]
        variance = deviations**2 / max(float((deviations**2).sum()), np.finfo(float).tiny)
        return PredictionInterval(*self.interval(row), dict(zip(self.priors.names, variance.tolist(), strict=True)))

    def interval(self, row: int) -> tuple[float, float]:
        """90 % interval of the step time of a row, as multiples of the predicted one."""
        low, high = self.intervals[:, row].tolist()
        return low, high

    def faster(self, first: int, second: int, ratio: float, common_error_share: float) -> float:
        """The probability that the first step is faster than the second, which is predicted to take `ratio` times as long.

        common_error_share: the share of the simulator's model error that both have in common.
        """
        pair = [first, second]
        shares = self.shares[:, pair]
        middles, deviations = (
            np.broadcast_to(columns(of), self.shares.shape)[:, pair] * shares
            for of in (self.priors.middle, self.priors.deviation)
        )
        # errors of pairs are centred on the predicted ratio, as those of published runs
        middle = math.log(ratio) + float((middles[1:, 1] - middles[1:, 0]).sum())
        # the model errors have a part in common; all other quantities are the same for both
        in_first, in_second = deviations[0].tolist()
        own = math.sqrt(1 - common_error_share)
        shared = math.sqrt(common_error_share) * (in_second - in_first)
        reach = math.hypot(own * in_first, own * in_second, shared, *(deviations[1:, 1] - deviations[1:, 0]))
        if reach == 0.0:
            return 0.5 if middle == 0.0 else float(middle > 0)
        return NormalDist().cdf(middle / reach)


def linear_response(
    first_s: Times,
    slower_s: Callable[[dict[str, float]], Times],
    names: Iterable[str],
    cluster: Cluster,
    case: ErrorCase,
    errors: ErrorModel | None = None,
) -> LinearResponse:
    """The linear response of step times by finite differences.

    first_s: step times in seconds, shape (rows,). slower_s: the same with quantities slowed down by factors. names: the
    quantities that may affect them; the model error always does. case: for the error model, the shipped one if None.
    """
    shares = {MODEL: np.ones_like(first_s)}
    for name in names:
        if name != MODEL:
            share = (slower_s({name: 1 + _SLOWDOWN}) / first_s - 1) / _SLOWDOWN
            shares |= {name: share} if (np.abs(share) > NEGLIGIBLE).any() else {}
    computed = np.clip(shares.get("device", np.zeros_like(first_s)), 0.0, 1.0)
    model = case.log_ends(cluster, errors or shipped(), 1 - computed)
    shares |= {} if case.software is None else {SOFTWARE: computed}
    return LinearResponse(Priors.of(shares, cluster, model, case.software), np.array(list(shares.values())))


def of_closed_form(
    seconds: Callable[[Cluster], float], cluster: Cluster, case: ErrorCase, errors: ErrorModel | None = None
) -> PredictionInterval:
    """The 90 % interval of a time that a closed form gives. seconds: the time on a cluster. case: for the error model, the
    shipped one if None."""

    def slower_s(slowdowns: dict[str, float]) -> Times:
        return np.array([seconds(slowed(cluster, slowdowns))])

    return linear_response(slower_s({}), slower_s, uncertain(cluster), cluster, case, errors).of_row(0)
