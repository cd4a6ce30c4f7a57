"""Busy time of links in a collective: closed forms on switches, nodes with cards, leaf–spines and tori."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleproof.simulator.cluster.collectives.algorithms import ALGORITHMS
from scaleproof.simulator.cluster.collectives.groups import Group, Op
from scaleproof.simulator.cluster.collectives.link_traffic import GroupLinks, Traffic
from scaleproof.simulator.cluster.network.links import Link, Node

INSIDE_Bps, BETWEEN_Bps = 100e9, 10e9
HOP_S = 1e-6
# those for any number of ranks
PAIRS: list[tuple[str, Op]] = [
    (name, op) for name, algorithm in ALGORITHMS.items() for op in algorithm.ops if name not in ("in_turns", "torus_axes")
]
# Algorithms in which switches reduce or multicast.
BY_SWITCHES = ("nvls", "nvls_tree", "symmetric_multimem", "in_network", "collnet_direct", "collnet_chain")
LINK_PAIRS = [pair for pair in PAIRS if pair[0] not in BY_SWITCHES]


def link(bandwidth_Bps: float, kind: str = "switch", duplex: str = "full", exceptions: object = (), **fields: object) -> Link:
    return Link.model_validate(
        {
            "bandwidth": f"{bandwidth_Bps / 1e9} GB/s",
            "latency": "1 us",
            "duplex": duplex,
            "exceptions": exceptions,
            "topology": {"kind": kind, **fields},
        }
    )


def on_one_node(devices: int, algorithm: str, op: Op, ranks: int | list[int] | None = None, **fields: object) -> Traffic:
    """Traffic on one node, by default over all its devices."""
    node = Node(devices=devices, link=link(INSIDE_Bps, **fields))  # type: ignore[arg-type]
    return GroupLinks(Group.of(ranks or devices, devices), node, None).traffic(algorithm, op, rotate=False)


def on_nodes(
    nodes: int, algorithm: str, op: Op, devices: int = 1, cards: int = 1, rotate: bool = False, **fields: object
) -> Traffic:
    """Traffic over all devices of several nodes."""
    node = Node(devices=devices, cards=cards, link=link(INSIDE_Bps))
    network = link(BETWEEN_Bps, **fields)  # type: ignore[arg-type]
    return GroupLinks(Group.of(nodes * devices, devices), node, network).traffic(algorithm, op, rotate)


@pytest.mark.parametrize(("nodes", "devices"), [(2, 1), (6, 1), (2, 4), (3, 4), (8, 2)])
def test_a_ring_crosses_each_node_boundary_once(nodes: int, devices: int) -> None:
    found, n = on_nodes(nodes, "ring", "all_reduce", devices), nodes * devices
    assert found.between_steps == 2 * (nodes - 1)
    assert found.inside_steps == 2 * (n - 1) - found.between_steps
    assert found.between_s * BETWEEN_Bps == pytest.approx(2 * (n - 1) / n)
    assert found.inside_s * INSIDE_Bps == pytest.approx(2 * (n - 1) / n if devices > 1 else 0)


@pytest.mark.parametrize(("ranks", "devices"), [(8, 4), (16, 2), (8, 1), (12, 4), (7, 4)])
@pytest.mark.parametrize(("name", "op"), LINK_PAIRS)
def test_busy_time_is_the_sum_of_the_messages(ranks: int, devices: int, name: str, op: Op) -> None:
    """One card to a node, so that the two directions of each device's link and of each node's are all there is."""
    group = Group.of(ranks, devices)
    if name == "hierarchical" and not group.is_even:
        return
    inside: dict[tuple[str, int], float] = defaultdict(float)
    between: dict[tuple[str, int], float] = defaultdict(float)
    for step in ALGORITHMS[name].rounds(op, group):
        for a, b, share in zip(step.source.tolist(), step.target.tolist(), step.share.tolist(), strict=True):
            load = between if a // devices != b // devices else inside
            for way, end in (("out", a), ("in", b)):
                load[way, end // devices if load is between else end] += share * step.times
    node = Node(devices=devices, link=link(INSIDE_Bps))
    found = GroupLinks(group, node, link(BETWEEN_Bps)).traffic(name, op, rotate=False)
    assert found.inside_s * INSIDE_Bps == pytest.approx(max(inside.values(), default=0))
    assert found.between_s * BETWEEN_Bps == pytest.approx(max(between.values(), default=0))


def test_trees_have_logarithmic_depth_and_nodes_carry_both_trees() -> None:
    two, many = (on_nodes(nodes, "tree", "all_reduce", devices=8) for nodes in (2, 64))
    assert (two.between_steps, many.between_steps) == (2, 12)
    assert (two.inside_steps, many.inside_steps) == (14, 14)
    assert two.between_s * BETWEEN_Bps == pytest.approx(1)  # half the buffer up and half down
    # an inner node receives from two children and from its parent; in the other tree, once
    assert many.between_s * BETWEEN_Bps == pytest.approx(2)


def test_hierarchical_sends_least_between_nodes_and_in_switch_reduction_half() -> None:
    flat, inside_first = (on_nodes(4, name, "all_reduce", devices=8) for name in ("ring", "hierarchical"))
    assert inside_first.between_steps == flat.between_steps
    assert inside_first.inside_steps == 14 < flat.inside_steps
    assert inside_first.between_s * BETWEEN_Bps == pytest.approx(2 * 3 / 4)
    for name in ("in_network", "collnet_direct", "collnet_chain", "nvls"):
        assert on_nodes(4, name, "all_reduce", devices=8).between_s * BETWEEN_Bps == pytest.approx(1)


@pytest.mark.parametrize(("name", "op"), [("ring", "all_gather"), ("ring", "broadcast"), ("pairwise", "sendrecv")])
def test_algorithms_with_one_sender_per_node_use_one_card(name: str, op: Op) -> None:
    one, four = (on_nodes(2, name, op, devices=4, cards=cards).between_s for cards in (1, 4))
    assert four == pytest.approx(4 * one)


def test_rotated_rings_use_all_cards() -> None:
    turning, fixed = (on_nodes(2, "ring", "all_gather", devices=4, cards=4, rotate=rotate) for rotate in (True, False))
    assert turning.between_s * BETWEEN_Bps == pytest.approx(7 / 8)
    assert fixed.between_s * BETWEEN_Bps == pytest.approx(4 * 7 / 8)
    assert turning.inside_s * INSIDE_Bps == pytest.approx(7 / 8 * 3 / 4)  # a quarter of the messages leaves the node


def test_half_duplex_time_is_the_sum_of_both_directions() -> None:
    full, half = (on_one_node(4, "ring", "all_gather", duplex=duplex) for duplex in ("full", "half"))
    assert half.inside_s == pytest.approx(2 * full.inside_s)
    full, half = (on_one_node(4, "linear", "gather", duplex=duplex) for duplex in ("full", "half"))
    assert half.inside_s == pytest.approx(full.inside_s)  # nothing is sent to where all is got


def test_the_slowest_link_determines_the_time_of_a_ring() -> None:
    slow = [{"at": [2], "bandwidth": "2 GB/s"}]
    assert on_nodes(4, "ring", "all_gather", exceptions=slow).between_s == pytest.approx(0.75 / 2e9)


@pytest.mark.parametrize("per_leaf", [1, 2, 4])
@pytest.mark.parametrize("oversubscription", [1.0, 3.0, 8.0])
@pytest.mark.parametrize("spines", [1, 3])
def test_the_uplinks_of_a_leaf_spine_limit_an_alltoall(per_leaf: int, oversubscription: float, spines: int) -> None:
    fields = {"kind": "leaf_spine", "per_leaf": per_leaf, "oversubscription": oversubscription, "spines": spines}
    # 1/8 of the size for each of the nodes on other leaves, over an uplink of 1/oversubscription for each of the leaf's own
    up, own = (8 - per_leaf) / 8 * oversubscription, 7 / 8
    assert on_nodes(8, "pairwise", "alltoall", **fields).between_s * BETWEEN_Bps == pytest.approx(max(up, own))
    # of a ring in the order of the leaves one message at a time leaves a leaf
    assert on_nodes(8, "ring", "all_gather", **fields).between_s * BETWEEN_Bps == pytest.approx(
        7 / 8 * max(1, oversubscription / per_leaf)
    )


@pytest.mark.parametrize(("leaf", "pod"), [(1.0, 6.0), (4.0, 1.0), (2.0, 3.0)])
def test_each_level_of_a_fat_tree_can_limit_an_alltoall(leaf: float, pod: float) -> None:
    found = on_nodes(
        16, "pairwise", "alltoall", kind="fat_tree", per_leaf=2, leaves_per_pod=4, spines_per_pod=2, cores=2,
        oversubscription=leaf, pod_oversubscription=pod,
    )  # fmt: skip
    assert found.between_s * BETWEEN_Bps == pytest.approx(max(15 / 16, 14 / 16 * leaf, 8 / 16 * leaf * pod))


def test_rails_keep_rings_off_the_spines_and_an_alltoall_on_them() -> None:
    fields = {"kind": "rail_optimised", "nodes_per_group": 2, "oversubscription": 100.0}
    found = on_nodes(2, "hierarchical", "all_reduce", devices=4, cards=4, **fields)
    assert found.between_s * BETWEEN_Bps == pytest.approx(2 * 1 / 2)  # one group: no spine in the way
    found = on_nodes(4, "hierarchical", "all_reduce", devices=4, cards=4, **fields)
    assert found.between_s * BETWEEN_Bps == pytest.approx(2 * 3 / 4 * 100 / 2)  # one of two nodes' flows leaves each group


@pytest.mark.parametrize("ring", [4, 6, 8])
def test_a_ring_on_a_one_dimensional_torus_uses_both_directions(ring: int) -> None:
    found = on_nodes(ring, "ring", "all_gather", kind="torus", dimensions=[ring])
    assert found.between_s * BETWEEN_Bps == pytest.approx((ring - 1) / ring)


@pytest.mark.parametrize(("sizes", "dimensions"), [([8], 1), ([4, 4], 2), ([4, 4, 4], 3), ([8, 8], 2)])
def test_an_alltoall_in_a_torus_is_limited_by_its_links(sizes: list[int], dimensions: int) -> None:
    """On average a message goes a quarter of the way round each dimension (of even size), over 2 · dimensions links."""
    nodes, size = math.prod(sizes), sizes[0]
    found = on_nodes(nodes, "pairwise", "alltoall", kind="torus", dimensions=sizes)
    assert found.between_s * BETWEEN_Bps == pytest.approx((size / 4) / 2 * (2 * dimensions))


@pytest.mark.parametrize(
    ("devices", "fields", "used"),
    [
        (4, {"kind": "mesh"}, 1.0),
        (5, {"kind": "mesh"}, 1.0),
        (8, {"kind": "mesh"}, 1.0),
        (6, {"kind": "mesh"}, 4 / 5),  # Walecki leaves a perfect matching of the pairs unused
        (8, {"kind": "hybrid_cube_mesh", "links": 4}, 1.0),
        (8, {"kind": "hybrid_cube_mesh", "links": 6}, 1.0),
        (16, {"kind": "torus", "dimensions": [4, 4]}, 0.5),
        (6, {"kind": "torus", "dimensions": [6]}, 1.0),
    ],
)
def test_rings_inside_a_node_use_the_expected_share_of_its_links(devices: int, fields: dict[str, object], used: float) -> None:
    found = on_one_node(devices, "ring", "all_reduce", **fields)
    assert found.inside_s * INSIDE_Bps == pytest.approx(2 * (devices - 1) / devices / used)
    some = on_one_node(devices, "ring", "all_reduce", ranks=2, **fields)
    assert some.inside_s > 0  # a part of the node has no such rings, but a defined time


@pytest.mark.parametrize(("ranks", "rings"), [(2, 1), (3, 2), (5, 4), (6, 4), (7, 6), (8, 7)])
def test_some_of_the_devices_of_a_mesh_have_rings_of_their_own(ranks: int, rings: int) -> None:
    """Each of the rings has one of a device's seven links in one direction for itself."""
    found = on_one_node(8, "ring", "all_reduce", ranks=ranks, kind="mesh")
    assert found.inside_s * INSIDE_Bps == pytest.approx(2 * (ranks - 1) / ranks * 7 / rings)


