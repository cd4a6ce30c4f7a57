"""The wiring of a lab (hosts, bridges, links and their limits), and the commands of iproute2 that build it.

    host 0 (namespace)          fabric (namespace)                       host 5 (namespace)
      eth0 ──────── link ─────── host0 ┐                      ┌ host5 ─── link ──── eth0
                                     leaf0 ── up0    up1 ── leaf1
                                              │ uplink  │
                                            down0     down1
                                              └─ spine ─┘

A link is a pair of virtual interfaces. A token bucket (tbf) limits what leaves either: towards the fabric at eth0, towards the
host at the bridge's end, so that links are full duplex. Inside it two classes (htb) let acknowledgements leave before frames.
With a switch there is one bridge and no uplink.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scaleproof.simulator.cluster import Cluster, Link
from scaleproof.simulator.cluster.network.topology import Switch
from scaleproof.simulator.cluster.network.topology_kinds import LeafSpine
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.units import format_Bps

INTERFACE: Final = "eth0"
MOST_HOSTS: Final = 128

# Bytes of a frame's headers: Ethernet; IP and TCP with timestamps.
ETHERNET_BYTES: Final = 14
_IP_TCP_BYTES: Final = 20 + 32
# Bytes of acknowledgements per frame in the opposite direction: one for two frames.
_ACKNOWLEDGED_BYTES: Final = (ETHERNET_BYTES + _IP_TCP_BYTES) / 2
# Frames last a quarter of a millisecond on the slowest link, from 3,000 bytes to Ethernet's jumbo frames. After a pause a link
# sends a whole frame at once, so that long frames make it too fast; of short ones headers and acknowledgements take more.
_FRAME_S: Final = 0.25e-3
_LEAST_MTU: Final = 3000
_MOST_MTU: Final = 9000
# Size of the token bucket in seconds of the link's rate, in addition to a frame. After a pause a link sends one bucket at once,
# so a small bucket is more realistic; but a full bucket collects no tokens, so a link loses rate when the kernel is later than
# the bucket's length. With 2 ms gloo's allreduce of 4 MiB over 8 hosts of 300 Mbit/s takes 1.01 times the ring's bound, but a
# message of 256 KiB 0.76 times what it should; with 0.5 ms 1.04 and 0.98 times (two cores of a virtual machine). Calibration
# measures any permanent loss of rate.
_BUCKET_S: Final = 0.5e-3
# Largest segment that TCP passes to the interface (Linux's GSO_LEGACY_MAX_SIZE). Segments larger than a bucket are cut into
# frames, which made gloo's allreduce take 1.6 times as long and seven times the processor time, so segments are a frame, or at
# most half of the smallest bucket.
_MOST_SEGMENT_BYTES: Final = 65536
# Queue of a link: TCP keeps far fewer bytes in flight than this, so that no link drops packets.
_QUEUE_BYTES: Final = 64 * 1024 * 1024
_NETEM_PACKETS: Final = 100_000
# Packets of fewer than 128 bytes, acknowledgements above all, leave before others. Otherwise they wait behind the frames of the
# other direction, which last milliseconds on slow links, while few bytes of a flow may be in flight: servers whose links were
# busy in both directions took 1.45 times as long, allreduces over trees 1.05 times.
_SHORT_MASK: Final = "0xff80"
_IP_LENGTH_AT: Final = 2
# Limits of classes that only order packets; the bucket limits their rate.
_UNLIMITED: Final = "rate 100gbit ceil 100gbit burst 1mb cburst 1mb quantum 60000"

# A congestion control that every kernel has; it saturates links without loss. With bbr, the default of some machines,
# allreduces of 16 MiB over eight hosts took 1.06 to 1.08 times the ring's bound, with reno 1.01 times.
CONGESTION_CONTROL: Final = "reno"
# Settings of each namespace under /proc/sys/net: no traffic but that of ranks, no slow start after a pause, and no firewall on
# bridges.
SETTINGS: Final = {
    "ipv6/conf/default/disable_ipv6": "1",
    "bridge/bridge-nf-call-iptables": "0",
    "ipv4/tcp_congestion_control": CONGESTION_CONTROL,
    "ipv4/tcp_slow_start_after_idle": "0",
    # at most one segment waits in a host's own queue: a pipeline's small messages wait behind its sends, and with segments of
    # two milliseconds in the queue gpipe took a tenth longer
    "ipv4/tcp_limit_output_bytes": "1",
}


@dataclass(frozen=True)
class Cable:
    """A link of a host to its bridge, or of a leaf to the spine; each direction carries rate_Bps."""

    bridge: str
    rate_Bps: float


@dataclass(frozen=True)
class WiringPlan:
    """The links of a lab. hosts: link of each host. uplinks: of each leaf, none with a switch. Latencies are one way."""

    hosts: tuple[Cable, ...]
    uplinks: tuple[Cable, ...]
    latency_s: float
    hop_latency_s: float

    def address(self, host: int) -> str:
        """IP address of a host: 10.77.<leaf>.<host + 1>."""
        leaf = self.leaves.index(self.hosts[host].bridge)
        return f"10.77.{leaf}.{host + 1}"

    @property
    def leaves(self) -> list[str]:
        """The bridges that hosts are attached to."""
        return list(dict.fromkeys(cable.bridge for cable in self.hosts))

    @property
    def slowest_Bps(self) -> float:
        """Rate of the slowest link."""
        return min(cable.rate_Bps for cable in (*self.hosts, *self.uplinks))

    @property
    def mtu(self) -> int:
        """Bytes of a frame without the header of Ethernet, the same on all links."""
        return max(_LEAST_MTU, min(_MOST_MTU, round(self.slowest_Bps * _FRAME_S)))

    @property
    def frame_bytes(self) -> int:
        """Bytes of a whole frame."""
        return self.mtu + ETHERNET_BYTES

    @property
    def on_wire(self) -> float:
        """Bytes on the wire per byte of payload. A cluster's bandwidth is that of payload in both directions, so that links
        carry headers and acknowledgements in addition."""
        return (self.frame_bytes + _ACKNOWLEDGED_BYTES) / (self.mtu - _IP_TCP_BYTES)

    def bucket_bytes(self, rate_Bps: float) -> int:
        """Size in bytes of the token bucket of a link of some rate."""
        return self.frame_bytes + round(rate_Bps * _BUCKET_S)

    @property
    def segment_bytes(self) -> int:
        """Largest segment in bytes that TCP passes to an interface."""
        return min(_MOST_SEGMENT_BYTES, max(self.frame_bytes, self.bucket_bytes(self.slowest_Bps) // 2))

    def limit(self, rate_Bps: float) -> str:
        """The token bucket of a link of some rate, in tc's words."""
        bucket_bytes = self.bucket_bytes(rate_Bps)
        return f"tbf rate {self.on_wire * rate_Bps * 8:.0f}bit burst {bucket_bytes} limit {_QUEUE_BYTES}"

    def path_Bps(self, source: int, target: int) -> float:
        """Rate of the path from one host to another: that of its slowest link."""
        ends = [self.hosts[source], self.hosts[target]]
        if ends[0].bridge != ends[1].bridge:
            ends += [cable for cable in self.uplinks if cable.bridge in (ends[0].bridge, ends[1].bridge)]
        return min(cable.rate_Bps for cable in ends)


