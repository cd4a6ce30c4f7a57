"""Times of collectives: closed forms on plain links, lower bounds, and the choice of the algorithm."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleproof.simulator.analysis.collective.time import collective_time
from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.algorithms import ALGORITHMS, names_for
from scaleproof.simulator.cluster.collectives.cost import collective_cost
from scaleproof.simulator.cluster.collectives.groups import OPS, Group, Op, bus_factor
from scaleproof.simulator.common.errors import FieldError, InputError
from tests.simulator.clusters import plain

PLAIN_PAIRS: list[tuple[str, Op]] = [
    (name, op)
    for name, algorithm in ALGORITHMS.items()
    for op in algorithm.ops
    if not name.startswith(("nvls", "collnet", "symmetric", "in_turns", "torus_axes"))
]
ALPHA_S, INSIDE_ALPHA_S = 10e-6, 1e-6
Bps, INSIDE_Bps = 10e9, 100e9


def cost_s(op: Op, size_bytes: float, cluster: Cluster, algorithm: str | None = None) -> float:
    """Seconds of a collective over all devices."""
    return collective_time(op, size_bytes, cluster.devices, cluster, algorithm)


@pytest.mark.parametrize("op", OPS)
def test_one_rank_takes_no_time(op: Op) -> None:
    assert collective_time(op, 2**30, 1, plain()) == 0
    assert collective_time(op, 2**30, [3], plain(4)) == 0


@pytest.mark.parametrize("n", [2, 4, 8])
def test_on_a_switch_time_is_latencies_plus_bytes_over_bandwidth(n: int) -> None:
    """α–β costs, with log = log2 n (Thakur et al. 2005, table 1)."""
    log, size = math.log2(n), 1e9
    expected: dict[tuple[str, Op], tuple[float, float]] = {
        ("ring", "all_reduce"): (2 * (n - 1), 2 * (n - 1) / n),
        ("ring", "all_gather"): (n - 1, (n - 1) / n),
        ("ring", "reduce_scatter"): (n - 1, (n - 1) / n),
        ("ring", "broadcast"): (n - 1, 1),  # in small pieces, one behind the other
        ("halving_doubling", "all_reduce"): (2 * log, 2 * (n - 1) / n),
        ("binomial", "broadcast"): (log, log),
        ("binomial", "reduce"): (log, log),
        ("whole_ring", "reduce_scatter"): (2 * (n - 1), 2 * (n - 1) / n),
        ("returning_ring", "reduce_scatter"): (n, 1),
        ("ring_gather", "reduce"): (n - 1 + 1, 2 * (n - 1) / n),
        ("pairwise", "alltoall"): (1, (n - 1) / n),
        ("pairwise", "sendrecv"): (1, 1),
        ("linear", "gather"): (1, (n - 1) / n),
        ("linear", "scatter"): (1, (n - 1) / n),
    }
    for cluster, alpha_s, rate_Bps in ((plain(n), ALPHA_S, Bps), (plain(1, n), INSIDE_ALPHA_S, INSIDE_Bps)):
        for (name, op), (steps, sizes) in expected.items():
            found = collective_cost(op, size, Group.of(n, cluster.node.devices), cluster, name)
            assert found.latency_s == pytest.approx(steps * alpha_s), (name, op)
            assert found.seconds == pytest.approx(steps * alpha_s + sizes * size / rate_Bps), (name, op)
            assert found.algorithm == name


def test_hierarchical_time_is_the_sum_of_both_levels() -> None:
    found = cost_s("all_reduce", 1e9, plain(4, 8, cards=8), "hierarchical")
    inside_s = 2 * (7 * INSIDE_ALPHA_S + 7 / 8 * 1e9 / INSIDE_Bps)
    assert found == pytest.approx(inside_s + 2 * (3 * ALPHA_S + 3 / 4 * 1e9 / Bps))


def test_a_single_rank_of_a_node_uses_one_card() -> None:
    together, alone = (cost_s(op, 1e9, plain(2, 2, cards=2)) for op in ("alltoall", "sendrecv"))
    assert together == pytest.approx(ALPHA_S + 2 * 2 / 4 * 1e9 / Bps, rel=1e-3)
    assert alone == pytest.approx(ALPHA_S + 1e9 / (Bps / 2), rel=1e-3)


def test_host_overhead_counts_for_each_message_sent_and_received() -> None:
    busy, idle = plain(4, network={"overhead": "5 us"}), plain(4)
    waited_s = cost_s("all_gather", 8, busy, "ring") - cost_s("all_gather", 8, idle, "ring")
    assert waited_s == pytest.approx(3 * 2 * 5e-6, rel=1e-3)  # but for the bytes, which move meanwhile


@pytest.mark.parametrize("op", ["alltoall", "gather", "scatter"])
def test_a_host_processes_concurrent_messages_sequentially(op: Op) -> None:
    busy, idle = plain(5, network={"overhead": "5 us"}), plain(5)
    assert cost_s(op, 8, busy) - cost_s(op, 8, idle) >= 4 * 5e-6 - 1e-9


@pytest.mark.parametrize("op", ["alltoall", "gather"])
def test_incast_reduces_the_bandwidth_of_receivers_of_many_messages(op: Op) -> None:
    """Four senders into one link: bandwidth / (1 + incast · 3)."""
    cluster = plain(5, network={"incast": 0.5})
    assert cost_s(op, 1e9, cluster) == pytest.approx(ALPHA_S + 4 / 5 * 1e9 * (1 + 0.5 * 3) / Bps)


def test_incast_does_not_affect_receivers_with_one_sender() -> None:
    cluster = plain(5, network={"incast": 0.5})
    assert cost_s("all_gather", 1e9, cluster) == cost_s("all_gather", 1e9, plain(5))


sizes = st.integers(0, 2**62)


@given(st.sampled_from(PLAIN_PAIRS), sizes, sizes, st.integers(1, 6), st.integers(1, 4))
@settings(max_examples=80, deadline=None)
def test_more_bytes_never_take_less_time(pair: tuple[str, Op], one: int, other: int, nodes: int, devices: int) -> None:
    name, op = pair
    cluster = plain(nodes, devices)
    less, more = (cost_s(op, size, cluster, name) for size in sorted((one, other)))
    assert 0 <= less <= more < math.inf


TOPOLOGIES: list[dict[str, object]] = [
    {"kind": "switch"},
    {"kind": "leaf_spine", "per_leaf": 2, "oversubscription": 3, "hop_latency": "1 us"},
    {"kind": "torus", "dimensions": [2, 3], "hop_latency": "1 us"},
    {"kind": "mesh"},
]


@given(st.sampled_from(PLAIN_PAIRS), st.sampled_from(TOPOLOGIES), st.integers(2, 6), st.integers(1, 4), st.floats(1.01, 100))
@settings(max_examples=80, deadline=None)
def test_more_bandwidth_never_takes_more_time(
    pair: tuple[str, Op], topology: dict[str, object], nodes: int, devices: int, factor: float
) -> None:
    name, op = pair
    if name == "in_network" and topology["kind"] in ("torus", "mesh"):
        return
    before = plain(nodes, devices, network={"topology": topology})
    assert before.network is not None
    wider = before.network.model_copy(update={"bandwidth_Bps": before.network.bandwidth_Bps * factor})
    after = before.model_copy(update={"network": wider})
    assert cost_s(op, 2**30, after, name) < cost_s(op, 2**30, before, name)
    assert cost_s(op, 0, after, name) == cost_s(op, 0, before, name) > 0


@given(st.sampled_from(PLAIN_PAIRS), st.sampled_from(TOPOLOGIES), st.integers(2, 6), st.integers(0, 2**40))
@settings(max_examples=100, deadline=None)
def test_no_algorithm_is_faster_than_one_latency_plus_bytes_over_bandwidth(
    pair: tuple[str, Op], topology: dict[str, object], nodes: int, size: int
) -> None:
    """Only switches that add beat the bus bandwidth: of theirs each rank sends its buffer once."""
    name, op = pair
    if name == "in_network" and topology["kind"] in ("torus", "mesh"):
        return
    seconds = cost_s(op, size, plain(nodes, network={"topology": topology}), name)
    least = 1.0 if name == "in_network" else bus_factor(op, nodes)
    assert seconds >= (ALPHA_S + least * size / Bps) * (1 - 1e-9)


@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter", "all_reduce", "alltoall", "sendrecv"])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_on_gpus_no_link_carries_more_than_its_bandwidth(op: Op, ranks: int) -> None:
    assert collective_time(op, 2**36, ranks, plain(1, 8, device="A100")) >= bus_factor(op, ranks) * 2**36 / INSIDE_Bps


@given(st.sampled_from(OPS), st.integers(2, 12), st.sampled_from([1, 2, 4]), st.sampled_from([8, 2**20, 2**30]))
@settings(max_examples=40, deadline=None)
def test_fastest_chooses_among_algorithms_without_special_hardware(op: Op, ranks: int, devices: int, size: int) -> None:
    cluster = plain(12, devices)
    named = []
    for name in set(names_for(op)) & {"ring", "halving_doubling", "hierarchical", "binomial", "pairwise", "linear"}:
        if name != "hierarchical" or Group.of(ranks, devices).is_even:
            named.append(collective_time(op, size, ranks, cluster, name))
    assert collective_time(op, size, ranks, cluster) == min(named)


@pytest.mark.parametrize(("op", "turns"), [("all_gather", 3 / 4), ("alltoall", 1.0)])
def test_two_ranks_take_turns_over_gloo_where_each_sends_before_it_announces_itself(op: Op, turns: float) -> None:
    """Of an all-gather the second halves of the first rank and the first ones of the second move together."""
    cluster = plain(2, collectives={"library": "gloo"})
    found = collective_cost(op, 1e9, Group.of(2, 1), cluster)
    assert found.algorithm == "in_turns"
    assert found.seconds - found.latency_s == pytest.approx(turns * 1e9 / Bps)
    with pytest.raises(InputError, match="two ranks take turns; use ring or pairwise for more"):
        collective_cost(op, 1e9, Group.of(3, 1), plain(3), "in_turns")


@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter", "all_reduce"])
def test_on_processors_gloo_copies_what_it_gathers_and_scatters(op: Op) -> None:
    """torch's process group receives into a buffer of its own, or sums a copy of its input; sums are in place."""
    library = {"library": "gloo"}
    on_gpus, on_cores = (plain(4, node=node, collectives=library) for node in ({}, {"cores": 2}))
    costs_s = [collective_cost(op, 1e6, Group.of(4, 1), cluster).seconds for cluster in (on_gpus, on_cores)]
    copies = 0 if op == "all_reduce" else 1
    assert costs_s[1] - costs_s[0] == pytest.approx(copies * on_cores.device.moved_s(2e6))


