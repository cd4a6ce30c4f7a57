"""Comparison of two scenarios whose cluster parameters are uncertain: the interval of the speed-up between them.

A shared error changes both step times and hardly their ratio. Quantities on which both clusters agree are therefore drawn once
for both, and all others, such as a network that only one cluster has, independently.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.quantities import DEVIATIONS, QUANTITIES
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.uncertainty.prediction_interval import Response, normal_draws, response_of_scenario

Times = NDArray[np.float64]
SlowdownFactors = Mapping[str, Times]

# Two scenarios are distinguishable if one of them is faster with at least this probability; equal ones have 50 %.
SURE: Final = 0.9
_DRAWS: Final = 64
# Logarithms of ratios below this mean equal times.
_SAME: Final = 1e-9
# Share of the variance of the simulator's model error that two settings of one kind of strategy have in common: an assumption.
_OTHER_SETTINGS: Final = 0.5
# Fields of a device that do not affect layer times.
_NO_TIMES: Final = {"name", "description", "source", "memory_bytes", "measured_optimizers"}


@dataclass(frozen=True)
class SpeedupInterval:
    """The 90 % interval of the speed-up of scenario B over scenario A: ratio of their samples per second.

    faster: probability that B is faster.
    """

    low: float
    high: float
    faster: float

    @property
    def is_distinguishable(self) -> bool:
        """Whether the two scenarios are distinguishable."""
        return not 1 - SURE <= self.faster <= SURE

    def words(self) -> str:
        """A sentence such as 'B is faster with a probability of over 98 %'."""
        if not self.is_distinguishable:
            return f"the two cannot be distinguished: B is faster with a probability of {self.faster:.0%}".replace("%", " %")
        first = self.faster < 0.5
        sure = max(self.faster, 1 - self.faster)
        surely = f"{sure:.0%}" if sure < 1 - 1 / _DRAWS else f"over {1 - 1 / _DRAWS:.0%}"
        return f"{'A' if first else 'B'} is faster with a probability of {surely}".replace("%", " %")


class JointDraws:
    """Joint draws of the slowdown factors of two scenarios' clusters, for the quantities that affect each of them."""

    def __init__(self, a: Scenario, b: Scenario, names: tuple[Sequence[str], Sequence[str]]) -> None:
        self._scenarios, self._names = (a, b), names
        # variables: quantity, the scenarios that it applies to (0, 1), and its share of the quantity's standard deviation
        self._drawn: list[tuple[str, Sequence[int], float]] = []
        for name in dict.fromkeys([*names[0], *names[1]]):
            share, sides = common(name, a, b), [side for side in (0, 1) if name in names[side]]
            self._drawn += [(name, sides, math.sqrt(share))] if share else []
            self._drawn += [(name, [side], math.sqrt(1 - share)) for side in sides if share < 1]

    def __len__(self) -> int:
        """The number of independent variables."""
        return len(self._drawn)

    def slowdown_factors(self, normal: Times) -> tuple[SlowdownFactors, SlowdownFactors]:
        """Slowdown factors of scenarios A and B by quantity, each of shape (draws,).

        normal: standard normal variables, shape (len(self), draws).
        """
        first, second = ({name: self._factors(side, name, normal) for name in self._names[side]} for side in (0, 1))
        return first, second

    def _factors(self, side: int, name: str, normal: Times) -> Times:
        low, high = np.log(QUANTITIES[name].slowdown_interval(self._scenarios[side].cluster))
        deviations = sum(
            part * normal[row] for row, (quantity, sides, part) in enumerate(self._drawn) if quantity == name and side in sides
        )
        drawn: Times = np.exp((low + high) / 2 + (high - low) / (2 * DEVIATIONS) * deviations)
        return drawn


def common(name: str, a: Scenario, b: Scenario) -> float:
    """Share of a quantity's variance that two scenarios have in common: 1 if their clusters give the same value, else 0.

    For the simulator's model error: 1 if both train the same model in the same way, `_OTHER_SETTINGS` for two settings of one
    kind of strategy, 0 for different kinds of strategy or different models.
    """
    quantity = QUANTITIES[name]
    values_a, values_b = (
        (quantity.value(one.cluster), quantity.slowdown_interval(one.cluster), _parameters(name, one.cluster)) for one in (a, b)
    )
    if values_a != values_b or (name == "model" and (a.strategy.kind != b.strategy.kind or a.model != b.model)):
        return 0.0
    is_equal = all(getattr(a, part) == getattr(b, part) for part in ("strategy", "training", "input", "unevenness"))
    return 1.0 if name != "model" or is_equal else _OTHER_SETTINGS


def _parameters(name: str, cluster: Cluster) -> Any:
    """The parameters of a cluster that a quantity scales, for quantities that scale many at once."""
    if name == "device":
        return cluster.device.model_dump(exclude=_NO_TIMES)
    if name == "optimizer":
        return cluster.device.measured_optimizers
    return cluster.collectives.measured if name == "collectives" else None


def speedup_interval(
    a: Scenario, b: Scenario, ratio: float, responses: tuple[Response, Response] | None = None
) -> SpeedupInterval:
    """The interval of the speed-up of scenario B over scenario A.

    ratio: predicted samples per second of B over those of A. responses: of their step times to all uncertain quantities;
    computed if None.
    """
    response_a, response_b = responses or (response_of_scenario(a, least=0.0), response_of_scenario(b, least=0.0))
    joint = JointDraws(a, b, (response_a.names, response_b.names))
    count = len(joint)

    def log_ratios(normal: Times) -> Times:
        first, second = joint.slowdown_factors(normal)
        return np.asarray(math.log(ratio) + np.log(response_a.step_times(first)) - np.log(response_b.step_times(second)))

    if count == 0:
        return of_log_ratios(np.array([math.log(ratio)]))
    up, down = np.split(log_ratios(np.hstack([np.eye(count), -np.eye(count)])), 2)
    return of_log_ratios(log_ratios(normal_draws(_DRAWS, (up - down) / 2)))


def of_log_ratios(drawn: Times) -> SpeedupInterval:
    """The speed-up interval of equally likely logarithms of the ratio, shape (draws,)."""
    ordered = np.sort(drawn)
    low, high = np.exp(np.quantile(ordered, (0.05, 0.95), method="hazen")).tolist()
    same = float((np.abs(ordered) <= _SAME).mean())
    if same:
        return SpeedupInterval(low, high, float((ordered > _SAME).mean()) + same / 2)
    # the draws are the midpoints of equally likely intervals
    parts = (np.arange(len(ordered)) + 0.5) / len(ordered)
    return SpeedupInterval(low, high, 1 - float(np.interp(0.0, ordered, parts, left=0.0, right=1.0)))
