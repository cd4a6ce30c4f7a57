"""cluster diff: the quantities of two cluster descriptions, and whether they differ by more than their uncertainty."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.quantities import QUANTITIES, Interval, parse_share
from scaleproof.simulator.common.units import format_Bps, format_count, format_time_s

Verdict = Literal["same", "within noise", "differs", "only in A", "only in B"]

# Measured cost lines are compared at one point each: a usual microbatch, model and buffer.
_SAMPLES: Final = 8
_PARAMETERS: Final = 1_000_000
_BUFFER_BYTES: Final = 2**20
# Values within this relative difference are the same: files give four digits.
_SAME: Final = 1e-4


@dataclass(frozen=True)
class ClusterValue:
    """One cluster's value of a quantity. unit: in SI. show: formats a value with its unit. interval: the 90 % interval relative
    to the value; (1, 1) if the cluster gives none."""

    value: float
    unit: str
    show: Callable[[float], str]
    interval: tuple[float, float] = (1.0, 1.0)

    @property
    def low(self) -> float:
        """The lower end of the 90 % interval."""
        return self.value * self.interval[0]

    @property
    def high(self) -> float:
        """The upper end of the 90 % interval."""
        return self.value * self.interval[1]


@dataclass(frozen=True)
class QuantityRow:
    """One quantity that at least one of the clusters gives."""

    what: str
    a: ClusterValue | None
    b: ClusterValue | None

    @property
    def ratio(self) -> float | None:
        """Value of B over value of A; None where either is missing."""
        return self.b.value / self.a.value if self.a and self.b and self.a.value else None

    @property
    def factor(self) -> float:
        """The larger value over the smaller one; infinite where either is missing or 0."""
        return max(self.ratio, 1 / self.ratio) if self.ratio else float("inf")

    @property
    def verdict(self) -> Verdict:
        """Whether the values differ; "within noise" where their intervals overlap."""
        if self.a is None or self.b is None:
            return "only in B" if self.a is None else "only in A"
        if abs(self.b.value - self.a.value) <= _SAME * abs(self.a.value):
            return "same"
        return "within noise" if self.a.low <= self.b.high and self.b.low <= self.a.high else "differs"

    def plain(self) -> dict[str, Any]:
        """The row as data for JSON."""
        sides = {
            f"{name}{suffix}": None if side is None else getattr(side, field)
            for name, side in (("a", self.a), ("b", self.b))
            for suffix, field in (("", "value"), ("_low", "low"), ("_high", "high"))
        }
        unit = next(side.unit for side in (self.a, self.b) if side is not None)
        return {"what": self.what, "unit": unit, **sides, "ratio": self.ratio, "verdict": self.verdict}


def compare(a: Cluster, b: Cluster) -> list[QuantityRow]:
    """One row for each quantity that at least one of the clusters gives."""
    in_a, in_b = dict(_quantities(a)), dict(_quantities(b))
    return [QuantityRow(what, in_a.get(what), in_b.get(what)) for what in (in_a | in_b)]


def _quantities(cluster: Cluster) -> Iterator[tuple[str, ClusterValue]]:
    """All quantities of a cluster that can be compared with another cluster's, with their names."""
    device, uncertainty = cluster.device, cluster.uncertainty

    def seconds(value_s: float, quantity: str) -> ClusterValue:
        """A time with the relative interval of an uncertain quantity."""
        return ClusterValue(value_s, "s", format_time_s, _relative_interval(uncertainty, quantity))

    if cluster.node.cores is not None:
        yield "node.cores", ClusterValue(cluster.node.cores, "cores", "{:.2f}".format)
    interval = _relative_interval(uncertainty, "device")
    for precision, flops in device.peak_flops.items():
        yield f"device.peak {precision}", ClusterValue(flops, "FLOP/s", lambda rate: f"{format_count(rate)}FLOP/s", interval)
    bandwidth = ClusterValue(device.memory_bandwidth_Bps, "B/s", lambda rate: f"{format_count(rate)}B/s", interval)
    yield "device.memory_bandwidth", bandwidth
    for layer in device.measured_layers:
        passes_s = seconds(sum(layer.passes_s(_SAMPLES)), "device")
        yield f"{layer.signature} {layer.precision}, {_SAMPLES} samples", passes_s
    for line in device.measured_optimizers:
        update_s = seconds(line.base_s + line.per_parameter_s * _PARAMETERS, "optimizer")
        yield f"{line.optimizer} {line.precision}, 1 M parameters", update_s
    for name, quantity in QUANTITIES.items():
        value = quantity.value(cluster)
        if "." not in name or value is None:
            continue
        given = uncertainty.get(name)
        relative = (quantity.parse(given.low) / value, quantity.parse(given.high) / value) if given and value else (1.0, 1.0)
        yield name, ClusterValue(value, "B/s" if quantity.larger_is_faster else "s", quantity.format, relative)
    for place, link in (("node.link", cluster.node.link), ("network", cluster.network)):
        for exception in link.exceptions if link else ():
            what = f"{place}.bandwidth at {', '.join(map(str, exception.at))}"
            yield what, ClusterValue(exception.bandwidth_Bps, "B/s", format_Bps)
    for op, ranks, nodes in dict.fromkeys((line.op, line.ranks, line.nodes) for line in cluster.collectives.measured):
        small, large = (cluster.collectives.exactly(op, ranks, nodes, size_bytes) for size_bytes in (0, _BUFFER_BYTES))
        assert small is not None
        assert large is not None
        where = f"{ranks} ranks" + (f" on {nodes} nodes" if nodes > 1 else "")
        yield f"{op} over {where}, small", seconds(small.latency_s, "collectives")
        yield f"{op} over {where}, 1 MiB", seconds(large.seconds(_BUFFER_BYTES), "collectives")


def _relative_interval(uncertainty: Mapping[str, Interval], name: str) -> tuple[float, float]:
    """The relative 90 % interval of a quantity; (1, 1) if the cluster gives no interval."""
    given = uncertainty.get(name)
    return (parse_share(given.low), parse_share(given.high)) if given else (1.0, 1.0)