def test_gloo_reduce_scatter_takes_the_time_of_an_allreduce() -> None:
    cluster = plain(4, collectives={"library": "gloo"})
    assert cost_s("reduce_scatter", 2**20, cluster) == cost_s("all_reduce", 2**20, cluster)
    assert cost_s("all_gather", 2**20, cluster) == pytest.approx(cost_s("all_reduce", 2**20, cluster) / 2)


def test_the_default_library_follows_from_device_and_node() -> None:
    assert plain().library == "fastest"
    assert plain(node={"cores": 4}).library == "gloo"
    assert plain(device="H100").library == "nccl"
    assert plain(device="H100", collectives={"library": "gloo"}).library == "gloo"
    assert plain(collectives={"nccl": {"generation": "ampere"}}).library == "nccl"


def test_measured_collectives_replace_the_model() -> None:
    measured = {"measured": [{"ranks": 2, "latency": "1 ms", "bandwidth": "1 GB/s"}]}
    cluster = plain(2, 4, collectives=measured)
    assert collective_time("allreduce", 1e6, 2, cluster) == pytest.approx(2e-3)
    assert collective_time("allreduce", 1e6, [5, 7], cluster) == pytest.approx(2e-3)
    assert collective_time("allreduce", 1e6, 2, cluster, "ring") < 1e-4
    # one node says nothing about two
    assert collective_time("allreduce", 1e6, [0, 4], cluster) == collective_time("allreduce", 1e6, [0, 4], plain(2, 4))


