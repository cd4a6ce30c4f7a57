"""cluster diff: what two descriptions of a cluster say of the same things, and whether that is more than noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.quantities import QUANTITIES, parse_share
from scaleproof.simulator.common.units import format_Bps, format_count, format_time_s

Verdict = Literal["same", "within noise", "differs", "only in A", "only in B"]

# Measured lines are compared at one point of each: of usual microbatches, models and buffers.
_SAMPLES: Final = 8
_PARAMETERS: Final = 1_000_000
_BUFFER_BYTES: Final = 2**20
# Numbers that round to the same four digits, as files give them, are the same.
_SAME: Final = 1e-4


@dataclass(frozen=True)
class ClusterValue:
    """What one cluster says: the number, and its 90 % interval where it gives one, else the number twice."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class QuantityRow:
    """One thing that either cluster says a number of. unit: of the numbers, in SI."""

    what: str
    unit: str
    a: ClusterValue | None
    b: ClusterValue | None
    show: Callable[[float], str]

    @property
    def ratio(self) -> float | None:
        """B over A."""
        return self.b.value / self.a.value if self.a and self.b and self.a.value else None

    @property
    def verdict(self) -> Verdict:
        """Whether the intervals overlap."""
        if self.a is None or self.b is None:
            return "only in B" if self.a is None else "only in A"
        if abs(self.b.value - self.a.value) <= _SAME * abs(self.a.value):
            return "same"
        return "within noise" if self.a.low <= self.b.high and self.b.low <= self.a.high else "differs"

    def plain(self) -> dict[str, Any]:
        """As data for JSON."""
        sides = {
            f"{name}{suffix}": None if side is None else getattr(side, field)
            for name, side in (("a", self.a), ("b", self.b))
            for suffix, field in (("", "value"), ("_low", "low"), ("_high", "high"))
        }
        return {"what": self.what, "unit": self.unit, **sides, "ratio": self.ratio, "verdict": self.verdict}


def compare(a: Cluster, b: Cluster) -> list[QuantityRow]:
    """A row for everything that either of them has a number of."""
    ours, theirs = _numbers(a), _numbers(b)
    rows = []
    for what in dict.fromkeys([*ours, *theirs]):
        one, other = ours.get(what), theirs.get(what)
        kind = one or other
        assert kind is not None
        rows.append(QuantityRow(what, kind.unit, one.side if one else None, other.side if other else None, kind.show))
    return rows


def describe(rows: Sequence[QuantityRow], names: tuple[str, str]) -> str:
    """The rows as a table for people."""
    cells = [(row.what, *(row.show(side.value) if side else "–" for side in (row.a, row.b))) for row in rows]
    what, left, right = (max(len(text) for text in column) for column in zip(("quantity", *names), *cells, strict=True))
    lines = [f"{'quantity':<{what}}  {names[0]:>{left}}  {names[1]:>{right}}  {'ratio':>6}"]
    for row, (name, one, other) in zip(rows, cells, strict=True):
        ratio = "" if row.ratio is None else f"{row.ratio:.3f}"
        lines.append(f"{name:<{what}}  {one:>{left}}  {other:>{right}}  {ratio:>6}  {row.verdict}")
    return "\n".join([*lines, _verdict(rows)])


def _verdict(rows: Sequence[QuantityRow]) -> str:
    """The closing line: how many differ, and by how much the furthest apart do."""
    differ = [row for row in rows if row.verdict == "differs"]
    common = sum(row.a is not None and row.b is not None for row in rows)
    if not differ:
        return f"none of {common} that both have differ by more than noise"
    worst = max(differ, key=_apart)
    return f"{len(differ)} of {common} that both have differ by more than noise, most of all {worst.what}"


def _apart(row: QuantityRow) -> float:
    """How many times as large the larger is."""
    return max(row.ratio, 1 / row.ratio) if row.ratio else float("inf")


@dataclass(frozen=True)
class _Number:
    side: ClusterValue
    unit: str
    show: Callable[[float], str]


def _numbers(cluster: Cluster) -> dict[str, _Number]:
    """Everything of a cluster that can be held against another's, by name."""
    return {
        **dict(_device(cluster)),
        **dict(_links(cluster)),
        **dict(_collectives(cluster)),
    }


def _device(cluster: Cluster) -> Iterator[tuple[str, _Number]]:
    device, share = cluster.device, _share(cluster, "device")
    if cluster.node.cores is not None:
        yield "node.cores", _Number(_spread(cluster.node.cores, (1.0, 1.0)), "cores", "{:.2f}".format)
    for precision, flops in device.peak_flops.items():
        yield f"device.peak {precision}", _Number(_spread(flops, share), "FLOP/s", _flops)
    yield "device.memory_bandwidth", _Number(_spread(device.memory_bandwidth_Bps, share), "B/s", _Bps)
    for layer in device.measured_layers:
        seconds = layer.forward.at(_SAMPLES) + layer.backward.at(_SAMPLES)
        yield f"{layer.signature} {layer.precision}, {_SAMPLES} samples", _time(seconds, share)
    for one in device.measured_optimizers:
        seconds = one.base_s + one.per_parameter_s * _PARAMETERS
        yield f"{one.optimizer} {one.precision}, 1 M parameters", _time(seconds, _share(cluster, "optimizer"))


def _links(cluster: Cluster) -> Iterator[tuple[str, _Number]]:
    for name, quantity in QUANTITIES.items():
        value = quantity.value(cluster)
        if "." not in name or value is None:
            continue
        given = cluster.uncertainty.get(name)
        low, high = (quantity.parse(given.low), quantity.parse(given.high)) if given else (value, value)
        unit = "B/s" if quantity.larger_is_faster else "s"
        yield name, _Number(ClusterValue(value, low, high), unit, quantity.format)
    for inside, link in ((True, cluster.node.link), (False, cluster.network)):
        for unlike in link.unlike if link else ():
            what = f"{'node.link' if inside else 'network'}.bandwidth at {', '.join(map(str, unlike.at))}"
            yield what, _Number(_spread(unlike.bandwidth_Bps, (1.0, 1.0)), "B/s", format_Bps)


def _collectives(cluster: Cluster) -> Iterator[tuple[str, _Number]]:
    share = _share(cluster, "collectives")
    for op, ranks, nodes in dict.fromkeys((one.op, one.ranks, one.nodes) for one in cluster.collectives.measured):
        small, large = (cluster.collectives.exactly(op, ranks, nodes, size_bytes) for size_bytes in (0, _BUFFER_BYTES))
        assert small is not None
        assert large is not None
        where = f"{ranks} ranks" + (f" on {nodes} nodes" if nodes > 1 else "")
        yield f"{op} over {where}, small", _time(small.latency_s, share)
        yield f"{op} over {where}, 1 MiB", _time(large.seconds(_BUFFER_BYTES), share)


def _share(cluster: Cluster, name: str) -> tuple[float, float]:
    """The interval of a share, 1 to 1 where the cluster gives none."""
    given: Mapping[str, Any] = cluster.uncertainty
    return (parse_share(given[name].low), parse_share(given[name].high)) if name in given else (1.0, 1.0)


def _spread(value: float, share: tuple[float, float]) -> ClusterValue:
    return ClusterValue(value, value * share[0], value * share[1])


def _time(seconds: float, share: tuple[float, float]) -> _Number:
    return _Number(_spread(seconds, share), "s", format_time_s)


def _flops(rate: float) -> str:
    return f"{format_count(rate)}FLOP/s"


def _Bps(rate: float) -> str:
    return f"{format_count(rate)}B/s"
