"""Timing of NCCL's collectives: launch, steps, chunks, and messages one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleproof.simulator.analysis.collective.messages import message_time
from scaleproof.simulator.analysis.collective.time import collective_time
from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.algorithms import ALGORITHMS
from scaleproof.simulator.cluster.collectives.cost import collective_cost, timing_constants
from scaleproof.simulator.cluster.collectives.groups import OPS, Group, Op
from scaleproof.simulator.cluster.collectives.link_traffic import GroupLinks
from scaleproof.simulator.cluster.collectives.nccl.constants import TimingConstants, priors, replaced
from scaleproof.simulator.cluster.collectives.nccl.timing import Timing, choices, point_to_point
from scaleproof.simulator.cluster.collectives.settings import Adjust
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.scenario.read import load_cluster, load_device
from tests.simulator.cluster.collectives.nccl.cases import HOPPER, links, seconds
from tests.simulator.clusters import plain


def adjusted(known: Cluster, **factors: float) -> Cluster:
    collectives = known.collectives.model_copy(update={"adjust": Adjust(**factors)})
    return known.model_copy(update={"collectives": collectives})


def constants(known: Cluster) -> TimingConstants:
    facts = known.nccl_facts
    assert facts is not None
    return timing_constants(known, facts, ())


def test_small_sums_of_eight_mi300x_go_to_all_others_at_once() -> None:
    """RCCL has an algorithm of two steps below 1 MiB where eight devices are all joined, in place of a ring's 14."""
    node = {"devices": 8, "link": {"bandwidth": "448 GB/s", "latency": 0, "topology": {"kind": "mesh"}}}
    eight = Cluster.model_validate({"node": node, "device": load_device("mi300x-192gb-oam")})
    found = constants(eight)
    small, large = (collective_cost("all_reduce", size_bytes, Group.of(8, 8), eight) for size_bytes in (1024, 2**20))
    assert (small.algorithm, large.algorithm) == ("all_pairs", "ring")
    assert small.latency_s == pytest.approx(found.launch_s + 2 * found.inside_step_s[0])
    assert collective_cost("all_reduce", 1024, Group.of(4, 8), eight).algorithm != "all_pairs"


def test_ll_over_pcie_reaches_what_its_few_channels_do() -> None:
    """The tuner expects LL's rate of NVLink's 24 channels of any node; over PCIe 4 there are two."""
    link = {"base": "pcie-4-x16", "peer_to_peer": True}
    node = Cluster.model_validate({"node": {"devices": 8, "link": link}, "device": load_device("l40s")})
    sizes = 2.0**17, 2.0**18
    first_s, second_s = (collective_cost("all_reduce", size_bytes, Group.of(8, 8), node).seconds for size_bytes in sizes)
    assert second_s - first_s > (sizes[1] - sizes[0]) * 2 * 7 / 8 / (87.7e9 * 2 / 24)


def test_the_smallest_sizes_take_the_launch_and_the_steps_of_ll() -> None:
    """An all-reduce around a ring of eight has 14 steps, an all-gather 7."""
    node, known = links(8), constants(load_cluster("dgx-h100"))
    for op, steps in (("all_reduce", 14), ("all_gather", 7)):
        assert seconds(op, node, 0, algorithm="ring") == pytest.approx(known.launch_s + steps * known.inside_step_s[0])


def test_a_ring_of_two_moves_as_much_local_data_as_remote() -> None:
    """Each rank sends n − 1 of n parts of an all-gather and copies its own, which costs fewer ranks more."""
    inside_Bps = 450e9
    shares = [(n - 1) / n * 2**36 / seconds("all_gather", links(n), 2**36) / inside_Bps for n in (2, 4, 8)]
    assert shares == sorted(shares)
    known = constants(load_cluster("dgx-h100"))
    assert shares[2] / shares[0] == pytest.approx((1 + known.local_step) / (1 + known.local_step / 7), rel=0.02)


def test_chunks_extend_a_transfer_by_twice_the_root_of_its_time() -> None:
    """p (a + T / p) in p chunks, and T / p more until the first has arrived, with the best p = √(T / a)."""
    timing = Timing(0.0, 1e-9, 4e-6, 0.0)
    transfer_s = 2**20 * 1e-9
    pieces = np.arange(1, 2000)
    best_s = (pieces * (4e-6 + transfer_s / pieces) + transfer_s / pieces).min()
    assert timing.seconds(2**20) == pytest.approx(best_s, rel=1e-3)