def test_unmeasured_group_sizes_use_the_correction_of_the_nearest_measured_one() -> None:
    by_links, gloo = plain(4, 4), {"library": "gloo"}
    measured = {"ranks": 2, "latency": "6 us", "bandwidth": "50 GB/s"}  # two hops' latency is 2 us, a ring's rate 100 GB/s
    cluster = plain(4, 4, collectives={"measured": [measured], **gloo})
    for ranks in (3, 4):
        plain_s, corrected_s = (
            [collective_time("allreduce", size, ranks, where) for size in (0, 2**30)]
            for where in (plain(4, 4, collectives=gloo), cluster)
        )
        assert corrected_s[0] == pytest.approx(3 * plain_s[0])
        assert corrected_s[1] - corrected_s[0] == pytest.approx(2 * (plain_s[1] - plain_s[0]))
    assert collective_time("allgather", 2**20, 3, cluster) == collective_time(
        "allgather", 2**20, 3, plain(4, 4, collectives=gloo)
    )
    assert by_links.collectives.nearest("all_reduce", 3, 1) is None


def test_several_measurements_of_a_group_form_a_piecewise_curve() -> None:
    small = {"ranks": 2, "from": "1 KiB", "latency": "1 us", "bandwidth": "1 MB/s"}
    large = {"ranks": 2, "from": "64 KiB", "latency": "1 ms", "bandwidth": "1 GB/s"}
    cluster = plain(2, 4, collectives={"measured": [large, small], "library": "gloo"})
    for size, seconds in ((0, 1e-6), (2**10, 1e-6 + 2**10 / 1e6), (2**16, 1e-3 + 2**16 / 1e9), (2**30, 1e-3 + 2**30 / 1e9)):
        assert collective_time("allreduce", size, 2, cluster) == pytest.approx(seconds)
    # groups of other sizes are as far from the links as the piece of that size
    for size, piece in ((2**15, small), (2**20, large)):
        alone = plain(2, 4, collectives={"measured": [piece], "library": "gloo"})
        assert collective_time("allreduce", size, 3, cluster) == collective_time("allreduce", size, 3, alone)


