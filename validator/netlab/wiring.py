"""What a lab is made of, and the commands for iproute2 that make it: hosts, bridges, links and their limits.

    host 0 (namespace)          fabric (namespace)                       host 5 (namespace)
      eth0 ──────── link ─────── host0 ┐                      ┌ host5 ─── link ──── eth0
                                     leaf0 ── up0    up1 ── leaf1
                                              │ uplink  │
                                            down0     down1
                                              └─ spine ─┘

A link is a pair of virtual interfaces, each limited where bytes leave it by a token bucket (tbf): towards the fabric by eth0,
towards the host by the bridge's end, so that it is full duplex. With a switch there is one bridge and no uplink.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scaleproof.simulator.cluster import Cluster, Link
from scaleproof.simulator.cluster.network.topology import LeafSpine, Switch
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.units import format_Bps

INTERFACE: Final = "eth0"
MOST_HOSTS: Final = 128

# Ethernet's jumbo frames: their headers take 0.7 % of a link, those of 1500 bytes take 4.4 %.
MTU: Final = 9000
_FRAME_BYTES: Final = MTU + 14
# A link hands on one bucket at once after it was idle, so a small one is more like a link; but it earns nothing while it is
# full, so it bounds for how long the kernel may be late without the link losing rate. With 2 ms of rate gloo's allreduce of
# 4 MiB over 8 hosts of 300 Mbit/s takes 1.01 times the ring's bound, but a message of 256 KiB 0.76 times what it should; with
# half a millisecond 1.04 and 0.98 times (two cores of a virtual machine). What a link loses always, calibration sees.
_BUCKET_S: Final = 0.5e-3
# What TCP hands on in one piece (Linux's GSO_LEGACY_MAX_SIZE). A piece larger than a bucket is cut into frames, which made
# gloo's allreduce take 1.6 times as long and seven times the processor time, so pieces are half of the smallest bucket at most.
_MOST_SEGMENT_BYTES: Final = 65536
# Room for what waits at a link: TCP keeps far less on its way than this, so that no link drops what it cannot carry yet.
_QUEUE_BYTES: Final = 64 * 1024 * 1024
_NETEM_PACKETS: Final = 100_000

# The congestion control that every kernel has; it keeps links full that drop nothing. With bbr, the default of some machines,
# allreduces of 16 MiB over eight hosts took 1.06 to 1.08 times the ring's bound, with reno 1.01 times.
CONGESTION_CONTROL: Final = "reno"
# What each namespace gets written under /proc/sys/net: links carry nothing but what ranks send, are as fast after a pause as
# before it, and bridges do not ask the firewall.
SETTINGS: Final = {
    "ipv6/conf/default/disable_ipv6": "1",
    "bridge/bridge-nf-call-iptables": "0",
    "ipv4/tcp_congestion_control": CONGESTION_CONTROL,
    "ipv4/tcp_slow_start_after_idle": "0",
    # one piece at most waits in a host's own queue: pipelines ask for their next message behind what they send, and with pieces
    # of two milliseconds before it gpipe took a tenth longer
    "ipv4/tcp_limit_output_bytes": "1",
}


@dataclass(frozen=True)
class Cable:
    """A link of a host to its bridge, or of a leaf to the spine; each direction carries rate_Bps."""

    bridge: str
    rate_Bps: float


@dataclass(frozen=True)
class WiringPlan:
    """hosts: the link of each. uplinks: of each leaf, none with a switch. latency_s, hop_latency_s: one way, as asked."""

    hosts: tuple[Cable, ...]
    uplinks: tuple[Cable, ...]
    latency_s: float
    hop_latency_s: float

    def address(self, host: int) -> str:
        """10.77.<leaf>.<host + 1>."""
        leaf = self.leaves.index(self.hosts[host].bridge)
        return f"10.77.{leaf}.{host + 1}"

    @property
    def leaves(self) -> list[str]:
        """The bridges that hosts are attached to."""
        return list(dict.fromkeys(cable.bridge for cable in self.hosts))

    def way_Bps(self, source: int, target: int) -> float:
        """What the way from one host to another carries."""
        ends = [self.hosts[source], self.hosts[target]]
        if ends[0].bridge != ends[1].bridge:
            ends += [cable for cable in self.uplinks if cable.bridge in (ends[0].bridge, ends[1].bridge)]
        return min(cable.rate_Bps for cable in ends)


def plan(cluster: Cluster) -> WiringPlan:
    """Raises InputError where no lab can be built for the cluster."""
    network = cluster.network
    if network is None:
        raise InputError("cluster.network: netlab joins hosts by a network; give its bandwidth and latency")
    if not 2 <= cluster.nodes <= MOST_HOSTS:
        alone = cluster.nodes == 1
        way = "put fewer on each (cluster.node.devices), or leave --on netlab out" if alone else "give fewer ranks"
        told = f"cluster.nodes: ranks are on {cluster.nodes} host{'' if alone else 's'}, and netlab builds 2 to {MOST_HOSTS}"
        raise InputError(f"{told}; {way}")
    if network.duplex == "half":
        raise InputError("cluster.network.duplex: netlab's links are full duplex; leave it out")
    rates_Bps = [network.bandwidth_Bps] * cluster.nodes
    for unlike in network.unlike:
        for host in unlike.at:
            rates_Bps[host] = unlike.bandwidth_Bps
    bridges, uplinks = _switches(network, cluster.nodes)
    hosts = tuple(Cable(bridge, rate_Bps) for bridge, rate_Bps in zip(bridges, rates_Bps, strict=True))
    return WiringPlan(hosts, uplinks, network.latency_s, network.topology.hop_latency_s)


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


def bucket_bytes(rate_Bps: float) -> int:
    """The bucket of a link: of slow ones, room for two frames."""
    return max(2 * _FRAME_BYTES, round(rate_Bps * _BUCKET_S))


def segment_bytes(lab: WiringPlan) -> int:
    """The most that TCP hands on in one piece."""
    slowest_Bps = min(cable.rate_Bps for cable in (*lab.hosts, *lab.uplinks))
    return min(_MOST_SEGMENT_BYTES, bucket_bytes(slowest_Bps) // 2)


def fabric_links(lab: WiringPlan, namespaces: Sequence[Path]) -> Iterator[str]:
    """For `ip -batch` in the fabric: bridges, and the links whose other ends go to the hosts' namespaces."""
    spine = ["spine"] if lab.uplinks else []
    for bridge in (*spine, *lab.leaves):
        yield f"link add {bridge} type bridge mcast_snooping 0"
        yield f"link set {bridge} mtu {MTU} up"
    for number, cable in enumerate(lab.uplinks):
        yield f"link add up{number} mtu {MTU} type veth peer name down{number} mtu {MTU}"
        yield f"link set up{number} master {cable.bridge} up"
        yield f"link set down{number} master spine up"
    for host, (cable, namespace) in enumerate(zip(lab.hosts, namespaces, strict=True)):
        yield f"link add host{host} mtu {MTU} type veth peer name {INTERFACE} mtu {MTU} netns {namespace}"
        yield f"link set host{host} master {cable.bridge} up"


