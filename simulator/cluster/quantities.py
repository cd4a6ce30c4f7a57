"""Quantities of a cluster that times depend on: their uncertainty, and clusters in which one of them is slower.

Each quantity has a slowdown factor: the duration of everything that depends on it over the nominal duration. Half the bandwidth
is a slowdown of 2, and so is twice the latency. Seconds are linear in the slowdown factors while the bottleneck stays the same.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pydantic import Field

from scaleproof.simulator.cluster.device.device import kernels_deviation
from scaleproof.simulator.cluster.device.kernels.rates import slower
from scaleproof.simulator.cluster.network.variability import slowest_path_deviation
from scaleproof.simulator.common.errors import UnitError
from scaleproof.simulator.common.spec import Spec
from scaleproof.simulator.common.units import format_Bps, format_percent, format_time_s, parse_Bps, parse_time_s

if TYPE_CHECKING:
    from scaleproof.simulator.cluster import Cluster
    from scaleproof.simulator.cluster.device.device import Device
    from scaleproof.simulator.cluster.network.links import Link

# Half width of a normal variable's 90 % interval in standard deviations.
DEVIATIONS: Final = 1.6449


class Interval(Spec):
    """The 90 % interval of a quantity, from low to high: written like the quantity ('471 Mbit/s'), or as a share of the times
    in the file ('104 %') if the quantity stands for many numbers. nominal: the vendor's value, for comparison."""

    low: str
    high: str
    nominal: str = ""
    measurements: int = Field(0, ge=0, description="number of measurements that the interval is based on")


@dataclass(frozen=True)
class Quantity:
    """A quantity of a cluster.

    value: the quantity's value in a cluster; None if the cluster lacks it, 1 for a share. slowed: the cluster with this
    quantity slowed by a factor. prior: standard deviation of the slowdown's logarithm for clusters that give no interval;
    prior_of: the same where it depends on the cluster.
    """

    name: str
    value: Callable[[Cluster], float | None]
    slowed: Callable[[Cluster, float], Cluster]
    parse: Callable[[object], float]
    format: Callable[[float], str]
    prior: float
    larger_is_faster: bool = False
    prior_of: Callable[[Cluster], float] | None = None

    def slowdown_interval(self, cluster: Cluster) -> tuple[float, float]:
        """The 90 % interval of the slowdown factor relative to the cluster's value: the cluster's own, else from the prior."""
        given, value = cluster.uncertainty.get(self.name), self.value(cluster)
        if given is None or not value:
            prior = self.prior if self.prior_of is None else self.prior_of(cluster)
            return math.exp(-DEVIATIONS * prior), math.exp(DEVIATIONS * prior)
        low, high = self.parse(given.low), self.parse(given.high)
        return (value / high, value / low) if self.larger_is_faster else (low / value, high / value)

    def deviation(self, cluster: Cluster) -> float:
        """Standard deviation of the logarithm of the slowdown factor."""
        low, high = self.slowdown_interval(cluster)
        return math.log(high / low) / (2 * DEVIATIONS)

    def check(self, cluster: Cluster) -> None:
        """Raises ValueError if the cluster's interval for this quantity is invalid."""
        given = cluster.uncertainty[self.name]
        low, high = self.parse(given.low), self.parse(given.high)
        if not 0 < low <= high:
            raise ValueError(f"from {given.low} to {given.high} is no interval; give low above zero and at most high")
        if self.value(cluster) is None:
            raise ValueError("the cluster has no such number; leave the interval out")


def parse_share(value: object) -> float:
    """A share from text: 1.04 from '104 %' or '1.04'. Raises UnitError."""
    text = str(value).strip()
    try:
        number = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        number = math.nan
    if isinstance(value, bool) or not 0 < number < math.inf:
        raise UnitError(f"cannot read {value!r} as a share; write it like '104 %'")
    return number


def slowed(cluster: Cluster, slowdowns: Mapping[str, float]) -> Cluster:
    """The cluster with the given quantities slowed by their factors."""
    return _slowed(cluster, tuple(slowdowns.items()))


@functools.lru_cache(maxsize=64)
def _slowed(cluster: Cluster, slowdowns: tuple[tuple[str, float], ...]) -> Cluster:
    for name, slowdown in slowdowns:
        cluster = QUANTITIES[name].slowed(cluster, slowdown)
    return cluster


def uncertain(cluster: Cluster) -> dict[str, float]:
    """Standard deviations of the logarithms of the slowdown factors, by the names of the quantities that the cluster has."""
    return {name: quantity.deviation(cluster) for name, quantity in QUANTITIES.items() if quantity.value(cluster) is not None}


def _slower_device(cluster: Cluster, slowdown: float) -> Cluster:
    """Slows everything that the device computes except measured optimizer steps."""
    return cluster.model_copy(update={"device": _slowed_device(cluster.device, slowdown)})


def _slowed_device(device: Device, slowdown: float) -> Device:
    kernels = device.kernels
    if kernels is not None:
        factors = {name: getattr(kernels, name) * slowdown for name in ("host_slowdown", "generation_slowdown")}
        kernels = slower(kernels, slowdown).model_copy(update=factors)
    return device.model_copy(
        update={
            "peak_flops": {name: rate / slowdown for name, rate in device.peak_flops.items()},
            "memory_bandwidth_Bps": device.memory_bandwidth_Bps / slowdown,
            "layer_overhead_s": device.layer_overhead_s * slowdown,
            "kernels": kernels,
            "measured_layers": tuple(layer.slowed(slowdown) for layer in device.measured_layers),
        }
    )