def test_in_switch_reduction_works_in_networks_of_several_switches() -> None:
    fields = {"kind": "leaf_spine", "per_leaf": 2, "oversubscription": 2.0}
    for name in ("in_network", "collnet_direct", "collnet_chain", "nvls"):
        assert on_nodes(4, name, "all_reduce", devices=2, **fields).between_s * BETWEEN_Bps == pytest.approx(1)


def further_s(found: Traffic) -> float:
    """Latency of all steps beyond that of the shortest route."""
    return sum(extra_s * steps for extra_s, steps in (*found.inside_further, *found.between_further))


def test_links_beyond_the_shortest_route_add_their_latency_to_each_step() -> None:
    hop = {"hop_latency": "1 us"}
    leaves = {"kind": "leaf_spine", "per_leaf": 2, "oversubscription": 2.0, **hop}
    assert further_s(on_nodes(2, "ring", "all_gather", **leaves)) == 0
    # a part of the data passes three of the ring's four messages, two of which go up to a spine and down
    assert further_s(on_nodes(4, "ring", "all_gather", **leaves)) == pytest.approx(3 * 2 / 4 * 2 * HOP_S)
    line = {"kind": "torus", "dimensions": [8], **hop}
    assert further_s(on_nodes(8, "ring", "all_gather", **line)) == 0
    assert further_s(on_nodes(8, "pairwise", "sendrecv", **line)) == 0
    # partners at a distance of 1, 2 and 4; there and back
    assert further_s(on_nodes(8, "halving_doubling", "all_reduce", **line)) == pytest.approx(2 * (0 + 1 + 3) * HOP_S)