def test_the_placement_of_ranks_on_nodes_affects_the_time() -> None:
    cluster = plain(4, 4)
    near, spread = (collective_time("allreduce", 2**20, ranks, cluster) for ranks in ([4, 5, 6, 7], [0, 4, 8, 12]))
    assert near == collective_time("allreduce", 2**20, 4, cluster)
    assert spread == collective_time("allreduce", 2**20, 4, plain(4))
    assert near < spread


def test_a_missing_link_is_named_in_the_error() -> None:
    with pytest.raises(FieldError, match=r"cluster\.network: several nodes"):
        collective_time("allreduce", 8, 2, plain(2, network=None))
    with pytest.raises(FieldError, match=r"cluster\.node\.link: several devices"):
        collective_time("allreduce", 8, 2, plain(1, 2, link=None))


def test_in_switch_reduction_needs_switches_that_support_it() -> None:
    with pytest.raises(InputError, match="nvls is NCCL's, which does not run on any; use another algorithm"):
        cost_s("all_reduce", 8, plain(1, 4), "nvls")
    with pytest.raises(InputError, match="needs a switch that all ranks are attached to; use another"):
        cost_s("all_reduce", 8, plain(4, network={"topology": {"kind": "torus", "dimensions": [4]}}), "in_network")
    with pytest.raises(InputError, match="the same number of ranks on each node; use ring"):
        collective_time("all_reduce", 8, 3, plain(2, 2), "hierarchical")


