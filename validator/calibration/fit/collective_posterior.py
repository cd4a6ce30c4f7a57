"""Constants of the timing of collectives, updated by measured times, so that unmeasured sizes, groups and operations improve.

The factors of `Adjust` are unknown; their prior is the 90 % interval of the shipped constants that they apply to, widened by
the differences between clusters that share these constants. Measured times differ from predicted ones by two relative errors:
of the model, which neighbouring sizes of the same operation and group share, and of the measurement. All are Gaussian in the
logarithm. Shared errors keep a sweep of many sizes from counting as many independent measurements.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, cast

import numpy as np

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.cost import modelled_costing
from scaleproof.simulator.cluster.collectives.groups import Group, Op
from scaleproof.simulator.cluster.collectives.nccl import constants
from scaleproof.simulator.cluster.collectives.settings import Adjust
from scaleproof.simulator.cluster.quantities import DEVIATIONS
from scaleproof.validator.calibration.fit.collectives import operations
from scaleproof.validator.calibration.fit.measured_curve import SizeTime, not_rising
from scaleproof.validator.estimation.posterior import Array, Prior, fit
from scaleproof.validator.probe.points import Point

# Standard deviations of the logarithms of the factors among clusters of one generation and transport, and of errors of a time:
# of the model, shared within a factor of about 2^_SHARED in the size, and of the measurement. Rounded from published systems,
# each by the constants that are fitted to the others.
_DIFFERENCES: Final[Mapping[str, float]] = {
    "launch": 0.3, "latency_inside": 0.3, "latency_between": 0.25, "rate_inside": 0.05, "rate_between": 0.1,
}  # fmt: skip
_MODEL: Final = 0.12
_SHARED: Final = 3.0
_MEASUREMENT: Final = 0.05


class MeasuredTime(NamedTuple):
    """Seconds of a collective of one size over a group that fills its nodes evenly."""

    op: Op
    ranks: int
    nodes: int
    size_bytes: float
    seconds: float


class LearnedFactor(NamedTuple):
    """A factor on a shipped constant: its posterior value and 90 % interval, and the prior's interval around 1."""

    name: str
    value: float
    low: float
    high: float
    prior_low: float
    prior_high: float

    @property
    def is_learned(self) -> bool:
        """Whether the measurements narrowed the interval by a tenth or more."""
        return math.log(self.high / self.low) < 0.9 * math.log(self.prior_high / self.prior_low)

    @property
    def is_surprising(self) -> bool:
        """Whether the value lies far outside of the prior's interval, at twice its width or more."""
        return abs(math.log(self.value)) > math.log(self.prior_high / self.prior_low)


@dataclass(frozen=True)
class CollectivePosterior:
    """Factors after measurements. times: number of measured times. error_before, error_after: median of |predicted / measured −
    1| over them, with the shipped constants and with the updated ones."""

    factors: tuple[LearnedFactor, ...]
    times: int
    error_before: float
    error_after: float

    @property
    def adjust(self) -> Adjust:
        """The factors as a cluster has them, with four digits."""
        return Adjust(**{factor.name: float(f"{factor.value:.4g}") for factor in self.factors})


