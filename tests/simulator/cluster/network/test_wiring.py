"""Routes of messages through any graph are conserved, shortest, evenly spread and deterministic."""

from __future__ import annotations

import itertools
import json
import random
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleproof.simulator.cluster.network.links import Link
from scaleproof.simulator.cluster.network.wiring import Wiring
from tests.validator.verdicts import in_bulk

Edge = tuple[Any, Any]


def wiring(
    endpoints: int, kind: str = "switch", cards: int = 1, link: dict[str, object] | None = None, **fields: object
) -> Wiring:
    """The wiring of a link of 8 GB/s."""
    plain: dict[str, object] = {"bandwidth": "8 GB/s", "latency": "1 us", "topology": {"kind": kind, **fields}}
    return Link.model_validate(plain | (link or {})).wiring(endpoints, cards)


def plain_links(pairs: list[Edge]) -> list[dict[str, object]]:
    return [{"between": list(pair), "bandwidth": "1 GB/s"} for pair in pairs]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, list[Edge]]:
    """Number of endpoints, and links of a connected graph of these and some switches."""
    endpoints, switches = draw(st.integers(2, 6)), draw(st.integers(0, 5))
    vertices: list[Any] = draw(st.permutations([*range(endpoints), *(f"s{i}" for i in range(switches))]))
    tree = [(vertices[draw(st.integers(0, i - 1))], vertices[i]) for i in range(1, len(vertices))]
    possible = [pair for pair in itertools.combinations(vertices, 2) if pair not in tree]
    further = draw(st.lists(st.sampled_from(possible), unique=True)) if possible else []
    return endpoints, tree + further


def even_shares(graph: nx.Graph, source: int, target: int) -> dict[Edge, float]:
    """Shares of a message that each vertex divides evenly among all vertices that are nearer to the target."""
    distance = nx.single_source_shortest_path_length(graph, target)
    arrived, shares = Counter({source: 1.0}), {}
    for vertex in sorted(graph, key=lambda vertex: -distance[vertex]):
        nearer = [after for after in graph[vertex] if distance[after] < distance[vertex]]
        for after in nearer if arrived[vertex] else ():
            shares[vertex, after] = arrived[vertex] / len(nearer)
            arrived[after] += arrived[vertex] / len(nearer)
    return shares


@given(graphs())
@settings(max_examples=100, deadline=None)
def test_messages_are_spread_evenly_over_all_shortest_paths(case: tuple[int, list[Edge]]) -> None:
    endpoints, pairs = case
    graph, net = nx.Graph(pairs), wiring(endpoints, "graph", links=plain_links(pairs))
    for source, target in itertools.permutations(range(endpoints), 2):
        route = net.route(source, target)
        assert route.shares == pytest.approx(even_shares(graph, source, target))
        nearest = 1 if any(isinstance(a, int) and isinstance(b, int) for a, b in pairs) else 2
        assert route.extra_hops == nx.shortest_path_length(graph, source, target) - nearest
        balance: Counter[Any] = Counter()
        for (one, other), share in route.shares.items():
            balance[one] -= share
            balance[other] += share
        assert (balance.pop(source), balance.pop(target)) == pytest.approx((-1, 1))
        assert list(balance.values()) == pytest.approx([0] * len(balance))


@given(graphs())
@settings(max_examples=50, deadline=None)
def test_a_hashed_message_takes_one_of_the_shortest_paths(case: tuple[int, list[Edge]]) -> None:
    endpoints, pairs = case
    graph, net = nx.Graph(pairs), wiring(endpoints, "graph", links=plain_links(pairs), routing="hashed")
    for source, target in itertools.permutations(range(endpoints), 2):
        shares = net.route(source, target).shares
        assert set(shares.values()) == {1.0}
        paths = [set(itertools.pairwise(path)) for path in nx.all_shortest_paths(graph, source, target)]
        assert set(shares) in paths


