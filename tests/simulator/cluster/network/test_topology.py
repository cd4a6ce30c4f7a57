"""Topologies compared with the literature: links, capacities, rings, bisections; and rejected input."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from pydantic import TypeAdapter

from scaleproof.simulator.cluster.network.topology import Topology
from scaleproof.simulator.cluster.network.topology_kinds import AnyTopology
from scaleproof.simulator.cluster.network.wiring import Wiring
from scaleproof.simulator.common.errors import InputError, ScenarioError
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.read import load_cluster
from scaleproof.simulator.scenario.schema import Scenario
from tests.conftest import SMALL

BANDWIDTH = 48e9
Pair = tuple[Any, Any]


def topology(kind: str, **fields: object) -> Topology:
    known: Topology = TypeAdapter(AnyTopology).validate_python({"kind": kind, **fields})
    return known


def capacities(wiring: Wiring) -> dict[Pair, float]:
    """Capacity of each direction of each link of the graph."""
    assert wiring.links is not None
    return dict(nx.get_edge_attributes(wiring.links, "capacity_Bps"))


def ring_edges(ring: list[int]) -> list[Pair]:
    """The messages of a ring, including the one from the last to the first."""
    return list(itertools.pairwise([*ring, ring[0]]))


def most_Bps(wiring: Wiring, senders: Iterable[int], receivers: Iterable[int]) -> float:
    """The most that some endpoints can send to others, by maximum flow."""
    assert wiring.access_Bps is not None
    flow = nx.DiGraph()
    for (one, other), Bps in capacities(wiring).items():
        flow.add_edge(one, other, capacity=Bps)
    for endpoint in senders:
        flow.add_edge("all senders", ("sender", endpoint))
        flow.add_edge(("sender", endpoint), wiring.attached[endpoint], capacity=wiring.access_Bps[endpoint])
    for endpoint in receivers:
        flow.add_edge(wiring.attached[endpoint], ("receiver", endpoint), capacity=wiring.access_Bps[endpoint])
        flow.add_edge(("receiver", endpoint), "all receivers")
    return float(nx.maximum_flow_value(flow, "all senders", "all receivers"))


# How many endpoints fill each topology.
FULL: list[tuple[Topology, int]] = [
    (topology("switch"), 5),
    *((topology("mesh"), n) for n in (2, 3, 4, 5, 8, 9)),
    (topology("hybrid_cube_mesh", links=4), 8),
    (topology("hybrid_cube_mesh", links=6), 8),
    (topology("pcie_tree", between_sockets="20 GB/s"), 8),
    (topology("leaf_spine", per_leaf=4, spines=2), 16),
    (topology("fat_tree", per_leaf=2, leaves_per_pod=2, spines_per_pod=2, cores=2), 16),
    (topology("rail_optimised", nodes_per_group=2), 8),
    *((topology("torus", dimensions=sizes), n) for sizes, n in (([4], 4), ([2, 3], 6), ([4, 1, 2], 8), ([4, 4, 4], 64))),
    (topology("dragonfly", per_router=2, routers_per_group=2, groups=3, local="1 GB/s", **{"global": "1 GB/s"}), 12),
]


@pytest.mark.parametrize(("known", "endpoints"), FULL, ids=lambda value: getattr(value, "kind", value))
def test_link_bandwidth_is_the_send_and_receive_rate_of_an_endpoint(known: Topology, endpoints: int) -> None:
    wiring = known.wire(endpoints, BANDWIDTH)
    assert len(wiring) == endpoints
    for endpoint in range(endpoints):
        if known.has_own_links:
            assert wiring.capacity_Bps(wiring.out_of(endpoint)) == wiring.capacity_Bps(wiring.into(endpoint)) == BANDWIDTH
            continue
        assert wiring.links is not None
        ways = (wiring.links.out_edges, wiring.links.in_edges)
        assert [sum(Bps for *_, Bps in edges(endpoint, data="capacity_Bps")) for edges in ways] == pytest.approx(
            [BANDWIDTH] * 2
        )


@pytest.mark.parametrize("endpoints", [1, 2, 3, 4, 8, 9])
def test_a_mesh_links_every_pair_once(endpoints: int) -> None:
    found = capacities(topology("mesh").wire(endpoints, BANDWIDTH))
    assert set(found) == set(itertools.permutations(range(endpoints), 2))
    assert set(found.values()) <= {BANDWIDTH / max(1, endpoints - 1)}


# Of DGX-1, in both generations: the quads, and each GPU's counterpart (WP-08437, figure 4).
CUBE = [*itertools.combinations(range(4), 2), *itertools.combinations(range(4, 8), 2), *((i, i + 4) for i in range(4))]
DOUBLED = [(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)]  # what nvidia-smi shows as NV2 on V100


@pytest.mark.parametrize(("links", "doubled"), [(4, []), (6, DOUBLED)])
def test_a_hybrid_cube_mesh_has_nvidias_links(links: int, doubled: list[Pair]) -> None:
    found = capacities(topology("hybrid_cube_mesh", links=links).wire(8, BANDWIDTH))
    expected = Counter(CUBE) + Counter(doubled)
    assert {pair: Bps / (BANDWIDTH / links) for pair, Bps in found.items() if pair[0] < pair[1]} == pytest.approx(expected)
    assert all(found[pair] == found[pair[::-1]] for pair in found)


@pytest.mark.parametrize(("known", "endpoints"), FULL, ids=lambda value: getattr(value, "kind", value))
def test_rings_pass_every_endpoint_once(known: Topology, endpoints: int) -> None:
    for ring in known.rings(endpoints):
        assert sorted(ring) == list(range(endpoints))


@pytest.mark.parametrize("endpoints", range(2, 18))
def test_rings_of_a_mesh_use_its_links_evenly_or_not_at_all(endpoints: int) -> None:
    rings = topology("mesh").rings(endpoints)
    uses = Counter(step for ring in rings for step in ring_edges(ring))
    assert len(set(uses.values())) == 1
    if endpoints <= 4 or endpoints == 8:
        assert len(uses) == endpoints * (endpoints - 1)
    else:  # Walecki: floor((n − 1) / 2) Hamiltonian cycles share no edge; here each in both directions
        assert set(uses.values()) == {1}
        assert len(rings) == (endpoints - 1) // 2 * 2


@pytest.mark.parametrize("links", [4, 6])
def test_rings_of_a_cube_mesh_use_each_link_once_each_way(links: int) -> None:
    known = topology("hybrid_cube_mesh", links=links)
    uses = Counter(step for ring in known.rings(8) for step in ring_edges(ring))
    found = capacities(known.wire(8, BANDWIDTH))
    assert dict(uses) == {pair: round(Bps / (BANDWIDTH / links)) for pair, Bps in found.items()}


@pytest.mark.parametrize("sizes", [[2], [4], [5], [3, 5], [4, 4], [1, 6], [3, 4, 5], [4, 2, 6], [2, 2, 2, 2]])
def test_a_ring_in_a_torus_goes_to_neighbours(sizes: list[int]) -> None:
    known, places = topology("torus", dimensions=sizes), list(itertools.product(*map(range, sizes)))
    found = capacities(known.wire(len(places), BANDWIDTH))
    for ring in known.rings(len(places)):
        assert all(step in found for step in itertools.pairwise(ring))
        if all(size % 2 == 0 or size == 1 for size in sizes) or len(sizes) == 1:
            assert (ring[-1], ring[0]) in found


@pytest.mark.parametrize("sizes", [[4], [8], [4, 4], [8, 4], [4, 4, 4]])
def test_the_bisection_of_a_torus_is_two_links_per_row(sizes: list[int]) -> None:
    places = list(itertools.product(*map(range, sizes)))
    rows = len(places) // sizes[0]
    found = capacities(topology("torus", dimensions=sizes).wire(len(places), BANDWIDTH))
    half = range(len(places) // 2)
    across = sum(Bps for (one, other), Bps in found.items() if one in half and other not in half)
    assert across == pytest.approx(2 * rows * BANDWIDTH / (2 * len(sizes)))


@pytest.mark.parametrize("oversubscription", [1.0, 2.0, 3.5])
@pytest.mark.parametrize("spines", [1, 3])
def test_bisection_bandwidth_of_a_leaf_spine_follows_its_oversubscription(oversubscription: float, spines: int) -> None:
    wiring = topology("leaf_spine", per_leaf=4, spines=spines, oversubscription=oversubscription).wire(16, BANDWIDTH)
    assert most_Bps(wiring, range(8), range(8, 16)) == pytest.approx(8 * BANDWIDTH / oversubscription)
    assert most_Bps(wiring, range(2), range(2, 4)) == pytest.approx(2 * BANDWIDTH)  # the leaf itself never limits


@pytest.mark.parametrize(("leaf", "pod"), [(1.0, 1.0), (2.0, 1.0), (1.0, 3.0), (2.0, 4.0)])
def test_a_fat_tree_is_oversubscribed_level_by_level(leaf: float, pod: float) -> None:
    known = topology(
        "fat_tree", per_leaf=2, leaves_per_pod=4, spines_per_pod=2, cores=3, oversubscription=leaf, pod_oversubscription=pod
    )
    wiring = known.wire(32, BANDWIDTH)
    assert most_Bps(wiring, range(4), range(4, 8)) == pytest.approx(4 * BANDWIDTH / leaf)
    assert most_Bps(wiring, range(16), range(16, 32)) == pytest.approx(16 * BANDWIDTH / leaf / pod)


def test_rail_traffic_uses_one_switch_in_a_group_and_a_spine_between_groups() -> None:
    nodes, cards = 4, 3
    wiring = topology("rail_optimised", nodes_per_group=2, spines=2, oversubscription=2).wire(nodes * cards, BANDWIDTH, cards)
    for one, other in itertools.permutations(range(nodes * cards), 2):
        same_group = one // cards // 2 == other // cards // 2
        same_switch = same_group and one % cards == other % cards
        assert wiring.route(one, other).extra_hops == (0 if same_switch else 2)
    first, second = range(2 * cards), range(2 * cards, 4 * cards)
    assert most_Bps(wiring, first, second) == pytest.approx(2 * cards * BANDWIDTH / 2)


def test_pcie_routes_pass_the_lowest_common_switch() -> None:
    wiring = topology("pcie_tree", per_switch=2, switches_per_socket=2, between_sockets="20 GB/s").wire(8, BANDWIDTH)
    assert [wiring.route(0, other).extra_hops for other in (1, 2, 4)] == [0, 2, 3]
    assert [wiring.unshared_Bps(wiring.route(0, other)) for other in (1, 2, 4)] == [BANDWIDTH, BANDWIDTH, 20e9]
    assert most_Bps(wiring, range(4), range(4, 8)) == 20e9


def dragonfly(routers: int, groups: int) -> Wiring:
    """One endpoint on each router."""
    known = topology(
        "dragonfly", per_router=1, routers_per_group=routers, groups=groups, local="10 GB/s", **{"global": "5 GB/s"}
    )
    return known.wire(routers * groups, BANDWIDTH)


def group_of(vertex: str) -> str:
    return vertex.split(" router ")[0]


@pytest.mark.parametrize(("routers", "groups"), [(1, 4), (2, 3), (2, 5), (4, 9), (3, 6)])
def test_a_dragonfly_has_one_link_between_two_groups_and_all_within_one(routers: int, groups: int) -> None:
    wiring = dragonfly(routers, groups)
    found = capacities(wiring)
    local = [pair for pair in found if group_of(pair[0]) == group_of(pair[1])]
    between = [pair for pair in found if pair not in local]
    assert Counter((group_of(a), group_of(b)) for a, b in between) == {
        (f"group {a}", f"group {b}"): 1 for a, b in itertools.permutations(range(groups), 2)
    }
    assert len(local) == groups * routers * (routers - 1)
    assert {found[pair] for pair in local} <= {10e9}
    assert {found[pair] for pair in between} == {5e9}
    counts = [sum(a == vertex for a, _ in between) for vertex in wiring.attached]
    assert max(counts) - min(counts) <= 1  # dealt out in turn
    assert all(wiring.route(a, b).extra_hops <= 3 for a, b in itertools.permutations(range(routers * groups), 2))


def test_messages_of_a_dragonfly_pass_one_link_between_groups() -> None:
    """Minimal routing: within the group, to the other group, within it (Kim et al. 2008, section 4.1)."""
    wiring = dragonfly(2, 3)
    for one, other in itertools.permutations(range(6), 2):
        edges = [edge for edge in wiring.route(one, other).shares if edge[0] not in ("in", "out")]
        crossed = sum(wiring.route(one, other).shares[a, b] for a, b in edges if group_of(str(a)) != group_of(str(b)))
        assert crossed == pytest.approx(float(one // 2 != other // 2))


@pytest.mark.full
def test_too_many_links_are_rejected_quickly() -> None:
    with pytest.raises(InputError, match=r"more than 500000 links between switches; give fewer"):
        topology("leaf_spine", per_leaf=1, spines=1000, routing="hashed").wire(1000, BANDWIDTH)


CLUSTER = """\
nodes: 8
node:
  devices: 4
  link: {bandwidth: 10 GB/s, latency: 5 us}
