"""Quantities of a cluster that times depend on: their uncertainty, and clusters in which one of them is slower.

Each quantity has a slowdown factor: the duration of everything that depends on it over the nominal duration. Half the bandwidth
is a slowdown of 2, and so is twice the latency. Seconds are linear in the slowdown factors while the bottleneck stays the same.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pydantic import Field

from scaleproof.simulator.cluster.collectives.nccl.constants import current
from scaleproof.simulator.cluster.device.device import kernels_deviation
from scaleproof.simulator.cluster.network.reached import sockets, states
from scaleproof.simulator.cluster.network.variability import slowest_path_deviation
from scaleproof.simulator.common.errors import UnitError
from scaleproof.simulator.common.spec import Spec, slower
from scaleproof.simulator.common.units import format_Bps, format_percent, format_time_s, parse_Bps, parse_time_s

if TYPE_CHECKING:
    from scaleproof.simulator.cluster import Cluster

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

    fields: paths of the fields that it scales. value: the quantity's value in a cluster; None if the cluster lacks it, 1 for a
    share. prior: standard deviation of the slowdown's logarithm for clusters that give no interval; prior_of: the same where it
    depends on the cluster. unknown_of: ends of the 90 % interval of a further slowdown factor, by what a cluster leaves open.
    """

    name: str
    fields: tuple[str, ...]
    parse: Callable[[object], float]
    format: Callable[[float], str]
    prior: float
    value: Callable[[Cluster], float | None] = lambda _: 1.0
    larger_is_faster: bool = False
    prior_of: Callable[[Cluster], float] | None = None
    unknown_of: Callable[[Cluster], tuple[float, float]] = lambda _: (1.0, 1.0)

    def slowed(self, cluster: Cluster, slowdown: float) -> Cluster:
        """The cluster with this quantity slowed by a factor."""
        return slower(cluster, slowdown, *self.fields) if self.fields else cluster

    def slowdown_interval(self, cluster: Cluster) -> tuple[float, float]:
        """The 90 % interval of the slowdown factor relative to the cluster's value: the cluster's own, else from the prior."""
        given, value = cluster.uncertainty.get(self.name), self.value(cluster)
        if given is None or not value:
            prior = self.prior if self.prior_of is None else self.prior_of(cluster)
            least, most = map(math.log, self.unknown_of(cluster))
            middle, reach = (least + most) / 2, math.hypot(DEVIATIONS * prior, (most - least) / 2)
            return math.exp(middle - reach), math.exp(middle + reach)
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


def _number_at(path: str) -> Callable[[Cluster], float | None]:
    """The function that returns the number at a path in a cluster; None if the cluster lacks it, or if it is zero."""
    return lambda cluster: functools.reduce(lambda part, name: getattr(part, name, None), path.split("."), cluster) or None  # type: ignore[arg-type, return-value]


def _link_quantities(link: str, endpoints: Callable[[Cluster], int]) -> Iterator[Quantity]:
    """The quantities of a link, by its path. endpoints: their number."""

    def bandwidth_prior(cluster: Cluster) -> float:
        return math.hypot(_BANDWIDTH, slowest_path_deviation(variability(cluster) or 0.0, endpoints(cluster)))

    variability, bandwidth = _number_at(f"{link}.variability"), f"{link}.bandwidth_Bps"
    yield Quantity(
        f"{link}.bandwidth", (bandwidth, f"{link}.exceptions"), *_RATE, _BANDWIDTH, _number_at(bandwidth),
        larger_is_faster=True, prior_of=bandwidth_prior,
        unknown_of=_unknown_path if link == "node.link" else _unknown_network,
    )  # fmt: skip
    latency, overhead = f"{link}.latency_s", f"{link}.overhead_s"
    yield Quantity(f"{link}.latency", (latency, f"{link}.topology.hop_latency_s"), *_TIME, 0.30, _number_at(latency))
    yield Quantity(f"{link}.overhead", (overhead,), *_TIME, 0.30, _number_at(overhead))


