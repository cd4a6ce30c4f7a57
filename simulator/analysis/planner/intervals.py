"""90 % intervals of planned configurations' step times, and the probability that one is faster than another.

Estimates on clusters that are slower in one quantity each give the share of a step that depends on it. The simulator's model
error is one of the quantities.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.candidates import Candidates
from scaleproof.simulator.cluster.quantities import DEVIATIONS, QUANTITIES, uncertain
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.uncertainty.pairwise import common

Times = NDArray[np.float64]

_SLOWDOWN: Final = 1.05
# the simulator's model error, which scales the whole step
_MODEL_ERROR: Final = "model"


@dataclass(frozen=True)
class PlanUncertainty:
    """Uncertainty of the step times of some configurations.

    shares: relative derivative of each step time with respect to a quantity's slowdown factor, by quantity; shape
    (configurations,). middle, deviation: mean and standard deviation of the log slowdown factor, by quantity.
    """

    shares: Mapping[str, Times]
    middle: Mapping[str, float]
    deviation: Mapping[str, float]

    def interval(self, row: int) -> tuple[float, float]:
        """90 % interval of the step time of a row, as multiples of the predicted one."""
        middle = sum(self.shares[name][row] * self.middle[name] for name in self.shares)
        reach = DEVIATIONS * math.hypot(*(self.shares[name][row] * self.deviation[name] for name in self.shares))
        return math.exp(middle - reach), math.exp(middle + reach)

    def faster(self, first: int, second: int, ratio: float, common_error_share: float) -> float:
        """The probability that the first step is faster than the second, which is predicted to take `ratio` times as long.

        common_error_share: the share of the simulator's model error that both have in common.
        """
        difference = {name: self.shares[name][second] - self.shares[name][first] for name in self.shares}
        middle = math.log(ratio) + sum(difference[name] * self.middle[name] for name in difference)
        own_error = math.sqrt(2 * (1 - common_error_share)) * self.deviation[_MODEL_ERROR]
        reach = math.hypot(own_error, *(difference[name] * self.deviation[name] for name in difference))
        if reach == 0.0:
            return 0.5 if middle == 0.0 else float(middle > 0)
        return NormalDist().cdf(middle / reach)


def plan_uncertainty(configurations: Candidates) -> PlanUncertainty:
    """The uncertainty of the step times of a few configurations."""
    scenario = configurations.base
    expected_s = configurations.times().expected_s
    shares: dict[str, Times] = {}
    for name in uncertain(scenario.cluster):
        if name == _MODEL_ERROR:
            shares[name] = np.ones(len(configurations))
            continue
        share = (configurations.slowed({name: _SLOWDOWN}).times().expected_s / expected_s - 1) / (_SLOWDOWN - 1)
        if share.any():
            shares[name] = share
    bounds = {name: np.log(QUANTITIES[name].slowdown_interval(scenario.cluster)) for name in shares}
    return PlanUncertainty(
        shares,
        {name: float(low + high) / 2 for name, (low, high) in bounds.items()},
        {name: float(high - low) / (2 * DEVIATIONS) for name, (low, high) in bounds.items()},
    )


def common_error_share(first: Scenario, second: Scenario) -> float:
    """The share of the simulator's model error that two scenarios have in common."""
    return common(_MODEL_ERROR, first, second)
