"""Quantities: the numbers of a cluster that times follow from, how sure each is, and what a cluster is like where one is worse.

Each quantity is told as a slowness: how many times as long everything takes that follows from it. Half the bandwidth is a
slowness of 2, twice the latency too. Seconds are linear in slownesses as long as nothing else becomes the bottleneck.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pydantic import Field

from scaleproof.simulator.common.errors import UnitError
from scaleproof.simulator.common.spec import Spec
from scaleproof.simulator.common.units import format_Bps, format_time_s, parse_Bps, parse_time_s

if TYPE_CHECKING:
    from scaleproof.simulator.cluster import Cluster
    from scaleproof.simulator.cluster.device.device import Device
    from scaleproof.simulator.cluster.network.links import Link

# Standard deviations that a normal variable's 90 % interval reaches to on either side.
DEVIATIONS: Final = 1.6449


# Slowed clusters that are cached, with the clusters that they were made of, so that no other gets the same identity.
_MOST_SLOWED: Final = 64
_SLOWED: Final[OrderedDict[tuple[int, tuple[tuple[str, float], ...]], tuple[Cluster, Cluster]]] = OrderedDict()


class Interval(Spec):
    """Where a quantity is with a probability of 90 %: low to high, written as the quantity is ('471 Mbit/s'), or as a share of
    the times that the file gives ('104 %') where it stands for many. nominal: what the vendor says, for comparison."""

    low: str
    high: str
    nominal: str = ""
    measurements: int = Field(0, ge=0, description="how many it comes from")


@dataclass(frozen=True)
class Quantity:
    """One such number.

    value: what a cluster says of it; None where it has none such; 1 for a share. slowed: the cluster, so many times as slow in
    this. prior: standard deviation of the logarithm, where a cluster gives no interval.
    """

    name: str
    value: Callable[[Cluster], float | None]
    slowed: Callable[[Cluster, float], Cluster]
    parse: Callable[[object], float]
    format: Callable[[float], str]
    prior: float
    larger_is_faster: bool = False

    def slownesses(self, cluster: Cluster) -> tuple[float, float]:
        """The 90 % interval of the slowness beside what the file says: as the cluster gives it, else by the prior."""
        given, value = cluster.uncertainty.get(self.name), self.value(cluster)
        if given is None or not value:
            return math.exp(-DEVIATIONS * self.prior), math.exp(DEVIATIONS * self.prior)
        low, high = self.parse(given.low), self.parse(given.high)
        return (value / high, value / low) if self.larger_is_faster else (low / value, high / value)

    def deviation(self, cluster: Cluster) -> float:
        """Standard deviation of the slowness's logarithm."""
        low, high = self.slownesses(cluster)
        return math.log(high / low) / (2 * DEVIATIONS)

    def check(self, cluster: Cluster) -> None:
        """Raises ValueError where the cluster's interval makes no sense."""
        given = cluster.uncertainty[self.name]
        low, high = self.parse(given.low), self.parse(given.high)
        if not 0 < low <= high:
            raise ValueError(f"from {given.low} to {given.high} is no interval; give low above zero and at most high")
        if self.value(cluster) is None:
            raise ValueError("the cluster has no such number; leave the interval out")


def parse_share(value: object) -> float:
    """1.04 from '104 %' or '1.04'. Raises UnitError."""
    text = str(value).strip()
    try:
        number = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        number = math.nan
    if isinstance(value, bool) or not 0 < number < math.inf:
        raise UnitError(f"cannot read {value!r} as a share; write it like '104 %'")
    return number


def format_share(share: float) -> str:
    """'104.0 %'."""
    return f"{share:.1%}".replace("%", " %")


def slowed(cluster: Cluster, slownesses: Mapping[str, float]) -> Cluster:
    """The cluster with each quantity slowed by its factor.

    The last results are cached by the identity of the cluster, so that caches keyed by a result are hit again.
    """
    key = id(cluster), tuple(slownesses.items())
    if key not in _SLOWED:
        result = cluster
        for name, slowness in slownesses.items():
            result = QUANTITIES[name].slowed(result, slowness)
        _SLOWED[key] = cluster, result
        if len(_SLOWED) > _MOST_SLOWED:
            _SLOWED.popitem(last=False)
    return _SLOWED[key][1]


def uncertain(cluster: Cluster) -> dict[str, float]:
    """The standard deviation of the logarithm of each slowness that the cluster has, by its quantity."""
    found = {name: quantity for name, quantity in QUANTITIES.items() if quantity.value(cluster) is not None}
    return {name: quantity.deviation(cluster) for name, quantity in found.items()}


def _slower_device(cluster: Cluster, slowness: float) -> Cluster:
    """All that the device computes but the optimizer's step where that was measured."""
    return cluster.model_copy(update={"device": cluster.device.changed(lambda one: _device(one, slowness))})


