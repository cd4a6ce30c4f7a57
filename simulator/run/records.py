"""Records that are parts of a Run: communication, scaling, servers, the estimate of a target loss, memory, verification."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from pydantic import PositiveFloat

from scaleproof.simulator.common.units import format_number


@dataclass(frozen=True)
class Scaling:
    """Weak or strong scaling of a run against a baseline.

    efficiency: throughput per training rank relative to the baseline's. speed_up: throughput relative to the baseline's, if
    known. baseline: what it is.
    """

    efficiency: PositiveFloat
    speed_up: float | None
    baseline: str


@dataclass(frozen=True)
class LoadingPart:
    """Samples per second of a node that one part of data loading allows. cure: the setting with which it would keep up with
    training; empty where it does."""

    name: str
    per_s: float
    cure: str = ""

    def __str__(self) -> str:
        """'storage 9,091 (input.storage.bandwidth=1.7 GB/s would do)'."""
        return f"{self.name} {format_number(self.per_s)}" + (f" ({self.cure} would do)" if self.cure else "")


@dataclass(frozen=True)
class LoadingRates:
    """What data loading allows. needed_per_s: samples per second of a node that training without waiting would use. parts: by
    their rate, the slowest first. ahead: whether batches are loaded before they are needed."""

    needed_per_s: float
    parts: tuple[LoadingPart, ...]
    ahead: bool = True

    def __str__(self) -> str:
        """'limited by decoding: 8,000 samples/s a node of 14,680 needed (input.cores=118 would do); storage 20,000'."""
        slowest, *others = self.parts
        needed = format_number(self.needed_per_s)
        rest = "".join(f"; {one}" for one in others)
        if slowest.cure:
            words = f"{format_number(slowest.per_s)} samples/s a node of {needed} needed ({slowest.cure} would do)"
            return f"limited by {slowest.name}: {words}{rest}"
        waits = "" if self.ahead else "; nothing is loaded ahead: input.prefetch=1 would do"
        return f"{needed} samples/s a node needed; {slowest}{rest}{waits}"


@dataclass(frozen=True)
class CommunicationPart:
    """Communication of one dimension and collective, per step, in the mean over training ranks.

    dimension, collective: such as "TP" and "all-reduce"; "other" if a strategy does not label them. calls: messages that a rank
    sends, or collectives that it takes part in. size_bytes: of the messages, or of the whole buffers of the collectives, of all
    calls. time_s: seconds with them in flight; where several are, the first to start counts. exposed_s: those of them that the
    rank waits for. Collectives within passes that overlap with compute count with their exposed seconds only.
    """

    dimension: str
    collective: str
    calls: float
    size_bytes: float
    time_s: float
    exposed_s: float

    @property
    def label(self) -> str:
        """The dimension and the collective, such as "TP all-reduce"."""
        return f"{self.dimension} {self.collective}"

    def divided(self, count: float) -> CommunicationPart:
        """The part of one of `count` equal parts of the step."""
        whole = self.calls, self.size_bytes, self.time_s, self.exposed_s
        return CommunicationPart(self.dimension, self.collective, *(value / count for value in whole))

    def scaled(self, factor: float) -> CommunicationPart:
        """The part with its times multiplied by `factor`."""
        return replace(self, time_s=self.time_s * factor, exposed_s=self.exposed_s * factor)


@dataclass(frozen=True)
class Distribution:
    """Mean, percentiles, maximum and histogram of weighted whole numbers. histogram: weight of each number."""

    mean: float
    p50: int
    p95: int
    max: int
    histogram: Mapping[str, int]


@dataclass(frozen=True)
class Utilisation:
    """Share of the time in which servers serve: mean and maximum over servers."""

    mean: float
    max: float


@dataclass(frozen=True)
class QueueLength:
    """Number of waiting requests: mean over time and servers, and maximum."""

    mean: float
    max: int


@dataclass(frozen=True)
class ServerStatistics:
    """Statistics of parameter servers and their workers in the evaluated window.

    clock_gap: when a rank begins a step, the number of its own pushes that the parameters include, minus that of the slowest
    rank. It grows during the run if nothing bounds it. version_staleness: number of updates by others between a worker's pull
    and the application of its push; without dropped pushes. The clock gap is a property of workers, which SSP bounds; version
    staleness one of gradients, which affects convergence: workers in step have no gap, and still each other's updates in
    between. dropped: share of pushes that came too late. updates_per_s: updates of the parameters. busy: utilisation of the
    busiest resource of each kind; bottleneck: the kind with the highest.
    """

    clock_gap: Distribution
    version_staleness: Distribution
    dropped: float
    updates_per_s: float
    utilisation: Utilisation
    queue_length: QueueLength
    busy: Mapping[str, float]
    bottleneck: str


@dataclass(frozen=True)
class TargetEstimate:
    """Parameter updates and samples until a target loss.

    steps: number of parameter updates; steps_interval: its 90 % interval. batch: samples per update, without those that servers
    drop. staleness: updates by others during a worker's step. samples: of all updates. steps_over_fewest, samples_over_fewest:
    as multiples of the minimum over all batch sizes.
    """

    steps: float
    steps_interval: tuple[float, float]
    batch: float
    staleness: float
    samples: float
    steps_over_fewest: float
    samples_over_fewest: float


@dataclass(frozen=True)
class CaptureFacts:
    """What is known of a prediction from a captured script.

    measured, extrapolated, unknown: shares of the time of kernels, by whether shapes are within those of measured kernels, the
    model of kernels gives the time, or only the bytes that an operator of unknown cost moves; they add up to 1. unknown_names:
    of such operators, the longest first. samples_known: whether samples of a step are known. modules_bytes, lines_bytes:
    allocated bytes at the peak of memory by module, and by line of the script.
    """

    measured: float
    extrapolated: float
    unknown: float
    unknown_names: tuple[str, ...] = ()
    modules_bytes: Mapping[str, float] = field(default_factory=dict)
    lines_bytes: Mapping[str, float] = field(default_factory=dict)
    samples_known: bool = True


@dataclass(frozen=True)
class StageMemory:
    """Peak bytes of the ranks of one kind, in total and by holder. name: such as "stage 3". capacity_bytes: of their device,
    where devices differ; of the node of a server."""

    name: str
    total_bytes: float
    holders_bytes: Mapping[str, float]
    capacity_bytes: float | None = None


# Share of a deviation of which rounding is no explanation.
_NEGLIGIBLE: Final = 0.01


@dataclass(frozen=True)
class Verification:
    """Comparison of trained parameters with those of one process that follows the same rule.

    rule: in words. deviation: relative deviation of the parameters. tolerance: deviation that rounding explains. amplified: of
    a deviation beyond it, the deviation of the one process from itself if its initial parameters are rounded; else 0.
    """

    rule: str
    deviation: float
    tolerance: float
    amplified: float = 0.0

    @property
    def is_right(self) -> bool:
        """Whether the deviation is within the tolerance."""
        return self.deviation <= self.tolerance

    @property
    def is_decided(self) -> bool:
        """Whether the comparison shows if training was right: not if rounding, which training amplifies, explains a deviation
        beyond the tolerance."""
        return self.amplified <= self.tolerance or self.amplified < _NEGLIGIBLE * self.deviation
