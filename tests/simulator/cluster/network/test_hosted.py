"""Devices without access to each other's memory, NVLink bridges of pairs, and links by name."""

from __future__ import annotations

from typing import Any, Final

import pytest

from scaleproof.simulator.analysis.collective.time import collective_time
from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.common.errors import FieldError, ScenarioError
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.read import load_device

SIZE: Final = 2**30
TREE: Final = {"kind": "pcie_tree", "per_switch": 2, "switches_per_socket": 2, "between_sockets": "1 TB/s"}


def cluster(devices: int, link: Any, device: str = "rtx-4090", network: Any = None) -> Cluster:
    return Cluster.model_validate(
        {
            "node": {"devices": devices, "link": link},
            "device": load_device(device),
            "network": network,
            "nodes": 2 if network else 1,
        }
    )


def bus_Bps(ranks: int, on: Cluster) -> float:
    return 2 * (ranks - 1) / ranks * SIZE / collective_time("all_reduce", SIZE, ranks, on)


def test_messages_between_geforce_cards_pass_the_host() -> None:
    """The driver says so by the name of the card; a driver with peer-to-peer access is stated."""
    staged, direct = cluster(2, "pcie-4-x16"), cluster(2, {"base": "pcie-4-x16", "peer_to_peer": True})
    assert staged.node.link is not None
    assert not staged.node.link.peer_to_peer
    assert bus_Bps(2, staged) == pytest.approx(0.72 * bus_Bps(2, direct), rel=0.02)


def test_other_cards_are_peers_under_one_switch_alone() -> None:
    """NCCL uses the host's memory where messages would pass a root complex, unless the file says that peers are direct."""
    direct = cluster(4, {"base": "pcie-4-x16", "peer_to_peer": True}, "l40s")
    under_switches = cluster(4, {"base": "pcie-4-x16", "topology": TREE}, "l40s")
    assert bus_Bps(4, cluster(4, "pcie-4-x16", "l40s")) == pytest.approx(0.72 * bus_Bps(4, direct), rel=0.02)
    assert bus_Bps(2, under_switches) == pytest.approx(bus_Bps(2, direct), rel=0.02)
    assert bus_Bps(4, under_switches) == pytest.approx(0.72 * bus_Bps(4, direct), rel=0.02)


def test_two_cards_under_one_switch_share_its_uplink_twice() -> None:
    """Directly, a switch carries their messages alone; through the host, all of both cards pass its uplink up and down."""
    alone = cluster(2, "pcie-4-x16")
    shared = cluster(2, {"base": "pcie-4-x16", "topology": TREE})
    direct = cluster(2, {"base": "pcie-4-x16", "topology": TREE, "peer_to_peer": True})
    assert bus_Bps(2, shared) == pytest.approx(bus_Bps(2, alone) / 2, rel=0.02)
    assert bus_Bps(2, direct) == pytest.approx(bus_Bps(2, cluster(2, {"base": "pcie-4-x16", "peer_to_peer": True})), rel=0.02)


def test_a_bridge_serves_its_pair_and_slots_limit_the_others() -> None:
    bridged = {"base": "pcie-4-x16", "topology": {"kind": "bridged_pairs", "bridge": "56.25 GB/s"}}
    on = cluster(4, bridged, "rtx-3090")
    assert bus_Bps(2, on) > 0.6 * 56.25e9
    without = bus_Bps(4, cluster(4, "pcie-4-x16", "rtx-3090"))
    assert without <= bus_Bps(4, on) * 1.01
    assert bus_Bps(4, on) < 2 * without + 1e9, "a slot carries both directions at most"


def test_half_of_the_width_is_half_of_the_rate() -> None:
    assert bus_Bps(2, cluster(2, "pcie-4-x8")) == pytest.approx(bus_Bps(2, cluster(2, "pcie-4-x16")) / 2, rel=0.02)


def test_networks_have_names_and_slow_ones_use_sockets() -> None:
    slow, fast = (cluster(1, None, network=name) for name in ("1-gbe", "infiniband-hdr"))
    assert (slow.transport, fast.transport) == ("sockets", "infiniband")
    assert collective_time("all_reduce", SIZE, 2, slow) > 100 * collective_time("all_reduce", SIZE, 2, fast)
    changed = cluster(1, None, network={"base": "10-gbe", "latency": "1 ms"})
    assert changed.network is not None
    assert (changed.network.bandwidth_Bps, changed.network.latency_s) == (1.25e9, 1e-3)


def test_unknown_names_say_which_there_are() -> None:
    with pytest.raises(ScenarioError, match=r"no kind of link is called '10-gb'; give '10-gbe'"):
        load("llama-2-7b", ["cluster=workstation-2x4090", "batch=8", "cluster.network=10-gb"])


@pytest.mark.parametrize(
    ("link", "network"),
    [({"base": "pcie-4-x16", "topology": {"kind": "mesh"}}, None), ("pcie-4-x16", {"base": "10-gbe", "peer_to_peer": False})],
)
def test_only_links_through_a_host_have_no_peers(link: Any, network: Any) -> None:
    with pytest.raises(FieldError, match="peer_to_peer"):
        cluster(2, link, network=network)
