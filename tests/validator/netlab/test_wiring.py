"""Commands that build a lab, on any machine."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.netlab import wiring
from tests.validator.netlabs import lab_cluster


def _tree(per_leaf: int, oversubscription: float = 2.0, **more: Any) -> dict[str, Any]:
    return {"kind": "leaf_spine", "per_leaf": per_leaf, "oversubscription": oversubscription, **more}


def test_host_and_bridge_limit_a_link_in_both_directions() -> None:
    """A frame of 9,014 bytes and half an acknowledgement carry 8,948 bytes of payload."""
    lab = wiring.plan(lab_cluster(2, "400 Mbit/s"))
    limit = "root handle 1: tbf rate 404425570bit burst 34014 limit 67108864"
    assert _limits(wiring.host_limits(lab, 1, has_netem=False)) == [f"qdisc add dev eth0 {limit}"]
    assert _limits(wiring.fabric_limits(lab, has_netem=False)) == [f"qdisc add dev host{host} {limit}" for host in (0, 1)]


def _limits(lines: Iterable[str]) -> list[str]:
    """The lines that limit rates."""
    return [line for line in lines if " tbf " in line]


def test_acknowledgements_leave_a_link_before_frames() -> None:
    lines = list(wiring.host_limits(wiring.plan(lab_cluster(2, "400 Mbit/s")), 1, has_netem=False))
    short = next(line for line in lines if line.startswith("filter"))
    assert "match u16 0 0xff80 at 2" in short, "packets of fewer than 128 bytes"
    first = short.split(" flowid ")[1]
    assert any(f"classid {first} htb prio 0 " in line for line in lines)
    assert sum(" htb prio " in line for line in lines) == 2


@given(st.floats(0.4e6, 1e9))
def test_a_bucket_is_a_frame_and_half_a_millisecond_and_frames_are_short_on_slow_links(rate_Bps: float) -> None:
    lab = wiring.plan(lab_cluster(2, f"{rate_Bps} B/s"))
    assert 3000 <= lab.mtu <= 9000
    assert lab.mtu == 3000 or lab.mtu <= rate_Bps * 0.25e-3 + 1
    assert lab.bucket_bytes(rate_Bps) == pytest.approx(lab.frame_bytes + rate_Bps * 0.5e-3, abs=1)


def test_hosts_are_connected_by_one_bridge() -> None:
    lab = wiring.plan(lab_cluster(2))
    assert list(wiring.fabric_links(lab, [Path("/a"), Path("/b")])) == [
        "link add switch type bridge mcast_snooping 0",
        "link set switch mtu 9000 up",
        "link add host0 mtu 9000 type veth peer name eth0 mtu 9000 netns /a",
        "link set host0 master switch up",
        "link add host1 mtu 9000 type veth peer name eth0 mtu 9000 netns /b",
        "link set host1 master switch up",
    ]


def test_leaves_are_connected_by_a_spine_at_the_uplink_rate() -> None:
    lab = wiring.plan(lab_cluster(4, "100 Mbit/s", topology=_tree(2, 4)))
    links = list(wiring.fabric_links(lab, [Path("/n")] * 4))
    for line in (
        "link add spine type bridge mcast_snooping 0",
        "link set up1 master leaf1 up",
        "link set down1 master spine up",
    ):
        assert line in links
    assert [line.split()[-2] for line in links if line.startswith("link set host")] == ["leaf0", "leaf0", "leaf1", "leaf1"]
    limits = [line for line in _limits(wiring.fabric_limits(lab, has_netem=False)) if " up" in line or " down" in line]
    assert [line.split()[3] for line in limits] == ["up0", "down0", "up1", "down1"]
    assert all(" rate 51679104bit " in line for line in limits)


def test_traffic_between_leaves_passes_the_uplink() -> None:
    lab = wiring.plan(lab_cluster(4, "100 Mbit/s", topology=_tree(2, 4)))
    assert [lab.path_Bps(0, target) * 8 for target in (1, 2)] == [100e6, 50e6]


def test_different_links_have_their_own_rate_and_bucket() -> None:
    lab = wiring.plan(lab_cluster(3, "1 Gbit/s", exceptions=[{"at": [1], "bandwidth": "100 Mbit/s"}]))
    limits = [next(wiring.host_limits(lab, host, has_netem=False)) for host in range(3)]
    assert [line.split(" tbf ")[1].split(" limit")[0] for line in limits] == [
        "rate 1032216075bit burst 65639",
        "rate 103221608bit burst 9389",
        "rate 1032216075bit burst 65639",
    ]


def test_packets_are_delayed_at_the_sending_host_if_the_kernel_supports_it() -> None:
    lab = wiring.plan(lab_cluster(2, latency="1.5 ms"))
    rate, *others = wiring.host_limits(lab, 0, has_netem=True)
    assert " root handle 1: tbf " in rate
    assert [line for line in others if "netem" in line] == [
        f"qdisc add dev eth0 parent 10:{part} handle 10{part}: netem delay 1500.000us limit 100000" for part in (1, 2)
    ]
    assert not [line for line in wiring.fabric_limits(lab, has_netem=True) if "netem" in line]


def test_a_hop_is_delayed_on_every_link_to_and_from_the_spine() -> None:
    lab = wiring.plan(lab_cluster(4, topology=_tree(2, hop_latency="20 us")))
    delayed = [line.split() for line in wiring.fabric_limits(lab, has_netem=True) if "netem" in line]
    assert [(line[3], line[line.index("delay") + 1]) for line in delayed] == [
        (end, "20.000us") for end in ("up0", "down0", "up1", "down1") for _ in ("acknowledgements", "frames")
    ]


def test_no_latency_needs_no_delay() -> None:
    lab = wiring.plan(lab_cluster(2, latency=0))
    assert not [line for line in wiring.host_limits(lab, 0, has_netem=True) if "netem" in line]


@given(st.integers(2, wiring.MOST_HOSTS), st.integers(1, 40))
def test_hosts_have_distinct_addresses_in_one_network(hosts: int, per_leaf: int) -> None:
    lab = wiring.plan(lab_cluster(hosts, topology=_tree(per_leaf)))
    addresses = [lab.address(host) for host in range(hosts)]
    assert len(set(addresses)) == hosts
    assert all(address.split(".")[:3] == ["10", "77", str(host // per_leaf)] for host, address in enumerate(addresses))
    assert all(0 < int(address.split(".")[3]) < 255 for address in addresses)


@given(st.floats(1e5, 1e11), st.floats(1e5, 1e11))
def test_every_bucket_has_room_for_a_tcp_segment(rate_bit: float, other_bit: float) -> None:
    different = [{"at": [0], "bandwidth": f"{other_bit} bit/s"}]
    lab = wiring.plan(lab_cluster(3, f"{rate_bit} bit/s", exceptions=different))
    piece = lab.segment_bytes
    assert lab.mtu < piece <= 65536
    assert all(lab.bucket_bytes(cable.rate_Bps) >= piece for cable in lab.hosts)
    assert f" gso_max_size {piece} " in list(wiring.host_links(lab, 0))[1]


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ({"duplex": "half"}, "cluster.network.duplex: netlab's links are full duplex; leave it out"),
        ({"topology": {"kind": "mesh"}}, "netlab cannot build mesh; it builds switch, and leaf_spine with spines: 1"),
        ({"topology": _tree(2, spines=2)}, "netlab cannot build 2 spines; it builds switch, and leaf_spine with spines: 1"),
    ],
)
def test_impossible_wirings_are_rejected(network: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        wiring.plan(lab_cluster(4, **network))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("hosts", "reported", "way"),
    [(1, "1 host", "put fewer on each"), (wiring.MOST_HOSTS + 1, "129 hosts", "give fewer ranks")],
)
def test_a_lab_has_between_two_and_the_maximum_number_of_hosts(hosts: int, reported: str, way: str) -> None:
    with pytest.raises(InputError, match=rf"cluster\.nodes: ranks are on {reported}, and netlab builds 2 to 128; {way}"):
        wiring.plan(lab_cluster(hosts))


def test_a_lab_needs_a_network() -> None:
    alone = lab_cluster(2).model_copy(update={"network": None})
    with pytest.raises(InputError, match=r"cluster\.network: .* give its bandwidth and latency"):
        wiring.plan(alone)