@pytest.mark.parametrize("name", ["in_network", "collnet_direct", "nvls"])
def test_the_way_to_a_switch_that_reduces_and_back_is_that_to_the_farthest_node(name: str) -> None:
    leaves = {"kind": "leaf_spine", "per_leaf": 2, "oversubscription": 2.0, "hop_latency": "1 us"}
    assert further_s(on_nodes(2, name, "all_reduce", devices=2, **leaves)) == 0
    assert further_s(on_nodes(4, name, "all_reduce", devices=2, **leaves)) == pytest.approx(2 * HOP_S)


def test_messages_to_another_rail_change_inside_the_node_first() -> None:
    """Of the seven messages of an eighth each, three stay in the node, and three of those that leave it take another rail."""
    found = on_nodes(
        2, "pairwise", "alltoall", devices=4, cards=4, kind="rail_optimised", nodes_per_group=2, oversubscription=2.0
    )
    assert found.inside_s * INSIDE_Bps == pytest.approx(6 / 8)


@pytest.mark.parametrize("op", ["broadcast", "reduce"])
@pytest.mark.parametrize("devices", [2, 8])
def test_a_root_transfers_all_data_itself(op: Op, devices: int) -> None:
    node = Node(devices=devices, link=link(INSIDE_Bps))
    found = GroupLinks(Group.of(devices, devices), node, None).traffic("ring", op, rotate=True)
    assert found.inside_s * INSIDE_Bps >= 1 - 1e-9