def _unknown_path(cluster: Cluster) -> tuple[float, float]:
    """Slowdown of messages inside a node by the PCIe switches that its file leaves open: from none, with peers where the file
    does not deny it, to up to four devices behind one switch whose messages all pass the host."""
    link, facts = cluster.node.link, cluster.nccl_facts
    if link is None or facts is None or facts.interconnect != "pcie" or link.topology.kind != "switch":
        return 1.0, 1.0
    staged = current()["libraries"]["nccl"]["staged_rate"].value
    return (staged if link.peer_to_peer is None else 1.0), float(min(cluster.node.installed, _BEHIND_SWITCH))


def _unknown_network(cluster: Cluster) -> tuple[float, float]:
    """Slowdown of a network over that of its state, and where NCCL sends over TCP and the file does not state its connections,
    down to the rate of one, of which it opens few unless a job sets more (NCCL_NSOCKS_PERTHREAD)."""
    network = cluster.network
    if network is None:
        return 1.0, 1.0
    state, is_open = states()[network.state], network.connection_Bps is None and network.sockets is None
    by_tcp = is_open and cluster.library == "nccl" and cluster.transport == "sockets"
    most = max(1.0, network.bandwidth_Bps / sockets()["default"].rate_Bps) if by_tcp else 1.0
    return state.low / state.value, state.high / state.value * most


def _host_quantity(
    name: str, field: str, parse: Callable[[Any], float], write: Callable[[float], str], assumed: float
) -> Quantity:
    """A rate of hosts, whose prior is `assumed` where it is not given."""
    value = _number_at(f"node.host.{field}")

    def prior(cluster: Cluster) -> float:
        host = cluster.node.host
        return _BANDWIDTH if host is not None and field in host.model_fields_set else assumed

    return Quantity(
        f"node.host.{name}", (f"node.host.{field}",), parse, write, _BANDWIDTH, value, larger_is_faster=True, prior_of=prior
    )


# Prior of collectives that are timed by constants of a transport and a generation: the typical error on systems that were left
# out of the fit (benchmarks/collectives.py).
_FITTED_COLLECTIVES: Final = 0.12
_BANDWIDTH: Final = 0.05
# Most devices behind a PCIe switch of servers with eight: two switches.
_BEHIND_SWITCH: Final = 4
# How values are read and written.
_SHARE: Final = (parse_share, format_percent)
_RATE: Final = (parse_Bps, format_Bps)
_TIME: Final = (parse_time_s, format_time_s)
# Everything that a device computes except measured optimizer steps.
_COMPUTED: Final = ("peak_flops", "memory_bandwidth_Bps", "layer_overhead_s", "kernels", "measured_layers")

# Priors for clusters without measurements. They are stated assumptions, not fitted to anything: kernels reach a share of their
# peaks that differs by a tenth between models, and by more where it was not measured (scenarios/kernels/states.yaml); links
# lose some percent to headers and to other traffic; latencies differ by a third from their data sheet in practice; and a
# simulation of training leaves things out.
_QUANTITIES: Final = (
    Quantity(
        "device", (*(f"device.{name}" for name in _COMPUTED), "kinds"), *_SHARE, 0.10,
        prior_of=lambda cluster: kernels_deviation(cluster.device.kernels_state),
    ),
    Quantity(
        "optimizer", ("device.measured_optimizers",), *_SHARE, 0.10,
        lambda cluster: 1.0 if cluster.device.measured_optimizers else None,
    ),
    *_link_quantities("node.link", lambda cluster: cluster.node.devices),
    *_link_quantities("network", lambda cluster: cluster.nodes),
    # of pinned memory over x16 links or narrower ones, and of processors that update with more or fewer threads
    _host_quantity("link", "link_Bps", *_RATE, 0.15),
    _host_quantity("adam_rate", "adam_rate", float, "{:.3g}".format, 0.40),
    Quantity(
        "collectives", ("collectives.measured", "collectives.adjust"), *_SHARE, 0.05,
        lambda cluster: 1.0 if cluster.collectives.measured or cluster.nccl is not None else None,
        prior_of=lambda cluster: 0.05 if cluster.collectives.measured else _FITTED_COLLECTIVES,
    ),
    # error of the simulator itself: it slows no part in particular, but the step as a whole
    Quantity("model", (), *_SHARE, 0.05),
)  # fmt: skip
QUANTITIES: Final[Mapping[str, Quantity]] = {quantity.name: quantity for quantity in _QUANTITIES}
