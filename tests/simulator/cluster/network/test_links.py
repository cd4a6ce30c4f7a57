"""Network cards: the bandwidth of a node by card, and the warning about the bandwidth of one card."""

from __future__ import annotations

from typing import Any

import pytest

from scaleproof.simulator.cluster.network.links import one_card_warning
from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.read import load_cluster
from scaleproof.simulator.scenario.schema import Scenario

LINK = {"bandwidth": "450 GB/s", "latency": "5 us"}


def scenario(network: dict[str, Any], *overrides: str, node: dict[str, Any] | None = None) -> Scenario:
    cluster = {
        "nodes": 2,
        "node": {"devices": 8, "link": LINK, **(node or {})},
        "network": {"latency": "8 us", **network},
        "device": "h100-80gb-sxm",
    }
    return load({"model": "llama-3-8b", "cluster": cluster, "strategy": {"kind": "fsdp", "dp": 16}, "batch": 16}, overrides)


def test_cards_are_the_bandwidth_of_a_node() -> None:
    by_card = scenario({"nics": "8 x 400 Gbit/s"}).cluster
    assert by_card == scenario({"bandwidth": "3200 Gbit/s"}, node={"cards": 8}).cluster
    assert by_card == scenario({"bandwidth": "8x400 Gbit/s"}, node={"cards": 8}).cluster


def test_overrides_replace_cards_and_bandwidth() -> None:
    fewer = scenario({"nics": "8 x 400 Gbit/s"}, "cluster.network.nics=4 x 200 Gbit/s").cluster
    assert fewer == scenario({"bandwidth": "800 Gbit/s"}, node={"cards": 4}).cluster
    slower = scenario({"nics": "8 x 400 Gbit/s"}, "cluster.network.bandwidth=1600 Gbit/s").cluster
    assert slower == scenario({"bandwidth": "1600 Gbit/s"}, node={"cards": 8}).cluster


@pytest.mark.parametrize(
    ("network", "node", "problem"),
    [
        ({"nics": "400 Gbit/s"}, {}, "cluster.network.nics: expected the number of network cards and the rate of each"),
        ({"nics": "8 x 400"}, {}, "cluster.network.bandwidth: '400' has no unit"),
        ({"nics": "8 x 1 GB/s", "bandwidth": "8 GB/s"}, {}, "cluster.network.nics: is the bandwidth of a node, which is also"),
        ({"nics": "8 x 1 GB/s"}, {"cards": 4}, "cluster.node.cards: is 4, but network.nics has 8; leave cards out"),
    ],
)
def test_contradictions_are_refused(network: dict[str, Any], node: dict[str, Any], problem: str) -> None:
    with pytest.raises(ScenarioError, match=problem):
        scenario(network, node=node)


def test_the_bandwidth_of_one_card_of_several_is_warned_about() -> None:
    (warning,) = timed(load("megatron-175b-3d-selene", ["cluster.network.bandwidth=200 Gbit/s"])).warnings
    assert warning == (
        "cluster.network.bandwidth: 200 Gbit/s for a node of 8 A100-80GB-SXM is at most one network card (200 Gbit/s each in "
        "such nodes); for 8 of them, write network.nics: 8 x 200 Gbit/s"
    )
    assert one_card_warning(scenario({"bandwidth": "400 Gbit/s"}).cluster)
    assert not one_card_warning(scenario({"nics": "1 x 400 Gbit/s"}).cluster)
    assert not one_card_warning(scenario({"bandwidth": "800 Gbit/s"}).cluster)


def test_no_shipped_cluster_is_warned_about() -> None:
    clusters = {name: load_cluster(name) for name in catalog.names("clusters")}
    assert {name: text for name, one in clusters.items() if (text := one_card_warning(one))} == {}
