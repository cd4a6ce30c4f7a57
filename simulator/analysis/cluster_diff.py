"""cluster diff: the quantities of two cluster descriptions, and whether they differ by more than their uncertainty."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Final, Literal, NamedTuple

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.quantities import QUANTITIES, Interval, parse_share
from scaleproof.simulator.common.record import Record

Verdict = Literal["same", "within noise", "differs", "only in A", "only in B"]

# Measured cost lines are compared at one point each: a usual microbatch, model and buffer.
_SAMPLES: Final = 8
_PARAMETERS: Final = 1_000_000
_BUFFER_BYTES: Final = 2**20
# Values within this relative difference are the same: files give four digits.
_SAME: Final = 1e-4


class ClusterValue(NamedTuple):
    """One cluster's value of a quantity. unit: in SI. interval: the 90 % interval relative to the value; (1, 1) if the cluster
    gives none."""

    value: float
    unit: str
    interval: tuple[float, float] = (1.0, 1.0)


class QuantityRow(Record):
    """One quantity that at least one of the clusters gives. unit: in SI. a_low and so on: ends of the 90 % interval."""

    derived: ClassVar = ("ratio", "verdict")

    what: str
    unit: str
    a: float | None
    a_low: float | None
    a_high: float | None
    b: float | None
    b_low: float | None
    b_high: float | None

    @property
    def ratio(self) -> float | None:
        """Value of B over value of A; None where either is missing."""
        return self.b / self.a if self.a and self.b is not None else None

    @property
    def factor(self) -> float:
        """The larger value over the smaller one; infinite where either is missing or 0."""
        return max(self.ratio, 1 / self.ratio) if self.ratio else float("inf")

    @property
    def verdict(self) -> Verdict:
        """Whether the values differ; "within noise" where their intervals overlap."""
        if self.a is None or self.b is None:
            return "only in B" if self.a is None else "only in A"
        if abs(self.b - self.a) <= _SAME * abs(self.a):
            return "same"
        low, high = max(self.a_low or 0.0, self.b_low or 0.0), min(self.a_high or 0.0, self.b_high or 0.0)
        return "within noise" if low <= high else "differs"


class ClusterDiff(Record):
    """The quantities of two clusters. a, b: what the clusters are called."""

    a: str
    b: str
    rows: tuple[QuantityRow, ...]


def compare(a: Cluster, b: Cluster, names: tuple[str, str] = ("A", "B")) -> ClusterDiff:
    """One row for each quantity that at least one of the clusters gives. names: of the clusters."""
    sides = {"a": dict(_quantities(a)), "b": dict(_quantities(b))}
    rows = []
    for what in sides["a"] | sides["b"]:
        ends: dict[str, float | None] = {}
        for side, values in sides.items():
            known = values.get(what)
            low, high = (None, None) if known is None else (known.value * end for end in known.interval)
            ends |= {side: known and known.value, f"{side}_low": low, f"{side}_high": high}
        unit = next(values[what].unit for values in sides.values() if what in values)
        rows.append(QuantityRow(what=what, unit=unit, **ends))
    return ClusterDiff(a=names[0], b=names[1], rows=tuple(rows))


def _quantities(cluster: Cluster) -> Iterator[tuple[str, ClusterValue]]:
    """All quantities of a cluster that can be compared with another cluster's, with their names."""
    device, uncertainty = cluster.device, cluster.uncertainty

    def seconds(value_s: float, quantity: str) -> ClusterValue:
        """A time with the relative interval of an uncertain quantity."""
        return ClusterValue(value_s, "s", _relative_interval(uncertainty, quantity))

    if cluster.node.cores is not None:
        yield "node.cores", ClusterValue(cluster.node.cores, "cores")
    interval = _relative_interval(uncertainty, "device")
    for precision, flops in device.peak_flops.items():
        yield f"device.peak {precision}", ClusterValue(flops, "FLOP/s", interval)
    yield "device.memory_bandwidth", ClusterValue(device.memory_bandwidth_Bps, "B/s", interval)
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
        yield name, ClusterValue(value, "B/s" if quantity.larger_is_faster else "s", relative)
    for place, link in (("node.link", cluster.node.link), ("network", cluster.network)):
        for exception in link.exceptions if link else ():
            what = f"{place}.bandwidth at {', '.join(map(str, exception.at))}"
            yield what, ClusterValue(exception.bandwidth_Bps, "B/s")
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
