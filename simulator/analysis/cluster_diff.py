"""cluster diff: the quantities of two cluster descriptions, and whether they differ by more than their uncertainty."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.quantities import QUANTITIES, parse_share
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
    """One cluster's value of a quantity. low, high: its 90 % interval; equal to the value if the cluster gives no interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class QuantityRow:
    """One quantity that at least one of the clusters gives. unit: in SI. show: formats a value with its unit."""

    what: str
    unit: str
    a: ClusterValue | None
    b: ClusterValue | None
    show: Callable[[float], str]

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
        return {"what": self.what, "unit": self.unit, **sides, "ratio": self.ratio, "verdict": self.verdict}


def compare(a: Cluster, b: Cluster) -> list[QuantityRow]:
    """One row for each quantity that at least one of the clusters gives."""
    in_a, in_b = _quantities(a), _quantities(b)
    rows = []
    for what in dict.fromkeys([*in_a, *in_b]):
        of_a, of_b = in_a.get(what), in_b.get(what)
        either = of_a or of_b
        assert either is not None
        rows.append(QuantityRow(what, either.unit, of_a.value if of_a else None, of_b.value if of_b else None, either.show))
    return rows


@dataclass(frozen=True)
class _Comparable:
    value: ClusterValue
    unit: str
    show: Callable[[float], str]


def _quantities(cluster: Cluster) -> dict[str, _Comparable]:
    """All quantities of a cluster that can be compared with another cluster's, by name."""
    return {
        **dict(_device(cluster)),
        **dict(_links(cluster)),
        **dict(_collectives(cluster)),
    }


def _device(cluster: Cluster) -> Iterator[tuple[str, _Comparable]]:
    device, interval = cluster.device, _relative_interval(cluster, "device")
    if cluster.node.cores is not None:
        yield "node.cores", _Comparable(_with_interval(cluster.node.cores, (1.0, 1.0)), "cores", "{:.2f}".format)
    for precision, flops in device.peak_flops.items():
        yield f"device.peak {precision}", _Comparable(_with_interval(flops, interval), "FLOP/s", _flops)
    yield "device.memory_bandwidth", _Comparable(_with_interval(device.memory_bandwidth_Bps, interval), "B/s", _Bps)
    for layer in device.measured_layers:
        seconds = sum(layer.passes_s(_SAMPLES))
        yield f"{layer.signature} {layer.precision}, {_SAMPLES} samples", _time(seconds, interval)
    for one in device.measured_optimizers:
        seconds = one.base_s + one.per_parameter_s * _PARAMETERS
        yield f"{one.optimizer} {one.precision}, 1 M parameters", _time(seconds, _relative_interval(cluster, "optimizer"))


def _links(cluster: Cluster) -> Iterator[tuple[str, _Comparable]]:
    for name, quantity in QUANTITIES.items():
        value = quantity.value(cluster)
        if "." not in name or value is None:
            continue
        given = cluster.uncertainty.get(name)
        low, high = (quantity.parse(given.low), quantity.parse(given.high)) if given else (value, value)
        unit = "B/s" if quantity.larger_is_faster else "s"
        yield name, _Comparable(ClusterValue(value, low, high), unit, quantity.format)
    for inside, link in ((True, cluster.node.link), (False, cluster.network)):
        for exception in link.exceptions if link else ():
            what = f"{'node.link' if inside else 'network'}.bandwidth at {', '.join(map(str, exception.at))}"
            yield what, _Comparable(_with_interval(exception.bandwidth_Bps, (1.0, 1.0)), "B/s", format_Bps)


def _collectives(cluster: Cluster) -> Iterator[tuple[str, _Comparable]]:
    interval = _relative_interval(cluster, "collectives")
    for op, ranks, nodes in dict.fromkeys((one.op, one.ranks, one.nodes) for one in cluster.collectives.measured):
        small, large = (cluster.collectives.exactly(op, ranks, nodes, size_bytes) for size_bytes in (0, _BUFFER_BYTES))
        assert small is not None
        assert large is not None
        where = f"{ranks} ranks" + (f" on {nodes} nodes" if nodes > 1 else "")
        yield f"{op} over {where}, small", _time(small.latency_s, interval)
        yield f"{op} over {where}, 1 MiB", _time(large.seconds(_BUFFER_BYTES), interval)


def _relative_interval(cluster: Cluster, name: str) -> tuple[float, float]:
    """The relative 90 % interval of a quantity; (1, 1) if the cluster gives no interval."""
    given: Mapping[str, Any] = cluster.uncertainty
    return (parse_share(given[name].low), parse_share(given[name].high)) if name in given else (1.0, 1.0)


def _with_interval(value: float, interval: tuple[float, float]) -> ClusterValue:
    return ClusterValue(value, value * interval[0], value * interval[1])


def _time(seconds: float, interval: tuple[float, float]) -> _Comparable:
    return _Comparable(_with_interval(seconds, interval), "s", format_time_s)


def _flops(rate: float) -> str:
    return f"{format_count(rate)}FLOP/s"


def _Bps(rate: float) -> str:
    return f"{format_count(rate)}B/s"
