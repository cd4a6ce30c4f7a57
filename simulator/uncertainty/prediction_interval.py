"""Prediction intervals: the uncertainty of a step time that follows from uncertain cluster parameters, and its main sources.

The method is a linear response: the derivative of the relative step time with respect to each quantity's slowdown factor, and
log-normal factors (`priors`). Of a single scenario, a thousand draws of the factors give the interval, and a few of them are
replayed, because the longest path may change, or tasks may queue at servers (`of_response`). Of all points of a study,
configurations of a plan, and times of closed forms, `linear_response` has the interval in closed form; points of a study are
replayed at the ends of their intervals (`bent_intervals`).

Two other things are drawn: the ratio of the throughputs of two scenarios with the parts of their steps (`pairwise`,
`compare`), and elasticities (`sensitivity`), which are derivatives themselves, so that a linear response would make them
constant.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster.quantities import DEVIATIONS
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.uncertainty.draws import drawn, interval, normal_draws
from scaleproof.simulator.uncertainty.error_model import MODEL, ErrorModel
from scaleproof.simulator.uncertainty.response import Response, response_of_scenario

Times = NDArray[np.float64]

# Name of the share of the variance that differs from draw to draw of messages, which is no quantity of a cluster.
DRAWS: Final = "varying messages"
# Draws of the linear response. Of fewer draws at most this number of tasks is replayed, if that is enough for the fewest draws:
# 0.1 us and 50 bytes per task on a 2-core virtual machine.
_DRAWS: Final = 1000
_FEWEST_REPLAYED: Final = 12
_MOST_TASKS: Final = 50_000


class PredictionInterval(NamedTuple):
    """The 90 % interval of a step time.

    low, high: as multiples of the prediction. shares: of the variance of the logarithm of the step time, by the quantity that
    causes it, the largest first; they add up to 1, or are empty. exposed: share of the step time that does not depend on the
    device's speed.
    """

    low: float
    high: float
    shares: Mapping[str, float]
    exposed: float = 0.0

    @property
    def quantities_deviation(self) -> float:
        """Standard deviation of the logarithm of the step time by all quantities but the model error."""
        rest = max(0.0, 1 - self.shares.get(MODEL, 0.0)) if self.shares else 0.0
        return math.sqrt(rest) * math.log(self.high / self.low) / (2 * DEVIATIONS)

    def with_draws(self, deviation: float) -> PredictionInterval:
        """The interval of a step time that also varies by chance. deviation: standard deviation of its logarithm over draws."""
        if not deviation:
            return self
        reach, own = DEVIATIONS * deviation, math.log(self.high / self.low) / (2 * DEVIATIONS)
        part = deviation**2 / (deviation**2 + own**2)
        shares = {name: share * (1 - part) for name, share in self.shares.items()} | {DRAWS: part}
        return self._replace(
            low=math.exp(-math.hypot(math.log(self.low), reach)),
            high=math.exp(math.hypot(math.log(self.high), reach)),
            shares=dict(sorted(shares.items(), key=lambda item: -item[1])),
        )


def spread(scenario: Scenario, errors: ErrorModel | None = None) -> PredictionInterval:
    """The prediction interval of a scenario's step time. errors: the shipped error model if None."""
    return of_response(response_of_scenario(scenario, errors))


def of_response(response: Response) -> PredictionInterval:
    """The prediction interval of a step time with a known response.

    The interval of a thousand draws of the linear response, and how far the interval of fewer draws moves if they are replayed:
    the error of so few draws cancels.
    """
    priors = response.priors

    def linear(normal: Times) -> Times:
        return np.log(response.linear_step_times(priors.factors(normal)))

    logs, change = drawn(linear, len(priors.names), _DRAWS)
    ends = np.array(interval(logs))
    if response.more_s:
        few = normal_draws(min(_DRAWS, max(_FEWEST_REPLAYED, _MOST_TASKS // len(response.program))), change)
        ends += np.subtract(interval(np.log(response.step_times(priors.factors(few)))), interval(linear(few)))
    low, high = np.exp(ends).tolist()
    variance = change**2 / max(float((change**2).sum()), np.finfo(float).tiny)
    shares = sorted(zip(priors.names, variance.tolist(), strict=True), key=lambda item: -item[1])
    return PredictionInterval(low, high, {name: share for name, share in shares if share > 0}, response.exposed)
