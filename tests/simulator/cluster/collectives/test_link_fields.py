"""Every field of a link acts on the collectives of every library, whichever algorithm it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pytest

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.algorithms import tree
from scaleproof.simulator.cluster.collectives.cost import collective_cost, timing_constants
from scaleproof.simulator.cluster.collectives.groups import OPS, Group, Op
from scaleproof.simulator.cluster.collectives.link_traffic import GroupLinks
from scaleproof.simulator.cluster.collectives.nccl.tuner import candidates

Fields = Mapping[str, Any]
SMALL: Final = 8.0
LARGE: Final = float(2**30)
LINK: Final[Fields] = {"bandwidth": "100 GB/s", "latency": "1 us"}
NETWORK: Final[Fields] = {"bandwidth": "12.5 GB/s", "latency": "5 us"}
LEAVES: Final[Fields] = {"kind": "leaf_spine", "per_leaf": 1}
# Cards as the libraries know them; "any" is a device that no library of GPUs knows.
LIBRARIES: Final[Mapping[str, Fields]] = {
    "nccl on V100": {"device": "V100-SXM2"},
    "nccl on H100": {"device": "H100-SXM"},
    "nccl on B200, symmetric": {"device": "B200-SXM", "collectives": {"nccl": {"buffers": "symmetric"}}},
    "nccl on H100, reducing switches": {"device": "H100-SXM", "network": {"in_network_reduction": True}},
    "nccl on A100, without NVSwitch": {"device": "A100-PCIe"},
    "rccl on MI300X": {"device": "MI300X"},
    "gloo": {"device": "any", "collectives": {"library": "gloo"}},
    "fastest": {"device": "any", "collectives": {"library": "fastest"}},
}
# Groups inside one node, of one rank per node, and of both.
SHAPES: Final = ((1, 8), (4, 1), (4, 4))


def cluster(library: str, nodes: int, devices: int, link: Fields | None = None, network: Fields | None = None) -> Cluster:
    """link, network: fields that differ."""
    chosen = LIBRARIES[library]
    return Cluster.model_validate(
        {
            "nodes": nodes,
            "node": {"devices": devices, "cards": devices, "link": {**LINK, **(link or {})}},
            "network": {**NETWORK, **chosen.get("network", {}), **(network or {})},
            "device": {
                "name": chosen["device"],
                "peak": {"fp32": "1 TFLOP/s"},
                "memory": "1 GiB",
                "memory_bandwidth": "1 TB/s",
            },
            "collectives": chosen.get("collectives", {}),
        }
    )


def algorithms(op: Op, base: Cluster) -> list[str | None]:
    """All that the library has for an operation on the cluster's ranks; None is its own choice."""
    group, facts = Group.of(base.devices, base.node.devices), base.nccl
    if facts is None or op in ("gather", "scatter"):
        return [None]
    return [None, *candidates(op, GroupLinks(group, base.node, base.network), facts)]


# Library, nodes, devices of a node, operation and algorithm.
Case = tuple[str, int, int, Op, str | None]
EVERY: Final[list[Case]] = [
    (library, *shape, op, algorithm)
    for library in LIBRARIES
    for shape in SHAPES
    for op in OPS
    for algorithm in algorithms(op, cluster(library, *shape))
]
# one operation of each kind of algorithm in the quick tests
QUICK_OPS: Final = ("all_reduce", "alltoall", "sendrecv")
QUICK: Final = ("nccl on H100, reducing switches", "rccl on MI300X", "fastest")
CASES: Final = [
    pytest.param(case, marks=[] if case[0] in QUICK and case[3] in QUICK_OPS else pytest.mark.full, id="-".join(map(str, case)))
    for case in EVERY
]


def seconds(case: Case, size_bytes: float, **changed: Fields) -> float:
    library, nodes, devices, op, algorithm = case
    where = cluster(library, nodes, devices, **changed)
    return collective_cost(op, size_bytes, Group.of(where.devices, devices), where, algorithm).seconds


def test_all_families_of_algorithms_are_here() -> None:
    assert {case[4] for case in EVERY} >= {
        None, "ring", "tree", "nvls", "nvls_tree", "pat", "collnet_direct", "collnet_chain", "pairwise",
        "symmetric_ll", "symmetric_direct", "symmetric_multimem",
    }  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_slower_network_delays_every_collective_between_nodes(case: Case) -> None:
    """By at least one latency, two links of a route or one host's message, as each collective sends one between nodes."""
    if case[1] == 1:
        return
    small_s, large_s = seconds(case, SMALL), seconds(case, LARGE)
    assert seconds(case, SMALL, network={"latency": "20 ms"}) > small_s + 19e-3
    leaves = seconds(case, SMALL, network={"topology": LEAVES})
    assert seconds(case, SMALL, network={"topology": LEAVES | {"hop_latency": "10 ms"}}) > leaves + 19e-3
    assert seconds(case, SMALL, network={"overhead": "1 ms"}) > small_s + 0.9e-3
    assert seconds(case, LARGE, network={"bandwidth": "1 GB/s"}) > 4 * large_s