kinds = st.sampled_from(
    [
        {"kind": "switch"},
        {"kind": "leaf_spine", "per_leaf": 2, "spines": 2, "oversubscription": 2.0},
        {"kind": "leaf_spine", "per_leaf": 3, "spines": 2, "routing": "hashed"},
        {"kind": "fat_tree", "per_leaf": 1, "leaves_per_pod": 2, "oversubscription": 2.0},
        {"kind": "torus", "dimensions": [2, 6]},
        {"kind": "torus", "dimensions": [12], "routing": "hashed"},
        {"kind": "mesh", "duplex": "half"},
    ]
)


@given(st.sampled_from(LINK_PAIRS), kinds, st.integers(2, 12))
@settings(max_examples=80, deadline=None)
def test_the_busy_time_of_the_busiest_link_follows_from_network_loads(
    pair: tuple[str, Op], fields: dict[str, object], nodes: int
) -> None:
    group, node, network = Group.of(nodes, 1), Node(), link(BETWEEN_Bps, **fields)  # type: ignore[arg-type]
    loads, wiring = GroupLinks(group, node, network).loads(*pair, rotate=False), network.wiring(nodes)
    found = GroupLinks(group, node, network).traffic(*pair, rotate=False)
    assert max(load / wiring.capacity_Bps(channel) for channel, load in loads.items()) == pytest.approx(found.between_s)


@given(st.sampled_from(PAIRS), st.integers(1, 5), st.integers(1, 4))
@settings(max_examples=80, deadline=None)
def test_traffic_by_round_adds_up_to_at_least_the_total(pair: tuple[str, Op], nodes: int, devices: int) -> None:
    group, node = Group.of(nodes * devices, devices), Node(devices=devices, link=link(INSIDE_Bps))
    if group.size == 1:
        return
    whole = GroupLinks(group, node, link(BETWEEN_Bps)).traffic(*pair, rotate=False)
    rounds = GroupLinks(group, node, link(BETWEEN_Bps)).traffic_by_round(*pair)
    assert sum(part.inside_s for part in rounds) >= whole.inside_s * (1 - 1e-9)
    assert sum(part.between_s for part in rounds) >= whole.between_s * (1 - 1e-9)
    assert sum(map(further_s, rounds)) == further_s(whole) == 0
    if not ALGORITHMS[pair[0]].at_once:
        assert sum(part.inside_steps + part.between_steps for part in rounds) == whole.inside_steps + whole.between_steps