@given(graphs(), st.sampled_from(["spread", "hashed"]), st.sampled_from(["full", "half"]), st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_link_loads_are_sums_over_messages(
    case: tuple[int, list[Edge]], routing: str, duplex: str, chance: random.Random
) -> None:
    endpoints, pairs = case
    net = wiring(endpoints, "graph", link={"duplex": duplex}, links=plain_links(pairs), routing=routing)
    between = list(itertools.permutations(range(endpoints), 2))
    messages = [(*chance.choice(between), float(chance.randint(0, 9))) for _ in range(12)]
    expected: Counter[Edge] = Counter()
    for source, target, size in messages:
        for channel, share in net.route(source, target).shares.items():
            expected[channel] += share * size
    assert net.link_loads(messages) == pytest.approx(expected)


def of_automorphism(name: str) -> tuple[Wiring, Callable[[int], int], Callable[[Any], Any]]:
    """A symmetric topology, a renumbering of its endpoints that leaves it the same, and what that does to vertices."""
    if name == "torus":  # moved by a place along each dimension
        return wiring(16, "torus", dimensions=[4, 4]), *(2 * [lambda v: (v // 4 + 1) % 4 * 4 + (v % 4 + 1) % 4])
    if name == "mesh":
        return wiring(6, "mesh"), *(2 * [lambda v: (v + 1) % 6])
    if name == "cube_mesh":  # the quads change places
        return wiring(8, "hybrid_cube_mesh"), *(2 * [lambda v: (v + 4) % 8])
    if name == "v100_mesh":  # two turns of the doubled ring 0 3 2 1 5 6 7 4, and back: counterparts change places
        swap = {0: 5, 5: 0, 1: 4, 4: 1, 2: 7, 7: 2, 3: 6, 6: 3}
        return wiring(8, "hybrid_cube_mesh", links=6), swap.__getitem__, swap.__getitem__
    leaves = wiring(12, "leaf_spine", per_leaf=4, spines=2, oversubscription=2)
    turned = {f"leaf {i}": f"leaf {(i + 1) % 3}" for i in range(3)}
    return leaves, lambda v: (v + 4) % 12, lambda v: turned.get(v, v)


@pytest.mark.parametrize("name", ["torus", "mesh", "cube_mesh", "v100_mesh", "leaf_spine"])
@given(chance=st.randoms(use_true_random=False))
@settings(max_examples=15, deadline=None)
def test_renumbering_by_a_symmetry_permutes_the_loads(name: str, chance: random.Random) -> None:
    net, endpoint, vertex = of_automorphism(name)
    messages = [(*chance.sample(range(len(net)), 2), float(chance.randint(1, 9))) for _ in range(10)]
    moved = net.link_loads([(endpoint(source), endpoint(target), size) for source, target, size in messages])
    expected = {(vertex(one), vertex(other)): load for (one, other), load in net.link_loads(messages).items()}
    assert moved == pytest.approx(expected)


HASHED = """
import json, sys
from scaleproof.simulator.cluster.network.links import Link
topology = {"kind": "fat_tree", "per_leaf": 2, "leaves_per_pod": 2, "spines_per_pod": 3, "cores": 3, "routing": "ROUTING",
            "oversubscription": 2}
net = Link.model_validate({"bandwidth": "1 GB/s", "latency": "1 us", "topology": topology}).wiring(12)
print(json.dumps([sorted(map(repr, net.route(0, target).shares.items())) for target in range(1, 12)]))
"""


@pytest.mark.parametrize("routing", ["hashed", *in_bulk("spread")])
def test_routes_are_the_same_in_every_process(routing: str) -> None:
    code = HASHED.replace("ROUTING", routing)
    found = [
        subprocess.run([sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True).stdout
        for seed in ("1", "2")
    ]
    assert json.loads(found[0])
    assert found[0] == found[1]


@pytest.mark.parametrize("spines", [2, 4, 8])
def test_hash_collisions_are_as_frequent_as_random(spines: int) -> None:
    """As many flows as uplinks leave a leaf, each to the like endpoint of another leaf: balls into bins."""
    leaves = 48
    net = wiring(leaves * spines, "leaf_spine", per_leaf=spines, spines=spines, routing="hashed")
    busiest = []
    for leaf, shift in itertools.product(range(leaves), (1, 3, 7, 12)):
        senders = range(leaf * spines, (leaf + 1) * spines)
        paths = [net.route(sender, (sender + shift * spines) % len(net)).shares for sender in senders]
        busiest.append(max(Counter(edge for path in paths for edge in path if edge[0] == f"leaf {leaf}").values()))
    chance = random.Random(0)
    balls = [max(Counter(chance.randrange(spines) for _ in range(spines)).values()) for _ in range(4000)]
    error = statistics.stdev(balls) / len(busiest) ** 0.5
    assert statistics.mean(busiest) == pytest.approx(statistics.mean(balls), abs=5 * error)


def test_endpoint_links_carry_all_sent_and_received_bytes() -> None:
    net = wiring(8, "leaf_spine", per_leaf=2, spines=2, oversubscription=2)
    near, far = net.route(0, 1), net.route(0, 7)
    assert near.shares == {("out", 0): 1, ("in", 1): 1}
    assert near.extra_hops == 0
    # spread evenly over both spines, messages use them as one
    assert far.shares == {("out", 0): 1, ("in", 7): 1, ("leaf 0", "spine 0"): 1, ("spine 0", "leaf 3"): 1}
    assert net.capacity_Bps(("leaf 0", "spine 0")) == pytest.approx(net.capacity_Bps(("out", 0)))
    assert far.extra_hops == 2


def test_the_rate_of_a_single_message_is_the_sum_over_its_paths() -> None:
    # a leaf of two endpoints of 8 GB/s has uplinks of 16 / 4 = 4 GB/s, on two spines of 2 GB/s
    net = {routing: wiring(4, "leaf_spine", per_leaf=2, spines=2, oversubscription=4, routing=routing) for routing in ROUTINGS}
    assert {routing: known.unshared_Bps(known.route(0, 2)) for routing, known in net.items()} == {"spread": 4e9, "hashed": 2e9}
    assert {known.unshared_Bps(known.route(0, 1)) for known in net.values()} == {8e9}


ROUTINGS = ("spread", "hashed")


@pytest.mark.parametrize(
    ("endpoints", "kind", "fields"),
    [
        (4, "switch", {}),
        (4, "mesh", {}),
        (4, "leaf_spine", {"per_leaf": 1, "spines": 2, "oversubscription": 2}),
        (4, "torus", {"dimensions": [4]}),
    ],
)
def test_in_half_duplex_both_directions_are_one_channel(endpoints: int, kind: str, fields: dict[str, object]) -> None:
    full = wiring(endpoints, kind, **fields)
    half = wiring(endpoints, kind, link={"duplex": "half"}, **fields)
    for one, other in itertools.combinations(range(endpoints), 2):
        there, back = half.route(one, other), half.route(other, one)
        assert there == back
        assert half.unshared_Bps(there) == full.unshared_Bps(full.route(one, other))
        assert not set(full.route(one, other).shares) & set(full.route(other, one).shares)
        if half.links is not None:
            single, both = half.link_loads([(one, other, 1.0)]), half.link_loads([(one, other, 1.0), (other, one, 1.0)])
            assert both == pytest.approx({channel: 2 * load for channel, load in single.items()})


def test_a_link_exception_affects_only_its_endpoints() -> None:
    net = wiring(4, link={"exceptions": [{"at": [1, 3], "bandwidth": "2 GB/s"}]})
    assert [net.capacity_Bps(net.out_of(i)) for i in range(4)] == [8e9, 2e9, 8e9, 2e9]
    assert [net.unshared_Bps(net.route(0, i)) for i in (1, 2, 3)] == [2e9, 8e9, 2e9]


SQUARE = plain_links([(0, 1), (1, 2), (2, 3), (3, 0)])


def test_a_fixed_route_applies_to_both_directions_of_its_pair_only() -> None:
    net, plain = wiring(4, "graph", links=SQUARE, routes=[[0, 3, 2, 1]]), wiring(4, "graph", links=SQUARE)
    assert net.route(0, 1).shares == {(0, 3): 1, (3, 2): 1, (2, 1): 1}
    assert net.route(1, 0).shares == {(1, 2): 1, (2, 3): 1, (3, 0): 1}
    assert net.route(0, 1).extra_hops == net.route(1, 0).extra_hops == 2
    others = [pair for pair in itertools.permutations(range(4), 2) if set(pair) != {0, 1}]
    assert [net.route(*pair) for pair in others] == [plain.route(*pair) for pair in others]
    assert net.link_loads([(0, 1, 5.0), (0, 1, 1.0)]) == {(0, 3): 6, (3, 2): 6, (2, 1): 6}
