"""Link loads do not depend on bandwidth, and folding nodes keeps the load of each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.cluster import Link, Node
from scaleproof.simulator.cluster.collectives.groups import Group
from scaleproof.simulator.strategy.layout.resource_map import CollectiveLoad, modelled_loads
from tests.simulator.clusters import Fields, plain

OTHERS = {"duplex": "half"}, {"incast": 0.5}, {"topology": {"kind": "rail_optimised", "nodes_per_group": 2}}


def units_of(nodes: int, devices: int = 1, cards: int = 1, **network: object) -> tuple[Node, Link]:
    cluster = plain(nodes, devices, cards, network=network)
    assert cluster.network is not None
    return cluster.node.unit, cluster.network.unit


@given(st.floats(1e6, 1e12), st.floats(1e-9, 1.0))
def test_networks_that_differ_only_in_speed_share_a_shape(bandwidth_Bps: float, latency_s: float) -> None:
    speed: Fields = {"bandwidth": f"{bandwidth_Bps} B/s", "latency": f"{latency_s} s"}
    assert units_of(4, **speed) == units_of(4)


@pytest.mark.parametrize("other", OTHERS)
def test_networks_of_different_structure_have_different_shapes(other: dict[str, object]) -> None:
    assert units_of(4, 2, 2, **other) != units_of(4, 2, 2)
    assert units_of(4, 2, 2) != units_of(4, 2, 1)


@pytest.mark.parametrize(("duplex", "ways"), [("full", {"in": 1.0, "out": 1.0}), ("half", {"both": 2.0})])
@given(nodes=st.integers(2, 12))
def test_a_ring_moves_all_but_one_part_twice(duplex: str, ways: dict[str, float], nodes: int) -> None:
    load = CollectiveLoad("ring", "all_reduce", Group.of(nodes, 1), *units_of(nodes, duplex=duplex), False)
    share = 2 * (nodes - 1) / nodes
    expected = {(way, 0): times * share for way, times in ways.items()}
    assert modelled_loads(load, (0,)) == pytest.approx(expected)
    everyone = modelled_loads(load, tuple(range(nodes)))
    assert everyone == pytest.approx({(way, node): times * share for node in range(nodes) for way, times in ways.items()})


def test_the_modelled_node_has_the_load_of_the_busiest_node() -> None:
    """The root of a tree receives from two children and has no parent."""
    load = CollectiveLoad("tree", "all_reduce", Group.of(8, 1), *units_of(8), False)
    each = modelled_loads(load, tuple(range(8)))
    folded = modelled_loads(load, (3,))
    assert folded == {(way, 3): max(share for (one, _), share in each.items() if one == way) for way in ("out", "in")}
    assert len({round(share, 9) for share in each.values()}) > 1