@pytest.mark.parametrize("nodes", [4, 64])
def test_the_fastest_algorithm_for_small_sums_may_use_switches_that_reduce(nodes: int) -> None:
    """Data go up and down once, whatever the number of nodes; other operations need no sums."""
    reducing = plain(nodes, network={"in_network_reduction": True})
    assert collective_cost("all_reduce", 8, Group.of(nodes, 1), reducing).algorithm == "in_network"
    assert cost_s("all_reduce", 0, reducing) == pytest.approx(2 * ALPHA_S)
    assert cost_s("all_gather", 2**30, reducing) == cost_s("all_gather", 2**30, plain(nodes))


def test_reduction_in_a_network_without_switches_or_inside_nodes_is_rejected() -> None:
    with pytest.raises(FieldError, match=r"network\.in_network_reduction: a torus has no switches that could reduce"):
        plain(4, network={"in_network_reduction": True, "topology": {"kind": "torus", "dimensions": [4]}})
    with pytest.raises(FieldError, match=r"node\.link\.in_network_reduction: is for networks"):
        plain(1, 4, link={"in_network_reduction": True})


def test_each_step_of_a_ring_has_the_latency_of_its_slowest_message() -> None:
    """Over nodes of two, half of a ring's messages leave a node in each step; over nodes of one, none stays inside."""
    for nodes, devices, alpha_s in ((4, 2, ALPHA_S), (8, 1, ALPHA_S), (1, 8, INSIDE_ALPHA_S)):
        assert cost_s("all_gather", 0, plain(nodes, devices), "ring") == pytest.approx(7 * alpha_s)
    slow_inside = plain(8, 1, link={"latency": "1 ms"})
    assert cost_s("all_gather", 0, slow_inside, "ring") == pytest.approx(7 * ALPHA_S)


def test_links_of_infinite_time_still_have_an_algorithm() -> None:
    link = {"bandwidth": "0.1 bit/s", "latency": "1 us"}
    device = {"name": "A100", "peak": {"fp16": "312 TFLOP/s"}, "memory": "80 GiB", "memory_bandwidth": "2 TB/s"}
    cluster = Cluster.model_validate({"name": "slow", "nodes": 2, "node": {"devices": 1}, "network": link, "device": device})

    cost = collective_cost("all_reduce", 1e308, Group.of(2, 1), cluster)

    assert cost.algorithm in ("ring", "tree")


def test_with_nccl_a_measured_group_corrects_others_in_part() -> None:
    """NCCL chooses algorithm and protocol by the group, so that half of the logarithm of the correction is carried over."""
    free, size_bytes = plain(1, 8, device="H100"), 2**28
    twice_s = 2 * collective_time("allreduce", size_bytes, 8, free)
    entry = {"ranks": 8, "latency": "0 us", "bandwidth": f"{size_bytes / twice_s} B/s"}
    measured = plain(1, 8, device="H100", collectives={"measured": [entry]})
    ratio = collective_time("allreduce", size_bytes, 4, measured) / collective_time("allreduce", size_bytes, 4, free)
    assert ratio == pytest.approx(2**0.5)


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ([], "a group needs ranks"),
        ([1, 1], "rank 1 stands more than once in the group; name each rank once"),
        ([-1, 2], "numbered from zero on"),
        (0, "a collective over 0 ranks; give at least one"),
        ([0, 4], "5 ranks for 4 devices; give at most 4, or set nodes to 5"),
    ],
)
def test_ranks_outside_the_cluster_are_rejected(ranks: int | list[int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        collective_time("allreduce", 8, ranks, plain(4))
