"""The distribution of the times of single steps: jitter of ranks, variability of links, drift, and a scenario's perturbations.

Sources are independent. Each slows a part of the step: the jitter of the slowest rank compute, the slowest path of each network
the collectives and messages on it. To first order the step is longer by the sum of what each source adds alone. That is taken
from the response of the compiled program at the source's 95th percentile. Drift multiplies the step as a whole. Perturbations
that the scenario describes are in the simulated steps, whose quantiles are another source.

The median is the predicted step time, since kernels, networks and frameworks are fitted to typical steps; where a scenario's
perturbations make the predicted step time a mean, the mean is.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.network.variability import slowest_path_quantiles, variability
from scaleproof.simulator.cluster.quantities import QUANTITIES
from scaleproof.simulator.common import catalog, yaml_file
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.run.step_times import MANY_STEPS, PERCENTS, StepDistribution
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.uncertainty.response import Response

Amounts = NDArray[np.float64]

JITTER: Final = "compute jitter"
DRIFT: Final = "drift"
NETWORK: Final = "network variability"
NODE_LINKS: Final = "variability inside nodes"
PERTURBATIONS: Final = "perturbations"
# Number of draws, at the midpoints of equally likely intervals; enough for the longest of 1,000 steps.
_DRAWS: Final = 4096
PROBABILITIES: Final[Amounts] = (np.arange(_DRAWS) + 0.5) / _DRAWS
# Probability at which the response of the step time is taken.
_TYPICAL: Final = 0.95
# Relative slowdown that is rounding.
_NO_SLOWDOWN: Final = 1e-9
# Quantities of a cluster that each source slows.
_QUANTITIES: Final[Mapping[str, tuple[str, ...]]] = {
    JITTER: ("device", "optimizer"), NETWORK: ("network.bandwidth",), NODE_LINKS: ("node.link.bandwidth",),
}  # fmt: skip


@dataclass(frozen=True)
class Source:
    """A source of variation. log_slowdowns: quantiles of the logarithm of its slowdown factor at the midpoints of equally
    likely intervals. share: relative increase of the step time per relative slowdown."""

    name: str
    log_slowdowns: Amounts
    share: float = 1.0

    @property
    def added(self) -> Amounts:
        """Quantiles of the relative increase of the step time over that with the median slowdown, shape (draws,)."""
        slowdowns = np.exp(self.log_slowdowns)
        return np.asarray(self.share * (slowdowns - np.median(slowdowns)))


def step_distribution(scenario: Scenario, run: Run, response: Response) -> StepDistribution:
    """The distribution of the times of single steps of a predicted run. response: of its scenario."""
    return distribution_of(sources(scenario, run, response), run.step_time_s, scenario.unevenness.wants_mean)


def distribution_of(sources: Sequence[Source], step_time_s: float, is_mean: bool = False) -> StepDistribution:
    """The distribution with these sources. step_time_s: its median; its mean, if `is_mean`."""
    added = [np.random.default_rng(number).permutation(source.added) for number, source in enumerate(sources)]
    times = np.sort(1 + sum(added, start=np.zeros(_DRAWS)))
    times *= step_time_s / (times.mean() if is_mean else np.median(times))
    percentiles_s = np.quantile(times, PERCENTS, method="hazen").tolist()
    longest_s = float(np.quantile(times, 0.5 ** (1 / MANY_STEPS), method="hazen"))
    variances = {source.name: float(source.added.var()) for source in sources}
    total = sum(variances.values())
    shares = {
        name: variances[name] / total for name in sorted(variances, key=lambda name: -variances[name]) if variances[name] > 0
    }
    return StepDistribution(float(times.mean()), tuple(percentiles_s), longest_s, shares)


def sources(scenario: Scenario, run: Run, response: Response) -> list[Source]:
    """The sources of variation of a scenario's step time."""
    unevenness = scenario.unevenness
    quantiles = default_quantiles(scenario, run.compute_ranks if response.program.is_static else 1)
    replaced = {
        JITTER: unevenness.compute_jitter > 0,
        NETWORK: unevenness.message_jitter > 0,
        NODE_LINKS: unevenness.message_jitter > 0,
    }
    kept = {name: values for name, values in quantiles.items() if not replaced.get(name, False)}
    shares = _shares(scenario.cluster, response, kept)
    found = [Source(name, values, shares.get(name, 1.0)) for name, values in kept.items()]
    if (unevenness.is_random or unevenness.changes) and len(run.step_times_s) > 1:
        times = np.quantile(run.step_times_s, PROBABILITIES, method="hazen")
        found.append(Source(PERTURBATIONS, np.log(times / np.median(times))))
    return found