def fabric_limits(lab: WiringPlan, has_netem: bool) -> Iterator[str]:
    """For `tc -batch` in the fabric: what leaves bridges; uplinks add the hop's latency."""
    for host, cable in enumerate(lab.hosts):
        yield from _limit(f"host{host}", cable.rate_Bps, 0.0)
    for number, cable in enumerate(lab.uplinks):
        for end in ("up", "down"):
            yield from _limit(f"{end}{number}", cable.rate_Bps, lab.hop_latency_s if has_netem else 0.0)


def host_links(lab: WiringPlan, host: int) -> Iterator[str]:
    """For `ip -batch` in a host."""
    yield "link set lo up"
    yield f"link set {INTERFACE} gso_max_size {segment_bytes(lab)} up"
    yield f"address add {lab.address(host)}/16 dev {INTERFACE}"


def host_limits(lab: WiringPlan, host: int, has_netem: bool) -> Iterator[str]:
    """For `tc -batch` in a host: what leaves it, and its messages' latency."""
    yield from _limit(INTERFACE, lab.hosts[host].rate_Bps, lab.latency_s if has_netem else 0.0)


def _limit(interface: str, rate_Bps: float, latency_s: float) -> Iterator[str]:
    yield f"qdisc add dev {interface} root handle 1: {_bucket(rate_Bps)}"
    if latency_s > 0:
        # the bucket's own queue, where packets wait for their time before they wait for the bucket
        delay = f"delay {latency_s * 1e6:.3f}us limit {_NETEM_PACKETS}"
        yield f"qdisc add dev {interface} parent 1:1 handle 10: netem {delay}"


def _bucket(rate_Bps: float) -> str:
    return f"tbf rate {rate_Bps * 8:.0f}bit burst {bucket_bytes(rate_Bps)} limit {_QUEUE_BYTES}"


def changed_limit(interface: str, rate_Bps: float) -> str:
    """For `tc -batch`: another rate for what leaves an interface that has a limit; what waits there stays."""
    return f"qdisc change dev {interface} root handle 1: {_bucket(rate_Bps)}"


def describe(lab: WiringPlan) -> dict[str, str]:
    """What was asked, for the provenance."""
    rates = sorted({cable.rate_Bps for cable in lab.hosts})
    told = {
        "network": f"{len(lab.hosts)} network namespaces of one machine, joined by "
        + (f"a tree of bridges (leaves: {len(lab.uplinks)})" if lab.uplinks else "one bridge"),
        "link rate": " and ".join(map(format_Bps, rates)),
    }
    if lab.uplinks:
        told["uplink rate"] = format_Bps(lab.uplinks[0].rate_Bps)
    return told
