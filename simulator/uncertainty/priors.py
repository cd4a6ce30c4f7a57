"""Priors of uncertain quantities: log-normal slowdown factors, and the errors that two scenarios have in common.

A shared error changes the step times of both scenarios and hardly their ratio. Quantities on which both clusters agree
therefore have one error for both, and all others, such as a network that only one cluster has, independent ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.quantities import DEVIATIONS, QUANTITIES, uncertain
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.uncertainty.error_model import MODEL, ErrorModel, case_of_scenario, shipped, similarity

Amounts = NDArray[np.float64]

# Share of the variance of the model error of calibrated clusters that two settings of one kind of strategy have in common: an
# assumption.
_OTHER_SETTINGS: Final = 0.5
# Fields of a device that do not affect layer times.
_NO_TIMES: Final = {
    "name", "description", "source", "memory_bytes", "l2_bytes", "clock_Hz", "measured", "assumed", "measured_optimizers",
}  # fmt: skip


class Priors(NamedTuple):
    """Log-normal slowdown factors of quantities, with independent errors.

    low, high: natural logarithms of the ends of the 90 % intervals, shape (quantities,), or (quantities, rows) if they differ
    between rows.
    """

    names: tuple[str, ...]
    low: Amounts
    high: Amounts

    @classmethod
    def of(cls, names: Iterable[str], cluster: Cluster, model: tuple[Amounts, Amounts] | None = None) -> Priors:
        """The priors of some quantities of a cluster.

        model: logarithms of the ends for the model error, each a number or one per row; those of the cluster if None.
        """
        names = tuple(names)
        low, high = np.log([QUANTITIES[name].slowdown_interval(cluster) for name in names]).reshape(-1, 2).T
        if model is None or MODEL not in names:
            return cls(names, low, high)
        ends = (np.multiply.outer(end, np.ones(np.shape(of_model))) for end, of_model in zip((low, high), model, strict=True))
        low, high = ends
        low[names.index(MODEL)], high[names.index(MODEL)] = model
        return cls(names, low, high)

    def take(self, names: Iterable[str]) -> Priors:
        """The priors of some of the quantities, in this order."""
        indices = [self.names.index(name) for name in names]
        return Priors(tuple(self.names[index] for index in indices), self.low[indices], self.high[indices])

    def centred(self) -> Priors:
        """The same with the model error centred on the prediction, as it is in ratios of two predictions."""
        half = (self.high - self.low) / 2
        is_model = np.equal(self.names, MODEL)
        return Priors(self.names, np.where(is_model, -half, self.low), np.where(is_model, half, self.high))

    @property
    def middle(self) -> Amounts:
        """Mean of the natural logarithm of each slowdown factor."""
        return np.asarray((self.low + self.high) / 2)

    @property
    def deviation(self) -> Amounts:
        """Standard deviation of the natural logarithm of each slowdown factor."""
        return np.asarray((self.high - self.low) / (2 * DEVIATIONS))

    def factors(self, normal: Amounts) -> Amounts:
        """Slowdown factors, shape (quantities, draws). normal: their errors in standard deviations, of the same shape."""
        return np.asarray(np.exp(columns(self.middle) + columns(self.deviation) * normal))


def columns(values: Amounts) -> Amounts:
    """Values by quantity, shape (quantities,) or (quantities, rows), as two dimensions."""
    return values if values.ndim > 1 else values[:, None]


def quantity_deviations(scenario: Scenario) -> dict[str, float]:
    """Standard deviations of the logarithms of the uncertain quantities that may affect the step time, by name."""
    cluster, strategy = scenario.cluster, scenario.strategy
    # emulated compute takes exactly the predicted time
    exact = {"device", "optimizer"} if scenario.compute == "paced" else set()
    unused = [] if strategy.communicates_in_nodes(cluster) else ["node.link."]
    unused += [] if strategy.nodes_needed(cluster) > 1 else ["network."]
    return {
        name: deviation
        for name, deviation in uncertain(cluster).items()
        if name not in exact and not name.startswith(tuple(unused))
    }


def joint_errors(
    a: Scenario, b: Scenario, names: tuple[Sequence[str], Sequence[str]], errors: ErrorModel | None = None
) -> tuple[Amounts, Amounts]:
    """Weights of independent standard normal variables in the errors of two scenarios' quantities, each of shape (quantities,
    variables).

    names: the quantities that affect each scenario. errors: the shipped error model if None.
    """
    weighted = []
    for name in dict.fromkeys([*names[0], *names[1]]):
        first, second = np.equal(names[0], name), np.equal(names[1], name)
        share = common(name, a, b, errors)
        shared, own = share**0.5, (1 - share) ** 0.5
        weighted += [(shared * first, shared * second), (own * first, 0.0 * second), (0.0 * first, own * second)]
    weights = np.array([np.concatenate(column) for column in weighted]).reshape(len(weighted), -1).T
    in_a, in_b = np.split(weights[:, weights.any(axis=0)], [len(names[0])])
    return in_a, in_b


def common(name: str, a: Scenario, b: Scenario, errors: ErrorModel | None = None) -> float:
    """Share of a quantity's variance that two scenarios have in common: 1 if their clusters give the same value, else 0; for
    the model error, see `common_error_share`."""
    if name == MODEL:
        return common_error_share(a, b, errors)
    quantity = QUANTITIES[name]
    in_a, in_b = (
        (quantity.value(one.cluster), quantity.slowdown_interval(one.cluster), _parameters(name, one.cluster)) for one in (a, b)
    )
    return float(in_a == in_b)


def common_error_share(a: Scenario, b: Scenario, errors: ErrorModel | None = None) -> float:
    """Share of the variance of the simulator's model error that two scenarios have in common: 1 if both train the same model in
    the same way, 0 if their predictions are of different families; otherwise as it was fitted to pairs of published runs."""
    cases = case_of_scenario(a), case_of_scenario(b)
    if cases[0].family != cases[1].family:
        return 0.0
    if trains_equally(a, b):
        return 1.0
    if cases[0].family is None:
        return _OTHER_SETTINGS if a.strategy.kind == b.strategy.kind and a.model == b.model else 0.0
    return (errors or shipped()).pairs.shared.get(similarity(a, b), 0.0)


def trains_equally(a: Scenario, b: Scenario) -> bool:
    """Whether both scenarios train the same model in the same way, on clusters that may differ."""
    return all(getattr(a, part) == getattr(b, part) for part in ("model", "strategy", "training", "input", "unevenness"))


def _parameters(name: str, cluster: Cluster) -> Any:
    """The parameters of a cluster that a quantity scales, for quantities that scale many at once."""
    if name == "device":
        return cluster.device.model_dump(exclude=_NO_TIMES)
    if name == "optimizer":
        return cluster.device.measured_optimizers
    return cluster.collectives.measured if name == "collectives" else None