def default_quantiles(scenario: Scenario, waiting_ranks: int) -> dict[str, Amounts]:
    """Quantiles of the logarithms of the slowdown factors of each source that applies without perturbations.

    waiting_ranks: number of ranks that wait for the slowest in each step.
    """
    cluster, strategy = scenario.cluster, scenario.strategy
    is_emulated = scenario.compute == "paced"
    quantiles = {} if is_emulated else compute_quantiles(is_host(cluster), waiting_ranks)
    nodes = strategy.nodes_needed(cluster)
    if nodes > 1:
        quantiles[NETWORK] = slowest_path_quantiles(variability(cluster), nodes, PROBABILITIES)
    if strategy.communicates_in_nodes(cluster):
        paths = min(cluster.node.devices, strategy.ranks)
        quantiles[NODE_LINKS] = slowest_path_quantiles(variability(cluster, inside=True), paths, PROBABILITIES)
    return quantiles


def compute_quantiles(host: bool, waiting_ranks: int) -> dict[str, Amounts]:
    """Quantiles of the logarithms of the slowdown factors of compute: jitter of the slowest of the ranks that wait for one
    another, and drift of all. host: whether ranks compute on processor cores."""
    variation = _variation()["host" if host else "gpu"]
    return {JITTER: variation["jitter"] * slowest_normal(waiting_ranks), DRIFT: variation["drift"] * slowest_normal(1)}


@functools.lru_cache(maxsize=32)
def slowest_normal(count: int) -> Amounts:
    """Quantiles of the largest of `count` standard normal variables at the midpoints of equally likely intervals, shape
    (draws,). Its median grows like √(2 ln count)."""
    logs = np.log(PROBABILITIES) / count
    # the largest is below x if all are: p^(1 / count); its complement is accurate for many ranks
    return np.array([-NormalDist().inv_cdf(-math.expm1(log)) for log in logs.tolist()])


def is_host(cluster: Cluster) -> bool:
    """Whether ranks of a cluster compute on processor cores."""
    return cluster.node.cores is not None or cluster.shared_cores is not None


def _shares(cluster: Cluster, response: Response, quantiles: Mapping[str, Amounts]) -> dict[str, float]:
    """Relative increase of the step time per relative slowdown by each source, at the source's 95th percentile.

    quantiles: of the logarithms of slowdown factors, by source; drift has none, since it slows the whole step.
    """
    slowdowns = {
        name: math.exp(float(np.quantile(values, _TYPICAL))) for name, values in quantiles.items() if name in _QUANTITIES
    }
    names = {name: _quantities(cluster, name) for name in slowdowns}
    factors = [
        [slowdown if quantity in names[name] else 1.0 for name, slowdown in slowdowns.items()]
        for quantity in response.priors.names
    ]
    times = response.step_times(np.reshape(factors, (len(factors), len(slowdowns)))).tolist()
    return {
        name: max(0.0, (time - 1) / (slowdown - 1)) if slowdown >= 1 + _NO_SLOWDOWN else 0.0
        for (name, slowdown), time in zip(slowdowns.items(), times, strict=True)
    }


def _quantities(cluster: Cluster, name: str) -> list[str]:
    """Quantities of a cluster that a source slows."""
    # measured collectives stand for the slowest links that they use; the duration of others follows from the links
    with_collectives = NETWORK if cluster.nodes > 1 else NODE_LINKS
    collectives = ["collectives"] if cluster.collectives.measured and name == with_collectives else []
    return [one for one in (*_QUANTITIES[name], *collectives) if QUANTITIES[one].value(cluster) is not None]


@functools.cache
def _variation() -> Mapping[str, Any]:
    found: Mapping[str, Any] = yaml_file.shipped(catalog.ROOT / "kernels" / "variation.yaml")
    return found