def plan(cluster: Cluster) -> WiringPlan:
    """The wiring of a cluster's lab. Raises InputError where no lab can be built for it."""
    network = cluster.network
    if network is None:
        raise InputError("cluster.network: netlab joins hosts by a network; give its bandwidth and latency")
    if not 2 <= cluster.nodes <= MOST_HOSTS:
        alone = cluster.nodes == 1
        way = "put fewer on each (cluster.node.devices), or leave --on netlab out" if alone else "give fewer ranks"
        hosts = f"{cluster.nodes} host{'' if alone else 's'}"
        raise InputError(f"cluster.nodes: ranks are on {hosts}, and netlab builds 2 to {MOST_HOSTS}; {way}")
    if network.duplex == "half":
        raise InputError("cluster.network.duplex: netlab's links are full duplex; leave it out")
    rates_Bps = [network.bandwidth_Bps] * cluster.nodes
    for different in network.exceptions:
        for host in different.at:
            rates_Bps[host] = different.bandwidth_Bps
    bridges, uplinks = _switches(network, cluster.nodes)
    cables = tuple(Cable(bridge, rate_Bps) for bridge, rate_Bps in zip(bridges, rates_Bps, strict=True))
    return WiringPlan(cables, uplinks, network.latency_s, network.topology.hop_latency_s)