network:
  bandwidth: 10 Gbit/s
  latency: 20 us
  topology: SWITCH
device: {name: small, peak: {fp32: 1 TFLOP/s}, memory: 8 GiB, memory_bandwidth: 100 GB/s}
"""
GRAPH = "{kind: graph, links: [{between: [0, 1], bandwidth: 1 GB/s}]}"
LINE = ", ".join(f"{{between: [{i}, {i + 1}], bandwidth: 1 GB/s}}" for i in range(7))
REFUSED = [
    ("{kind: torus, dimensions: [2, 3]}", "8:3: {}network.topology: torus with 6 places for 8; make it larger"),
    ("{kind: torus, dimensions: [1]}", "a torus has between 2 and 1000000 places"),
    ("{kind: torus, dimensions: []}", "{}network.topology.dimensions: "),
    ("{kind: torus, dimensions: [4, 0]}", "{}network.topology.dimensions.1: must be greater than 0, got 0"),
    (
        "{kind: dragonfly, per_router: 1, routers_per_group: 2, groups: 3, local: 1 GB/s, global: 1 GB/s}",
        "8:3: {}network.topology: dragonfly with 6 places for 8; make it larger",
    ),
    (
        "{kind: dragonfly, per_router: 1, routers_per_group: 4, groups: 3, local: 0 GB/s, global: 1 GB/s}",
        "8:79: {}network.topology.local: the bandwidth is zero",
    ),
    ("{kind: leaf_spine}", "8:3: {}network.topology.per_leaf: missing; add it"),
    ("{kind: leaf_spine, per_leaf: 4, oversubscription: 0}", "8:45: {}network.topology.oversubscription: must be greater"),
    ("{kind: hypercube}", "8:14: {}network.topology: unknown kind 'hypercube'"),
    ("{kind: mesh, routing: hash}", "8:26: {}network.topology.routing: 'hash' is not known; give 'spread' or 'hashed'"),
    ("{kind: switch, hop_latency: -1 us}", "8:28: {}network.topology.hop_latency: '-1 us' is negative"),
    ("{kind: switch, hop_latency: 1 us}", "{}network.topology.hop_latency: all messages of a switch take the shortest route"),
    ("{kind: mesh, hop_latency: 1 us}", "{}network.topology.hop_latency: all messages of a mesh take the shortest route"),
    ("{kind: mesh, routing: hashed}", "{}network.topology.routing: a mesh has one path between two endpoints, so there is"),
    (GRAPH, "{}network.topology.links: endpoint 2 has no link; add one"),
    (f"{{kind: graph, links: [{LINE}], routes: [[0, 2]]}}", "{}network.topology.routes.0: no link joins 0 and 2; add it"),
    (f"{{kind: graph, links: [{LINE}], routes: [[0, 1, 0]]}}", "routes.0: a route leads from one endpoint, a number, to"),
    (f"{{kind: graph, links: [{LINE}], routes: [[a, 0]]}}", "routes.0: a route leads from one endpoint, a number, to"),
    (
        f"{{kind: graph, links: [{LINE}, {{between: [7, 8], bandwidth: 1 GB/s}}]}}",
        "{}network.topology.links.7: there is no endpoint 8; they are numbered 0 to 7",
    ),
    ("{kind: switch}\n  exceptions: [{at: [8], bandwidth: 1 GB/s}]", "9:17: {}network.exceptions.0.at: there is no endpoint 8"),
    (
        "{kind: torus, dimensions: [8]}\n  exceptions: [{at: [0], bandwidth: 1 GB/s}]",
        "9:3: {}network.exceptions: the endpoints of a torus have no link of their own; describe it as kind: graph",
    ),
]  # fmt: skip


def in_cluster(path: Path) -> object:
    return load_cluster(path)


def in_scenario(path: Path) -> Scenario:
    scenario = path.with_name("scenario.yaml")
    scenario.write_text("\n".join([SMALL.splitlines()[0], f"cluster: ./{path.name}", *SMALL.splitlines()[6:]]))
    return load(scenario)


@pytest.mark.parametrize(("text", "message"), REFUSED)
@pytest.mark.parametrize(("read", "prefix"), [(in_cluster, ""), (in_scenario, "cluster.")])
def test_topologies_that_do_not_match_the_nodes_are_rejected_with_their_place(
    text: str, message: str, read: Callable[[Path], object], prefix: str, tmp_path: Path
) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER.replace("SWITCH", text))
    with pytest.raises(ScenarioError) as caught:
        read(path)
    (problem,) = caught.value.problems
    assert problem.replace(f"{tmp_path}/", "").startswith("cluster.yaml:")
    assert message.replace("{}", prefix) in problem
