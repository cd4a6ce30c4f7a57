"""Doubt: how far the step times of planned configurations may be off, and which of them can be told apart.

Estimates on clusters that are slower in one number each tell how much of a step follows from it; what the simulator leaves out
is part of it too.
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

_SLOWER: Final = 1.05
# It slows the step as a whole.
_WHOLE: Final = "model"


@dataclass(frozen=True)
class Doubt:
    """shares: how much longer each step takes per slowness, as a share of it, by quantity; shape (configurations,). middle,
    deviation: of the logarithm of each slowness, by quantity."""

    shares: Mapping[str, Times]
    middle: Mapping[str, float]
    deviation: Mapping[str, float]

    def interval(self, row: int) -> tuple[float, float]:
        """Between which multiples of the predicted step time it is with a probability of 90 %."""
        middle = sum(self.shares[name][row] * self.middle[name] for name in self.shares)
        reach = DEVIATIONS * math.hypot(*(self.shares[name][row] * self.deviation[name] for name in self.shares))
        return math.exp(middle - reach), math.exp(middle + reach)

    def faster(self, first: int, second: int, ratio: float, alike: float) -> float:
        """The probability that the first step takes less than the second, which is predicted to take `ratio` times as long.
        alike: the share of what the simulator leaves out that both have in common."""
        more = {name: self.shares[name][second] - self.shares[name][first] for name in self.shares}
        middle = math.log(ratio) + sum(more[name] * self.middle[name] for name in more)
        apart = math.sqrt(2 * (1 - alike)) * self.deviation[_WHOLE]
        reach = math.hypot(apart, *(more[name] * self.deviation[name] for name in more))
        if reach == 0.0:
            return 0.5 if middle == 0.0 else float(middle > 0)
        return NormalDist().cdf(middle / reach)


def doubt(configurations: Candidates) -> Doubt:
    """Of a few configurations."""
    scenario = configurations.base
    expected_s = configurations.times().expected_s
    shares: dict[str, Times] = {}
    for name in uncertain(scenario.cluster):
        if name == _WHOLE:
            shares[name] = np.ones(len(configurations))
            continue
        share = (configurations.slowed({name: _SLOWER}).times().expected_s / expected_s - 1) / (_SLOWER - 1)
        if share.any():
            shares[name] = share
    bounds = {name: np.log(QUANTITIES[name].slownesses(scenario.cluster)) for name in shares}
    return Doubt(
        shares,
        {name: float(low + high) / 2 for name, (low, high) in bounds.items()},
        {name: float(high - low) / (2 * DEVIATIONS) for name, (low, high) in bounds.items()},
    )


def alike(first: Scenario, second: Scenario) -> float:
    """The share of what the simulator leaves out that two scenarios have in common."""
    return common(_WHOLE, first, second)
