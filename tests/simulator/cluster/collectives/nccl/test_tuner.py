"""NCCL's tuner: published latencies and limits, and the choice of algorithms."""

from __future__ import annotations

import pytest

from scaleproof.simulator.analysis.collective.time import collective_time
from scaleproof.simulator.cluster import Cluster, Link, Node
from scaleproof.simulator.cluster.collectives.groups import Group, Op
from scaleproof.simulator.cluster.collectives.link_traffic import GroupLinks
from scaleproof.simulator.cluster.collectives.nccl.tuner import Case, candidates
from scaleproof.simulator.cluster.collectives.settings import PROTOCOLS, Nccl, facts_of
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.scenario.read import load_cluster

HOPPER, AMPERE = Nccl(generation="hopper"), Nccl(generation="ampere")
NODE, TWO = Group.of(8, 8), Group.of(16, 8)


def links_of(group: Group, inside: str, between: str) -> GroupLinks:
    """Links of nodes of eight devices with one card each."""
    link, network = (Link.model_validate({"bandwidth": bandwidth, "latency": "1 us"}) for bandwidth in (inside, between))
    return GroupLinks(group, Node(devices=8, cards=8, link=link), network)


H100, TWO_H100, A100, TWO_A100 = (
    links_of(group, inside, between)
    for group, inside, between in (
        (NODE, "450 GB/s", "400 GB/s"),
        (TWO, "450 GB/s", "400 GB/s"),
        (NODE, "300 GB/s", "200 GB/s"),
        (TWO, "300 GB/s", "200 GB/s"),
    )
)


def seconds(size_bytes: float, links: GroupLinks, facts: Nccl, algorithm: str, op: Op = "all_reduce") -> float:
    """Seconds that the tuner expects of an algorithm with its best protocol."""
    case = Case(op, links, facts, algorithm)
    return min(case.curve(protocol).seconds(size_bytes) for protocol in case.protocols)


def cluster(name: str) -> Cluster:
    return load_cluster(name)


@pytest.mark.parametrize(
    ("device", "generation", "interconnect"),
    [
        ("H100-80GB HBM3", "hopper", "nvlink"),
        ("NVIDIA GB200", "blackwell", "nvlink"),
        ("B200 (HGX)", "blackwell", "nvlink"),
        ("A100-PCIe-40GB", "ampere", "pcie"),
        ("P100-16GB-SXM2", "volta", "nvlink"),
        ("K80", "volta", "pcie"),
    ],
)
def test_generation_and_interconnect_are_inferred_from_the_device_name(device: str, generation: str, interconnect: str) -> None:
    facts = facts_of(device)
    assert facts is not None
    assert (facts.generation, facts.interconnect) == (generation, interconnect)


def test_devices_without_nccl_have_no_nccl_facts() -> None:
    assert facts_of("CPU core") is None
    assert facts_of("MI100") is None


@pytest.mark.parametrize(
    ("device", "interconnect"), [("MI250X-64GB-GCD", "nvlink"), ("AMD Instinct MI355X", "nvlink"), ("MI210", "pcie")]
)
def test_an_amd_gpu_has_nccls_algorithms(device: str, interconnect: str) -> None:
    facts = facts_of(device)
    assert facts is not None
    assert (facts.generation, facts.interconnect) == ("cdna", interconnect)
    assert candidates("all_reduce", TWO_A100, facts) == ["ring", "tree"]
    assert candidates("reduce_scatter", TWO_A100, facts) == ["ring"]


def test_rccl_has_latencies_and_links_of_its_own() -> None:
    """LL: base 12 us and 14 steps of 0.8 us in a ring of eight. Infinity Fabric carries 48 of its 64 GB/s."""
    facts = Nccl(generation="cdna")
    assert seconds(8, A100, facts, "ring") == pytest.approx(23.2e-6, rel=1e-3)
    assert 2**36 * 2 * 7 / 8 / seconds(2**36, A100, facts, "ring") == pytest.approx(300e9 * 48 / 64, rel=1e-2)


def test_all_cards_of_amd_nodes_carry_a_gather() -> None:
    """Whose cards, eight of 400 Gbit/s, are those of the H100 nodes."""
    names = "azure-nd-mi300x-v5", "azure-nd-h100-v5"
    mi300x_s, h100_s = (collective_time("all_gather", 2**30, 64, cluster(name)) for name in names)
    assert mi300x_s < 1.5 * h100_s


def test_the_smallest_sizes_cost_the_published_latency() -> None:
    # LL: base 6.6 us and 14 steps of 0.6 us in a ring of eight; a tree to a second node: 6.8, 2·7 steps of 0.6, 2 of 5.0
    assert seconds(8, A100, AMPERE, "ring") == pytest.approx(15.0e-6, rel=1e-3)
    assert seconds(8, TWO_A100, AMPERE, "tree") == pytest.approx(25.2e-6, rel=1e-3)


def test_plugin_latency_counts_for_each_step_between_nodes() -> None:
    slow = AMPERE.model_copy(update={"network_latency_s": 75e-6})
    more_s = seconds(8, TWO_A100, slow, "tree") - seconds(8, TWO_A100, AMPERE, "tree")
    assert more_s == pytest.approx(2 * 75e-6)


def test_large_rings_reach_the_link_bandwidth() -> None:
    assert 2**36 * 2 * 7 / 8 / seconds(2**36, A100, AMPERE, "ring") == pytest.approx(
        12 * 20e9, rel=1e-2
    )  # twelve NVLinks of 20 GB/s


def test_nvls_beats_the_ring_at_large_sizes_only() -> None:
    for size, faster in ((2**10, "ring"), (2**33, "nvls")):
        times = {name: seconds(size, H100, HOPPER, name) for name in ("ring", "nvls")}
        assert min(times, key=lambda name: times[name]) == faster


def test_candidates_follow_the_generation_and_the_collective() -> None:
    assert candidates("all_reduce", H100, AMPERE) == ["ring", "tree"]
    assert candidates("all_reduce", H100, HOPPER) == ["ring", "tree", "nvls"]
    assert candidates("all_reduce", TWO_H100, HOPPER) == ["ring", "tree", "nvls_tree"]
    assert candidates("all_gather", TWO_H100, HOPPER) == ["ring"]
    assert candidates("alltoall", TWO_H100, HOPPER) == ["pairwise"]
    assert candidates("all_reduce", H100, HOPPER.model_copy(update={"nvls": False})) == ["ring", "tree"]
    assert candidates("all_reduce", H100, Nccl(generation="hopper", interconnect="pcie")) == ["ring", "tree"]


def test_unavailable_algorithms_are_rejected_and_non_nccl_ones_cost_their_links() -> None:
    with pytest.raises(InputError, match="nvls does not work on 16 ranks here; use one of ring, tree, nvls_tree; it needs"):
        collective_time("allreduce", 8, 16, cluster("dgx-h100"), "nvls")
    assert collective_time("allreduce", 2**30, 16, cluster("dgx-h100"), "hierarchical") > 0


def test_ring_protocol_overheads_are_the_expected_ones() -> None:
    """Where nothing else limits them: half of LL's bytes are flags, and NCCL assumes 92 % for LL128 (tuning.cc)."""
    case = Case("all_reduce", links_of(NODE, "5 GB/s", "400 GB/s"), HOPPER, "ring")
    low_latency, low_latency_128, simple = map(case.curve, PROTOCOLS)
    assert low_latency.rate_Bps == pytest.approx(simple.rate_Bps / 2)
    assert low_latency_128.rate_Bps == pytest.approx(0.92 * simple.rate_Bps)
