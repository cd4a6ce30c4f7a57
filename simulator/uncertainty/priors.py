"""Priors of uncertain quantities: log-normal slowdown factors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.quantities import DEVIATIONS, QUANTITIES, uncertain
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.uncertainty.error_model import MODEL, SOFTWARE

Amounts = NDArray[np.float64]


class Priors(NamedTuple):
    """Log-normal slowdown factors of quantities, with independent errors.

    low, high: natural logarithms of the ends of the 90 % intervals, shape (quantities,), or (quantities, rows) if they differ
    between rows.
    """

    names: tuple[str, ...]
    low: Amounts
    high: Amounts

    @classmethod
    def of(
        cls,
        names: Iterable[str],
        cluster: Cluster,
        model: tuple[Amounts, Amounts] | None = None,
        software: tuple[float, float] | None = None,
    ) -> Priors:
        """The priors of some quantities of a cluster.

        model: logarithms of the ends for the model error, each a number or one per row; those of the cluster if None. software:
        those of unknown software.
        """
        names = tuple(names)
        low_of_software, high_of_software = software or (0.0, 0.0)
        of_software = math.exp(low_of_software), math.exp(high_of_software)
        ends = [of_software if name == SOFTWARE else QUANTITIES[name].slowdown_interval(cluster) for name in names]
        low, high = np.log(ends).reshape(-1, 2).T
        if model is None or MODEL not in names:
            return cls(names, low, high)
        low, high = (
            np.multiply.outer(end, np.ones(np.shape(of_model))) for end, of_model in zip((low, high), model, strict=True)
        )
        low[names.index(MODEL)], high[names.index(MODEL)] = model
        return cls(names, low, high)

    def on_each(self, clusters: Sequence[Cluster]) -> Priors:
        """The same with each cluster's own intervals of its quantities, one cluster per row."""
        low, high = np.array(np.broadcast_arrays(columns(self.low), columns(self.high), np.ones(len(clusters)))[:2])
        for number, name in enumerate(self.names):
            if name in QUANTITIES and name != MODEL:
                low[number], high[number] = np.log([QUANTITIES[name].slowdown_interval(cluster) for cluster in clusters]).T
        return Priors(self.names, low, high)

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