def _device(device: Device, slowness: float) -> Device:
    kernels = device.kernels
    if kernels is not None:
        times = {name: getattr(kernels, name) * slowness for name in ("launch_s", "issue_s", "burst_s", "host_slowdown")}
        kernels = kernels.model_copy(update=times)
    layers = tuple(
        layer.model_copy(
            update={
                way: getattr(layer, way).model_copy(
                    update={name: getattr(getattr(layer, way), name) * slowness for name in ("base_s", "per_sample_s")}
                )
                for way in ("forward", "backward")
            }
        )
        for layer in device.measured_layers
    )
    return device.model_copy(
        update={
            "peak_flops": {name: rate / slowness for name, rate in device.peak_flops.items()},
            "memory_bandwidth_Bps": device.memory_bandwidth_Bps / slowness,
            "layer_overhead_s": device.layer_overhead_s * slowness,
            "kernels": kernels,
            "measured_layers": layers,
        }
    )


def _slower_optimizer(cluster: Cluster, slowness: float) -> Cluster:
    def slower(device: Device) -> Device:
        measured = tuple(
            one.model_copy(update={"base_s": one.base_s * slowness, "per_parameter_s": one.per_parameter_s * slowness})
            for one in device.measured_optimizers
        )
        return device.model_copy(update={"measured_optimizers": measured})

    return cluster.model_copy(update={"device": cluster.device.changed(slower)})


def _slower_collectives(cluster: Cluster, slowness: float) -> Cluster:
    collectives = cluster.collectives
    measured = tuple(
        one.model_copy(update={"latency_s": one.latency_s * slowness, "bandwidth_Bps": one.bandwidth_Bps / slowness})
        for one in collectives.measured
    )
    return cluster.model_copy(update={"collectives": collectives.model_copy(update={"measured": measured})})


def _of_link(
    inside: bool, name: str, attribute: str, change: Callable[[Link, float], dict[str, Any]], prior: float
) -> Quantity:
    """A quantity of the links inside nodes, or of the network between them."""

    def value(cluster: Cluster) -> float | None:
        link = cluster.node.link if inside else cluster.network
        return None if link is None else getattr(link, attribute) or None

    def slower(cluster: Cluster, slowness: float) -> Cluster:
        link = cluster.node.link if inside else cluster.network
        if link is None:
            return cluster
        changed = link.model_copy(update=change(link, slowness))
        if inside:
            return cluster.model_copy(update={"node": cluster.node.model_copy(update={"link": changed})})
        return cluster.model_copy(update={"network": changed})

    path = f"{'node.link' if inside else 'network'}.{name}"
    if name == "bandwidth":
        return Quantity(path, value, slower, parse_Bps, format_Bps, prior, larger_is_faster=True)
    return Quantity(path, value, slower, parse_time_s, format_time_s, prior)


def _bandwidth(link: Link, slowness: float) -> dict[str, Any]:
    unlike = tuple(one.model_copy(update={"bandwidth_Bps": one.bandwidth_Bps / slowness}) for one in link.unlike)
    return {"bandwidth_Bps": link.bandwidth_Bps / slowness, "unlike": unlike}


def _latency(link: Link, slowness: float) -> dict[str, Any]:
    hops = {"hop_latency_s": link.topology.hop_latency_s * slowness} if link.topology.hop_latency_s else {}
    return {"latency_s": link.latency_s * slowness, "topology": link.topology.model_copy(update=hops)}


def _overhead(link: Link, slowness: float) -> dict[str, Any]:
    return {"overhead_s": link.overhead_s * slowness}


_SHARE: Final = (parse_share, format_share)


def _measured(kind: str) -> Callable[[Cluster], float | None]:
    """1, the share of what the file says, where anything of that kind was measured."""

    def value(cluster: Cluster) -> float | None:
        found = cluster.device.measured_optimizers if kind == "optimizer" else cluster.collectives.measured
        return 1.0 if found else None

    return value


def _named(*quantities: Quantity) -> dict[str, Quantity]:
    return {quantity.name: quantity for quantity in quantities}


# Priors are what a buyer has to reckon with where nobody has measured: assumptions, stated here, not fitted to anything.
# Kernels reach a share of their peaks that differs by a tenth between models; links lose some percent to headers and to others'
# traffic; latencies of one data sheet differ by a third in practice; and a model of training leaves things out.
QUANTITIES: Final[Mapping[str, Quantity]] = _named(
    Quantity("device", lambda _: 1.0, _slower_device, *_SHARE, prior=0.10),
    Quantity("optimizer", _measured("optimizer"), _slower_optimizer, *_SHARE, prior=0.10),
    _of_link(True, "bandwidth", "bandwidth_Bps", _bandwidth, prior=0.05),
    _of_link(True, "latency", "latency_s", _latency, prior=0.30),
    _of_link(True, "overhead", "overhead_s", _overhead, prior=0.30),
    _of_link(False, "bandwidth", "bandwidth_Bps", _bandwidth, prior=0.05),
    _of_link(False, "latency", "latency_s", _latency, prior=0.30),
    _of_link(False, "overhead", "overhead_s", _overhead, prior=0.30),
    Quantity("collectives", _measured("collectives"), _slower_collectives, *_SHARE, prior=0.05),
    # what the simulator leaves out: it slows nothing in particular, but the step as a whole
    Quantity("model", lambda _: 1.0, lambda cluster, _: cluster, *_SHARE, prior=0.05),
)