def _switches(network: Link, hosts: int) -> tuple[list[str], tuple[Cable, ...]]:
    """The bridge of each host, and the uplinks."""
    topology = network.topology
    if isinstance(topology, Switch):
        return ["switch"] * hosts, ()
    if isinstance(topology, LeafSpine) and topology.spines == 1:
        up_Bps = topology.per_leaf * network.bandwidth_Bps / topology.oversubscription
        bridges = [f"leaf{host // topology.per_leaf}" for host in range(hosts)]
        return bridges, tuple(Cable(leaf, up_Bps) for leaf in dict.fromkeys(bridges))
    what = f"{topology.spines} spines" if isinstance(topology, LeafSpine) else topology.kind
    raise InputError(f"cluster.network.topology: netlab cannot build {what}; it builds switch, and leaf_spine with spines: 1")


def fabric_links(lab: WiringPlan, namespaces: Sequence[Path]) -> Iterator[str]:
    """Lines for `ip -batch` in the fabric: bridges, and links whose other ends go to the hosts' namespaces."""
    spine = ["spine"] if lab.uplinks else []
    for bridge in (*spine, *lab.leaves):
        yield f"link add {bridge} type bridge mcast_snooping 0"
        yield f"link set {bridge} mtu {lab.mtu} up"
    for number, cable in enumerate(lab.uplinks):
        yield f"link add up{number} mtu {lab.mtu} type veth peer name down{number} mtu {lab.mtu}"
        yield f"link set up{number} master {cable.bridge} up"
        yield f"link set down{number} master spine up"
    for host, (cable, namespace) in enumerate(zip(lab.hosts, namespaces, strict=True)):
        yield f"link add host{host} mtu {lab.mtu} type veth peer name {INTERFACE} mtu {lab.mtu} netns {namespace}"
        yield f"link set host{host} master {cable.bridge} up"


def fabric_limits(lab: WiringPlan, has_netem: bool) -> Iterator[str]:
    """Lines for `tc -batch` in the fabric: rate limits of the bridges' ends; uplinks add the hop's latency."""
    for host, cable in enumerate(lab.hosts):
        yield from _limit(lab, f"host{host}", cable.rate_Bps, 0.0)
    for number, cable in enumerate(lab.uplinks):
        for end in ("up", "down"):
            yield from _limit(lab, f"{end}{number}", cable.rate_Bps, lab.hop_latency_s if has_netem else 0.0)


def host_links(lab: WiringPlan, host: int) -> Iterator[str]:
    """Lines for `ip -batch` in a host: its interface and address."""
    yield "link set lo up"
    yield f"link set {INTERFACE} gso_max_size {lab.segment_bytes} up"
    yield f"address add {lab.address(host)}/16 dev {INTERFACE}"


def host_limits(lab: WiringPlan, host: int, has_netem: bool) -> Iterator[str]:
    """Lines for `tc -batch` in a host: its rate limit and the latency of its messages."""
    yield from _limit(lab, INTERFACE, lab.hosts[host].rate_Bps, lab.latency_s if has_netem else 0.0)


def _limit(lab: WiringPlan, interface: str, rate_Bps: float, latency_s: float) -> Iterator[str]:
    yield f"qdisc add dev {interface} root handle 1: {lab.limit(rate_Bps)}"
    yield f"qdisc add dev {interface} parent 1:1 handle 10: htb default 2"
    # inside the bucket's queue: packets are delayed before they wait for tokens
    delayed = f"netem delay {latency_s * 1e6:.3f}us limit {_NETEM_PACKETS}"
    queue = delayed if latency_s > 0 else f"bfifo limit {_QUEUE_BYTES}"
    for priority, part in enumerate((1, 2)):
        yield f"class add dev {interface} parent 10: classid 10:{part} htb prio {priority} {_UNLIMITED}"
        yield f"qdisc add dev {interface} parent 10:{part} handle 10{part}: {queue}"
    yield f"filter add dev {interface} parent 10: protocol ip u32 match u16 0 {_SHORT_MASK} at {_IP_LENGTH_AT} flowid 10:1"


def changed_limit(lab: WiringPlan, interface: str, rate_Bps: float) -> str:
    """Line for `tc -batch` that changes the rate of a limited interface; queued packets stay."""
    return f"qdisc change dev {interface} root handle 1: {lab.limit(rate_Bps)}"


def describe(lab: WiringPlan) -> dict[str, str]:
    """The requested network, for the provenance."""
    rates = sorted({cable.rate_Bps for cable in lab.hosts})
    facts = {
        "network": f"{len(lab.hosts)} network namespaces of one machine, joined by "
        + (f"a tree of bridges (leaves: {len(lab.uplinks)})" if lab.uplinks else "one bridge"),
        "link rate": " and ".join(map(format_Bps, rates)),
    }
    if lab.uplinks:
        facts["uplink rate"] = format_Bps(lab.uplinks[0].rate_Bps)
    return facts