@pytest.mark.parametrize(
    ("op", "algorithm", "nodes", "devices"),
    [
        ("all_reduce", "ring", 1, 8), ("all_gather", "ring", 2, 4), ("reduce_scatter", "ring", 4, 2),
        ("all_reduce", "tree", 4, 1), ("all_reduce", "tree", 2, 2), ("broadcast", "ring", 4, 1),
        ("all_reduce", "collnet_direct", 4, 4), ("all_gather", "collnet_direct", 4, 2), ("all_reduce", "collnet_chain", 4, 2),
        ("all_reduce", "nvls", 4, 4), ("reduce_scatter", "nvls", 2, 4), ("all_gather", "symmetric_ll", 1, 8),
        ("all_reduce", "symmetric_direct", 1, 8), ("all_gather", "symmetric_multimem", 1, 8),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size_bytes", [2**20, 2**24, 2**28])
def test_a_collective_in_chunks_agrees_with_its_messages_one_by_one(
    op: Op, algorithm: str, nodes: int, devices: int, size_bytes: int
) -> None:
    """Each piece of the data passes through all rounds, one behind the other; messages are simulated on their routes."""
    link, network = {"latency": "5 us"}, {"bandwidth": "25 GB/s", "latency": "5 us"}
    known = plain(nodes, devices, link=link, network=network, collectives={"library": "fastest"})
    group = Group.of(nodes * devices, devices)
    rounds = GroupLinks(group, known.node, known.network).traffic_by_round(algorithm, op)
    latency_s = GroupLinks(group, known.node, known.network).rounds_latency_s(rounds)
    # a switch that reduces is half of the way from a rank to another
    to_switches = [(np.minimum(step.source, step.target) < 0).all() for step in ALGORITHMS[algorithm].rounds(op, group)]
    latency_s -= sum(to_switches) * 5e-6 / 2
    each_s = [size_bytes * max(part.inside_s, part.between_s) for part in rounds]
    if op in ALGORITHMS[algorithm].pipelined:
        # the first piece passes all rounds, and the busiest link carries the others behind it
        whole = GroupLinks(group, known.node, known.network).traffic(algorithm, op, rotate=False)
        busiest_s = size_bytes * max(whole.inside_s, whole.between_s)
        step_s = latency_s / len(rounds)
        pieces = max(1, min(64, round(math.sqrt(busiest_s / step_s))))
        chunked_s = latency_s + sum(each_s) / pieces + (pieces - 1) * (step_s + busiest_s / pieces)
    else:
        pieces, chunked_s = 1, latency_s + sum(each_s)
    assert message_time(op, size_bytes, group, known, algorithm, pieces) == pytest.approx(chunked_s, rel=0.10)


def test_factors_of_a_cluster_apply_to_the_shipped_constants() -> None:
    known = load_cluster("dgx-h100")
    plain, slower = constants(known), constants(adjusted(known, launch=2.0, latency_between=3.0, rate_between=0.5))
    assert slower.launch_s == pytest.approx(2 * plain.launch_s)
    assert slower.between_step_s == pytest.approx([3 * step for step in plain.between_step_s])
    assert slower.inside_step_s == plain.inside_step_s
    assert slower.between_share == pytest.approx(plain.between_share / 2)
    times_s = [collective_time("allgather", 2**33, 16, adjusted(known, rate_between=rate)) for rate in (0.25, 0.5)]
    assert times_s[0] == pytest.approx(2 * times_s[1], rel=0.05)


def test_the_transport_is_the_networks_own_or_follows_from_its_cards() -> None:
    assert load_cluster("aws-p4d").transport == "efa-1"
    assert load_cluster("gcp-a3-mega").transport == "tcpxo"
    p5 = load_cluster("aws-p5")
    assert p5.network is not None
    unknown = p5.model_copy(update={"network": p5.network.model_copy(update={"transport": None})})
    assert unknown.transport == "infiniband"
    slow = p5.network.model_copy(update={"transport": None, "bandwidth_Bps": 10e9})
    assert p5.model_copy(update={"network": slow}).transport == "sockets"


def test_an_unknown_transport_is_rejected_with_the_known_ones() -> None:
    network = {"bandwidth": "400 Gbit/s", "latency": "5 us", "transport": "avian"}
    with pytest.raises(FieldError, match=r"network\.transport: no transport is called 'avian'; give one of infiniband, roce"):
        load_cluster("dgx-h100").rebuilt(network=network)


def test_one_rank_of_another_node_gets_the_rate_of_two_channels() -> None:
    known = constants(load_cluster("dgx-h100"))
    message = point_to_point(HOPPER, known, crosses=True, size_bytes=2**20)
    assert message.most_Bps == known.peer_Bps
    assert message.latency_s == pytest.approx(known.launch_s + known.between_step_s[2] + known.post_s + known.peer_s)
    pair = GroupLinks(Group.of([0, 8], 8), links(16).node.model_copy(update={"cards": 1}), links(16).network)
    assert 2**38 / seconds("sendrecv", pair, 2**38) == pytest.approx(known.peer_Bps, rel=0.02)


def test_an_alltoall_over_many_nodes_fills_the_cards() -> None:
    """Of each rank's buffer (nodes − 1) / nodes goes over its card, 1 / nodes to each other node over one connection."""
    known = constants(load_cluster("dgx-h100"))
    for nodes, each_Bps in ((2, known.peer_Bps), (8, 0.96 * known.between_share * 50e9)):
        crossing = 2**38 * (nodes - 1) / nodes
        assert crossing / seconds("alltoall", links(8 * nodes), 2**38) == pytest.approx(each_Bps, rel=0.02)


@given(st.sampled_from(OPS), st.integers(0, 2**61), st.sampled_from([2, 5, 8, 16, 24, 512]))
@settings(max_examples=100, deadline=None)
def test_a_larger_size_takes_longer_with_the_same_choice(op: Op, size: int, ranks: int) -> None:
    """Where NCCL's tuner changes its choice, the time may fall: it ranks by estimates."""
    for name in ("dgx-h100", "aws-p4de", "jean-zay-v100"):
        known = load_cluster(name)
        if ranks <= known.devices and op not in ("gather", "scatter"):
            group, facts = Group.of(ranks, known.node.devices), known.nccl_facts
            assert facts is not None
            usable = choices(op, GroupLinks(group, known.node, known.network), facts, constants(known))
            for choice in usable:
                duration = choice.at(math.inf)
                assert 0 < duration.seconds(size) <= duration.seconds(2 * size + 1) < math.inf
            below, above = (collective_time(op, value, ranks, known) for value in (size, 2 * size + 1))
            assert above > 0.6 * below


def test_other_constants_apply_to_a_cluster_whose_collectives_were_timed_before() -> None:
    known, group = load_cluster("selene-a100"), Group.of(8, 8)
    before_s = collective_cost("all_reduce", 8, group, known).seconds
    with replaced(priors()):
        assert collective_cost("all_reduce", 8, group, known).seconds != pytest.approx(before_s)
    assert collective_cost("all_reduce", 8, group, known).seconds == before_s