@pytest.mark.parametrize("case", CASES)
def test_a_slower_link_delays_every_collective_inside_nodes(case: Case) -> None:
    if case[2] == 1 or (case[1] > 1 and case[3] == "sendrecv"):
        return
    small_s, large_s = seconds(case, SMALL), seconds(case, LARGE)
    assert seconds(case, SMALL, link={"latency": "20 ms"}) > small_s + 19e-3
    assert seconds(case, SMALL, link={"overhead": "10 ms"}) > small_s + 9e-3
    # three of fifteen messages of an all-to-all stay in the node
    assert seconds(case, LARGE, link={"bandwidth": "0.5 GB/s"}) > 1.5 * large_s


@pytest.mark.parametrize("case", CASES)
def test_half_duplex_delays_ranks_that_send_and_receive(case: Case) -> None:
    library, nodes, devices, op, _ = case
    where: dict[str, Fields] = {"network": {"duplex": "half"}} if nodes > 1 else {"link": {"duplex": "half"}}
    full_s, half_s = seconds(case, LARGE), seconds(case, LARGE, **where)
    assert half_s >= full_s * (1 - 1e-12)
    # gloo's one ring enters and leaves a node by different cards, and a reduce-scatter by NVSwitch receives an eighth
    if op in ("all_reduce", "all_gather", "reduce_scatter", "alltoall") and not (
        library == "gloo" and (nodes, devices) == (4, 4)
    ):
        assert half_s > 1.1 * full_s


@pytest.mark.parametrize("library", LIBRARIES)
def test_incast_delays_receivers_with_several_senders_alone(library: str) -> None:
    """Concurrent messages to one rank, and an inner vertex of a tree; a ring's receiver has one sender."""
    for nodes, devices in SHAPES:
        where: dict[str, Fields] = {"network": {"incast": 0.5}} if nodes > 1 else {"link": {"incast": 0.5}}
        for op in ("alltoall", "gather"):
            assert seconds((library, nodes, devices, op, None), LARGE, **where) > 1.5 * seconds(
                (library, nodes, devices, op, None), LARGE
            )
        ring = (library, nodes, 1, "all_reduce", "ring") if nodes > 1 else (library, 1, devices, "all_reduce", "ring")
        if "symmetric" not in library or nodes > 1:
            assert seconds(ring, LARGE, **where) == seconds(ring, LARGE)


@pytest.mark.parametrize("library", [name for name in LIBRARIES if "ccl" in name])
def test_incast_delays_trees_between_nodes(library: str) -> None:
    case: Case = library, 8, 1, "all_reduce", "tree"
    assert any(
        step.target.tolist().count(end) > 1 for step in tree("all_reduce", Group.of(8, 1)) for end in step.target.tolist()
    )
    assert seconds(case, LARGE, network={"incast": 1}) > 1.2 * seconds(case, LARGE)


@pytest.mark.parametrize("nodes", [2, 3, 8])
def test_each_step_of_a_ring_has_the_latency_beyond_that_of_a_message_of_the_library(nodes: int) -> None:
    """All-gather over n nodes of one rank: n − 1 steps."""
    case: Case = "nccl on H100", nodes, 1, "all_gather", "ring"
    base = cluster("nccl on H100", nodes, 1)
    facts = base.nccl
    assert facts is not None
    message_s = timing_constants(base, facts, ()).known_latencies_s[1]
    excess_s = seconds(case, SMALL, network={"latency": "1 ms"}) - seconds(case, SMALL)
    assert excess_s == pytest.approx((nodes - 1) * (1e-3 - message_s))


def test_data_pass_two_distant_leaves_twice_and_not_in_every_step() -> None:
    """Two data centres of four nodes: a ring crosses to the other and back, so a lap of seven steps crosses at most twice."""
    leaves = {"kind": "leaf_spine", "per_leaf": 4}
    case: Case = "nccl on H100", 8, 1, "all_gather", "ring"
    near_s = seconds(case, SMALL, network={"topology": leaves})
    far_s = seconds(case, SMALL, network={"topology": leaves | {"hop_latency": "5 ms"}})
    assert 7 / 8 * 2 * 10e-3 * 0.99 <= far_s - near_s <= 2 * 10e-3


@pytest.mark.parametrize("library", [name for name in LIBRARIES if "ccl" in name])
def test_a_latency_within_the_constants_changes_nothing(library: str) -> None:
    """Constants measured in machine rooms contain the latency of such links."""
    for op in OPS[:7]:
        case: Case = library, 4, 4, op, None
        assert seconds(case, SMALL, network={"latency": "1 us"}) == seconds(case, SMALL, network={"latency": "8 us"})
        assert seconds(case, SMALL, link={"latency": "1 us"}) == seconds(case, SMALL, link={"latency": "5 us"})