def _slower_optimizer(cluster: Cluster, slowdown: float) -> Cluster:
    measured = tuple(
        entry.model_copy(update={"base_s": entry.base_s * slowdown, "per_parameter_s": entry.per_parameter_s * slowdown})
        for entry in cluster.device.measured_optimizers
    )
    return cluster.model_copy(update={"device": cluster.device.model_copy(update={"measured_optimizers": measured})})


def _slower_collectives(cluster: Cluster, slowdown: float) -> Cluster:
    collectives = cluster.collectives
    measured = tuple(
        entry.model_copy(update={"latency_s": entry.latency_s * slowdown, "bandwidth_Bps": entry.bandwidth_Bps / slowdown})
        for entry in collectives.measured
    )
    update = {"measured": measured, "adjust": collectives.adjust.slowed(slowdown)}
    return cluster.model_copy(update={"collectives": collectives.model_copy(update=update)})


def _bandwidth(link: Link, slowdown: float) -> dict[str, Any]:
    exceptions = tuple(
        exception.model_copy(update={"bandwidth_Bps": exception.bandwidth_Bps / slowdown}) for exception in link.exceptions
    )
    return {"bandwidth_Bps": link.bandwidth_Bps / slowdown, "exceptions": exceptions}


def _latency(link: Link, slowdown: float) -> dict[str, Any]:
    hops = {"hop_latency_s": link.topology.hop_latency_s * slowdown} if link.topology.hop_latency_s else {}
    return {"latency_s": link.latency_s * slowdown, "topology": link.topology.model_copy(update=hops)}


def _overhead(link: Link, slowdown: float) -> dict[str, Any]:
    return {"overhead_s": link.overhead_s * slowdown}


def _link_quantity(
    inside: bool, name: str, attribute: str, change: Callable[[Link, float], dict[str, Any]], prior: float
) -> Quantity:
    """A quantity of the links inside nodes, or of the network between nodes. change: the link's updated fields by slowdown."""

    def link_of(cluster: Cluster) -> Link | None:
        return cluster.node.link if inside else cluster.network

    def value(cluster: Cluster) -> float | None:
        return getattr(link_of(cluster), attribute, None) or None

    def slower(cluster: Cluster, slowdown: float) -> Cluster:
        if (link := link_of(cluster)) is None:
            return cluster
        changed = link.model_copy(update=change(link, slowdown))
        node = cluster.node.model_copy(update={"link": changed})
        return cluster.model_copy(update={"node": node} if inside else {"network": changed})

    def bandwidth_prior(cluster: Cluster) -> float:
        variability = getattr(link_of(cluster), "variability", None) or 0.0
        return math.hypot(prior, slowest_path_deviation(variability, cluster.node.devices if inside else cluster.nodes))

    path = f"{'node.link' if inside else 'network'}.{name}"
    if name == "bandwidth":
        return Quantity(path, value, slower, parse_Bps, format_Bps, prior, larger_is_faster=True, prior_of=bandwidth_prior)
    return Quantity(path, value, slower, parse_time_s, format_time_s, prior)


# Prior of collectives that are timed by constants of a transport and a generation: the typical error on systems that were left
# out of the fit (benchmarks/collectives.py).
_FITTED_COLLECTIVES: Final = 0.12
_SHARE: Final = (parse_share, format_percent)


# Priors for clusters without measurements. They are stated assumptions, not fitted to anything: kernels reach a share of their
# peaks that differs by a tenth between models, and by more where it was not measured (scenarios/kernels/states.yaml); links
# lose some percent to headers and to other traffic; latencies differ by a third from their data sheet in practice; and a
# simulation of training leaves things out.
_QUANTITIES: Final = (
    Quantity(
        "device",
        lambda _: 1.0,
        _slower_device,
        *_SHARE,
        prior=0.10,
        prior_of=lambda cluster: kernels_deviation(cluster.device.kernels_state),
    ),
    Quantity(
        "optimizer", lambda cluster: 1.0 if cluster.device.measured_optimizers else None, _slower_optimizer, *_SHARE, prior=0.10
    ),
    *(
        _link_quantity(inside, *numbers)
        for inside in (True, False)
        for numbers in (
            ("bandwidth", "bandwidth_Bps", _bandwidth, 0.05),
            ("latency", "latency_s", _latency, 0.30),
            ("overhead", "overhead_s", _overhead, 0.30),
        )
    ),
    Quantity(
        "collectives",
        lambda cluster: 1.0 if cluster.collectives.measured or cluster.nccl is not None else None,
        _slower_collectives,
        *_SHARE,
        prior=0.05,
        prior_of=lambda cluster: 0.05 if cluster.collectives.measured else _FITTED_COLLECTIVES,
    ),
    # error of the simulator itself: it slows no part in particular, but the step as a whole
    Quantity("model", lambda _: 1.0, lambda cluster, _: cluster, *_SHARE, prior=0.05),
)
QUANTITIES: Final[Mapping[str, Quantity]] = {quantity.name: quantity for quantity in _QUANTITIES}