def times_of(points: Iterable[Point]) -> list[MeasuredTime]:
    """Median times of the points of collectives, without sizes that take longer than larger ones, and without those of traces,
    which contain waiting for other ranks."""
    groups: defaultdict[tuple[Op, int, int], defaultdict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for point in operations(points):
        if point.size > 0 and "traced" not in point.numbers:
            group = groups[cast(Op, point.what), len(point.ranks), round(point.numbers["nodes"])]
            group[point.size].extend(point.seconds)
    times = []
    for key, by_size in groups.items():
        medians = [SizeTime(size, statistics.median(seconds)) for size, seconds in sorted(by_size.items()) if seconds]
        off = not_rising(medians)
        times += [MeasuredTime(*key, *median) for i, median in enumerate(medians) if i not in off]
    return times


def updated(cluster: Cluster, times: Sequence[MeasuredTime]) -> CollectivePosterior | None:
    """The factors on a cluster's constants after measured times; None if NCCL's timing does not apply to the cluster, or to any
    of the times."""
    usable = [one for one in times if one.seconds > 0 and one.size_bytes > 0 and group_of(one, cluster) is not None]
    if not usable or cluster.nccl is None:
        return None
    deviations = prior_deviations(cluster)
    names = tuple(deviations)
    prior = np.array([deviations[name] for name in names])
    roots = covariance_root(usable)
    measured = np.log([one.seconds for one in usable])

    def errors(logs: Array) -> Array:
        return measured - _predicted_logs(_adjusted(cluster, names, logs), usable)

    def whitened(logs: Array) -> Array:
        return np.asarray(np.linalg.solve(roots, errors(logs)))

    none = np.zeros_like(prior)
    found = fit(whitened, none, prior=Prior(none, prior))
    columns = (names, found.values.tolist(), found.deviations.tolist(), prior.tolist())
    factors = tuple(_learned(*row) for row in zip(*columns, strict=True))
    before, after = (float(np.median(np.abs(np.expm1(-errors(logs))))) for logs in (none, found.values))
    return CollectivePosterior(factors, len(usable), before, after)


def group_of(time: MeasuredTime, cluster: Cluster) -> Group | None:
    """The group of a measured time on a cluster; None if the cluster is too small for it."""
    per_node, devices = -(-time.ranks // time.nodes), cluster.node.devices
    if time.ranks < 2 or time.nodes > cluster.nodes or per_node > devices:
        return None
    ranks = [node * devices + device for node in range(time.nodes) for device in range(per_node)]
    return Group.of(ranks[: time.ranks], devices)


def prior_deviations(cluster: Cluster) -> dict[str, float]:
    """Standard deviations of the logarithms of the factors: of the shipped constants, and of clusters that share them.

    Factors of links that the cluster lacks are left out.
    """
    facts = cluster.nccl
    assert facts is not None
    absent = [
        *(["latency_inside", "rate_inside"] if cluster.node.link is None else []),
        *(["latency_between", "rate_between"] if cluster.network is None else []),
    ]
    tables = constants.shipped()
    generation, transport = tables["generations"][facts.generation], tables["transports"][cluster.transport]
    rows = {
        "launch": generation["launch"],
        "latency_inside": generation["step"],
        "latency_between": transport["step"],
        "rate_inside": generation["simple_rate"],
        "rate_between": transport["rate"],
    }
    return {name: math.hypot(row.deviation, _DIFFERENCES[name]) for name, row in rows.items() if name not in absent}


def _learned(name: str, log: float, deviation: float, prior: float) -> LearnedFactor:
    low, high = (math.exp(log + side * DEVIATIONS * deviation) for side in (-1, 1))
    prior_low, prior_high = (math.exp(side * DEVIATIONS * prior) for side in (-1, 1))
    return LearnedFactor(name, math.exp(log), low, high, prior_low, prior_high)


def _adjusted(cluster: Cluster, names: Sequence[str], logs: Array) -> Cluster:
    """The cluster with shipped constants times the factors, whose logarithms are given."""
    adjust = Adjust(**dict(zip(names, np.exp(np.clip(logs, -6.0, 6.0)).tolist(), strict=True)))
    return cluster.model_copy(update={"collectives": cluster.collectives.model_copy(update={"adjust": adjust})})


def _predicted_logs(cluster: Cluster, times: Sequence[MeasuredTime]) -> Array:
    costings = {}
    for one in times:
        key = one.op, one.ranks, one.nodes
        if key not in costings:
            group = group_of(one, cluster)
            assert group is not None
            costings[key] = modelled_costing(one.op, group, cluster)
    return np.log([costings[one.op, one.ranks, one.nodes](one.size_bytes).seconds for one in times])


def covariance_root(times: Sequence[MeasuredTime]) -> Array:
    """Cholesky factor of the covariance of the errors of the logarithms."""
    groups = np.unique([f"{one.op} {one.ranks} {one.nodes}" for one in times], return_inverse=True)[1]
    powers = np.log2([one.size_bytes for one in times])
    distance = np.abs(powers[:, None] - powers) / _SHARED
    shared = np.where(groups[:, None] == groups, _MODEL**2 * np.exp(-distance), 0.0)
    return np.asarray(np.linalg.cholesky(shared + _MEASUREMENT**2 * np.eye(len(times))))
