"""Predicted time of a collective by size with its 90 % interval, and measured times of the same group for comparison."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.cost import collective_cost
from scaleproof.simulator.cluster.collectives.groups import Group, Op
from scaleproof.simulator.common.record import Record
from scaleproof.simulator.common.units import format_bytes, format_percent
from scaleproof.simulator.uncertainty.error_model import case_of_collective
from scaleproof.simulator.uncertainty.linear_response import of_closed_form


@dataclass(frozen=True)
class PredictedSize:
    """Predicted seconds of a size, and the ends of their 90 % interval."""

    size_bytes: float
    seconds: float
    low_s: float
    high_s: float


@dataclass(frozen=True)
class MeasuredSize:
    """Measured seconds of a size, next to the prediction."""

    measured_s: float
    predicted: PredictedSize

    @property
    def error(self) -> float:
        """Signed relative error of the prediction."""
        return self.predicted.seconds / self.measured_s - 1

    @property
    def is_inside(self) -> bool:
        """Whether the measured time lies in the 90 % interval."""
        return self.predicted.low_s <= self.measured_s <= self.predicted.high_s


@dataclass(frozen=True)
class CollectiveCurve:
    """A collective of one group by size. system: where it runs. detail: what else distinguishes the curve, such as the
    algorithm. points: predictions from the smallest size to the largest. measured: sizes with a measured time."""

    system: str
    op: Op
    ranks: int
    nodes: int
    detail: str
    points: tuple[PredictedSize, ...]
    measured: tuple[MeasuredSize, ...] = ()

    @property
    def group(self) -> str:
        """Group and detail as text: '16 ranks on 2 nodes, ring'."""
        nodes = f"{self.nodes} node{'s' if self.nodes > 1 else ''}"
        return f"{self.ranks} ranks on {nodes}" + (f", {self.detail}" if self.detail else "")

    @property
    def errors(self) -> list[float]:
        """Absolute relative errors of the measured sizes."""
        return [abs(one.error) for one in self.measured]

    @property
    def finding(self) -> str:
        """Errors in a line: '22 times: 8.1 % off at the median, 21 % at most (4.00 MiB); 20 in the 90 % interval'."""
        if not self.measured:
            return ""
        worst = max(self.measured, key=lambda one: abs(one.error))
        median = format_percent(float(np.median(self.errors)))
        most = f"{format_percent(abs(worst.error))} at most ({format_bytes(worst.predicted.size_bytes)})"
        inside = sum(one.is_inside for one in self.measured)
        count = f"{len(self.measured)} time{'s' if len(self.measured) > 1 else ''}"
        return f"{count}: {median} off at the median, {most}; {inside} in the 90 % interval"


class Collectives(Record):
    """Curves of one collective or several."""

    curves: tuple[CollectiveCurve, ...]


def predicted_curve(
    op: Op, group: Group, cluster: Cluster, sizes: Iterable[float], algorithm: str | None = None, called_s: float = 0.0
) -> tuple[PredictedSize, ...]:
    """Predictions of sizes with their intervals, in ascending order. called_s: seconds of the call in addition."""
    return tuple(_predicted(op, group, cluster, size_bytes, algorithm, called_s) for size_bytes in sorted(set(sizes)))


def _predicted(
    op: Op, group: Group, cluster: Cluster, size_bytes: float, algorithm: str | None, called_s: float
) -> PredictedSize:
    def seconds(cluster: Cluster) -> float:
        return collective_cost(op, size_bytes, group, cluster, algorithm).seconds + called_s

    interval = of_closed_form(seconds, cluster, case_of_collective(size_bytes, cluster))
    predicted_s = seconds(cluster)
    return PredictedSize(size_bytes, predicted_s, interval.low * predicted_s, interval.high * predicted_s)


def drawn_sizes(sizes: Sequence[float]) -> list[float]:
    """The sizes, and powers of two from the smallest to the largest, for a smooth curve."""
    first, last = math.floor(math.log2(min(sizes))), math.ceil(math.log2(max(sizes)))
    return sorted({*sizes, *(2.0**power for power in range(first, last + 1))})
