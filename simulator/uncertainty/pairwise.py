"""Apart: whether two scenarios can be told apart, as far as their clusters' numbers are uncertain.

An error that both share moves both, and hardly what one gains over the other. So what both clusters say alike is drawn once for
both, and what they do not on its own: a network that only one of them has may be off by itself.
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
from scaleproof.simulator.uncertainty.prediction_interval import Response, normal_draws, responding

Times = NDArray[np.float64]
Slownesses = Mapping[str, Times]

# Of two that are as fast as one another either is faster with 50 %; from 90 % on they are told apart.
SURE: Final = 0.9
_DRAWS: Final = 64
# ratios closer to 1 are those of two that take the same time
_SAME: Final = 1e-9
# Of the variance of what the simulator leaves out, what two settings of one kind of strategy have in common: an assumption.
_OTHER_SETTINGS: Final = 0.5
# fields of a device from which no time of a layer follows
_NO_TIMES: Final = {"name", "description", "source", "memory_bytes", "measured_optimizers"}


@dataclass(frozen=True)
class SpeedupInterval:
    """low, high: between them is how many times as fast the second is as the first, in samples a second, with a probability of
    90 %. faster: the probability that the second is the faster one."""

    low: float
    high: float
    faster: float

    @property
    def told(self) -> bool:
        """Whether they can be told apart."""
        return not 1 - SURE <= self.faster <= SURE

    def words(self) -> str:
        """'B is faster with a probability of over 98 %', for people."""
        if not self.told:
            return f"the two cannot be told apart: B is faster with a probability of {self.faster:.0%}".replace("%", " %")
        first = self.faster < 0.5
        sure = max(self.faster, 1 - self.faster)
        surely = f"{sure:.0%}" if sure < 1 - 1 / _DRAWS else f"over {1 - 1 / _DRAWS:.0%}"
        return f"{'A' if first else 'B'} is faster with a probability of {surely}".replace("%", " %")


class JointDraws:
    """Slownesses of both scenarios' clusters, of the quantities that each one's times follow from."""

    def __init__(self, a: Scenario, b: Scenario, names: tuple[Sequence[str], Sequence[str]]) -> None:
        self._scenarios, self._names = (a, b), names
        # what is drawn: of which quantity, for which of the two, and the part that it has of the quantity's deviation
        self._drawn: list[tuple[str, Sequence[int], float]] = []
        for name in dict.fromkeys([*names[0], *names[1]]):
            share, sides = common(name, a, b), [side for side in (0, 1) if name in names[side]]
            self._drawn += [(name, sides, math.sqrt(share))] if share else []
            self._drawn += [(name, [side], math.sqrt(1 - share)) for side in sides if share < 1]

    def __len__(self) -> int:
        """How many are drawn independently of one another."""
        return len(self._drawn)

    def slownesses(self, normal: Times) -> tuple[Slownesses, Slownesses]:
        """Of the first and of the second, by quantity, shape (draws,); for standard normal variables, shape (len, draws)."""
        first, second = ({name: self._of(side, name, normal) for name in self._names[side]} for side in (0, 1))
        return first, second

    def _of(self, side: int, name: str, normal: Times) -> Times:
        low, high = np.log(QUANTITIES[name].slownesses(self._scenarios[side].cluster))
        deviations = sum(
            part * normal[row] for row, (of, sides, part) in enumerate(self._drawn) if of == name and side in sides
        )
        drawn: Times = np.exp((low + high) / 2 + (high - low) / (2 * DEVIATIONS) * deviations)
        return drawn


def common(name: str, a: Scenario, b: Scenario) -> float:
    """The share of a quantity's variance that two scenarios have in common: all where their clusters say the same of it, else
    none. Of what the simulator leaves out all where the same is trained in the same way, a part for two settings of one kind of
    strategy, none for two kinds."""
    quantity = QUANTITIES[name]
    ours, theirs = ((quantity.value(one.cluster), quantity.slownesses(one.cluster), _said(name, one.cluster)) for one in (a, b))
    if ours != theirs or (name == "model" and (a.strategy.kind != b.strategy.kind or a.model != b.model)):
        return 0.0
    alike = all(getattr(a, part) == getattr(b, part) for part in ("strategy", "training", "input", "unevenness"))
    return 1.0 if name != "model" or alike else _OTHER_SETTINGS


def _said(name: str, cluster: Cluster) -> Any:
    """What stands behind a quantity that is a share of many numbers."""
    if name == "device":
        return cluster.device.model_dump(exclude=_NO_TIMES)
    if name == "optimizer":
        return cluster.device.measured_optimizers
    return cluster.collectives.measured if name == "collectives" else None


def apart(a: Scenario, b: Scenario, ratio: float, answers: tuple[Response, Response] | None = None) -> SpeedupInterval:
    """Whether two scenarios can be told apart. ratio: how many times as fast the second is predicted to be, in samples a
    second. answers: how their step times follow from all that is uncertain, where that is known."""
    ours, theirs = answers or (responding(a, least=0.0), responding(b, least=0.0))
    together = JointDraws(a, b, (ours.names, theirs.names))
    count = len(together)

    def log_ratios(normal: Times) -> Times:
        first, second = together.slownesses(normal)
        return np.asarray(math.log(ratio) + np.log(ours.step_times(first)) - np.log(theirs.step_times(second)))

    if count == 0:
        return of_log_ratios(np.array([math.log(ratio)]))
    up, down = np.split(log_ratios(np.hstack([np.eye(count), -np.eye(count)])), 2)
    return of_log_ratios(log_ratios(normal_draws(_DRAWS, (up - down) / 2)))


def of_log_ratios(drawn: Times) -> SpeedupInterval:
    """What equally likely logarithms of the ratio tell."""
    ordered = np.sort(drawn)
    low, high = np.exp(np.quantile(ordered, (0.05, 0.95), method="hazen")).tolist()
    same = float((np.abs(ordered) <= _SAME).mean())
    if same:
        return SpeedupInterval(low, high, float((ordered > _SAME).mean()) + same / 2)
    # the draws are the midpoints of equally likely parts
    parts = (np.arange(len(ordered)) + 0.5) / len(ordered)
    return SpeedupInterval(low, high, 1 - float(np.interp(0.0, ordered, parts, left=0.0, right=1.0)))
